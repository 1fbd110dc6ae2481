//! The descriptor: the serialised state of a seed without the contents of its pages.
//!
//! A descriptor from another node is hostile input: [`decode`] checks its form, [`Descriptor::validate`] its meaning.

mod access_group;
mod attributes;
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

pub use attributes::{
    LocalDescriptor, MCE_KILL_DEFAULT, MemoryPolicy, NUMA_NODE_WORDS, OpenFileAttributes, PeerCredentials, PipeBuffer,
    ProcessAttributes, ThreadAttributes, UserDispatch,
};
pub use codec::{DESCRIPTOR_BYTES_MAX, DESCRIPTOR_VERSION, DecodeError, OversizedDescriptor, decode, encode};
pub use file_version::{DIGEST_BYTES, FileReference, FileVersion};
pub use layer::{InheritedRun, LAYERS_MAX, Layer};
pub use memory::{
    Backing, Extent, ExtentId, ExtentSource, FileIdentity, FileState, FileStatus, FileTimes, MappedFile, MappedRange,
    Mapping, MappingFlags, PageRun, Protection, SharedObject, SharedObjectKind, SpecialMapping,
};
pub use open_file::{
    EpollTarget, FileDescriptor, FileLock, FileLockKind, FileOwner, InotifyWatch, MovedEpollTarget, OpenFile,
    StandardStream,
};
pub use process::{Credentials, Mm, PendingSignal, Process, ResourceLimit, SeccompFilter, SignalAction};
pub use resources::RESTORED_NUMBER_MAX;
pub use socket::{
    MessageSender, Socket, SocketFile, SocketMessage, SocketOption, SocketState, encode_internet_address,
    is_chosen_unix_name, parse_internet_address, parse_unix_path,
};
pub use system_v::{MessageQueue, SemaphoreSet};
pub use terminal::{ControlledSession, PseudoTerminal, TERMINAL_NUMBER_MAX, TERMINAL_SETTINGS_BYTES};
pub use thread::{AltStack, DeadlineParameters, EagerBytes, RestartableCall, Rseq, Scheduling, Thread};
pub use timer::{IntervalTimer, PosixTimer, TimerSpec};
pub use tree::{DescendantProcess, PROCESSES_MAX, ProcessRelations, Zombie};
pub use validate::{
    FIRST_SELECTOR_INDEX, InvalidDescriptor, REGISTER_WORDS, THREADS_MAX, USER_SPACE_END, XSTATE_BYTES_MAX,
};
pub use volume::VolumeMount;
pub use written_runs::WrittenRun;

use crate::NodeName;

//  descriptor ─┬─ origin             where it was captured: node, kernel, CPU features, clocks
//              ├─ process            ids, credentials, limits, signals, address-space layout
//              ├─ threads            registers and everything else that belongs to one thread
//              ├─ mappings           the memory map; paged memory names an extent
//              ├─ extents            ranges of memory that the owner serves, with the pages that hold data
//              ├─ layers             seeds that own pages which this one inherits
//              ├─ shared_objects     shared memory, copied at capture
//              ├─ open_files, file_descriptors   open file descriptions, and the descriptors that lead to them
//              ├─ descendants        processes that descend from the first, if the seed has a process tree (see `tree`)
//              ├─ volumes            mounted volumes that hold files of the above
//              └─ attributes         what few processes set, such as memory policies

/// Everything that a node needs to turn a seed into a child, except the contents of its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Where and when the seed was captured.
    pub origin: Origin,
    /// State of the process as a whole.
    pub process: Process,
    /// Threads; the first is the leader.
    pub threads: Vec<Thread>,
    /// The memory map, in ascending order of address.
    pub mappings: Vec<Mapping>,
    /// The ranges that can be read from the owner. An [`ExtentId`] is an index into this list.
    pub extents: Vec<Extent>,
    /// The seeds that own inherited pages.
    pub layers: Vec<Layer>,
    /// Files that mappings refer to.
    pub mapped_files: Vec<MappedFile>,
    /// Shared memory of all kinds ([`SharedObjectKind`]). It is filled before a child runs.
    pub shared_objects: Vec<SharedObject>,
    /// System V semaphores.
    pub semaphore_sets: Vec<SemaphoreSet>,
    /// System V message queues.
    pub message_queues: Vec<MessageQueue>,
    /// Pseudo-terminals, ascending by number.
    pub terminals: Vec<PseudoTerminal>,
    /// Open file descriptions.
    pub open_files: Vec<OpenFile>,
    /// Files that are open, executed or mapped for writing, as they were at capture.
    pub file_versions: Vec<FileVersion>,
    /// File descriptors, ascending, each with its open file description.
    pub file_descriptors: Vec<FileDescriptor>,
    /// File locks that the process holds.
    pub file_locks: Vec<FileLock>,
    /// The threads that get signals about the readiness of files.
    pub file_owners: Vec<FileOwner>,
    /// Bytes that must be in place before a thread runs, because the kernel touches them where no page fault can be served
    /// (an exiting thread's robust list, clear_child_tid, rseq).
    pub eager_bytes: Vec<EagerBytes>,
    /// Descendants of the first process; parents before children. The state of the first process is in the fields above.
    pub descendants: Vec<DescendantProcess>,
    /// Processes that have ended, and whose parent is one of the processes above.
    pub zombies: Vec<Zombie>,
    /// The volumes that a node must have mounted at the same paths.
    pub volumes: Vec<VolumeMount>,
    /// Attributes that few processes set, ascending by process. Since version 29.
    pub attributes: Vec<ProcessAttributes>,
    /// Registrations of epoll instances whose files are not open at the registered numbers. Since version 29.
    pub moved_epoll_targets: Vec<MovedEpollTarget>,
    /// Attributes that few pipes and sockets have, ascending by open file. Since version 30.
    pub open_file_attributes: Vec<OpenFileAttributes>,
}

/// Number of CPUID registers that describe the instruction sets available to programs.
pub const CPU_FEATURE_WORDS: usize = 9;

/// Largest vdso, in bytes. On x86-64 a vdso has two to four pages.
pub const VDSO_BYTES_MAX: usize = 64 << 10;

/// Where and when a seed was captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The node that owns the seed.
    pub node: NodeName,
    /// Kernel release of that node (`uname -r`).
    pub kernel_release: String,
    /// The directory of that node that is the root of the seed's mount namespace, if it is not the node's root. Paths of the
    /// seed start at this directory.
    pub root: Option<String>,
    /// The parent's pid in the pid namespace of that node's daemon. The pid in the innermost pid namespace would not be
    /// unique.
    pub parent_pid: u32,
    /// Start time of the parent, in clock ticks since boot. Together with node, boot id and pid it identifies the parent.
    pub parent_start_ticks: u64,
    /// The boot id of that node (`/proc/sys/kernel/random/boot_id`). Inode numbers are comparable only within one boot.
    pub boot_id: String,
    /// Build id of that node's vdso. The program may have stored addresses of functions of this vdso. Empty if it could not
    /// be read.
    pub vdso_build_id: Vec<u8>,
    /// The contents of that vdso, at most [`VDSO_BYTES_MAX`]. A node with another vdso finds in them the addresses of the
    /// functions that the program may call.
    #[serde(with = "serde_bytes")]
    pub vdso_image: Vec<u8>,
    /// Extended-state components that are enabled on that node's CPU (XCR0).
    pub xcr0: u64,
    /// Size of the extended state of each thread, in bytes.
    pub xstate_bytes: u32,
    /// Instruction sets that programs may use on that node's CPU. `farfork_sys::cpu` defines the words.
    pub cpu_features: [u32; CPU_FEATURE_WORDS],
    /// CLOCK_MONOTONIC at capture, as the parent saw it, in nanoseconds.
    pub monotonic_ns: i64,
    /// CLOCK_BOOTTIME at capture, as the parent saw it, in nanoseconds.
    pub boottime_ns: i64,
}
