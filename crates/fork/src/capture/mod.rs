//! Capture: turns a running process tree into a descriptor and templates, in a pause little longer than a fork(2).
//!
//! The node calls `start_capture` or `capture_and_hold`. `restore` uses the descriptor; `seed` serves the memory.
//! Invariant: on any failure the parent resumes unchanged. `StopGuard` restores its registers and signal masks.
//! Invariant: unsupported state is refused by name before memory, files or signals of the parent change.
//! Invariant: a template never runs. It dies with its tracer, at its first instructions at the latest.

mod attempt;
mod check;
mod describe;
mod error;
mod files;
mod inheritance;
mod injection;
mod memory;
mod pause;
mod shared;
mod state;
mod stop;
mod survey;
mod template;
mod tracer;
mod tree;
mod tree_pause;
mod volume_objects;

use std::fmt;
use std::fs::File;
use std::time::Duration;

use farfork_wire::NodeName;
use farfork_wire::descriptor::Descriptor;

pub use check::{CheckOptions, CheckReport, check};
pub use error::{CaptureError, Refusal};
pub use files::DaemonSockets;
pub use files::versions::HeldFile;
pub use inheritance::ServingPager;
pub use injection::pages::OfferedPages;
pub use shared::SharedCopy;
pub use state::namespaces::NamespacePolicy;
pub(crate) use stop::call_entry::{ProcessorClocks, SleepingCall, StoppedCall};
pub(crate) use stop::call_timeouts::LimitedCall;
pub use stop::queries::{QueryArgument, QueryCall, QueryResult, QueryThreads};
pub(crate) use stop::restart::{self, CallMark};
pub use stop::stopped_process::StoppedProcess;
pub(crate) use tracer::deadline::Deadline;
pub use tracer::owner_thread::{CaptureCallbacks, ReadyTemplate, TIMEOUT_GRACE, TemplateGuard};
pub use volume_objects::{VolumeObject, VolumeObjectKind};

/// Default limit of a capture: a fork of some hundred gigabytes takes as long.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// What is done with a template as soon as it is born: the daemon moves it to a control group of its own, so that the
/// copies that the parent's writes leave it with are not charged to the parent. Takes its pid.
pub type TemplateCallback = Box<dyn FnMut(i32) + Send>;

/// How to capture.
pub struct CaptureOptions {
    /// The node that will own the seed.
    pub node: NodeName,
    /// The parent itself stays stopped and holds the memory; no clone is made.
    pub freeze: bool,
    /// Limit of the attempt, from its first stop until the process runs again and nothing is refused any more; and once more of what
    /// completes the descriptor then.
    pub timeout: Duration,
    /// Called in the tracer thread for each template, when all else is done: it may take its time. Not in freeze mode.
    pub on_template: Option<TemplateCallback>,
    /// The process's connections to the daemon; every other socket is refused.
    pub daemon_sockets: DaemonSockets,
    /// Pages that it offers for the calls of the capture, where it asks for that itself.
    pub offered_pages: Option<OfferedPages>,
    /// Who serves its missing pages, where it is a child of a seed or was forked by one.
    pub serving_pager: Option<ServingPager>,
    /// What becomes of a process whose children would lack something of its namespaces.
    pub namespaces: NamespacePolicy,
}

impl CaptureOptions {
    /// A template, the default limit, nothing done with the template, no connections.
    pub fn new(node: NodeName) -> Self {
        Self {
            node,
            freeze: false,
            timeout: DEFAULT_TIMEOUT,
            on_template: None,
            daemon_sockets: DaemonSockets::default(),
            offered_pages: None,
            serving_pager: None,
            namespaces: NamespacePolicy::default(),
        }
    }
}

impl fmt::Debug for CaptureOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureOptions")
            .field("node", &self.node)
            .field("freeze", &self.freeze)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// A captured process.
#[derive(Debug)]
pub struct CapturedTree {
    /// Everything but the contents of its pages.
    pub descriptor: Descriptor,
    /// Holds the contents of its private pages.
    pub template: TemplateGuard,
    /// Contents of its shared objects, in the order of the descriptor's.
    pub shared_copies: Vec<SharedCopy>,
    /// Files that are held, in the order of the descriptor's file versions.
    pub held_files: Vec<Option<HeldFile>>,
    /// How long it took.
    pub times: CaptureTimes,
}

/// How long a capture took, by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureTimes {
    /// From the first interrupted thread until all were let go.
    pub pause: Duration,
    /// From the first look until nothing was refused any more, and the parent ran.
    pub total: Duration,
    /// What it took then to complete the descriptor.
    pub describe: Duration,
    /// How many threads.
    pub threads: usize,
    /// Before the pause: the look at the running process.
    pub survey: Duration,
    /// In the pause: until all threads stood.
    pub stop: Duration,
    /// In the pause: reading what a tracer can.
    pub registers: Duration,
    /// In the pause: what the threads had to ask for themselves.
    pub queries: Duration,
    /// In the pause, while the clone is under way: files and shared memory.
    pub shared: Duration,
    /// In the pause: what was left of the clone then.
    pub clone: Duration,
}

impl CaptureTimes {
    /// Adds what a pause took with one process more.
    fn add_pause(&mut self, other: &Self) {
        self.registers += other.registers;
        self.queries += other.queries;
        self.shared += other.shared;
        self.clone += other.clone;
    }
}

/// Captures a process. Blocks; call it from a thread that may.
///
/// # Errors
/// Says what stands against it, by name; the process runs on as if nothing had happened.
pub fn capture_blocking(pid: i32, options: CaptureOptions) -> Result<CapturedTree, CaptureError> {
    tracer::owner_thread::capture_blocking(pid, options)
}

//  check ──────▶ survey: what would be carried, and what refused              (the processes run)
//  capture ────▶ tracer: owner_thread ─ attempt ─┬─ pause, stop: stops all threads, and resumes them
//                                                ├─ tree: lists the processes, and merges their descriptors
//                                                ├─ injection: system calls made by the process's own threads
//                                                ├─ files, shared: copies in the pause what fork(2) shares
//                                                ├─ state/process_root: read in the pause, while the clone is made
//                                                ├─ template: makes the clone that never runs
//                                                └─ files, memory/template_memory, memory/seals,
//                                                   state/inherited_state: read from it before the answer
//         ─▶ answer; then describe ── template/flag_probe, memory, state: read from the template
/// Starts to capture a process; `observer` hears that it was begun, and then that it was completed, each
/// within the limit and [`TIMEOUT_GRACE`].
///
/// # Errors
/// [`CaptureError::ThreadStart`]; all others are the observer's to hear.
pub fn start_capture(
    pid: i32,
    options: CaptureOptions,
    observer: Box<dyn CaptureCallbacks>,
) -> Result<(), CaptureError> {
    tracer::owner_thread::start_job(pid, options, observer)
}

/// The same in the calling [tracer](spawn_tracer), which then is the template's: this returns when the template has ended, or when
/// nothing was captured. [`warm_up_thread`] before spares the capture the thread's first steps.
pub fn capture_and_hold(pid: i32, options: CaptureOptions, observer: Box<dyn CaptureCallbacks>) {
    tracer::owner_thread::run_job(pid, options, observer);
}

/// Starts a tracer, in which [`capture_and_hold`] may be called: what it has stopped is let go as it was, also where this process is killed.
/// It is a process of its own with the memory and the open files of this one, whose thread `name` waits for its end.
///
/// # Errors
/// As clone(2): no thread could be started.
pub fn spawn_tracer(name: &str, life: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    tracer::owner_thread::spawn_tracer(name, life)
}

/// Makes the calling thread ready to capture at once.
pub fn warm_up_thread() {
    tracer::thread_pool::warm_up();
}

/// From now on a few threads are ready to capture, for [`start_capture`]: for a daemon, which will be asked to.
pub fn enable_thread_pool() {
    tracer::thread_pool::fill_pool();
}

/// A process's memory, for reading and writing.
fn open_memory(pid: i32) -> Result<File, CaptureError> {
    let mem = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
    mem.map_err(CaptureError::reading(pid, "the memory"))
}
