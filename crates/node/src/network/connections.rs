//! Accepts connections, and leads each to where it is to go, at most so many at once.

use std::fmt::Display;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Until a daemon without descriptors for further connections tries again.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Leads the connections to a listener, which is named so. Never returns; what is under way ends when this is dropped.
pub(super) async fn serve<L>(
    listener: TcpListener,
    name: impl Display,
    at_once_max: usize,
    mut lead: impl FnMut(TcpStream) -> L,
) where
    L: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut is_told = false;
    loop {
        if connections.len() >= at_once_max {
            connections.join_next().await;
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    is_told = false;
                    connections.spawn(lead(stream));
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(listener = %name, %error, "connections are not accepted");
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
