//! Serves the API at two listeners: the Unix socket for local users, and the control port for users and nodes. `auth`
//! decides what each caller may request.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use farfork_api::limits::{
    ANONYMOUS_MESSAGE_BYTES_MAX, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MESSAGE_BYTES_MAX, SHUTDOWN_TIMEOUT,
};
use farfork_api::v1::cluster_server::ClusterServer;
use farfork_api::v1::node_server::NodeServer;
use farfork_api::v1::peer_server::PeerServer;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::auth::RequestAuthorizer;
use crate::control_port::accept_connections;
use crate::daemon::DaemonError;
use crate::node::Node;
use crate::service::{ControlService, PeerService};
use crate::trust::ClusterService;

/// The listeners of the API.
pub(crate) struct ApiListeners {
    socket: tokio::net::UnixListener,
    network: tokio::net::TcpListener,
}

impl ApiListeners {
    /// Registers the listeners with the runtime. Must be called within it.
    ///
    /// # Errors
    /// The runtime cannot watch a listener.
    pub(crate) fn new(socket: UnixListener, network: TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        network.set_nonblocking(true)?;
        Ok(Self { socket: socket.try_into()?, network: network.try_into()? })
    }
}

/// Serves until `stopped` becomes true. Requests in progress then have [`SHUTDOWN_TIMEOUT`] left.
///
/// # Errors
/// One of the two servers failed. The other server is stopped too.
pub(crate) async fn serve_api(
    node: &Arc<Node>,
    listeners: ApiListeners,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), DaemonError> {
    let stop = |mut stopped: watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
    };
    let control = || {
        NodeServer::new(ControlService(node.clone()))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    };
    let peer = PeerServer::new(PeerService(node.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let cluster = ClusterServer::new(ClusterService::new(node.peers.clone()))
        .max_decoding_message_size(ANONYMOUS_MESSAGE_BYTES_MAX);
    let credentials = node.peers.security().credentials().cloned();
    // The Unix socket needs no keepalive: the kernel reports callers that end, and a stopped or blocked caller keeps
    // its connection.
    let at_socket = Server::builder()
        .layer(RequestAuthorizer::Socket)
        .add_service(control())
        .add_service(cluster.clone())
        .serve_with_incoming_shutdown(UnixListenerStream::new(listeners.socket), stop(stopped.clone()));
    let at_port = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .layer(RequestAuthorizer::Network { credentials: credentials.clone(), denial_log: Arc::default() })
        .add_service(control())
        .add_service(peer)
        .add_service(cluster)
        .serve_with_incoming_shutdown(accept_connections(listeners.network, credentials), stop(stopped.clone()));
    let both = async { tokio::try_join!(at_socket, at_port).map(drop) };
    let overdue = async {
        let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
        // Streams that do not end by themselves (logs, attach) would keep a server open. They are cut off after the
        // timeout.
        let _ = timeout(SHUTDOWN_TIMEOUT, std::future::pending::<()>()).await;
    };
    tokio::select! {
        served = both => Ok(served?),
        () = overdue => Ok(()),
    }
}
