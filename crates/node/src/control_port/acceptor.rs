//! Accepts connections at the control port and authenticates the peers.
//!
//! Each handshake has a time limit. If there are more than [`HANDSHAKES_MAX`] at once, the oldest is aborted. So peers
//! that connect and send nothing do not block other peers.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use farfork_api::control_connection::{ControlStream, RevalidatedStream, explain_tls_error};
use farfork_trust::{AuthenticatedPeer, Credentials};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::rate_limited_log::RateLimitedLog;

/// Time limit for a handshake. Over a slow link and on a busy machine, it takes about a second.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of handshakes at once: all nodes of a large cluster may connect at the same time. Each uses some
/// kilobytes.
const HANDSHAKES_MAX: usize = 512;

/// Maximum number of connections of members at once: one from each node of the largest cluster, and the same number
/// from clients.
const CONNECTIONS_MAX: usize = 2048;

/// Maximum number of connections without a certificate at once. Machines that join have no certificate yet.
const ANONYMOUS_CONNECTIONS_MAX: usize = 32;

/// Lifetime of a connection without a certificate: joining takes milliseconds.
const ANONYMOUS_CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of admitted connections that wait until the server takes them.
const ACCEPT_QUEUE_MAX: usize = 64;

/// Pause after accept(2) has failed for lack of descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// A connection that may make requests.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    stream: RevalidatedStream,
    info: ConnectionInfo,
    /// Time after which reads fail; only for a connection without a certificate.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Counts the connection against the limit of its kind until it is dropped.
    _permit: OwnedSemaphorePermit,
}

/// The peer of a connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionInfo {
    /// The authenticated peer; `None` without a certificate, or if the node runs without certificates.
    pub(crate) peer: Option<AuthenticatedPeer>,
    /// The peer's address.
    pub(crate) address: SocketAddr,
}

impl Connected for AcceptedConnection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

/// Accepts and authenticates the connections of a listener. Accepting ends when the returned stream is dropped.
///
/// ```text
///  accept ─▶ handshake, at most HANDSHAKES_MAX at once, each within HANDSHAKE_TIMEOUT ─▶ queue ─▶ tonic
///                │ refused: a line in the log, which names the peer               members: CONNECTIONS_MAX
///                └ the oldest, when there are too many                            without a certificate:
///                                                                                 ANONYMOUS_CONNECTIONS_MAX,
///                                                                                 each for ANONYMOUS_CONNECTION_TIMEOUT
/// ```
pub(crate) fn accept_connections(
    listener: TcpListener,
    credentials: Option<Credentials>,
) -> ReceiverStream<io::Result<AcceptedConnection>> {
    let (sink, arrivals) = mpsc::channel(ACCEPT_QUEUE_MAX);
    let entry = Arc::new(MtlsAcceptor {
        credentials,
        sink,
        member_permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        anonymous_permits: Arc::new(Semaphore::new(ANONYMOUS_CONNECTIONS_MAX)),
        rejection_log: RateLimitedLog::default(),
    });
    tokio::spawn(entry.run(listener));
    ReceiverStream::new(arrivals)
}

struct MtlsAcceptor {
    /// `None` if the node runs without certificates.
    credentials: Option<Credentials>,
    sink: mpsc::Sender<io::Result<AcceptedConnection>>,
    member_permits: Arc<Semaphore>,
    anonymous_permits: Arc<Semaphore>,
    rejection_log: RateLimitedLog,
}

impl MtlsAcceptor {
    async fn run(self: Arc<Self>, listener: TcpListener) {
        let mut handshakes = JoinSet::new();
        let mut oldest: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.sink.closed() => return,
            };
            while handshakes.try_join_next().is_some() {}
            oldest.retain(|handshake| !handshake.is_finished());
            match accepted {
                Ok((stream, address)) => {
                    if oldest.len() >= HANDSHAKES_MAX
                        && let Some(handshake) = oldest.pop_front()
                    {
                        self.rejection_log
                            .warn(|| "too many connections are in their handshake: the oldest is closed".into());
                        handshake.abort();
                    }
                    oldest.push_back(handshakes.spawn(self.clone().handle_connection(stream, address)));
                }
                Err(error) => {
                    tracing::warn!(%error, "the control port cannot take connections for now");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    async fn handle_connection(self: Arc<Self>, stream: TcpStream, address: SocketAddr) {
        match self.authenticate(stream, address).await {
            // Fails if the server has stopped. Then the peer needs no reply.
            Ok(arrival) => drop(self.sink.send(Ok(arrival)).await),
            Err(cause) => self.rejection_log.warn(|| format!("a connection from {address} is refused: {cause}")),
        }
    }

    async fn authenticate(&self, stream: TcpStream, address: SocketAddr) -> Result<AcceptedConnection, String> {
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let Some(credentials) = &self.credentials else {
            let info = ConnectionInfo { peer: None, address };
            return admit_connection(
                RevalidatedStream::unchecked(ControlStream::Plain(stream)),
                info,
                &self.member_permits,
                None,
            );
        };
        let handshake =
            timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(credentials.control_server_config()).accept(stream)).await;
        let silent = |_| format!("it did not authenticate within {} s", HANDSHAKE_TIMEOUT.as_secs());
        let stream = handshake.map_err(silent)?.map_err(|error| explain_tls_error(error).to_string())?;
        let chain = stream.get_ref().1.peer_certificates();
        let peer = Credentials::peer_from_chain(chain);
        let is_stranger = peer.is_none();
        let info = ConnectionInfo { peer, address };
        let shown = chain.and_then(|chain| chain.first()).cloned();
        let stream = RevalidatedStream::with_check(credentials, shown, ControlStream::Tls(Box::new(stream.into())));
        if is_stranger {
            admit_connection(stream, info, &self.anonymous_permits, Some(Instant::now() + ANONYMOUS_CONNECTION_TIMEOUT))
        } else {
            admit_connection(stream, info, &self.member_permits, None)
        }
    }
}

fn admit_connection(
    stream: RevalidatedStream,
    info: ConnectionInfo,
    permits: &Arc<Semaphore>,
    until: Option<Instant>,
) -> Result<AcceptedConnection, String> {
    let permit =
        permits.clone().try_acquire_owned().map_err(|_| "there are too many connections of its kind".to_owned())?;
    Ok(AcceptedConnection { stream, info, deadline: until.map(|until| Box::pin(sleep_until(until))), _permit: permit })
}

impl AsyncRead for AcceptedConnection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.deadline.as_mut().is_some_and(|until| until.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for AcceptedConnection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
