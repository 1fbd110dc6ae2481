//! Open file descriptions, and the file descriptors that lead to them.

use serde::{Deserialize, Serialize};

use super::{FileStatus, Socket, TimerSpec};

/// A file descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDescriptor {
    /// Its number.
    pub number: u32,
    /// Index into the open files; descriptors made by dup(2) share one.
    pub open_file: u32,
    /// FD_CLOEXEC.
    pub close_on_exec: bool,
}

/// An open file description. `flags` are the O_* flags of fcntl(F_GETFL).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenFile {
    /// A regular file, reopened by path at its offset.
    Regular {
        /// As the process sees it.
        path: String,
        /// O_* flags.
        flags: u32,
        /// In bytes.
        offset: u64,
    },
    /// A directory, reopened by path.
    Directory {
        /// As the process sees it.
        path: String,
        /// O_* flags.
        flags: u32,
        /// Position in the listing.
        offset: u64,
    },
    /// A directory that was deleted: made, opened and removed again.
    DeletedDirectory {
        /// Mode and owner.
        status: FileStatus,
        /// O_* flags.
        flags: u32,
    },
    /// `/dev/null`, `zero`, `full`, `random` or `urandom`.
    Device {
        /// As the process sees it.
        path: String,
        /// O_* flags.
        flags: u32,
    },
    /// An end of a pipe that leads back into the process.
    Pipe {
        /// The same for both ends.
        pipe: u64,
        /// Which end this is.
        is_write_end: bool,
        /// O_* flags.
        flags: u32,
        /// Capacity, in bytes.
        capacity: u32,
        /// What was in it; stands on the first end that can read.
        #[serde(with = "serde_bytes")]
        content: Vec<u8>,
        /// How it is divided, in bytes each: one piece, unless a writer is in packet mode (O_DIRECT).
        packets: Vec<u32>,
    },
    /// eventfd(2).
    EventFd {
        /// The counter.
        count: u64,
        /// EFD_SEMAPHORE.
        semaphore: bool,
        /// O_* flags.
        flags: u32,
    },
    /// epoll(7).
    Epoll {
        /// O_* flags.
        flags: u32,
        /// What it watches.
        targets: Vec<EpollTarget>,
    },
    /// A memfd.
    MemFd {
        /// Index into the shared objects.
        object: u32,
        /// O_* flags.
        flags: u32,
        /// In bytes.
        offset: u64,
    },
    /// A named pipe, reopened by path and filled.
    NamedPipe {
        /// As the process sees it.
        path: String,
        /// O_* flags.
        flags: u32,
        /// Capacity, in bytes.
        capacity: u32,
        /// What was in it; stands on the first end that can read.
        #[serde(with = "serde_bytes")]
        content: Vec<u8>,
    },
    /// timerfd_create(2).
    TimerFd {
        /// CLOCK_*.
        clock: u32,
        /// O_* flags.
        flags: u32,
        /// Expirations that nobody has read yet.
        ticks: u64,
        /// Disarmed where all is 0.
        time: TimerSpec,
        /// Whether somebody who sets the wall clock cancels it (TFD_TIMER_CANCEL_ON_SET).
        is_cancelled_by_clock: bool,
    },
    /// signalfd(2).
    SignalFd {
        /// The signals it takes; bit N−1 is signal N.
        mask: u64,
        /// O_* flags.
        flags: u32,
    },
    /// inotify(7).
    Inotify {
        /// Whether events waited to be read, at which nobody can look: a child is told that it has lost some.
        has_lost: bool,
        /// O_* flags.
        flags: u32,
        /// Ascending by number.
        watches: Vec<InotifyWatch>,
    },
    /// A pidfd of a process of the tree.
    PidFd {
        /// Its id.
        pid: u32,
        /// O_* flags.
        flags: u32,
    },
    /// An end of a pseudo-terminal.
    Terminal {
        /// Index into the terminals.
        terminal: u32,
        /// As the process sees it: of the end that drives it, the file that makes new ones.
        path: String,
        /// Whether it is the end that drives it.
        is_master: bool,
        /// O_* flags.
        flags: u32,
    },
    /// A socket.
    Socket(Socket),
    /// A connection to the node's daemon. A child gets another in its place.
    CheckpointSocket {
        /// Whether the process waits there to be told what it is; else a child finds it at its end.
        is_caller: bool,
        /// O_* flags.
        flags: u32,
    },
    /// One of the three standard streams, or what shares its file: leads to whoever forks.
    StandardStream(StandardStream),
}

/// Which standard stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum StandardStream {
    Input,
    Output,
    Error,
}

/// One watch of an inotify.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InotifyWatch {
    /// Its number.
    pub number: u32,
    /// As the process sees it.
    pub path: String,
    /// IN_* events and flags.
    pub mask: u32,
}

/// A lock of a file that the process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLock {
    /// The descriptor that it is held by.
    pub number: u32,
    /// Which kind.
    pub kind: FileLockKind,
    /// Whether others may not read either.
    pub is_exclusive: bool,
    /// First byte.
    pub start: u64,
    /// How many bytes; 0 for all to the end, however far that moves.
    pub bytes: u64,
}

/// Which kind of lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileLockKind {
    /// flock(2).
    Flock,
    /// fcntl(2), F_SETLK: the process's.
    Posix,
    /// fcntl(2), F_OFD_SETLK: the open file's.
    OpenFileDescription,
    /// fcntl(2), F_SETLEASE, for reading: the open file's.
    Lease,
}

/// Who is told of an open file's readiness (fcntl(2), F_SETOWN and F_SETSIG, with O_ASYNC).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOwner {
    /// A descriptor that leads to the file.
    pub number: u32,
    /// Thread of the process; 0 for the process itself.
    pub tid: u32,
    /// The signal; 0 for SIGIO.
    pub signal: u32,
}

/// One registration of an epoll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpollTarget {
    /// The descriptor number it was registered under.
    pub number: u32,
    /// EPOLL* events and flags.
    pub events: u32,
    /// The program's own word.
    pub data: u64,
}
