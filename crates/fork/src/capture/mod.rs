//! Capture: turns a running process tree into a descriptor and templates, in a pause little longer than a fork(2).
//!
//! The node calls `start_capture` or `capture_and_hold`. `restore` uses the descriptor; `seed` serves the memory.
//! Invariant: on any failure the parent resumes unchanged. `StopGuard` restores its registers and signal masks.
//! Invariant: unsupported state is refused by name before memory, files or signals of the parent change.
//! Invariant: a template never runs. If its tracer dies, it dies at its first instruction at the latest.

mod attempt;
mod check;
mod describe;
mod descriptor_size;
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
pub(crate) use stop::interrupted_calls::remember_marked_end;
pub use stop::queries::{QueryArgument, QueryCall, QueryResult, QueryThreads};
pub(crate) use stop::restart::{self, CallMark};
pub use stop::stopped_process::StoppedProcess;
pub(crate) use tracer::deadline::Deadline;
pub use tracer::owner_thread::{CaptureCallbacks, ReadyTemplate, TIMEOUT_GRACE, TemplateGuard};
pub use volume_objects::{VolumeObject, VolumeObjectKind};

/// Default time limit of a capture. A fork(2) of several hundred gigabytes takes about as long.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Called with the pid of each new template. The daemon moves templates to a control group of their own: pages that the
/// parent's writes leave to a template are then not charged to the parent.
pub type TemplateCallback = Box<dyn FnMut(i32) + Send>;

/// Options of a capture.
pub struct CaptureOptions {
    /// The node that will own the seed.
    pub node: NodeName,
    /// Whether the parent itself stays stopped and holds the memory. If so, no clone is made.
    pub freeze: bool,
    /// Time limit for an attempt, from the end of its survey until the reply. The same limit applies to the wait for another
    /// capture of the process, and to the completion of the descriptor.
    pub timeout: Duration,
    /// Called in the tracer thread for each template, after all other steps, so it may be slow. Not called in freeze mode.
    pub on_template: Option<TemplateCallback>,
    /// The process's connections to the daemon. Children get other sockets instead.
    pub daemon_sockets: DaemonSockets,
    /// Pages that the process offers for injected calls, if it requests the capture itself.
    pub offered_pages: Option<OfferedPages>,
    /// The pager that serves the process's missing pages, if it is a child of a seed or was forked by such a child.
    pub serving_pager: Option<ServingPager>,
    /// Policy for a process with namespaces that its children would lack.
    pub namespaces: NamespacePolicy,
}

impl CaptureOptions {
    /// Defaults: a clone as template, the default limit, no callback, no connections.
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

/// A captured process tree.
#[derive(Debug)]
pub struct CapturedTree {
    /// The state of the processes, without the contents of pages.
    pub descriptor: Descriptor,
    /// Holds the contents of private pages.
    pub template: TemplateGuard,
    /// Contents of the shared objects, in the order of the descriptor's shared objects.
    pub shared_copies: Vec<SharedCopy>,
    /// Held files, in the order of the descriptor's file versions.
    pub held_files: Vec<Option<HeldFile>>,
    /// How long the capture took.
    pub times: CaptureTimes,
}

/// How long a capture took, by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureTimes {
    /// From the first interrupted thread until all threads were released.
    pub pause: Duration,
    /// From the start of the survey until the reply. The parent runs again by then.
    pub total: Duration,
    /// The completion of the descriptor, after `total`.
    pub describe: Duration,
    /// Before the pause: the survey of the running process.
    pub survey: Duration,
    /// In the pause: until all threads have stopped.
    pub stop: Duration,
    /// In the pause: reading the state that a tracer can read.
    pub registers: Duration,
    /// In the pause: queries that the threads must make themselves.
    pub queries: Duration,
    /// In the pause, while the clone is made: files and shared memory.
    pub shared: Duration,
    /// In the pause: the remaining time until the clone is made.
    pub clone: Duration,
}

impl CaptureTimes {
    /// Adds the phases of one more process's pause.
    fn add_pause(&mut self, other: &Self) {
        self.registers += other.registers;
        self.queries += other.queries;
        self.shared += other.shared;
        self.clone += other.clone;
    }
}

/// Captures a process. Blocks, so the calling thread must be one that may block.
///
/// # Errors
/// [`CaptureError`]. The process runs on as if nothing had happened.
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
//                                                   state/inherited_state: read from it before the reply
//         ─▶ reply; then describe ─── template/flag_probe, memory, state: read from the template
/// Starts to capture a process. `observer` is called when the template is ready, and again when the capture is complete,
/// each within the limit and [`TIMEOUT_GRACE`].
///
/// # Errors
/// [`CaptureError::ThreadStart`]; the observer gets all others.
pub fn start_capture(
    pid: i32,
    options: CaptureOptions,
    observer: Box<dyn CaptureCallbacks>,
) -> Result<(), CaptureError> {
    tracer::owner_thread::start_job(pid, options, observer)
}

/// Captures a process in the calling [tracer](spawn_tracer), which then owns the template. Returns when the template has
/// ended, or when the capture failed. Call [`warm_up_thread`] before, to make the first steps of the capture faster.
pub fn capture_and_hold(pid: i32, options: CaptureOptions, observer: Box<dyn CaptureCallbacks>) {
    tracer::owner_thread::run_job(pid, options, observer);
}

/// Starts a tracer, in which [`capture_and_hold`] may be called. A tracer is a separate process that shares this process's
/// memory and open files. If this process is killed, the tracer releases the processes that it has stopped, unchanged. The
/// thread `name` waits for its end.
///
/// # Errors
/// As clone(2): no thread could be started.
pub fn spawn_tracer(name: &str, life: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    tracer::owner_thread::spawn_tracer(name, life)
}

/// Prepares the calling thread, so that its first capture is not slower than later ones.
pub fn warm_up_thread() {
    tracer::thread_pool::warm_up();
}

/// Keeps a few threads ready for [`start_capture`] from now on. For a daemon, which expects requests.
pub fn enable_thread_pool() {
    tracer::thread_pool::fill_pool();
}

/// A process's memory, for reading and writing.
fn open_memory(pid: i32) -> Result<File, CaptureError> {
    let mem = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
    mem.map_err(CaptureError::reading(pid, "the memory"))
}
