//! What connects to the control port. Each peer has a short time to show who it is; those that have not yet are few, and
//! the one that has taken longest makes room, so that whoever connects and says nothing keeps nobody out.
//!
//! ```text
//!  accept ─▶ handshake, at most HANDSHAKES_MAX at a time, each within HANDSHAKE_LIMIT ─▶ arrivals ─▶ tonic
//!                │ refused: a line in the log, which names the peer                        members: CONNECTIONS_MAX
//!                └ the oldest, when there are too many                                     strangers: STRANGERS_MAX,
//!                                                                                          each for STRANGER_LIMIT
//! ```

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use farfork_trust::{Credentials, Peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::complaints::Complaints;
use super::standing::Standing;
use super::stream::{Stream, in_words};

/// For a peer to show who it is: a slow link and a busy machine together need a second.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Handshakes at a time: all nodes of a large cluster that come at once, some kilobytes each.
const HANDSHAKES_MAX: usize = 512;

/// Connections of members at a time: one of each node of the largest cluster, and as many of clients.
const CONNECTIONS_MAX: usize = 2048;

/// Connections at a time that showed no certificate: machines that join.
const STRANGERS_MAX: usize = 32;

/// How long such a connection may last: joining takes milliseconds.
const STRANGER_LIMIT: Duration = Duration::from_secs(10);

/// Connections that wait for the server to take them.
const ARRIVALS_MAX: usize = 64;

/// After accept(2) failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection that may ask.
#[derive(Debug)]
pub(crate) struct Arrival {
    stream: Standing,
    info: ArrivalInfo,
    /// When it ends, whatever it does.
    until: Option<Pin<Box<Sleep>>>,
    /// Its place among the connections.
    _place: OwnedSemaphorePermit,
}

/// Who came, from where.
#[derive(Debug, Clone)]
pub(crate) struct ArrivalInfo {
    /// Who it proved to be; nobody where it showed no certificate, or where nobody asks for one.
    pub(crate) peer: Option<Peer>,
    /// Where it came from.
    pub(crate) address: SocketAddr,
}

impl Connected for Arrival {
    type ConnectInfo = ArrivalInfo;

    fn connect_info(&self) -> ArrivalInfo {
        self.info.clone()
    }
}

/// The connections of a listener, for a server to take. They end with the stream.
pub(crate) fn arrivals(listener: TcpListener, credentials: Option<Credentials>) -> ReceiverStream<io::Result<Arrival>> {
    let (sink, arrivals) = mpsc::channel(ARRIVALS_MAX);
    let entry = Arc::new(Entry {
        credentials,
        sink,
        members: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        strangers: Arc::new(Semaphore::new(STRANGERS_MAX)),
        complaints: Complaints::default(),
    });
    tokio::spawn(entry.run(listener));
    ReceiverStream::new(arrivals)
}

struct Entry {
    /// Absent where everybody is trusted.
    credentials: Option<Credentials>,
    sink: mpsc::Sender<io::Result<Arrival>>,
    members: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    complaints: Complaints,
}

impl Entry {
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
                        self.complaints
                            .tell(|| "too many connections at once say nothing: the oldest is closed".into());
                        handshake.abort();
                    }
                    oldest.push_back(handshakes.spawn(self.clone().admit(stream, address)));
                }
                Err(error) => {
                    tracing::warn!(%error, "the control port cannot take connections for now");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn admit(self: Arc<Self>, stream: TcpStream, address: SocketAddr) {
        match self.welcome(stream, address).await {
            // Who is gone by the time the server stops needs no answer.
            Ok(arrival) => drop(self.sink.send(Ok(arrival)).await),
            Err(cause) => self.complaints.tell(|| format!("a connection from {address} is not let in: {cause}")),
        }
    }

    async fn welcome(&self, stream: TcpStream, address: SocketAddr) -> Result<Arrival, String> {
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let Some(credentials) = &self.credentials else {
            let info = ArrivalInfo { peer: None, address };
            return arrival(Standing::unwatched(Stream::Plain(stream)), info, &self.members, None);
        };
        let shaken = timeout(HANDSHAKE_LIMIT, TlsAcceptor::from(credentials.control_server()).accept(stream)).await;
        let silent = |_| format!("it did not show who it is within {} s", HANDSHAKE_LIMIT.as_secs());
        let stream = shaken.map_err(silent)?.map_err(|error| in_words(error).to_string())?;
        let chain = stream.get_ref().1.peer_certificates();
        let peer = Credentials::peer_of(chain);
        let is_stranger = peer.is_none();
        let info = ArrivalInfo { peer, address };
        let shown = chain.and_then(|chain| chain.first()).cloned();
        let stream = Standing::by(credentials, shown, Stream::Tls(Box::new(stream.into())));
        if is_stranger {
            arrival(stream, info, &self.strangers, Some(Instant::now() + STRANGER_LIMIT))
        } else {
            arrival(stream, info, &self.members, None)
        }
    }
}

fn arrival(
    stream: Standing,
    info: ArrivalInfo,
    places: &Arc<Semaphore>,
    until: Option<Instant>,
) -> Result<Arrival, String> {
    let place =
        places.clone().try_acquire_owned().map_err(|_| "there are too many connections of its kind".to_owned())?;
    Ok(Arrival { stream, info, until: until.map(|until| Box::pin(sleep_until(until))), _place: place })
}

impl AsyncRead for Arrival {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.until.as_mut().is_some_and(|until| until.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Arrival {
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
