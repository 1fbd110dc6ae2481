//! The threads that wait for programs. A program that asks for a seed of itself with its first words is captured by the very
//! thread that hears them, which tells it the outcome, too: each hand-over to another thread would be a wake-up that it
//! waits for. Every other program is passed on to the asynchronous runtime, and this one as well when it has its answer.
//!
//! ```text
//!  ready ── accept ─┬─ anything else ─▶ passed on ──▶ ready
//!                   └─ checkpoint ─▶ captured ─▶ told, described, another thread made ready in its place ─▶ holds the template ─▶ ends
//! ```
//!
//! A thread ends after every capture, as ptrace would have it: what did not stop for one is let go by its tracer's end.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farfork_fork::capture::{self, Begun, CaptureError, Captured, Observer};
use farfork_program::{Offered, REQUEST_BYTES_MAX, Request, Wish};
use farfork_sys::fdpass;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, SocketFlags};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::Code;

use super::connection::{Arrival, failed_reply, prepare_options, seed_reply};
use super::registry::{Registered, Registry};
use crate::api::v1;
use crate::failure::Failure;
use crate::limits::PROGRAM_CONNECTIONS_MAX;
use crate::node::Node;
use crate::seeds::{Maker, check_name};

/// Programs that come at the same time and find a thread each. Captures keep a processor busy, and few machines have two to
/// spare.
const READY_MAX: usize = 2;

/// How long a program may take from its connection to its first words before it is passed on: it says them at once.
const FIRST_WORDS: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// When a program is told that its capture takes too long. Its thread goes on: it may hang in the kernel.
const ANSWER_LIMIT: Duration = capture::TIMEOUT.saturating_add(capture::GRACE);

/// Before a next attempt when a program cannot be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The doors. Dropping this closes them; what goes on behind them goes on.
#[derive(Debug)]
pub(super) struct Doors(Arc<Hall>);

/// What the threads share.
#[derive(Debug)]
struct Hall {
    node: Arc<Node>,
    registry: Arc<Registry>,
    listener: OwnedFd,
    arrivals: mpsc::UnboundedSender<Arrival>,
    runtime: Handle,
    places: Arc<Semaphore>,
    /// Threads that wait for a program.
    ready: AtomicUsize,
    is_closed: AtomicBool,
    asking: Mutex<Vec<Arc<Asking>>>,
}

/// A program that waits to be told of its seed.
#[derive(Debug)]
struct Asking {
    pid: u32,
    since: Instant,
    socket: OwnedFd,
    is_told: AtomicBool,
}

impl Doors {
    /// Opens them. Must be called within the runtime.
    pub(super) fn open(
        node: Arc<Node>,
        registry: Arc<Registry>,
        listener: OwnedFd,
        arrivals: mpsc::UnboundedSender<Arrival>,
    ) -> Self {
        let hall = Arc::new(Hall {
            node,
            registry,
            listener,
            arrivals,
            runtime: Handle::current(),
            places: Arc::new(Semaphore::new(PROGRAM_CONNECTIONS_MAX)),
            ready: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            asking: Mutex::default(),
        });
        (0..READY_MAX).for_each(|_| hall.make_ready());
        Self(hall)
    }

    /// Tells programs whose capture takes too long, and sees to it that somebody waits for the next: those who did may hang.
    pub(super) fn look(&self) {
        let hall = &self.0;
        let is_overdue = |asking: &&Arc<Asking>| asking.since.elapsed() > ANSWER_LIMIT;
        let overdue: Vec<Arc<Asking>> = hall.asking().iter().filter(is_overdue).cloned().collect();
        for asking in overdue {
            let failure = Failure::new(
                Code::DeadlineExceeded,
                format!("process {}", asking.pid),
                "its state could not be read from the kernel in time",
            );
            asking.tell(&failed_reply(&failure.with_next_step("try again when the machine is less busy")));
        }
        if hall.ready.load(Ordering::Relaxed) == 0 && hall.places.available_permits() > 0 {
            hall.make_ready();
        }
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Relaxed);
        self.0.places.close();
        // Whoever waits in accept(2) is told so.
        let _ = rustix::net::shutdown(&self.0.listener, Shutdown::Both);
    }
}

impl Hall {
    fn make_ready(self: &Arc<Self>) {
        let hall = self.clone();
        let started = capture::spawn_tracer("door", move || {
            capture::warm_up();
            hall.attend();
        });
        if let Err(error) = started {
            tracing::warn!(%error, "no thread waits for the next program");
        }
    }

    /// The life of a thread, until it captures.
    fn attend(self: Arc<Self>) {
        // Others were made ready while this one was not.
        while self.ready.load(Ordering::Relaxed) < READY_MAX {
            let Ok(place) = self.runtime.block_on(self.places.clone().acquire_owned()) else { return };
            self.ready.fetch_add(1, Ordering::Relaxed);
            let accepted = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            self.ready.fetch_sub(1, Ordering::Relaxed);
            match accepted {
                Ok(socket) => {
                    if let Some((socket, place, request)) = self.welcome(socket, place) {
                        return self.checkpoint(socket, place, request);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) if self.is_closed.load(Ordering::Relaxed) => return,
                Err(error) => {
                    tracing::warn!(%error, "a program could not connect");
                    // EMFILE and the like pass.
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Hears a program's first words; it comes back if it asks for a seed of itself, else it is passed on.
    fn welcome(
        &self,
        socket: OwnedFd,
        place: OwnedSemaphorePermit,
    ) -> Option<(OwnedFd, OwnedSemaphorePermit, Checkpoint)> {
        let first = match first_words(&socket) {
            Ok(Some(message)) if message.is_empty() => return None,
            Ok(first) => first,
            Err(error) => {
                tracing::debug!(%error, "a program went away at once");
                return None;
            }
        };
        let request = first.as_ref().and_then(|message| Request::decode(message).ok());
        if let (Some(Request { socket_inode, wish: Wish::Checkpoint { name, ttl, offered } }), Ok(Some(pid))) =
            (request, fdpass::peer_pid(socket.as_fd()))
        {
            return Some((socket, place, Checkpoint { pid: pid.unsigned_abs(), socket_inode, name, ttl, offered }));
        }
        self.pass_on(Arrival { socket, first, registered: None, place });
        None
    }

    /// Makes a seed of a program, which waits for the answer at its socket.
    fn checkpoint(self: Arc<Self>, socket: OwnedFd, place: OwnedSemaphorePermit, request: Checkpoint) {
        let Checkpoint { pid, socket_inode, name, ttl, offered } = request;
        let registered = self.registry.register(pid, socket_inode);
        let sockets = self.registry.sockets(pid, socket_inode);
        let asking = Arc::new(Asking { pid, since: Instant::now(), socket, is_told: AtomicBool::new(false) });
        let options = prepare_options(name, ttl, sockets, offered);
        let asker = (options.sockets.clone(), options.offer.clone());
        let told = asking.clone();
        let answer = move |made: Result<v1::Seed, Failure>| match made {
            Ok(seed) => told.tell(&seed_reply(&seed)),
            Err(failure) => told.tell(&failed_reply(&failure)),
        };
        let maker = check_name(&options.name).and_then(|()| {
            // Who asks for itself is not paused.
            let lineage = self.node.lineage_of(pid)?;
            Ok((Maker::new(self.node.clone(), pid, options, Box::new(answer))?, lineage))
        });
        let visit = Visit { hall: self.clone(), asking: asking.clone(), left: Some((registered, place)) };
        match maker {
            Ok((maker, lineage)) => {
                self.asking().push(asking);
                self.node.engine.capture_and_hold(pid, asker, lineage, Box::new(Captor { maker, visit }));
            }
            Err(failure) => {
                asking.tell(&failed_reply(&failure));
                drop(visit);
                self.make_ready();
            }
        }
    }

    fn pass_on(&self, arrival: Arrival) {
        // Nobody takes it any more when the daemon stops: then it ends here.
        let _ = self.arrivals.send(arrival);
    }

    fn asking(&self) -> MutexGuard<'_, Vec<Arc<Asking>>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A program's request for a seed of itself.
struct Checkpoint {
    pid: u32,
    socket_inode: u64,
    name: String,
    ttl: Option<Duration>,
    offered: Option<Offered>,
}

/// A program's first message, of no bytes at its end; `None` if it says nothing for now.
fn first_words(socket: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let mut message = vec![0; REQUEST_BYTES_MAX];
    let mut received = fdpass::receive(socket.as_fd(), &mut message, 0);
    if received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        if poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&FIRST_WORDS))? == 0 {
            return Ok(None);
        }
        received = fdpass::receive(socket.as_fd(), &mut message, 0);
    }
    message.truncate(received?.0);
    Ok(Some(message))
}

impl Asking {
    /// Tells it, once. Says whether it was told now.
    fn tell(&self, reply: &[u8]) -> bool {
        let is_first = !self.is_told.swap(true, Ordering::AcqRel);
        // Nothing else is in the socket: a program that cannot be told has gone.
        is_first && fdpass::send(self.socket.as_fd(), reply, &[]).is_ok()
    }
}

/// Hears of a capture, for a program at the door.
struct Captor {
    maker: Maker,
    visit: Visit,
}

impl Observer for Captor {
    fn begun(&mut self, begun: Result<Begun, CaptureError>) -> bool {
        let is_wanted = self.maker.begun(begun);
        // The kernel has put the program that was told behind this thread, on its processor: who sends over a socket mostly
        // sleeps next. Here there is more to do, for which nobody waits as yet.
        thread::yield_now();
        if !is_wanted {
            self.visit.hall.make_ready();
        }
        is_wanted
    }

    fn completed(&mut self, captured: Result<Captured, CaptureError>) {
        self.maker.completed(captured);
        // Only now: a fork that came at once has waited for the seed.
        self.visit.hall.make_ready();
    }
}

/// A program at the door. When this is dropped it is passed on, with whatever it wants next.
struct Visit {
    hall: Arc<Hall>,
    asking: Arc<Asking>,
    left: Option<(Registered, OwnedSemaphorePermit)>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.hall.asking().retain(|other| !Arc::ptr_eq(other, &self.asking));
        let Some((registered, place)) = self.left.take() else { return };
        // Most say no more.
        let has_gone = fdpass::peek(self.asking.socket.as_fd(), &mut [0; REQUEST_BYTES_MAX], 0);
        if matches!(has_gone, Ok((0, _))) {
            return;
        }
        match self.asking.socket.try_clone() {
            Ok(socket) => self.hall.pass_on(Arrival { socket, first: None, registered: Some(registered), place }),
            Err(error) => tracing::warn!(%error, "a program that has its answer is heard no more"),
        }
    }
}
