//! Client of a node's API: connections over the Unix socket or TCP, with their time limits.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_trust::Credentials;
use farfork_wire::NodeName;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request};
use tower::service_fn;

use crate::control_connection::{MtlsConnector, TlsMode};
use crate::failure::{Failure, connect_timeout_cause, innermost_error, is_connect_timeout};
use crate::limits::{
    CONNECT_TIMEOUT, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MESSAGE_BYTES_MAX, QUERY_TIMEOUT, SOCKET_KEEPALIVE_TIMEOUT,
};
use crate::v1::GetRosterRequest;
use crate::v1::node_client::NodeClient;
use crate::v1::peer_client::PeerClient;

/// The address of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DaemonAddress {
    /// Its Unix socket.
    Socket(PathBuf),
    /// Its control port.
    Network(SocketAddr),
}

impl fmt::Display for DaemonAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DaemonAddress::Socket(path) => write!(f, "{}", path.display()),
            DaemonAddress::Network(address) => write!(f, "{address}"),
        }
    }
}

/// A client of the part of a daemon's API that manages the cluster's members.
pub type ClusterClient = crate::v1::cluster_client::ClusterClient<Channel>;

/// A client of a daemon's API for users.
pub type Client = NodeClient<Channel>;

/// Connects to the daemon that listens on a Unix socket.
///
/// # Errors
/// No process listens at the socket, or the caller may not connect.
pub async fn connect(socket: &Path) -> Result<Client, Failure> {
    Ok(node_client(socket_channel(socket).await?))
}

async fn socket_channel(socket: &Path) -> Result<Channel, Failure> {
    let path = socket.to_owned();
    let connector = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The address is not used: the connector knows the path.
    let endpoint = with_timeouts(Endpoint::from_static("http://node.farfork"));
    let endpoint = endpoint.keep_alive_timeout(SOCKET_KEEPALIVE_TIMEOUT);
    endpoint.connect_with_connector(connector).await.map_err(|error| {
        let step = match is_permission_denied(&error) {
            true => "only root may connect: run this with sudo, or use an identity of your own with --node and --trust",
            false => "start one with `farfork node` or `farfork up` (`farfork up --restart` if it has ended), or set its path in FARFORK_SOCKET",
        };
        Failure::new(Code::Unavailable, format!("node at {}", socket.display()), innermost_error(&error))
            .with_next_step(step)
    })
}

fn is_permission_denied(error: &(dyn Error + 'static)) -> bool {
    let cause = innermost_error(error).downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
}

/// Connects to the daemon that listens on a Unix socket, to manage the cluster's members.
///
/// # Errors
/// As [`connect`].
pub async fn connect_cluster(socket: &Path) -> Result<ClusterClient, Failure> {
    Ok(cluster_client(socket_channel(socket).await?))
}

/// Connects to a node of the caller's cluster at its control port, and installs the node's roster if it is newer than the
/// caller's. Later connections use the newer roster.
///
/// # Errors
/// No process listens at the address. The server is not a node of the cluster, was revoked, or does not accept the caller.
/// The server's roster is not valid, or cannot be written.
pub async fn connect_network(address: SocketAddr, credentials: &Credentials) -> Result<Client, Failure> {
    let channel = member_channel(address, credentials).await?;
    if adopt_newer_roster(channel.clone(), address, credentials).await? {
        // The newer roster may revoke the contacted node, so connect again with the newer roster.
        return Ok(node_client(member_channel(address, credentials).await?));
    }
    Ok(node_client(channel))
}

async fn member_channel(address: SocketAddr, credentials: &Credentials) -> Result<Channel, Failure> {
    let connector = MtlsConnector::new(address, None, TlsMode::Mutual(credentials.clone()));
    with_timeouts(endpoint(address)).connect_with_connector(connector).await.map_err(|error| {
        if is_connect_timeout(&error) {
            return Failure::new(Code::Unavailable, format!("node at {address}"), connect_timeout_cause())
                .with_next_step(
                    "check that its daemon runs and is not stopped (SIGSTOP), and that the network reaches it",
                );
        }
        Failure::new(Code::Unavailable, format!("node at {address}"), innermost_error(&error))
            .with_next_step("check the address and --trust; the node's log has the reason for each refused connection")
    })
}

/// Installs the roster of a node, if it is newer than the caller's. Returns whether it was newer.
pub async fn adopt_newer_roster(
    channel: Channel,
    address: SocketAddr,
    credentials: &Credentials,
) -> Result<bool, Failure> {
    let object = format!("roster of the node at {address}");
    let answer = cluster_client(channel).get_roster(request_with_timeout(QUERY_TIMEOUT, GetRosterRequest {})).await;
    let roster = answer.map_err(|status| Failure::from_status(&object, &status))?.into_inner().roster;
    let (adopting, own) = (credentials.clone(), credentials.directory().roster_path());
    let adopted = tokio::task::spawn_blocking(move || adopting.install_roster(&roster)).await;
    let adopted = adopted.map_err(|panic| Failure::new(Code::Internal, &object, panic))?;
    adopted.map_err(|error| {
        Failure::new(Code::FailedPrecondition, &object, error).with_next_step(format!(
            "make {} writable for its user, or issue the identity again with `farfork cluster issue`",
            own.display()
        ))
    })
}

/// A connection to the daemon at a control port. It is made on first use, and again after it breaks. If `expected` is
/// given, the server must be that node.
pub fn network_channel(address: SocketAddr, expected: Option<NodeName>, proof: TlsMode) -> Channel {
    with_timeouts(endpoint(address)).connect_with_connector_lazy(MtlsConnector::new(address, expected, proof))
}

/// The scheme is `http`: the connector does TLS, and HTTP sees plaintext.
fn endpoint(address: SocketAddr) -> Endpoint {
    let uri = Uri::builder().scheme("http").authority(address.to_string()).path_and_query("/").build();
    Endpoint::from(uri.expect("an address is a valid authority"))
}

/// A client of the cluster service.
pub fn cluster_client(channel: Channel) -> ClusterClient {
    ClusterClient::new(channel)
}

/// A client of the service for users, with the API's limits on message sizes.
pub fn node_client(channel: Channel) -> Client {
    NodeClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// A client of the service between nodes, with the API's limits on message sizes.
pub fn peer_client(channel: Channel) -> PeerClient<Channel> {
    PeerClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// A request with a time limit. A stream must begin within the limit.
pub fn request_with_timeout<T>(limit: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

fn with_timeouts(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .tcp_nodelay(true)
}
