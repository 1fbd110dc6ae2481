//! Threads that accept programs. If a program's first message is a checkpoint request, the thread that reads the
//! message also captures the program and replies. A hand-over to another thread would cost a wake-up while the program
//! waits. After the reply, the program is passed to the asynchronous runtime. All other programs are passed at once.
//!
//! A thread ends after every capture: the end of a ptrace(2) tracer releases threads that did not stop for the capture.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_api::limits::PROGRAM_CONNECTIONS_MAX;
use farfork_api::v1;
use farfork_fork::capture::{self, CaptureCallbacks, CaptureError, CapturedTree, ReadyTemplate};
use farfork_program::{CaptureOffer, REQUEST_BYTES_MAX, Request, RequestBody};
use farfork_sys::fd_passing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, SocketFlags};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::Code;

use super::connection::{AcceptedProgram, checkpoint_options, encode_failure_reply, encode_seed_reply};
use super::socket_registry::{SocketRegistration, SocketRegistry};
use crate::engine::CaptureInputs;
use crate::node::Node;
use crate::seeds::{SeedBuilder, check_name};

/// Maximum number of threads that wait for programs, so that two programs can connect at the same time. Each capture
/// keeps a CPU busy.
const LISTENER_THREADS_MAX: usize = 2;

/// Longest wait for a program's first message, which it sends right after connecting. After that, the program is passed
/// to the runtime.
const FIRST_MESSAGE_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// After this time, a program gets a failure as the reply: its capture takes too long. The capturing thread cannot be
/// ended, because it may hang in the kernel.
const CAPTURE_REPLY_TIMEOUT: Duration = capture::DEFAULT_TIMEOUT.saturating_add(capture::TIMEOUT_GRACE);

/// Pause after a failed accept(2).
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The listener's threads. Dropping the listener stops accepting; captures in progress continue.
#[derive(Debug)]
pub(super) struct CheckpointListener(Arc<ListenerState>);

/// State that the threads share.
#[derive(Debug)]
struct ListenerState {
    node: Arc<Node>,
    registry: Arc<SocketRegistry>,
    listener: OwnedFd,
    accepted: mpsc::UnboundedSender<AcceptedProgram>,
    runtime: Handle,
    permits: Arc<Semaphore>,
    /// Number of threads that wait in accept(2).
    waiting_threads: AtomicUsize,
    is_closed: AtomicBool,
    pending: Mutex<Vec<Arc<PendingCheckpoint>>>,
}

/// A program that waits for the reply to its checkpoint request.
#[derive(Debug)]
struct PendingCheckpoint {
    pid: u32,
    since: Instant,
    socket: OwnedFd,
    is_replied: AtomicBool,
}

impl CheckpointListener {
    /// Starts the threads. Must be called within the runtime.
    pub(super) fn start(
        node: Arc<Node>,
        registry: Arc<SocketRegistry>,
        listener: OwnedFd,
        arrivals: mpsc::UnboundedSender<AcceptedProgram>,
    ) -> Self {
        let listener_state = Arc::new(ListenerState {
            node,
            registry,
            listener,
            accepted: arrivals,
            runtime: Handle::current(),
            permits: Arc::new(Semaphore::new(PROGRAM_CONNECTIONS_MAX)),
            waiting_threads: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            pending: Mutex::default(),
        });
        (0..LISTENER_THREADS_MAX).for_each(|_| listener_state.spawn_thread());
        Self(listener_state)
    }

    /// Sends a failure to programs whose capture takes too long. Starts a thread if no thread waits for programs: all
    /// may hang in captures.
    pub(super) fn expire_overdue(&self) {
        let listener_state = &self.0;
        let is_overdue = |checkpoint: &&Arc<PendingCheckpoint>| checkpoint.since.elapsed() > CAPTURE_REPLY_TIMEOUT;
        let overdue: Vec<Arc<PendingCheckpoint>> =
            listener_state.pending().iter().filter(is_overdue).cloned().collect();
        for checkpoint in overdue {
            let failure = Failure::new(
                Code::DeadlineExceeded,
                format!("process {}", checkpoint.pid),
                "its state could not be read from the kernel in time",
            );
            checkpoint
                .reply_once(&encode_failure_reply(&failure.with_next_step("try again when the machine is less busy")));
        }
        if listener_state.waiting_threads.load(Ordering::Relaxed) == 0 && listener_state.permits.available_permits() > 0
        {
            listener_state.spawn_thread();
        }
    }
}

impl Drop for CheckpointListener {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Relaxed);
        self.0.permits.close();
        // This wakes the threads in accept(2).
        let _ = rustix::net::shutdown(&self.0.listener, Shutdown::Both);
    }
}

impl ListenerState {
    fn spawn_thread(self: &Arc<Self>) {
        let listener_state = self.clone();
        let started = capture::spawn_tracer("door", move || {
            capture::warm_up_thread();
            listener_state.run_thread();
        });
        if let Err(error) = started {
            tracing::warn!(%error, "cannot start a thread that accepts programs");
        }
    }

    /// Accepts programs until one is captured.
    ///
    /// ```text
    ///  ready ── accept ─┬─ anything else ─▶ passed on ──▶ ready
    ///                   └─ checkpoint ─▶ captured ─▶ replied, described, new thread started ─▶ holds the template ─▶ ends
    /// ```
    fn run_thread(self: Arc<Self>) {
        // Stop if enough other threads wait: they may have been started while this thread was busy.
        while self.waiting_threads.load(Ordering::Relaxed) < LISTENER_THREADS_MAX {
            let Ok(permit) = self.runtime.block_on(self.permits.clone().acquire_owned()) else { return };
            self.waiting_threads.fetch_add(1, Ordering::Relaxed);
            let accepted = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            self.waiting_threads.fetch_sub(1, Ordering::Relaxed);
            match accepted {
                Ok(socket) => {
                    if let Some((socket, permit, request)) = self.read_first_message(socket, permit) {
                        return self.capture_program(socket, permit, request);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) if self.is_closed.load(Ordering::Relaxed) => return,
                Err(error) => {
                    tracing::warn!(%error, "a program could not connect");
                    // Errors such as EMFILE are temporary.
                    thread::sleep(ACCEPT_BACKOFF);
                }
            }
        }
    }

    /// Reads a program's first message. Returns the program if the message requests a checkpoint; otherwise passes the
    /// program to the runtime.
    fn read_first_message(
        &self,
        socket: OwnedFd,
        permit: OwnedSemaphorePermit,
    ) -> Option<(OwnedFd, OwnedSemaphorePermit, CheckpointRequest)> {
        let first = match receive_first_message(&socket) {
            Ok(Some(message)) if message.is_empty() => return None,
            Ok(first) => first,
            Err(error) => {
                tracing::debug!(%error, "a program disconnected before its first request");
                return None;
            }
        };
        let request = first.as_ref().and_then(|message| Request::decode(message).ok());
        if let (
            Some(Request { socket_inode, body: RequestBody::Checkpoint { name, ttl, offer: offered } }),
            Ok(Some(pid)),
        ) = (request, fd_passing::peer_pid(socket.as_fd()))
        {
            return Some((
                socket,
                permit,
                CheckpointRequest { pid: pid.unsigned_abs(), socket_inode, name, ttl, offered },
            ));
        }
        self.hand_off(AcceptedProgram { socket, first_message: first, registration: None, permit });
        None
    }

    /// Captures a program, which waits for the reply at its socket.
    fn capture_program(self: Arc<Self>, socket: OwnedFd, permit: OwnedSemaphorePermit, request: CheckpointRequest) {
        let CheckpointRequest { pid, socket_inode, name, ttl, offered } = request;
        let registration = self.registry.register(pid, socket_inode);
        let sockets = self.registry.sockets(pid, socket_inode);
        let checkpoint =
            Arc::new(PendingCheckpoint { pid, since: Instant::now(), socket, is_replied: AtomicBool::new(false) });
        let mut options = checkpoint_options(name, ttl, sockets, offered);
        let reply_target = checkpoint.clone();
        let answer = move |made: Result<v1::Seed, Failure>| match made {
            Ok(seed) => reply_target.reply_once(&encode_seed_reply(&seed)),
            Err(failure) => reply_target.reply_once(&encode_failure_reply(&failure)),
        };
        let builder = check_name(&options.name).and_then(|()| {
            // `lineage_of` refuses paused children, but this program runs, as it has just sent a request.
            let lineage = self.node.lineage_of(pid)?;
            let inputs = CaptureInputs { serving_pager: lineage, ..std::mem::take(&mut options.inputs) };
            Ok((SeedBuilder::new(self.node.clone(), pid, options, Box::new(answer))?, inputs))
        });
        let handoff = ProgramHandoff {
            listener: self.clone(),
            checkpoint: checkpoint.clone(),
            registration_and_permit: Some((registration, permit)),
        };
        match builder {
            Ok((builder, inputs)) => {
                self.pending().push(checkpoint);
                self.node.engine.capture_and_hold(pid, inputs, Box::new(CaptureObserver { builder, handoff }));
            }
            Err(failure) => {
                checkpoint.reply_once(&encode_failure_reply(&failure));
                drop(handoff);
                self.spawn_thread();
            }
        }
    }

    fn hand_off(&self, arrival: AcceptedProgram) {
        // Fails only while the daemon stops. Dropping `arrival` then closes the connection.
        let _ = self.accepted.send(arrival);
    }

    fn pending(&self) -> MutexGuard<'_, Vec<Arc<PendingCheckpoint>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A program's request for a checkpoint of itself.
struct CheckpointRequest {
    pid: u32,
    socket_inode: u64,
    name: String,
    ttl: Option<Duration>,
    offered: Option<CaptureOffer>,
}

/// Receives a program's first message: empty at the end of the connection, `None` if no message arrives in time.
fn receive_first_message(socket: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let mut message = vec![0; REQUEST_BYTES_MAX];
    let mut received = fd_passing::receive(socket.as_fd(), &mut message, 0);
    if received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        if poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&FIRST_MESSAGE_TIMEOUT))? == 0 {
            return Ok(None);
        }
        received = fd_passing::receive(socket.as_fd(), &mut message, 0);
    }
    message.truncate(received?.0);
    Ok(Some(message))
}

impl PendingCheckpoint {
    /// Sends a reply, unless one was sent before. Returns whether this reply was sent.
    fn reply_once(&self, reply: &[u8]) -> bool {
        let is_first = !self.is_replied.swap(true, Ordering::AcqRel);
        // The send buffer is empty, so a failed send means that the program has disconnected.
        is_first && fd_passing::send(self.socket.as_fd(), reply, &[]).is_ok()
    }
}

/// Receives the progress of a capture for a waiting program.
struct CaptureObserver {
    builder: SeedBuilder,
    handoff: ProgramHandoff,
}

impl CaptureCallbacks for CaptureObserver {
    fn template_ready(&mut self, ready_template: Result<ReadyTemplate, CaptureError>) -> bool {
        let is_wanted = self.builder.template_ready(ready_template);
        // The reply has woken the program, and the kernel has queued it on this thread's CPU, because a sender usually
        // sleeps next. This thread has more work, but no process waits for it: let the program run first.
        thread::yield_now();
        if !is_wanted {
            self.handoff.listener.spawn_thread();
        }
        is_wanted
    }

    fn capture_completed(&mut self, captured: Result<CapturedTree, CaptureError>) {
        self.builder.capture_completed(captured);
        // Start no thread before the seed is complete: a fork that is requested right after the reply waits for the
        // seed, and a new thread would delay it.
        self.handoff.listener.spawn_thread();
    }
}

/// A program whose capture is in progress. Dropping it passes the program to the runtime for its further requests.
struct ProgramHandoff {
    listener: Arc<ListenerState>,
    checkpoint: Arc<PendingCheckpoint>,
    registration_and_permit: Option<(SocketRegistration, OwnedSemaphorePermit)>,
}

impl Drop for ProgramHandoff {
    fn drop(&mut self) {
        self.listener.pending().retain(|other| !Arc::ptr_eq(other, &self.checkpoint));
        let Some((registration, permit)) = self.registration_and_permit.take() else { return };
        // Check for the end of the connection: most programs send no further request.
        let has_gone = fd_passing::peek(self.checkpoint.socket.as_fd(), &mut [0; REQUEST_BYTES_MAX], 0);
        if matches!(has_gone, Ok((0, _))) {
            return;
        }
        match self.checkpoint.socket.try_clone() {
            Ok(socket) => self.listener.hand_off(AcceptedProgram {
                socket,
                first_message: None,
                registration: Some(registration),
                permit,
            }),
            Err(error) => tracing::warn!(%error, "cannot hand off a program; its further requests are lost"),
        }
    }
}
