//! The client of a node's API: connections over the Unix socket or TCP, with their limits.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request};
use tower::service_fn;

use crate::api::v1::node_client::NodeClient;
use crate::api::v1::peer_client::PeerClient;
use crate::failure::{Failure, innermost};
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

/// A client of a daemon's API for users.
pub type Client = NodeClient<Channel>;

/// Connects to the daemon behind a Unix socket.
///
/// # Errors
/// Nobody listens there, or the caller may not connect.
pub async fn connect(socket: &Path) -> Result<Client, Failure> {
    let path = socket.to_owned();
    let connector = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The address is not used: the connector knows the path.
    let endpoint = with_limits(Endpoint::from_static("http://node.farfork"));
    let channel = endpoint.connect_with_connector(connector).await.map_err(|error| {
        Failure::new(Code::Unavailable, format!("node at {}", socket.display()), innermost(&error))
            .with_next_step("start one with `farfork node` or `farfork up`, or say where it is with FARFORK_SOCKET")
    })?;
    Ok(node_client(channel))
}

/// A connection to the daemon behind a control port, made when it is first used and again when it breaks.
pub(crate) fn network_channel(address: SocketAddr) -> Channel {
    let uri = Uri::builder()
        .scheme("http")
        .authority(address.to_string())
        .path_and_query("/")
        .build()
        .expect("an address is a valid authority");
    with_limits(Endpoint::from(uri)).connect_lazy()
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
