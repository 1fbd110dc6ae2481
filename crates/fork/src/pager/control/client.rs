//! The daemon's side of the control socket: `PagerClient`. A request survives a killed pager: the socket stays open,
//! and the next pager replies. Every request may be repeated.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_sys::fd_passing;
use farfork_wire::{ChildId, SeedId};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::protocol::{
    ControlMessageError, MESSAGE_BYTES_MAX, PagerReply, PagerRequest, SEGMENTS_PER_REPLY_MAX, decode, encode,
};
pub use super::protocol::{PagerHello, PagerStats, PrewarmProgress, PrewarmState, SettleProgress, SettleState};
use crate::pager::cache::{self, CacheStats};
use crate::pager::disk_space_hint;
use crate::pager::journal::counters::PagerCounters;
use crate::pager::keeper::context::SOCKET_FILE;
use crate::pager::keeper::trust_policy::TrustPolicy;
use crate::pager::page_map::MapSegment;

/// Pause before a request is retried: about the time that a pager needs to start.
const RETRY_BACKOFF: Duration = Duration::from_millis(5);

/// Time limit for the reply to a request. A running pager replies in well under a millisecond; a pager that is taking
/// over needs longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of idle connections that are kept. Typically two requests overlap: one transfers a zygote's copy,
/// another releases a child.
const IDLE_CONNECTIONS_MAX: usize = 2;

thread_local! {
    /// The buffer for replies. It is reused: most replies are short, and clearing a whole buffer would take longer than
    /// the rest of a call.
    static MESSAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Why a request was not fulfilled.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The pager has refused the request.
    #[error("{0}")]
    Refused(String),
    /// The pager did not reply in time.
    #[error("the pager at {} does not answer ({cause}): look for its process and its log", socket.display())]
    NoReply {
        /// The pager's control socket.
        socket: PathBuf,
        /// The last error.
        cause: io::Error,
    },
    /// The pager is of another release.
    #[error("the pager is of another release of farfork: {0}; end its children with the release that started them")]
    VersionMismatch(String),
    /// The trust policy cannot be written.
    #[error("the pager's trust policy cannot be written to the run directory: {}{}", .0, disk_space_hint::disk_space_hint(.0))]
    TrustPolicy(#[source] io::Error),
    /// The size limit of the page cache cannot be written.
    #[error("the page cache's limit cannot be written to the run directory: {}{}", .0, disk_space_hint::disk_space_hint(.0))]
    CacheLimit(#[source] io::Error),
    /// Processes of a child that must be released are still running.
    #[error("child {child} cannot be released: its processes still run; end them first")]
    StillRunning {
        /// The child.
        child: ChildId,
    },
}

/// A client of the pager. Its calls block, usually for about 50 µs. Each request has a time limit (`CALL_TIMEOUT`).
/// Every call fails with [`ClientError::VersionMismatch`] if the pager is of another release.
#[derive(Debug, Clone)]
pub struct PagerClient {
    socket: PathBuf,
    /// Connections without a pending request. They are kept, because opening one costs both sides as much as a request.
    idle_connections: Arc<Mutex<Vec<OwnedFd>>>,
}

impl PagerClient {
    /// Creates a client of the pager of `run_dir`, which may still be starting.
    pub fn new(run_dir: &Path) -> Self {
        Self { socket: run_dir.join(SOCKET_FILE), idle_connections: Arc::default() }
    }

    /// As [`Self::start_adoption`], and waits until the pager has replied.
    ///
    /// # Errors
    /// As [`PendingAdoption::wait`].
    pub fn adopt(&self, child: &ChildId, child_dir: &Path, uffd_socket: OwnedFd) -> Result<(), ClientError> {
        self.start_adoption(child, child_dir, uffd_socket).wait()
    }

    /// Asks the pager to serve a child. The child's memory plan is in `child_dir`. Each of the child's own processes
    /// must send its userfaultfd on the other end of `uffd_socket`. If that end is closed before a userfaultfd was
    /// sent, the adoption ends. The child may be started before the pager has replied: its page faults wait until it is
    /// served.
    pub fn start_adoption(&self, child: &ChildId, child_dir: &Path, uffd_socket: OwnedFd) -> PendingAdoption<'_> {
        let request = PagerRequest::Adopt { child: child.clone(), dir: child_dir.to_owned() };
        let sent = self.send_request(&request, &[uffd_socket.as_fd()]);
        PendingAdoption { client: self, request, uffd_socket, sent }
    }

    /// Makes the newest copy of a zygote a child. The child's memory plan is in `child_dir`, and `pid` is its process.
    /// The pager also adds the child's userfaultfd to `stub_queue`. No other copy of the zygote may be made before this
    /// call returns.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the zygote is not served, its memory is lost, or the plan differs from the zygote's;
    /// [`ClientError::NoReply`].
    pub fn transfer(
        &self,
        zygote: &ChildId,
        child: &ChildId,
        child_dir: &Path,
        pid: i32,
        stub_queue: BorrowedFd<'_>,
    ) -> Result<(), ClientError> {
        let (zygote, child, dir) = (zygote.clone(), child.clone(), child_dir.to_owned());
        self.call(&PagerRequest::Transfer { zygote, child, dir, pid }, &[stub_queue]).map(drop)
    }

    /// Whether pages that a zygote must get have not arrived yet. A copy that is made now must fetch these pages
    /// itself.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a zygote that is not served, [`ClientError::NoReply`].
    pub fn is_zygote_filling(&self, zygote: &ChildId) -> Result<bool, ClientError> {
        match self.call(&PagerRequest::IsZygoteFilling { zygote: zygote.clone() }, &[])? {
            PagerReply::ZygoteFilling(is_filling) => Ok(is_filling),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Releases a child whose processes were killed, and waits until the last process is gone. Only then may the
    /// child's directory be removed. Returns the counters of the pager's work for the child, if the child was known.
    ///
    /// # Errors
    /// [`ClientError::StillRunning`], [`ClientError::NoReply`].
    pub fn release(&self, child: &ChildId) -> Result<Option<PagerCounters>, ClientError> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        loop {
            match self.try_release(child) {
                Err(ClientError::StillRunning { .. }) if Instant::now() < deadline => std::thread::sleep(RETRY_BACKOFF),
                released => return released,
            }
        }
    }

    /// As [`Self::release`], without waiting.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn try_release(&self, child: &ChildId) -> Result<Option<PagerCounters>, ClientError> {
        match self.call(&PagerRequest::Release { child: child.clone() }, &[])? {
            PagerReply::Done => Ok(None),
            PagerReply::Stats(stats) => Ok(Some(stats.counters)),
            PagerReply::StillRunning => Err(ClientError::StillRunning { child: child.clone() }),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Returns the pager's release and trust policy.
    ///
    /// # Errors
    /// [`ClientError::VersionMismatch`], [`ClientError::NoReply`].
    pub fn hello(&self) -> Result<PagerHello, ClientError> {
        match self.call(&PagerRequest::Hello, &[])? {
            PagerReply::Hello(hello) => Ok(hello),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Changes the trust policy of this pager and the next ones, and waits until it is in use. A new pager replaces
    /// this one, as after a crash; page faults of children wait until it has started.
    ///
    /// # Errors
    /// [`ClientError::TrustPolicy`]; [`ClientError::NoReply`], also if the pager cannot use the policy.
    pub fn set_trust_policy(&self, policy: &TrustPolicy) -> Result<(), ClientError> {
        let run_dir = self.socket.parent().unwrap_or(Path::new("/"));
        policy.write(run_dir).map_err(ClientError::TrustPolicy)?;
        let deadline = Instant::now() + CALL_TIMEOUT;
        self.call(&PagerRequest::Replace, &[])?;
        while self.hello()?.trust_policy != *policy {
            if Instant::now() >= deadline {
                return Err(ClientError::NoReply {
                    socket: self.socket.clone(),
                    cause: io::ErrorKind::TimedOut.into(),
                });
            }
            std::thread::sleep(RETRY_BACKOFF);
        }
        Ok(())
    }

    /// Returns the counters of the pager's work for a child, and the reason if the child's memory is lost.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a child that is not served, [`ClientError::NoReply`].
    pub fn stats(&self, child: &ChildId) -> Result<PagerStats, ClientError> {
        match self.call(&PagerRequest::Stats { child: child.clone() }, &[])? {
            PagerReply::Stats(stats) => Ok(stats),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// If `begin` is set, starts to fetch the rest of a child's pages in the background. Returns the progress. `pid` is
    /// the child's first process: once the child has settled, the memory of this process is unregistered, and the
    /// kernel alone serves the memory.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a child that is not served, [`ClientError::NoReply`].
    pub fn settle(&self, child: &ChildId, begin: bool, pid: i32) -> Result<SettleProgress, ClientError> {
        match self.call(&PagerRequest::Settle { child: child.clone(), begin, pid }, &[])? {
            PagerReply::SettleProgress(progress) => Ok(progress),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Returns the size and the counters of the page cache.
    ///
    /// # Errors
    /// [`ClientError::NoReply`].
    pub fn cache_stats(&self) -> Result<CacheStats, ClientError> {
        match self.call(&PagerRequest::CacheStats, &[])? {
            PagerReply::CacheStats(stats) => Ok(stats),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Starts to fetch a seed's working set into the page cache, or returns the progress. A plan of the seed is in
    /// `dir`. A final state is returned once; the next call starts again.
    ///
    /// # Errors
    /// [`ClientError::Refused`] without a usable plan, [`ClientError::NoReply`].
    pub fn prewarm(&self, seed: &SeedId, dir: &Path) -> Result<PrewarmProgress, ClientError> {
        match self.call(&PagerRequest::Prewarm { seed: seed.clone(), dir: dir.to_owned() }, &[])? {
            PagerReply::PrewarmProgress(progress) => Ok(progress),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Sets the size limit of the page cache in bytes, for this pager and the next ones; 0 disables the cache. If the limit
    /// changes, the cache is emptied.
    ///
    /// # Errors
    /// [`ClientError::NoReply`], [`ClientError::CacheLimit`].
    pub fn set_cache_limit(&self, bytes_max: u64) -> Result<CacheStats, ClientError> {
        let run_dir = self.socket.parent().unwrap_or(Path::new("/"));
        cache::limit::write_cache_limit(run_dir, bytes_max).map_err(ClientError::CacheLimit)?;
        self.cache_stats()
    }

    /// Returns the children that are served, in ascending order, including children that have ended but were not
    /// released.
    ///
    /// # Errors
    /// [`ClientError::NoReply`].
    pub fn list_children(&self) -> Result<Vec<ChildId>, ClientError> {
        let mut all = Vec::new();
        loop {
            match self.call(&PagerRequest::ListChildren { after: all.last().cloned() }, &[])? {
                PagerReply::Children(page) if page.is_empty() => return Ok(all),
                PagerReply::Children(page) => all.extend(page),
                other => return Err(unexpected_reply(&other)),
            }
        }
    }

    /// Ends pager and keeper, and waits at most `limit` until they are gone.
    ///
    /// # Errors
    /// [`ClientError::Refused`] while children run, [`ClientError::NoReply`].
    pub fn stop(&self, limit: Duration) -> Result<(), ClientError> {
        let deadline = Instant::now() + limit;
        self.call(&PagerRequest::Stop, &[])?;
        // The keeper removes the socket as its last step.
        while self.socket.exists() {
            if Instant::now() >= deadline {
                return Err(ClientError::NoReply {
                    socket: self.socket.clone(),
                    cause: io::ErrorKind::TimedOut.into(),
                });
            }
            std::thread::sleep(RETRY_BACKOFF);
        }
        Ok(())
    }

    /// Serves a child again after its pager, keeper and holder were killed together. `queue` is the queue of its stub.
    /// Returns how many of the child's processes were lost: no process held their userfaultfds, so they have read
    /// missing pages as zeroes since the kill.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the child cannot be served, [`ClientError::NoReply`].
    pub fn reclaim(&self, child: &ChildId, child_dir: &Path, queue: BorrowedFd<'_>) -> Result<usize, ClientError> {
        let request = PagerRequest::Reclaim { child: child.clone(), dir: child_dir.to_owned() };
        match self.call(&request, &[queue])? {
            PagerReply::Reclaimed { lost } => Ok(lost),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Returns the number of the child's next address space, that is, of the next process that it forks.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a child that is not served, [`ClientError::NoReply`].
    pub fn next_space_id(&self, child: &ChildId) -> Result<u32, ClientError> {
        match self.call(&PagerRequest::NextSpace { child: child.clone() }, &[])? {
            PagerReply::SpaceId(Some(space)) => Ok(space),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Finds the child's address space, with number `since` or higher, in which the page at `address` is mapped.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if several spaces match, or the child is not served; [`ClientError::NoReply`].
    pub fn find_space(&self, child: &ChildId, since: u32, address: u64) -> Result<Option<u32>, ClientError> {
        match self.call(&PagerRequest::FindSpace { child: child.clone(), since, address }, &[])? {
            PagerReply::SpaceId(space) => Ok(space),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Returns the segments of an address space, in ascending order. Its process must not run during the call.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if there is no such address space, [`ClientError::NoReply`].
    pub fn list_segments(&self, child: &ChildId, space: u32) -> Result<Vec<MapSegment>, ClientError> {
        let mut all: Vec<MapSegment> = Vec::new();
        loop {
            let from = all.last().map_or(0, |last| last.end);
            match self.call(&PagerRequest::ListSegments { child: child.clone(), space, from }, &[])? {
                PagerReply::Segments(page) if page.len() < SEGMENTS_PER_REPLY_MAX => {
                    all.extend(page);
                    return Ok(all);
                }
                PagerReply::Segments(page) => all.extend(page),
                other => return Err(unexpected_reply(&other)),
            }
        }
    }

    /// Stops serving an address space. Its process must never run again: its missing pages would read as zeroes.
    ///
    /// # Errors
    /// [`ClientError::NoReply`].
    pub fn close_space(&self, child: &ChildId, space: u32) -> Result<(), ClientError> {
        self.call(&PagerRequest::CloseSpace { child: child.clone(), space }, &[]).map(drop)
    }

    /// Marks a seed as lost for all children, because its owner will never serve it again: pages that were not fetched raise
    /// SIGBUS at once. `reason` is a clause for the children's logs.
    ///
    /// # Errors
    /// [`ClientError::NoReply`].
    pub fn lose_seed(&self, seed: &SeedId, reason: &str) -> Result<(), ClientError> {
        self.call(&PagerRequest::LoseSeed { seed: seed.clone(), reason: reason.to_owned() }, &[]).map(drop)
    }

    fn call(&self, request: &PagerRequest, fds: &[BorrowedFd<'_>]) -> Result<PagerReply, ClientError> {
        self.await_reply(request, fds, self.send_request(request, fds))
    }

    /// Waits for the reply to a request. Sends the request again if sending or receiving failed.
    fn await_reply(
        &self,
        request: &PagerRequest,
        fds: &[BorrowedFd<'_>],
        mut sent: io::Result<SentRequest>,
    ) -> Result<PagerReply, ClientError> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        loop {
            let was_reused = sent.as_ref().is_ok_and(|sent_request| sent_request.was_reused);
            match sent.and_then(|sent_request| self.receive_reply(sent_request.socket, deadline)) {
                Ok(PagerReply::Refused(reason)) => return Err(ClientError::Refused(reason)),
                Err(cause) if is_version_mismatch(&cause) => {
                    return Err(ClientError::VersionMismatch(cause.to_string()));
                }
                Ok(reply) => return Ok(reply),
                Err(cause) if Instant::now() + RETRY_BACKOFF >= deadline => {
                    return Err(ClientError::NoReply { socket: self.socket.clone(), cause });
                }
                // The pager had closed the idle connection. Drop the others too, and try a new connection.
                Err(_) if was_reused => self.lock_idle_connections().clear(),
                Err(_) => std::thread::sleep(RETRY_BACKOFF),
            }
            sent = self.send_request(request, fds);
        }
    }

    /// Sends a request, on an idle or a new connection. Returns the connection, on which the reply will arrive.
    fn send_request(&self, request: &PagerRequest, fds: &[BorrowedFd<'_>]) -> io::Result<SentRequest> {
        let bytes = encode(request).map_err(io::Error::other)?;
        let idle = self.lock_idle_connections().pop();
        if let Some(socket) = idle
            && fd_passing::send(socket.as_fd(), &bytes, fds).is_ok()
        {
            return Ok(SentRequest { socket, was_reused: true });
        }
        // Nonblocking: a connect(2) to a full backlog fails at once, and is retried.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        fd_passing::send(socket.as_fd(), &bytes, fds)?;
        Ok(SentRequest { socket, was_reused: false })
    }

    /// Waits for a reply, and keeps the connection for the next request.
    fn receive_reply(&self, socket: OwnedFd, deadline: Instant) -> io::Result<PagerReply> {
        let reply = read_reply(&socket, deadline)?;
        let mut idle = self.lock_idle_connections();
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(socket);
        }
        Ok(reply)
    }

    fn lock_idle_connections(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.idle_connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was sent.
#[derive(Debug)]
struct SentRequest {
    socket: OwnedFd,
    /// Whether the connection was reused, so that the pager may have closed it before.
    was_reused: bool,
}

/// A request to the pager to serve a child, whose reply is pending.
#[derive(Debug)]
#[must_use = "the pager may refuse"]
pub struct PendingAdoption<'a> {
    client: &'a PagerClient,
    request: PagerRequest,
    uffd_socket: OwnedFd,
    sent: io::Result<SentRequest>,
}

impl PendingAdoption<'_> {
    /// Waits until the child is served.
    ///
    /// # Errors
    /// [`ClientError::Refused`] without a usable plan, [`ClientError::NoReply`].
    pub fn wait(self) -> Result<(), ClientError> {
        let Self { client, request, uffd_socket, sent } = self;
        client.await_reply(&request, &[uffd_socket.as_fd()], sent).map(drop)
    }
}

fn read_reply(socket: &OwnedFd, deadline: Instant) -> io::Result<PagerReply> {
    if !farfork_sys::poll::wait_readable(socket.as_fd(), deadline)? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    MESSAGE.with_borrow_mut(|bytes| {
        bytes.resize(MESSAGE_BYTES_MAX, 0);
        let (length, _) = fd_passing::receive(socket.as_fd(), bytes, 0)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        decode(&bytes[..length]).map_err(io::Error::other)
    })
}

fn is_version_mismatch(cause: &io::Error) -> bool {
    let inner = cause.get_ref().and_then(|inner| inner.downcast_ref::<ControlMessageError>());
    matches!(inner, Some(ControlMessageError::VersionMismatch { .. }))
}

fn unexpected_reply(reply: &PagerReply) -> ClientError {
    ClientError::Refused(format!("unexpected reply from the pager: {reply:?}; see the pager's log"))
}
