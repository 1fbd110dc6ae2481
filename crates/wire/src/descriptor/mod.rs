//! The descriptor: a seed's serialised state without the contents of its pages.
//!
//! A descriptor from another node is hostile input: [`decode`] checks its form, [`Descriptor::validate`] its meaning.

mod access_group;
mod codec;
mod file_version;
mod layer;
mod memory;
mod open_file;
mod process;
mod resources;
mod socket;
mod system_v;
mod terminal;
mod thread;
mod timer;
mod tree;
mod validate;
mod volume;
mod written_runs;

use serde::{Deserialize, Serialize};

pub use codec::{DESCRIPTOR_BYTES_MAX, DESCRIPTOR_VERSION, DecodeError, decode, encode};
pub use file_version::{DIGEST_BYTES, FileReference, FileVersion};
pub use layer::{InheritedRun, LAYERS_MAX, Layer};
pub use memory::{
    Backing, Extent, ExtentId, ExtentSource, FileIdentity, FileState, FileStatus, FileTimes, MappedFile, MappedRange,
    Mapping, MappingFlags, PageRun, Protection, SharedObject, SharedObjectKind, SpecialMapping,
};
pub use open_file::{
    EpollTarget, FileDescriptor, FileLock, FileLockKind, FileOwner, InotifyWatch, OpenFile, StandardStream,
};
pub use process::{Credentials, Mm, PendingSignal, Process, ResourceLimit, SeccompFilter, SignalAction};
pub use resources::RESTORED_NUMBER_MAX;
pub use socket::{MessageSender, Socket, SocketFile, SocketMessage, SocketOption, SocketState, parse_internet_address};
pub use system_v::{MessageQueue, SemaphoreSet};
pub use terminal::{ControlledSession, PseudoTerminal, TERMINAL_NUMBER_MAX, TERMINAL_SETTINGS_BYTES};
pub use thread::{AltStack, DeadlineParameters, EagerBytes, RestartableCall, Rseq, Scheduling, Thread};
pub use timer::{IntervalTimer, PosixTimer, TimerSpec};
pub use tree::{DescendantProcess, PROCESSES_MAX, ProcessRelations, Zombie};
pub use validate::{InvalidDescriptor, REGISTER_WORDS, THREADS_MAX, USER_SPACE_END, XSTATE_BYTES_MAX};
pub use volume::VolumeMount;
pub use written_runs::WrittenRun;

use crate::NodeName;

//  descriptor -+- origin             where it was captured: node, kernel, CPU features, clocks
//              +- process            ids, credentials, limits, signals, address-space layout
//              +- threads            registers and everything else that belongs to one thread
//              +- mappings           the memory map; paged memory names an extent
//              +- extents            ranges of memory that the owner serves, with the pages that hold data
//              +- layers             seeds that own pages which this one inherits
//              +- shared_objects     shared memory, copied at capture
//              +- open_files, file_descriptors   open file descriptions, and the descriptors that lead to them
//              +- descendants        processes that descend from the first, if the seed is of a tree (see `tree`)
//              +- volumes            mounted volumes that hold files of the above

/// Everything a node needs to turn a seed into a child, but the contents of its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Where and when it was captured.
    pub origin: Origin,
    /// What the process has as a whole.
    pub process: Process,
    /// Its threads; the first is the leader.
    pub threads: Vec<Thread>,
    /// Its memory map, in ascending order of address.
    pub mappings: Vec<Mapping>,
    /// The ranges that can be read from the owner; an [`ExtentId`] is an index into this list.
    pub extents: Vec<Extent>,
    /// The seeds that own pages which this one inherits.
    pub layers: Vec<Layer>,
    /// Files that mappings refer to.
    pub mapped_files: Vec<MappedFile>,
    /// Shared memory (shared anonymous mappings, memfds), filled before a child runs.
    pub shared_objects: Vec<SharedObject>,
    /// System V semaphores.
    pub semaphore_sets: Vec<SemaphoreSet>,
    /// System V message queues.
    pub message_queues: Vec<MessageQueue>,
    /// Pseudo-terminals, ascending by number.
    pub terminals: Vec<PseudoTerminal>,
    /// Open file descriptions.
    pub open_files: Vec<OpenFile>,
    /// Files that are open or executed, as they were.
    pub file_versions: Vec<FileVersion>,
    /// File descriptors, ascending, each with the description that it leads to.
    pub file_descriptors: Vec<FileDescriptor>,
    /// Locks of files that the process holds.
    pub file_locks: Vec<FileLock>,
    /// Who is told of files' readiness.
    pub file_owners: Vec<FileOwner>,
    /// Bytes that must be in place before a thread runs, because the kernel touches them where no page fault can
    /// be served (an exiting thread's robust list, clear_child_tid, rseq).
    pub eager_bytes: Vec<EagerBytes>,
    /// Processes that descend from the first, whose own state stands above; parents before children.
    pub descendants: Vec<DescendantProcess>,
    /// Children of any of them that have ended.
    pub zombies: Vec<Zombie>,
    /// The volumes that a node must have mounted at the same paths.
    pub volumes: Vec<VolumeMount>,
}

/// Registers of CPUID that tell of instruction sets which programs may use.
pub const CPU_FEATURE_WORDS: usize = 9;

/// Larger than any vdso: two to four pages on x86-64.
pub const VDSO_BYTES_MAX: usize = 64 << 10;

/// Where and when a seed was captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The node that owns the seed.
    pub node: NodeName,
    /// `uname -r` there.
    pub kernel_release: String,
    /// The parent's number there, as its daemon knows it: not that of its innermost pid namespace, which others have, too.
    pub parent_pid: u32,
    /// When the parent started, in clock ticks since that boot. With node, boot and number it tells a parent apart from every other.
    pub parent_start_ticks: u64,
    /// The boot of that kernel (`/proc/sys/kernel/random/boot_id`): same boot, same files by inode.
    pub boot_id: String,
    /// Build id of the vdso there, whose addresses the program knows; empty where it could not be read.
    pub vdso_build_id: Vec<u8>,
    /// The vdso itself, a library of [some pages](VDSO_BYTES_MAX): where its functions are, for a node whose kernel has another.
    #[serde(with = "serde_bytes")]
    pub vdso_image: Vec<u8>,
    /// Extended-state components that the CPU there has enabled (XCR0).
    pub xcr0: u64,
    /// Size of the extended state in the registers below, in bytes.
    pub xstate_bytes: u32,
    /// Instruction sets that programs may use on the CPU there; what the numbers mean, `farfork_sys::cpu` says.
    pub cpu_features: [u32; CPU_FEATURE_WORDS],
    /// CLOCK_MONOTONIC at capture as the parent saw it, in nanoseconds.
    pub monotonic_ns: i64,
    /// CLOCK_BOOTTIME at capture as the parent saw it, in nanoseconds.
    pub boottime_ns: i64,
}
