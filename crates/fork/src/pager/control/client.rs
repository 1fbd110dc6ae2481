//! The daemon's side of the control socket: `PagerClient`.
//! Requests survive a killed pager. The socket stays open, the next pager answers, and every request may be repeated.

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

/// Pause before a request is tried again, which a pager's start takes about as long as.
const RETRY_BACKOFF: Duration = Duration::from_millis(5);

/// Longest call. A pager answers in well under a millisecond; one that takes over from another needs some.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Most connections that are kept for the next request: one copy of a zygote is made at a time, while another child ends.
const IDLE_CONNECTIONS_MAX: usize = 2;

thread_local! {
    /// Where replies are read to: most are short, and to clear so much each time takes longer than the rest.
    static MESSAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Why a request was not fulfilled.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The pager said no.
    #[error("{0}")]
    Refused(String),
    /// Nobody answered in time.
    #[error("the pager at {} does not answer ({cause}): look for its process and its log", socket.display())]
    NoReply {
        /// Its socket.
        socket: PathBuf,
        /// What happened last.
        cause: io::Error,
    },
    /// Whoever answers is of another release.
    #[error("the pager is of another release of farfork: {0}; end its children with the release that started them")]
    VersionMismatch(String),
    /// Whom it is to trust cannot be written down.
    #[error("whom the pager is to trust cannot be written to the run directory: {}{}", .0, disk_space_hint::disk_space_hint(.0))]
    TrustPolicy(#[source] io::Error),
    /// The limit of the cache of pages cannot be written down.
    #[error("the limit of the cache of pages cannot be written to the run directory: {}{}", .0, disk_space_hint::disk_space_hint(.0))]
    CacheLimit(#[source] io::Error),
    /// Processes of a child that is to be forgotten are still running.
    #[error("child {child} cannot be released: its processes still run; end them first")]
    StillRunning {
        /// The child.
        child: ChildId,
    },
}

/// A client of the pager. Its calls block, usually for some 50 µs, at most for five seconds.
#[derive(Debug, Clone)]
pub struct PagerClient {
    socket: PathBuf,
    /// Connections on which nothing is under way: to make one takes both sides as long as a request.
    idle_connections: Arc<Mutex<Vec<OwnedFd>>>,
}

impl PagerClient {
    /// A client of the pager of `run_dir`, which may still be starting.
    pub fn new(run_dir: &Path) -> Self {
        Self { socket: run_dir.join(SOCKET_FILE), idle_connections: Arc::default() }
    }

    /// As [`Self::start_adoption`], and waits for it.
    ///
    /// # Errors
    /// As [`PendingAdoption::wait`].
    pub fn adopt(&self, child: &ChildId, child_dir: &Path, uffd_socket: OwnedFd) -> Result<(), ClientError> {
        self.start_adoption(child, child_dir, uffd_socket).wait()
    }

    /// Asks to have a child served, whose memory plan stands in `child_dir` and whose userfaultfd will arrive on the
    /// other end of `uffd_socket` (as the only descriptor of a message). A socket that is closed without one ends the
    /// adoption. The child may be begun meanwhile: what it misses waits until it is served.
    pub fn start_adoption(&self, child: &ChildId, child_dir: &Path, uffd_socket: OwnedFd) -> PendingAdoption<'_> {
        let request = PagerRequest::Adopt { child: child.clone(), dir: child_dir.to_owned() };
        let sent = self.send_request(&request, &[uffd_socket.as_fd()]);
        PendingAdoption { client: self, request, uffd_socket, sent }
    }

    /// Has what a zygote has just forked served as a child of its own, whose memory plan stands in `child_dir`; `pid` is its
    /// process. `stub_queue` gets its userfaultfd, too. No other copy of the zygote may be made meanwhile.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where the zygote's own memory is lost, or the plan is another's; [`ClientError::NoReply`].
    pub fn transfer(
        &self,
        zygote: &ChildId,
        (child, child_dir, pid): (&ChildId, &Path, i32),
        stub_queue: BorrowedFd<'_>,
    ) -> Result<(), ClientError> {
        let (zygote, child, dir) = (zygote.clone(), child.clone(), child_dir.to_owned());
        self.call(&PagerRequest::Transfer { zygote, child, dir, pid }, &[stub_queue]).map(drop)
    }

    /// Whether what a zygote is to be given of its seed's working set is still on its way: a copy that is made meanwhile fetches it
    /// for itself.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a zygote that is not served, [`ClientError::NoReply`].
    pub fn is_zygote_filling(&self, zygote: &ChildId) -> Result<bool, ClientError> {
        match self.call(&PagerRequest::IsZygoteFilling { zygote: zygote.clone() }, &[])? {
            PagerReply::ZygoteFilling(is_filling) => Ok(is_filling),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Has a child forgotten whose processes have been ended, and waits until the last is gone. Only then may its
    /// directory be removed. Gives what was done for it, where it was known.
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

    /// What the pager is, and whom it trusts.
    ///
    /// # Errors
    /// [`ClientError::VersionMismatch`], [`ClientError::NoReply`].
    pub fn hello(&self) -> Result<PagerHello, ClientError> {
        match self.call(&PagerRequest::Hello, &[])? {
            PagerReply::Hello(hello) => Ok(hello),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Has this pager, and those after it, trust others than it was started with, and waits until it does: another pager
    /// takes its place, as if it had been killed, and its children wait meanwhile.
    ///
    /// # Errors
    /// [`ClientError::TrustPolicy`]; [`ClientError::NoReply`], also where it cannot use what it is told to.
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

    /// What was done for a child.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a child that is not served, [`ClientError::NoReply`].
    pub fn stats(&self, child: &ChildId) -> Result<PagerStats, ClientError> {
        match self.call(&PagerRequest::Stats { child: child.clone() }, &[])? {
            PagerReply::Stats(stats) => Ok(stats),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Has a child take the rest of its pages in the background, where `begin` says so, and tells how far it is. `pid` is the
    /// child's own process: the kernel serves it alone once it has settled.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a child that is not served, [`ClientError::NoReply`].
    pub fn settle(&self, child: &ChildId, begin: bool, pid: i32) -> Result<SettleProgress, ClientError> {
        match self.call(&PagerRequest::Settle { child: child.clone(), begin, pid }, &[])? {
            PagerReply::SettleProgress(progress) => Ok(progress),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// What the cache of pages holds.
    ///
    /// # Errors
    /// [`ClientError::NoReply`].
    pub fn cache_stats(&self) -> Result<CacheStats, ClientError> {
        match self.call(&PagerRequest::CacheStats, &[])? {
            PagerReply::CacheStats(stats) => Ok(stats),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Has a seed's working set put into the cache of pages, whose plan stands in `dir`, or tells how far that is. What is
    /// over is told once; another call begins anew.
    ///
    /// # Errors
    /// [`ClientError::Refused`] without a usable plan, [`ClientError::NoReply`].
    pub fn prewarm(&self, seed: &SeedId, dir: &Path) -> Result<PrewarmProgress, ClientError> {
        match self.call(&PagerRequest::Prewarm { seed: seed.clone(), dir: dir.to_owned() }, &[])? {
            PagerReply::PrewarmProgress(progress) => Ok(progress),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Sets how many bytes of memory the cache of pages may take, for this pager and those after it; 0 for none. A cache
    /// whose limit changes begins anew.
    ///
    /// # Errors
    /// [`ClientError::NoReply`], [`ClientError::CacheLimit`].
    pub fn set_cache_limit(&self, bytes_max: u64) -> Result<CacheStats, ClientError> {
        let run_dir = self.socket.parent().unwrap_or(Path::new("/"));
        cache::limit::write_cache_limit(run_dir, bytes_max).map_err(ClientError::CacheLimit)?;
        self.cache_stats()
    }

    /// The children that are served, ascending, also those that have ended but were not released.
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

    /// Ends pager and keeper, and waits until they have gone, at most `limit`.
    ///
    /// # Errors
    /// [`ClientError::Refused`] while children run, [`ClientError::NoReply`].
    pub fn stop(&self, limit: Duration) -> Result<(), ClientError> {
        let deadline = Instant::now() + limit;
        self.call(&PagerRequest::Stop, &[])?;
        // The keeper removes its socket last.
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

    /// Has a child served again whose pager, keeper and holder were killed together; `queue` is what its stub holds. Gives how many of its
    /// processes were lost: nobody held their userfaultfds, so that they have read zeroes since.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where it cannot be served, [`ClientError::NoReply`].
    pub fn reclaim(&self, child: &ChildId, child_dir: &Path, queue: BorrowedFd<'_>) -> Result<usize, ClientError> {
        let request = PagerRequest::Reclaim { child: child.clone(), dir: child_dir.to_owned() };
        match self.call(&request, &[queue])? {
            PagerReply::Reclaimed { lost } => Ok(lost),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Which number the next address space of a child gets: the one that a process of it forks.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a child that is not served, [`ClientError::NoReply`].
    pub fn next_space_id(&self, child: &ChildId) -> Result<u32, ClientError> {
        match self.call(&PagerRequest::NextSpace { child: child.clone() }, &[])? {
            PagerReply::SpaceId(Some(space)) => Ok(space),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// The space of a child, not older than `since`, in which the page at this address is mapped.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where there are several, or the child is not served; [`ClientError::NoReply`].
    pub fn find_space(&self, child: &ChildId, since: u32, address: u64) -> Result<Option<u32>, ClientError> {
        match self.call(&PagerRequest::FindSpace { child: child.clone(), since, address }, &[])? {
            PagerReply::SpaceId(space) => Ok(space),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Which addresses of a space show which pages, ascending, of a process that stands still.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where there is no such space, [`ClientError::NoReply`].
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

    /// Has a space served no more, whose process must never run again: what it lacks would read as zeroes.
    ///
    /// # Errors
    /// [`ClientError::NoReply`].
    pub fn close_space(&self, child: &ChildId, space: u32) -> Result<(), ClientError> {
        self.call(&PagerRequest::CloseSpace { child: child.clone(), space }, &[]).map(drop)
    }

    fn call(&self, request: &PagerRequest, fds: &[BorrowedFd<'_>]) -> Result<PagerReply, ClientError> {
        self.await_reply(request, fds, self.send_request(request, fds))
    }

    /// Waits for the reply to a request that was sent, and sends it again where none comes.
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
                // The pager has closed it since: it is no sign that there is none.
                Err(_) if was_reused => self.lock_idle_connections().clear(),
                Err(_) => std::thread::sleep(RETRY_BACKOFF),
            }
            sent = self.send_request(request, fds);
        }
    }

    /// Sends a request; gives the connection on which the reply will come.
    fn send_request(&self, request: &PagerRequest, fds: &[BorrowedFd<'_>]) -> io::Result<SentRequest> {
        let bytes = encode(request).map_err(io::Error::other)?;
        let idle = self.lock_idle_connections().pop();
        if let Some(socket) = idle
            && fd_passing::send(socket.as_fd(), &bytes, fds).is_ok()
        {
            return Ok(SentRequest { socket, was_reused: true });
        }
        // Nonblocking: connecting to a full backlog fails at once, and is tried again.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        fd_passing::send(socket.as_fd(), &bytes, fds)?;
        Ok(SentRequest { socket, was_reused: false })
    }

    /// Waits for a reply, and keeps the connection.
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
    /// Whether the connection was there before: the pager may have closed it.
    was_reused: bool,
}

/// A child that the pager was asked to serve.
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
    ClientError::Refused(format!("the pager gave an answer to another question: {reply:?}"))
}
