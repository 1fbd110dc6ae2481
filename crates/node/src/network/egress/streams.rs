//! Forwards TCP connections of a child to other hosts.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;

use farfork_api::limits::{EGRESS_CONNECT_TIMEOUT, EGRESS_CONNECTIONS_MAX};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::EgressRules;
use crate::network::connections;

/// Forwards connections to allowed destinations until the egress is closed.
pub(super) async fn serve_streams(listener: TcpListener, rules: Arc<EgressRules>, mut closed: watch::Receiver<()>) {
    let closed = async move { while closed.changed().await.is_ok() {} };
    let forward = |stream| forward_connection(stream, rules.clone());
    connections::accept_and_forward(listener, "egress", EGRESS_CONNECTIONS_MAX, closed, forward).await;
}

/// Forwards one connection. If the node cannot connect, or the other end resets, the child's connection is reset.
async fn forward_connection(inside: TcpStream, rules: Arc<EgressRules>) {
    let to = inside.local_addr();
    let forwarded = match connect_destination(&inside, &rules).await {
        Ok(outside) => connections::copy_both_ways(inside, outside).await,
        Err(error) => {
            // Reset the connection: an orderly close would look like a reply without data.
            let _ = inside.set_zero_linger();
            Err(error)
        }
    };
    if let Err(error) = forwarded {
        tracing::debug!(?to, %error, "cannot forward a child's connection");
    }
}

/// Connects to the child's destination: the local address of the accepted connection.
async fn connect_destination(inside: &TcpStream, rules: &EgressRules) -> io::Result<TcpStream> {
    let to = original_destination(inside)?;
    if !rules.allows(to) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    timeout(EGRESS_CONNECT_TIMEOUT, TcpStream::connect(to)).await?
}

fn original_destination(inside: &TcpStream) -> io::Result<SocketAddrV4> {
    match inside.local_addr()? {
        SocketAddr::V4(to) => Ok(to),
        SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}
