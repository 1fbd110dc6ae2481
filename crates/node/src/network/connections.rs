//! Accepts connections and forwards each to its destination, with a limit on their number.
//!
//! Data that a child sent before it ended is still delivered, as for any process: its connections drain for at most
//! `DRAIN_TIMEOUT`.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use farfork_api::limits::DRAIN_TIMEOUT;

/// Pause after a failed accept(2), for example for lack of file descriptors.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Longest wait for each connection that is still queued at the listener: the runtime may not have reported it yet.
const DRAIN_ACCEPT_TIMEOUT: Duration = Duration::from_millis(5);

/// Tasks of connections that are being forwarded. Dropping the set detaches them: they continue on their own.
struct ForwardedConnections(JoinSet<()>);

impl Drop for ForwardedConnections {
    fn drop(&mut self) {
        self.0.detach_all();
    }
}

/// Accepts and forwards connections until `closed` resolves. Then forwards the connections that are still queued at the
/// listener. `name` is the listener's name in the log.
///
/// When this future completes or is dropped, the connections continue until they end, for at most [`DRAIN_TIMEOUT`].
pub(super) async fn accept_and_forward<L>(
    listener: TcpListener,
    name: impl Display,
    at_once_max: usize,
    closed: impl Future<Output = ()>,
    mut forward: impl FnMut(TcpStream) -> L,
) where
    L: Future<Output = ()> + Send + 'static,
{
    let mut forwarded = ForwardedConnections(JoinSet::new());
    let connections = &mut forwarded.0;
    let (open, _) = watch::channel(());
    let mut is_reported = false;
    let mut closed = std::pin::pin!(closed);
    loop {
        if connections.len() >= at_once_max {
            connections.join_next().await;
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    is_reported = false;
                    connections.spawn(forward_until_drained(forward(stream), open.subscribe()));
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        tracing::warn!(listener = %name, %error, "connections are not accepted");
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = &mut closed => break,
        }
    }
    while let Ok(Ok((stream, _))) = timeout(DRAIN_ACCEPT_TIMEOUT, listener.accept()).await {
        connections.spawn(forward_until_drained(forward(stream), open.subscribe()));
    }
}

/// Forwards a connection until it ends. Once the listener is no longer served, the connection may continue for
/// [`DRAIN_TIMEOUT`].
async fn forward_until_drained(forward: impl Future<Output = ()>, mut open: watch::Receiver<()>) {
    let mut forward = std::pin::pin!(forward);
    tokio::select! {
        () = &mut forward => {}
        _ = open.changed() => drop(timeout(DRAIN_TIMEOUT, forward).await),
    }
}

/// Two connections that are copied to each other. Dropping an incomplete pair resets both.
struct ConnectionPair {
    ends: [TcpStream; 2],
    is_complete: bool,
}

/// Copies each connection to the other until both have ended. If one is reset, or this future is dropped, both are
/// reset: an orderly close would look like the end of the data.
///
/// # Errors
/// The error of a read or write on either connection.
pub(super) async fn copy_both_ways(one: TcpStream, other: TcpStream) -> io::Result<()> {
    let mut joined = ConnectionPair { ends: [one, other], is_complete: false };
    let [one, other] = &mut joined.ends;
    copy_bidirectional(one, other).await?;
    joined.is_complete = true;
    Ok(())
}

impl Drop for ConnectionPair {
    fn drop(&mut self) {
        if !self.is_complete {
            self.ends.iter().for_each(|end| drop(end.set_zero_linger()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::JoinHandle;

    /// Returns a child's end, the far end, and the task that forwards between them.
    async fn forwarded() -> (TcpStream, TcpStream, JoinHandle<()>) {
        let [near, far] =
            [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
        let (called, to) = (near.local_addr().unwrap(), far.local_addr().unwrap());
        let forward = move |stream| async move {
            drop(copy_both_ways(stream, TcpStream::connect(to).await.unwrap()).await);
        };
        let serving = tokio::spawn(accept_and_forward(near, "a test", 1, std::future::pending(), forward));
        (TcpStream::connect(called).await.unwrap(), far.accept().await.unwrap().0, serving)
    }

    #[tokio::test]
    async fn data_of_an_ended_child_arrives() {
        const BYTES: usize = 16 << 20;
        let (mut child, mut far, serving) = forwarded().await;
        let ended = async {
            child.write_all(&vec![7; BYTES]).await.unwrap();
            drop(child);
            serving.abort();
        };
        let read = async {
            let (mut room, mut bytes) = (vec![0; 1 << 16], 0);
            while let count @ 1.. = far.read(&mut room).await.unwrap() {
                bytes += count;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            bytes
        };
        assert_eq!(tokio::join!(ended, read).1, BYTES);
    }

    #[tokio::test]
    async fn a_reset_connection_is_reset_at_the_far_end() {
        let (child, mut far, _serving) = forwarded().await;
        child.set_zero_linger().unwrap();
        drop(child);
        assert_eq!(far.read(&mut [0]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
