//! Restore: turns a descriptor into a running child inside a lean container. `resume` and `crate::zygote` call it: they
//! plan a child or a zygote, which includes checks of this node, and send the plan to a stub. The C code in `restorer/`
//! executes the plan. It trusts the plan, which is compiled here from a validated descriptor. `capture` makes
//! descriptors. `pager` supplies the memory once the child runs.

mod address_space;
mod clocks;
mod confinement;
mod file_descriptors;
mod inotify_overflow;
mod kernel_compatibility;
mod passed_objects;
mod paused_child;
mod plan;
mod plan_layout;
mod plan_writer;
mod planned_child;
mod privileged_forker;
mod process_tree;
mod processor_compatibility;
mod pseudo_terminals;
mod region;
mod report;
mod required_files;
mod seccomp_filters;
mod shared_network;
pub(crate) mod signal_frame;
mod stub;
mod stub_map;
mod syscalls;
mod thread_policies;
mod vdso;
mod zygote;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_container::resolve_on_node;
use farfork_sys::cpu::ProcessorFeatures;
use farfork_wire::descriptor::{Credentials, FileIdentity, Origin, SpecialMapping};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::{file_identity, kernel};

pub(crate) use confinement::confine_descriptor;
pub use confinement::encode_filter as encode_untrusted_filter;
pub use file_descriptors::{PAYLOAD_FD, PAYLOAD_NAME};
pub use passed_objects::{SharedContents, StandardStreams};
pub use paused_child::{find_prestart_obstacle, unpause, unpause_with_report, wait_unpaused};
pub use planned_child::{ChildSpec, PlannedChild, RestoredProcess};
pub use privileged_forker::ContainerInit;
pub use required_files::PathSnapshot;
pub use shared_network::{find_port_conflict, has_bound_sockets};
pub use stub::{STUB_IMAGE, STUB_QUEUE_FD, enter_network, wait_stub_started};
pub use zygote::{CopyDestination, PlannedZygote, ZygoteRegion, find_zygote_obstacle};

//  daemon                               stub (pid 1)              child                     pager
//    │ compile plan (plan.rs)             │                         │                         │
//    │ adopt: memory plan, socket ────────┼─────────────────────────┼────────────────────────▶│
//    │ request: plan, socket, files ─────▶│ clone3(set_tid) ───────▶│ map region, jump        │
//    │                                    │                         │ userfaultfd ───────────▶│
//    │◀── restored ───────────────────────┼─────────────────────────│ (paused: wait command)  │
//    │                                    │                         │ rt_sigreturn, runs on   │
//    │            status file ◀── status ─│◀── ends ────────────────│                         │
/// The properties of a node that a restore depends on.
#[derive(Debug, Clone)]
pub struct LocalNode {
    /// Root of the children's file system.
    pub root: PathBuf,
    /// /proc/sys/kernel/random/boot_id; empty if it could not be read.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel_release: String,
    /// Build id of the kernel's vdso; empty if it could not be read.
    pub vdso_build_id: Vec<u8>,
    /// Whether children use a vdso bridge even if the kernels are the same build. For tests.
    pub forces_vdso_bridge: bool,
    /// The CPU features of this node.
    pub processor: ProcessorFeatures,
    /// The credentials of a stub. Threads of a child with the same credentials need no change.
    pub credentials: Credentials,
}

impl LocalNode {
    /// Detects the properties of this machine, for a daemon whose stubs have its own credentials.
    ///
    /// # Errors
    /// When /proc cannot be read, or the CPU lacks XSAVE.
    pub fn detect() -> io::Result<Self> {
        let processor = ProcessorFeatures::detect()
            .ok_or_else(|| io::Error::other("this CPU has no XSAVE, which is needed to restore registers"))?;
        let status = farfork_sys::process::ProcStatus::read(rustix::process::getpid().as_raw_nonzero().get())?;
        let [inheritable, permitted, effective, bounding, ambient] = status.capabilities;
        Ok(Self {
            root: "/".into(),
            boot_id: kernel::boot_id().to_owned(),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            vdso_build_id: kernel::vdso_build_id().to_vec(),
            forces_vdso_bridge: false,
            processor,
            credentials: Credentials {
                uids: status.uids,
                gids: status.gids,
                groups: status.groups,
                capabilities_inheritable: inheritable,
                capabilities_permitted: permitted,
                capabilities_effective: effective,
                capabilities_bounding: bounding,
                capabilities_ambient: ambient,
                securebits: 0,
                no_new_privileges: status.no_new_privileges,
            },
        })
    }

    /// Returns this node with another root of the children's file system.
    pub fn with_root(&self, root: &Path) -> Self {
        Self { root: root.to_owned(), ..self.clone() }
    }

    /// Returns the path in this process's root of the file to which a path leads for a child.
    ///
    /// # Errors
    /// The child does not find the file; only if it has a root of its own.
    pub(crate) fn resolve_path(&self, path: &str) -> io::Result<PathBuf> {
        resolve_on_node(&self.root, Path::new(path), OFlags::empty())
    }

    /// Returns the identity of the file to which a path leads for a child.
    ///
    /// # Errors
    /// As [`Self::resolve_path`] and statx(2).
    pub(crate) fn stat_identity(&self, path: &str) -> io::Result<FileIdentity> {
        file_identity::stat_path_identity(&self.resolve_path(path)?)
    }

    /// Whether a seed was made on this machine since its last boot.
    pub(crate) fn is_origin_machine(&self, origin: &Origin) -> bool {
        !origin.boot_id.is_empty() && origin.boot_id == self.boot_id
    }
}

/// Why a child could not be restored. Drop its container, too: then nothing of the child is left.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A step of the restorer failed.
    #[error("{step} failed{}: {cause}", if object.is_empty() { String::new() } else { format!(" for {object}") })]
    Step {
        /// The step.
        step: &'static str,
        /// Its object, or empty.
        object: String,
        /// errno.
        cause: io::Error,
        /// The remedy, if one is known.
        remedy: Option<&'static str>,
    },
    /// The CPU lacks state components of the parent's registers.
    #[error("the seed's CPU has state that this node lacks ({missing}): fork it to a node with the same CPU features")]
    MissingCpuState {
        /// State components, by name.
        missing: String,
    },
    /// The CPU saves the same state components in another size.
    #[error(
        "the seed's CPU saves its state in {wanted_bytes} bytes, and this node's in {found_bytes}: fork it to a node with the same CPU features"
    )]
    OtherCpuStateSize {
        /// Bytes of state at the origin.
        wanted_bytes: u32,
        /// Bytes of state here.
        found_bytes: u32,
    },
    /// The CPU saves state components that the parent's CPU lacks.
    #[error(
        "this node's CPU has state that the seed's lacks ({surplus}); a program that saves registers itself, such as the dynamic linker, has no space for it: fork it to a node with the same CPU features"
    )]
    SurplusCpuState {
        /// State components, by name.
        surplus: String,
    },
    /// The CPU lacks instructions that the parent's CPU had, and that the parent may be using.
    #[error(
        "the seed's CPU has instructions that this node's lacks ({missing}): fork it to a node with the same CPU features"
    )]
    MissingInstructions {
        /// The names of the instruction sets.
        missing: String,
    },
    /// This kernel is another build than the parent's, and no vdso bridge can be built.
    #[error(
        "the kernels differ (the seed's is {wanted}, this node's {found}): fork it to a node with the same build of the kernel"
    )]
    KernelMismatch {
        /// Release of the seed's kernel.
        wanted: String,
        /// Release of this node's kernel.
        found: String,
    },
    /// This kernel accounts less memory for small pieces of a stream than the parent's.
    #[error(
        "a full Unix stream of the seed would have room here: its data needs {memory} of {limit} bytes; fork it to a node with the same kernel"
    )]
    UnfilledStream {
        /// The memory that the data needs here, in bytes.
        memory: u64,
        /// The sender waits when its data needs this much, in bytes.
        limit: u64,
    },
    /// A thread would continue in vdso code that this node does not have.
    #[error(
        "thread {tid} was inside a function of its kernel's vdso, and this node's kernel has another: prepare the parent again, or fork it to a node with the same build of the kernel"
    )]
    ThreadInVdso {
        /// The thread.
        tid: u32,
    },
    /// The kernel here maps no vdso.
    #[error("this node's kernel maps no vdso: boot it without vdso=0")]
    NoVdso,
    /// A special mapping (vdso or its data) has another size in this kernel, or is missing.
    #[error(
        "the kernels differ: {kind:?} has {wanted} bytes in the seed, {found:?} here; fork it to a node with the same kernel"
    )]
    SpecialMappingMismatch {
        /// The mapping.
        kind: SpecialMapping,
        /// Size at the origin.
        wanted: u64,
        /// Size here.
        found: Option<u64>,
    },
    /// A file of the parent is missing here, or is a different file.
    #[error("the seed needs {path}, which this node lacks: {cause}")]
    MissingFile {
        /// Its path, as the process sees it.
        path: String,
        /// The error.
        cause: io::Error,
    },
    /// A file was replaced during the restore. The process may have mapped the old or the new file.
    #[error("{path} was replaced during the restore; fork again")]
    ReplacedFile {
        /// Its path, as the process sees it.
        path: String,
    },
    /// The address space has no hole for the restorer.
    #[error("no hole of {bytes} bytes is left in the seed's address space for the restorer")]
    NoFreeRange {
        /// Size of the restorer's region.
        bytes: u64,
    },
    /// A thread has segment selectors that no 64-bit process has.
    #[error("thread {tid} has segment selectors cs={cs:#x}, ss={ss:#x}: not a 64-bit process")]
    SegmentSelectors {
        /// The thread.
        tid: u32,
        /// Code segment.
        cs: u64,
        /// Stack segment.
        ss: u64,
    },
    /// The siginfo of a pending signal has the wrong size.
    #[error("a pending signal of the descriptor has the wrong size")]
    PendingSignalSize,
    /// No module creates an open file of this kind.
    #[error("fd {number} is of a kind that this release does not know; use the same release of farfork on both nodes")]
    UnsupportedOpenFile {
        /// Its descriptor.
        number: u32,
    },
    /// A listening socket would replace the parent's socket at the same path.
    #[error(
        "a socket of the child at {path} would replace the parent's: the path is shared, or cannot be examined; do not share it"
    )]
    SharedSocketPath {
        /// Its path.
        path: String,
    },
    /// A socket would share its port with sockets of other processes.
    #[error(
        "{socket} of the child would receive traffic of other processes at this address: drop --net host, and use --publish"
    )]
    PortConflict {
        /// The socket's descriptor and address.
        socket: String,
    },
    /// A terminal is in a /dev/pts that the node's own processes use.
    #[error(
        "terminal {number} of the child cannot be created: the child shares the node's /dev/pts; fork it with its own root"
    )]
    SharedTerminal {
        /// The terminal's number in /dev/pts.
        number: u32,
    },
    /// The child's user namespace does not allow an object of the child.
    #[error("the child cannot have its own user namespace: {cause}; drop --user-namespace")]
    UserNamespaceRefused {
        /// The reason.
        cause: String,
    },
    /// A path contains a zero byte.
    #[error("the path `{path}` contains a zero byte")]
    InvalidPath {
        /// The path, escaped.
        path: String,
    },
    /// The plan would be longer than 4 GiB.
    #[error("the restore plan is larger than 4 GiB")]
    PlanTooLarge,
    /// The daemon has reached its limit of open files.
    #[error(
        "{object} of the child could not be created: this node's daemon has {limit} files open, which is its limit; raise the limit (LimitNOFILE= of its unit, or `ulimit -Hn` before it is started), or fork fewer children at once"
    )]
    OpenFileLimit {
        /// The object that could not be created.
        object: &'static str,
        /// RLIMIT_NOFILE.
        limit: u64,
    },
    /// A kernel object could not be created.
    #[error("{object} of the child could not be created: {cause}")]
    CreateObject {
        /// The object.
        object: &'static str,
        /// errno.
        cause: io::Error,
    },
    /// The socket of the container's stub failed.
    #[error("the socket of the container's stub failed: {0}")]
    StubIo(io::Error),
    /// The stub ended before the child was restored.
    #[error("the container's stub ended before the child was restored; see the node's log, and fork again")]
    StubExited,
    /// The child died during the restore.
    #[error(
        "the child died while it was restored (wait status {wait_status:#x}); its pages may be lost: see the node's log"
    )]
    ChildDied {
        /// wait(2) status.
        wait_status: u32,
    },
    /// Another process of the child's tree died during the restore.
    #[error(
        "process {pid} of the child died while it was restored (wait status {wait_status:#x}); its pages may be lost: see the node's log"
    )]
    ProcessDied {
        /// Its pid in the child.
        pid: u32,
        /// wait(2) status.
        wait_status: u32,
    },
    /// The stub is stopped (SIGSTOP), and therefore reports nothing.
    #[error(
        "the first process of its container is stopped, and was not continued within {limit:?}: find out what sends SIGSTOP to processes named farfork-init, and fork again"
    )]
    StubStopped {
        /// The limit.
        limit: Duration,
    },
    /// A process of the child is stopped, and was not continued.
    #[error(
        "process {pid} of the child was stopped during the restore, by a signal or a tracer, and was not continued within {waited:?}: find out what sends SIGSTOP to processes of containers, and fork again"
    )]
    ProcessStopped {
        /// Its pid on the node.
        pid: i32,
        /// How long the daemon waited.
        waited: Duration,
    },
    /// No report arrived in time.
    #[error(
        "the child was not restored within {limit:?}: the seed's node does not send its pages, or this machine is too busy; see `farfork nodes` and the node's log, and fork again"
    )]
    Timeout {
        /// The limit.
        limit: Duration,
    },
}

/// Whether a message of a stub reports a restored child. Fuzz targets (`fuzz/`) call it with arbitrary bytes.
///
/// # Errors
/// [`RestoreError`]: the child will not be restored.
#[doc(hidden)]
pub fn decode_report(bytes: &[u8], descriptor: &farfork_wire::Descriptor) -> Result<bool, RestoreError> {
    stub::parse_restored_report(bytes, 1, descriptor).map(|started| started.is_some())
}

impl RestoreError {
    fn from_object_error(object: &'static str, cause: impl Into<io::Error>) -> Self {
        let cause = cause.into();
        match cause.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE) => {
                let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
                Self::OpenFileLimit { object, limit }
            }
            _ => Self::CreateObject { object, cause },
        }
    }
}
