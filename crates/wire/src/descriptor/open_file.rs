//! Open file descriptions, and the file descriptors that refer to them.

use serde::{Deserialize, Serialize};

use super::{FileStatus, Socket, TimerSpec};

/// A file descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDescriptor {
    /// Number of the descriptor.
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
        /// The path, as the process sees it.
        path: String,
        /// O_* flags.
        flags: u32,
        /// File offset, in bytes.
        offset: u64,
    },
    /// A directory, reopened by path.
    Directory {
        /// The path, as the process sees it.
        path: String,
        /// O_* flags.
        flags: u32,
        /// Position in the listing.
        offset: u64,
    },
    /// A directory that was deleted. A child creates a directory, opens and removes it.
    DeletedDirectory {
        /// Mode and owner.
        status: FileStatus,
        /// O_* flags.
        flags: u32,
    },
    /// `/dev/null`, `zero`, `full`, `random` or `urandom`.
    Device {
        /// The path, as the process sees it.
        path: String,
        /// O_* flags.
        flags: u32,
    },
    /// An end of a pipe whose other end is in the seed too.
    Pipe {
        /// Number of the pipe, the same for both ends.
        pipe: u64,
        /// Which end this is.
        is_write_end: bool,
        /// O_* flags.
        flags: u32,
        /// Capacity, in bytes.
        capacity: u32,
        /// Unread bytes. Only the first readable end of a pipe has them. If no end is readable, the first one has them.
        #[serde(with = "serde_bytes")]
        content: Vec<u8>,
        /// Lengths of the writes that make `content`, in bytes. Empty since version 32: `OpenFileAttributes::pipe_buffers`
        /// replaces it.
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
        /// The registered descriptors. [`MovedEpollTarget`] has the others.
        targets: Vec<EpollTarget>,
    },
    /// A memfd.
    MemFd {
        /// Index into the shared objects.
        object: u32,
        /// O_* flags.
        flags: u32,
        /// File offset, in bytes.
        offset: u64,
    },
    /// A named pipe. A child reopens it by path, and writes the unread bytes to it.
    NamedPipe {
        /// The path, as the process sees it.
        path: String,
        /// O_* flags.
        flags: u32,
        /// Capacity, in bytes.
        capacity: u32,
        /// Unread bytes. Only the first readable end of a pipe has them.
        #[serde(with = "serde_bytes")]
        content: Vec<u8>,
    },
    /// timerfd_create(2).
    TimerFd {
        /// CLOCK_*.
        clock: u32,
        /// O_* flags.
        flags: u32,
        /// Expirations that the process has not read yet.
        ticks: u64,
        /// Remaining time and interval; all 0 if disarmed.
        time: TimerSpec,
        /// Whether setting the wall clock cancels the timer (TFD_TIMER_CANCEL_ON_SET).
        is_cancelled_by_clock: bool,
    },
    /// signalfd(2).
    SignalFd {
        /// The signals that it accepts; bit N−1 is signal N.
        mask: u64,
        /// O_* flags.
        flags: u32,
    },
    /// inotify(7).
    Inotify {
        /// Whether unread events were queued. Their contents cannot be read, so a child gets an overflow event
        /// (IN_Q_OVERFLOW).
        has_lost: bool,
        /// O_* flags.
        flags: u32,
        /// Watches, ascending by number.
        watches: Vec<InotifyWatch>,
    },
    /// A pidfd that refers to a process of the tree.
    PidFd {
        /// Id of the process.
        pid: u32,
        /// O_* flags.
        flags: u32,
    },
    /// An end of a pseudo-terminal.
    Terminal {
        /// Index into the terminals.
        terminal: u32,
        /// The path, as the process sees it; for a master, the path of the multiplexer (ptmx).
        path: String,
        /// Whether it is the master end.
        is_master: bool,
        /// O_* flags.
        flags: u32,
    },
    /// A socket.
    Socket(Socket),
    /// A connection to the node's daemon.
    CheckpointSocket {
        /// Whether the process waits on this socket for the reply to its checkpoint call. In a child, this socket is a new
        /// connection, and all other checkpoint sockets are at end of file.
        is_caller: bool,
        /// O_* flags.
        flags: u32,
    },
    /// One of the three standard streams, or a descriptor of the same file. In a child, it is the child's own standard
    /// input, output or error.
    StandardStream(StandardStream),
}

/// One of the standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum StandardStream {
    Input,
    Output,
    Error,
}

/// One watch of an inotify instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InotifyWatch {
    /// The watch descriptor.
    pub number: u32,
    /// The path, as the process sees it.
    pub path: String,
    /// IN_* events and flags.
    pub mask: u32,
}

/// A file lock that the process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLock {
    /// The descriptor through which it is held.
    pub number: u32,
    /// The kind of the lock.
    pub kind: FileLockKind,
    /// Whether it excludes readers too (a write lock).
    pub is_exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Number of locked bytes; 0 for all bytes up to the end of the file, even if the file grows.
    pub bytes: u64,
}

/// The kind of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileLockKind {
    /// flock(2).
    Flock,
    /// fcntl(2), F_SETLK: owned by the process.
    Posix,
    /// fcntl(2), F_OFD_SETLK: owned by the open file description.
    OpenFileDescription,
    /// fcntl(2), F_SETLEASE, for reading: owned by the open file description.
    Lease,
}

/// The thread that gets the signals of an open file (fcntl(2), F_SETOWN and F_SETSIG): about its readiness, if it has O_ASYNC, and
/// about urgent data of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOwner {
    /// A descriptor of the file.
    pub number: u32,
    /// A thread of the process; 0 for the process itself.
    pub tid: u32,
    /// The signal; 0 for SIGIO.
    pub signal: u32,
}

/// A registration of an epoll instance whose file is not open at the registered number: it was closed there, while a
/// duplicate is open. The kernel still reports the file's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedEpollTarget {
    /// Index of the epoll instance among the open files.
    pub epoll: u32,
    /// Index of the file that the instance watches.
    pub open_file: u32,
    /// The registration.
    pub target: EpollTarget,
}

/// One registration of an epoll instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpollTarget {
    /// The descriptor number at registration.
    pub number: u32,
    /// EPOLL* events and flags.
    pub events: u32,
    /// The program's data (`epoll_data`).
    pub data: u64,
}
