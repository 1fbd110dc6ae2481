//! The client of a node's API: connections over the Unix socket or TCP, with their limits.

use std::fmt;
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

use crate::api::v1::node_client::NodeClient;
use crate::api::v1::peer_client::PeerClient;
use crate::failure::{Failure, innermost};
use crate::gate::{Connector, Proof};
use crate::limits::{CONNECT_TIMEOUT, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MESSAGE_BYTES_MAX};

/// Where a daemon listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Its Unix socket.
    Socket(PathBuf),
    /// Its control port.
    Network(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Socket(path) => write!(f, "{}", path.display()),
            Address::Network(address) => write!(f, "{address}"),
        }
    }
}

/// A client of a daemon's API for what concerns the cluster's members.
pub type ClusterClient = crate::api::v1::cluster_client::ClusterClient<Channel>;

/// A client of a daemon's API for users.
pub type Client = NodeClient<Channel>;

/// Connects to the daemon behind a Unix socket.
///
/// # Errors
/// Nobody listens there, or the caller may not connect.
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
    let endpoint = with_limits(Endpoint::from_static("http://node.farfork"));
    endpoint.connect_with_connector(connector).await.map_err(|error| {
        Failure::new(Code::Unavailable, format!("node at {}", socket.display()), innermost(&error))
            .with_next_step("start one with `farfork node` or `farfork up`, or say where it is with FARFORK_SOCKET")
    })
}

/// Connects to the daemon behind a Unix socket, for what concerns the cluster's members.
///
/// # Errors
/// As [`connect`].
pub async fn connect_for_cluster(socket: &Path) -> Result<ClusterClient, Failure> {
    Ok(cluster_client(socket_channel(socket).await?))
}

/// Connects to a node of the caller's cluster at its control port.
///
/// # Errors
/// Nobody listens there; it is no node of the cluster; or it does not accept the caller.
pub async fn connect_network(address: SocketAddr, credentials: &Credentials) -> Result<Client, Failure> {
    let connector = Connector::new(address, None, Proof::Member(credentials.clone()));
    let channel = with_limits(endpoint(address)).connect_with_connector(connector).await.map_err(|error| {
        Failure::new(Code::Unavailable, format!("node at {address}"), innermost(&error))
            .with_next_step("compare address and --trust; the node's log says why it lets somebody not in")
    })?;
    Ok(node_client(channel))
}

/// A connection to the daemon behind a control port, made when it is first used and again when it breaks. It has to be
/// the expected node, if one is.
pub(crate) fn network_channel(address: SocketAddr, expected: Option<NodeName>, proof: Proof) -> Channel {
    with_limits(endpoint(address)).connect_with_connector_lazy(Connector::new(address, expected, proof))
}

/// What protects the connection is the connector's business: to HTTP it looks like one in clear.
fn endpoint(address: SocketAddr) -> Endpoint {
    let uri = Uri::builder().scheme("http").authority(address.to_string()).path_and_query("/").build();
    Endpoint::from(uri.expect("an address is a valid authority"))
}

pub(crate) fn cluster_client(channel: Channel) -> ClusterClient {
    ClusterClient::new(channel)
}

pub(crate) fn node_client(channel: Channel) -> Client {
    NodeClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

pub(crate) fn peer_client(channel: Channel) -> PeerClient<Channel> {
    PeerClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// A request that must be answered, or whose stream must begin, in time.
pub fn within<T>(limit: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

fn with_limits(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .tcp_nodelay(true)
}
