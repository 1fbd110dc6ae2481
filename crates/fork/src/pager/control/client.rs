//! The daemon's side of the control socket.
//!
//! Requests survive a pager that is killed under them: the socket stays, the next pager answers, and each request may
//! be repeated.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_sys::fdpass;
use farfork_wire::{ChildId, SeedId};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::protocol::{MESSAGE_BYTES_MAX, MessageError, Reply, Request, SEGMENTS_PER_REPLY_MAX, decode, encode};
pub use super::protocol::{PagerHello, PagerStats, SettleProgress, SettleState, WarmProgress, WarmState};
use crate::pager::cache::{self, CacheStats};
use crate::pager::journal::counters::PagerCounters;
use crate::pager::keeper::station::SOCKET_FILE;
use crate::pager::keeper::trusting::Trusting;
use crate::pager::page_map::Segment;
use crate::pager::room;

/// Pause before a request is tried again, which a pager's start takes about as long as.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Longest call. A pager answers in well under a millisecond; one that takes over from another needs some.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Most connections that are kept for the next request: one copy of a zygote is made at a time, while another child ends.
const KEPT_MAX: usize = 2;

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
    Silent {
        /// Its socket.
        socket: PathBuf,
        /// What happened last.
        cause: io::Error,
    },
    /// Whoever answers is of another release.
    #[error("the pager is of another release of farfork: {0}; end its children with the release that started them")]
    Form(String),
    /// Whom it is to trust cannot be written down.
    #[error("whom the pager is to trust cannot be written to the run directory: {}{}", .0, room::remedy(.0))]
    Trusting(#[source] io::Error),
    /// The limit of the cache of pages cannot be written down.
    #[error("the limit of the cache of pages cannot be written to the run directory: {}{}", .0, room::remedy(.0))]
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
    kept: Arc<Mutex<Vec<OwnedFd>>>,
}

impl PagerClient {
    /// A client of the pager of `run_dir`, which may still be starting.
    pub fn new(run_dir: &Path) -> Self {
        Self { socket: run_dir.join(SOCKET_FILE), kept: Arc::default() }
    }

    /// As [`Self::begin_adoption`], and waits for it.
    ///
    /// # Errors
    /// As [`Adoption::wait`].
    pub fn adopt(&self, child: &ChildId, child_dir: &Path, uffd_socket: OwnedFd) -> Result<(), ClientError> {
        self.begin_adoption(child, child_dir, uffd_socket).wait()
    }

    /// Asks to have a child served, whose memory plan stands in `child_dir` and whose userfaultfd will arrive on the
    /// other end of `uffd_socket` (as the only descriptor of a message). A socket that is closed without one ends the
    /// adoption. The child may be begun meanwhile: what it misses waits until it is served.
    pub fn begin_adoption(&self, child: &ChildId, child_dir: &Path, uffd_socket: OwnedFd) -> Adoption<'_> {
        let request = Request::Adopt { child: child.clone(), dir: child_dir.to_owned() };
        let asked = self.ask(&request, &[uffd_socket.as_fd()]);
        Adoption { client: self, request, uffd_socket, asked }
    }

    /// Has what a zygote has just forked served as a child of its own, whose memory plan stands in `child_dir`; `pid` is its
    /// process. `keep` is where
    /// its userfaultfd goes, too. No other copy of the zygote may be made meanwhile.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where the zygote's own memory is lost, or the plan is another's; [`ClientError::Silent`].
    pub fn transfer(
        &self,
        zygote: &ChildId,
        (child, child_dir, pid): (&ChildId, &Path, i32),
        keep: BorrowedFd<'_>,
    ) -> Result<(), ClientError> {
        let (zygote, child, dir) = (zygote.clone(), child.clone(), child_dir.to_owned());
        self.call(&Request::Transfer { zygote, child, dir, pid }, &[keep]).map(drop)
    }

    /// Whether what a zygote is to be given of its seed's working set is still on its way: a copy that is made meanwhile fetches it
    /// for itself.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a zygote that is not served, [`ClientError::Silent`].
    pub fn is_filling(&self, zygote: &ChildId) -> Result<bool, ClientError> {
        match self.call(&Request::Filling { zygote: zygote.clone() }, &[])? {
            Reply::Filling(is_filling) => Ok(is_filling),
            other => Err(unexpected(&other)),
        }
    }

    /// Has a child forgotten whose processes have been ended, and waits until the last is gone. Only then may its
    /// directory be removed. Gives what was done for it, where it was known.
    ///
    /// # Errors
    /// [`ClientError::StillRunning`], [`ClientError::Silent`].
    pub fn release(&self, child: &ChildId) -> Result<Option<PagerCounters>, ClientError> {
        let deadline = Instant::now() + CALL_LIMIT;
        loop {
            match self.release_at_once(child) {
                Err(ClientError::StillRunning { .. }) if Instant::now() < deadline => std::thread::sleep(RETRY_PAUSE),
                released => return released,
            }
        }
    }

    /// As [`Self::release`], without waiting.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn release_at_once(&self, child: &ChildId) -> Result<Option<PagerCounters>, ClientError> {
        match self.call(&Request::Release { child: child.clone() }, &[])? {
            Reply::Done => Ok(None),
            Reply::Stats(stats) => Ok(Some(stats.counters)),
            Reply::StillRunning => Err(ClientError::StillRunning { child: child.clone() }),
            other => Err(unexpected(&other)),
        }
    }

    /// What the pager is, and whom it trusts.
    ///
    /// # Errors
    /// [`ClientError::Form`], [`ClientError::Silent`].
    pub fn hello(&self) -> Result<PagerHello, ClientError> {
        match self.call(&Request::Hello, &[])? {
            Reply::Hello(hello) => Ok(hello),
            other => Err(unexpected(&other)),
        }
    }

    /// Has this pager, and those after it, trust others than it was started with, and waits until it does: another pager
    /// takes its place, as if it had been killed, and its children wait meanwhile.
    ///
    /// # Errors
    /// [`ClientError::Trusting`]; [`ClientError::Silent`], also where it cannot use what it is told to.
    pub fn trust(&self, trusting: &Trusting) -> Result<(), ClientError> {
        let run_dir = self.socket.parent().unwrap_or(Path::new("/"));
        trusting.write(run_dir).map_err(ClientError::Trusting)?;
        let deadline = Instant::now() + CALL_LIMIT;
        self.call(&Request::Replace, &[])?;
        while self.hello()?.trusting != *trusting {
            if Instant::now() >= deadline {
                return Err(ClientError::Silent { socket: self.socket.clone(), cause: io::ErrorKind::TimedOut.into() });
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        Ok(())
    }

    /// What was done for a child.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a child that is not served, [`ClientError::Silent`].
    pub fn stats(&self, child: &ChildId) -> Result<PagerStats, ClientError> {
        match self.call(&Request::Stats { child: child.clone() }, &[])? {
            Reply::Stats(stats) => Ok(stats),
            other => Err(unexpected(&other)),
        }
    }

    /// Has a child take the rest of its pages in the background, where `begin` says so, and tells how far it is. `pid` is the
    /// child's own process: the kernel serves it alone once it has settled.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a child that is not served, [`ClientError::Silent`].
    pub fn settle(&self, child: &ChildId, begin: bool, pid: i32) -> Result<SettleProgress, ClientError> {
        match self.call(&Request::Settle { child: child.clone(), begin, pid }, &[])? {
            Reply::Settling(progress) => Ok(progress),
            other => Err(unexpected(&other)),
        }
    }

    /// What the cache of pages holds.
    ///
    /// # Errors
    /// [`ClientError::Silent`].
    pub fn cache(&self) -> Result<CacheStats, ClientError> {
        match self.call(&Request::Cache, &[])? {
            Reply::Cache(stats) => Ok(stats),
            other => Err(unexpected(&other)),
        }
    }

    /// Has a seed's working set put into the cache of pages, whose plan stands in `dir`, or tells how far that is. What is
    /// over is told once; another call begins anew.
    ///
    /// # Errors
    /// [`ClientError::Refused`] without a usable plan, [`ClientError::Silent`].
    pub fn prewarm(&self, seed: &SeedId, dir: &Path) -> Result<WarmProgress, ClientError> {
        match self.call(&Request::Prewarm { seed: seed.clone(), dir: dir.to_owned() }, &[])? {
            Reply::Warming(progress) => Ok(progress),
            other => Err(unexpected(&other)),
        }
    }

    /// Sets how many bytes of memory the cache of pages may take, for this pager and those after it; 0 for none. A cache
    /// whose limit changes begins anew.
    ///
    /// # Errors
    /// [`ClientError::Silent`], [`ClientError::CacheLimit`].
    pub fn limit_cache(&self, bytes_max: u64) -> Result<CacheStats, ClientError> {
        let run_dir = self.socket.parent().unwrap_or(Path::new("/"));
        cache::limit::write(run_dir, bytes_max).map_err(ClientError::CacheLimit)?;
        self.cache()
    }

    /// The children that are served, ascending, also those that have ended but were not released.
    ///
    /// # Errors
    /// [`ClientError::Silent`].
    pub fn children(&self) -> Result<Vec<ChildId>, ClientError> {
        let mut all = Vec::new();
        loop {
            match self.call(&Request::Children { after: all.last().cloned() }, &[])? {
                Reply::Children(page) if page.is_empty() => return Ok(all),
                Reply::Children(page) => all.extend(page),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Ends pager and keeper, and waits until they have gone, at most `limit`.
    ///
    /// # Errors
    /// [`ClientError::Refused`] while children run, [`ClientError::Silent`].
    pub fn stop(&self, limit: Duration) -> Result<(), ClientError> {
        let deadline = Instant::now() + limit;
        self.call(&Request::Stop, &[])?;
        // The keeper removes its socket last.
        while self.socket.exists() {
            if Instant::now() >= deadline {
                return Err(ClientError::Silent { socket: self.socket.clone(), cause: io::ErrorKind::TimedOut.into() });
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        Ok(())
    }

    /// Has a child served again whose pager, keeper and holder were killed together; `queue` is what its stub holds. Gives how many of its
    /// processes were lost: nobody held their userfaultfds, so that they have read zeroes since.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where it cannot be served, [`ClientError::Silent`].
    pub fn reclaim(&self, child: &ChildId, child_dir: &Path, queue: BorrowedFd<'_>) -> Result<usize, ClientError> {
        let request = Request::Reclaim { child: child.clone(), dir: child_dir.to_owned() };
        match self.call(&request, &[queue])? {
            Reply::Reclaimed { lost } => Ok(lost),
            other => Err(unexpected(&other)),
        }
    }

    /// Which number the next address space of a child gets: the one that a process of it forks.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a child that is not served, [`ClientError::Silent`].
    pub fn next_space(&self, child: &ChildId) -> Result<u32, ClientError> {
        match self.call(&Request::NextSpace { child: child.clone() }, &[])? {
            Reply::Space(Some(space)) => Ok(space),
            other => Err(unexpected(&other)),
        }
    }

    /// The space of a child, not older than `since`, in which the page at this address is mapped.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where there are several, or the child is not served; [`ClientError::Silent`].
    pub fn find_space(&self, child: &ChildId, since: u32, address: u64) -> Result<Option<u32>, ClientError> {
        match self.call(&Request::FindSpace { child: child.clone(), since, address }, &[])? {
            Reply::Space(space) => Ok(space),
            other => Err(unexpected(&other)),
        }
    }

    /// Which addresses of a space show which pages, ascending, of a process that stands still.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where there is no such space, [`ClientError::Silent`].
    pub fn map_of(&self, child: &ChildId, space: u32) -> Result<Vec<Segment>, ClientError> {
        let mut all: Vec<Segment> = Vec::new();
        loop {
            let from = all.last().map_or(0, |last| last.end);
            match self.call(&Request::Map { child: child.clone(), space, from }, &[])? {
                Reply::Map(page) if page.len() < SEGMENTS_PER_REPLY_MAX => {
                    all.extend(page);
                    return Ok(all);
                }
                Reply::Map(page) => all.extend(page),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Has a space served no more, whose process must never run again: what it lacks would read as zeroes.
    ///
    /// # Errors
    /// [`ClientError::Silent`].
    pub fn leave(&self, child: &ChildId, space: u32) -> Result<(), ClientError> {
        self.call(&Request::Leave { child: child.clone(), space }, &[]).map(drop)
    }

    fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Reply, ClientError> {
        self.conclude(request, fds, self.ask(request, fds))
    }

    /// Waits for the reply to a request that was sent, and sends it again where none comes.
    fn conclude(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        mut asked: io::Result<Asked>,
    ) -> Result<Reply, ClientError> {
        let deadline = Instant::now() + CALL_LIMIT;
        loop {
            let was_kept = asked.as_ref().is_ok_and(|asked| asked.was_kept);
            match asked.and_then(|asked| self.hear(asked.socket, deadline)) {
                Ok(Reply::Refused(reason)) => return Err(ClientError::Refused(reason)),
                Err(cause) if is_of_another_form(&cause) => return Err(ClientError::Form(cause.to_string())),
                Ok(reply) => return Ok(reply),
                Err(cause) if Instant::now() + RETRY_PAUSE >= deadline => {
                    return Err(ClientError::Silent { socket: self.socket.clone(), cause });
                }
                // The pager has closed it since: it is no sign that there is none.
                Err(_) if was_kept => self.kept().clear(),
                Err(_) => std::thread::sleep(RETRY_PAUSE),
            }
            asked = self.ask(request, fds);
        }
    }

    /// Sends a request; gives the connection on which the reply will come.
    fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<Asked> {
        let bytes = encode(request).map_err(io::Error::other)?;
        let kept = self.kept().pop();
        if let Some(socket) = kept
            && fdpass::send(socket.as_fd(), &bytes, fds).is_ok()
        {
            return Ok(Asked { socket, was_kept: true });
        }
        // Nonblocking: connecting to a full backlog fails at once, and is tried again.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        fdpass::send(socket.as_fd(), &bytes, fds)?;
        Ok(Asked { socket, was_kept: false })
    }

    /// Waits for a reply, and keeps the connection.
    fn hear(&self, socket: OwnedFd, deadline: Instant) -> io::Result<Reply> {
        let reply = hear(&socket, deadline)?;
        let mut kept = self.kept();
        if kept.len() < KEPT_MAX {
            kept.push(socket);
        }
        Ok(reply)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was sent.
#[derive(Debug)]
struct Asked {
    socket: OwnedFd,
    /// Whether the connection was there before: the pager may have closed it.
    was_kept: bool,
}

/// A child that the pager was asked to serve.
#[derive(Debug)]
#[must_use = "the pager may refuse"]
pub struct Adoption<'a> {
    client: &'a PagerClient,
    request: Request,
    uffd_socket: OwnedFd,
    asked: io::Result<Asked>,
}

impl Adoption<'_> {
    /// Waits until the child is served.
    ///
    /// # Errors
    /// [`ClientError::Refused`] without a usable plan, [`ClientError::Silent`].
    pub fn wait(self) -> Result<(), ClientError> {
        let Self { client, request, uffd_socket, asked } = self;
        client.conclude(&request, &[uffd_socket.as_fd()], asked).map(drop)
    }
}

fn hear(socket: &OwnedFd, deadline: Instant) -> io::Result<Reply> {
    if !farfork_sys::wait::readable(socket.as_fd(), deadline)? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    MESSAGE.with_borrow_mut(|bytes| {
        bytes.resize(MESSAGE_BYTES_MAX, 0);
        let (length, _) = fdpass::receive(socket.as_fd(), bytes, 0)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        decode(&bytes[..length]).map_err(io::Error::other)
    })
}

fn is_of_another_form(cause: &io::Error) -> bool {
    let inner = cause.get_ref().and_then(|inner| inner.downcast_ref::<MessageError>());
    matches!(inner, Some(MessageError::Form { .. }))
}

fn unexpected(reply: &Reply) -> ClientError {
    ClientError::Refused(format!("the pager gave an answer to another question: {reply:?}"))
}
