//! What a descriptor leads to, told from its link in `/proc` and the inode behind it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use super::own;
use crate::identity;
use farfork_sys::hugetlbfs;
use farfork_sys::mount::table::Mount;
use farfork_sys::process::FdDirectory;
use farfork_wire::descriptor::{FileIdentity, FileStatus};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags, fstatfs, makedev, openat, statat, statx};

/// What a descriptor leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Kind {
    /// A regular file; or anything that has a path, where the descriptor stands for the place alone (O_PATH).
    Regular,
    Directory,
    /// One that no path leads to any more; it is empty.
    DeletedDirectory(FileStatus),
    /// Also a named one that was deleted.
    Pipe,
    NamedPipe,
    EventFd,
    Epoll,
    TimerFd,
    SignalFd,
    Inotify,
    /// A pidfd.
    Process,
    /// A memfd, a file that was deleted, or POSIX shared memory.
    Memory,
    /// `/dev/null` and its like.
    Device,
    Terminal,
    /// The end of a pseudo-terminal that drives it.
    TerminalMaster,
    Socket,
    /// A connection of the process to the daemon.
    Program {
        /// The one at which it waits to be told what it is.
        is_caller: bool,
    },
    /// Anything else, as a person would call it.
    Other(String),
}

impl Kind {
    /// Whether it is found by its path, on another node, too.
    pub(super) fn has_path(&self) -> bool {
        matches!(self, Self::Regular | Self::Directory | Self::NamedPipe)
    }
}

const MEMFD_PREFIX: &[u8] = b"/memfd:";

/// Where POSIX shared memory is.
pub(in super::super) const SHARED_MEMORY_PREFIX: &[u8] = b"/dev/shm/";

/// The kernel appends this to the path of a file that is no longer where it was opened.
pub(in super::super) const DELETED_SUFFIX: &[u8] = b" (deleted)";

/// Major and minor numbers of null, zero, full, random and urandom.
const CARRIED_DEVICES: [(u32, u32); 5] = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9)];

/// What is behind a link: its file's inode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inode {
    found: Statx,
    pub(super) device: u64,
    pub(super) number: u64,
    /// The mount that it is reached by.
    pub(super) mount: u64,
    pub(super) links: u32,
    mode: u16,
    uid: u32,
    gid: u32,
    /// Of the file system's blocks.
    block_bytes: u32,
    /// The device that it stands for, where it stands for one.
    stands_for: u64,
    /// Whether it is a file that we do not find at its path.
    is_its_own: bool,
}

impl Inode {
    /// Follows a link of a process's, which reads `link`.
    pub(super) fn behind((links, name): (&FdDirectory, &str), link: &[u8]) -> io::Result<Self> {
        let found = statx(links, name, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
        let is_file = FileType::from_raw_mode(found.stx_mode.into()).is_file();
        let is_its = |mount: &Mount| u64::from(mount.id) == found.stx_mnt_id;
        Ok(Self {
            is_its_own: is_file
                && !links.has_our_mounts()
                && own::is_its_own(link, &found, (links.as_fd(), "../mountinfo", is_its)),
            found,
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            number: found.stx_ino,
            mount: found.stx_mnt_id,
            links: found.stx_nlink,
            mode: found.stx_mode,
            uid: found.stx_uid,
            gid: found.stx_gid,
            block_bytes: found.stx_blksize,
            stands_for: makedev(found.stx_rdev_major, found.stx_rdev_minor),
        })
    }

    /// Whether a file that no path leads to may be none of data.
    pub(super) fn may_be_kernels(&self, link: &[u8]) -> bool {
        !link.starts_with(MEMFD_PREFIX) && !link.starts_with(SHARED_MEMORY_PREFIX)
    }

    /// What it is at this moment.
    pub(super) fn version(&self) -> FileIdentity {
        identity::from_statx(&self.found)
    }

    fn status(&self) -> FileStatus {
        const PERMISSIONS: u16 = 0o7777;
        FileStatus { mode: (self.mode & PERMISSIONS).into(), uid: self.uid, gid: self.gid }
    }
}

/// What stands for a descriptor of this kind, which has a path, where that leads to something else: a mount was taken away, or has covered it.
/// A file is kept like a deleted one.
pub(super) fn without_path(kind: &Kind, links: &FdDirectory, link: &[u8], inode: &Inode) -> Option<Kind> {
    if !kind.has_path() || inode.links == 0 || !links.has_our_mounts() || own::is_at(link, &inode.found) {
        return None;
    }
    let is_file = FileType::from_raw_mode(inode.mode.into()).is_file();
    Some(if is_file { Kind::Memory } else { Kind::Other(format!("{} {NO_PATH}", String::from_utf8_lossy(link))) })
}

/// Why a place is refused that only who has it open can get to.
pub(in super::super) const NO_PATH: &str =
    "is on a mount that was taken away, or is covered by one, so that no path leads there; that is not carried";

/// What a file is that is the kernel's, and holds nothing, if it is one: there is nothing to copy.
pub(super) fn of_the_kernels(links: &FdDirectory, number: &str, link: &[u8]) -> Option<Kind> {
    /// POSIX message queues, of which mq_overview(7) tells; memfd_secret(2); `/proc`, `/sys`, and control groups.
    const NAMES: [(u64, &str); 6] = [
        (0x1980_0202, "a POSIX message queue"),
        (0x5345_434d, "secret memory (memfd_secret), which nobody else may read"),
        (0x9fa0, "a file of /proc that is there no more"),
        (0x6265_6572, "a file of /sys that is there no more"),
        (0x0027_e0eb, "a file of a control group that is there no more"),
        (0x6367_7270, "a file of a control group that is there no more"),
    ];
    let place = openat(links, number, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let magic = fstatfs(place).ok()?.f_type as u64;
    let (_, what) = NAMES.into_iter().find(|(known, _)| *known == magic)?;
    Some(Kind::Other(format!("{} is {what}: not carried; close it first", String::from_utf8_lossy(link))))
}

/// What the link of a descriptor, `name` among `links`, leads to.
pub(super) fn kind((links, number): (&FdDirectory, &str), link: &[u8], inode: &Inode) -> Kind {
    let name = || String::from_utf8_lossy(link).into_owned();
    let file_type = FileType::from_raw_mode(inode.mode.into());
    if let Some(anonymous) = link.strip_prefix(b"anon_inode:") {
        return anonymous_kind(anonymous);
    }
    let is_plain = file_type.is_file() || file_type.is_dir();
    if link.starts_with(b"/") && !is_plain && is_place(links, number) {
        return Kind::Regular;
    }
    if file_type.is_socket() {
        Kind::Socket
    } else if file_type.is_fifo() {
        if link.starts_with(b"pipe:") || is_gone(link, inode) { Kind::Pipe } else { Kind::NamedPipe }
    } else if file_type.is_char_device() {
        character_device(inode.stands_for, &name())
    } else if file_type.is_block_device() {
        Kind::Other(format!("block device {} cannot be carried", name()))
    } else if file_type.is_dir() {
        if inode.links == 0 { Kind::DeletedDirectory(inode.status()) } else { Kind::Directory }
    } else if file_type.is_file() && is_memory(link, inode, || is_on_hugetlbfs(links, number)) {
        Kind::Memory
    } else if link.starts_with(b"/") && file_type.is_file() {
        Kind::Regular
    } else if link.starts_with(b"pidfd:") {
        Kind::Process
    } else {
        Kind::Other(format!("{} cannot be carried", name()))
    }
}

/// Whether a regular file is kept like memory that no path leads to: one that was deleted, POSIX shared memory, which its processes
/// go on writing to, one in huge pages, which another node may have none of, or one that is not the node's.
fn is_memory(link: &[u8], inode: &Inode, is_on_hugetlbfs: impl FnOnce() -> bool) -> bool {
    /// The least that hugetlbfs has blocks of.
    const HUGE_PAGE_BYTES_MIN: u32 = 2 << 20;
    let is_without_path = link.starts_with(MEMFD_PREFIX) || link.starts_with(SHARED_MEMORY_PREFIX);
    is_without_path
        || inode.is_its_own
        || is_gone(link, inode)
        || (inode.block_bytes >= HUGE_PAGE_BYTES_MIN && is_on_hugetlbfs())
}

/// Whether no path leads to it any more, or none but one that nobody tells.
fn is_gone(link: &[u8], inode: &Inode) -> bool {
    let is_there = || {
        let found = fs::metadata(OsStr::from_bytes(link));
        found.is_ok_and(|found| (found.dev(), found.ino()) == (inode.device, inode.number))
    };
    inode.links == 0 || (link.ends_with(DELETED_SUFFIX) && !is_there())
}

/// Whether a descriptor stands for a place alone (O_PATH): its link shows neither right.
fn is_place(links: &FdDirectory, number: &str) -> bool {
    const OWNERS_RIGHTS: u32 = 0o700;
    statat(links, number, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|link| link.st_mode & OWNERS_RIGHTS == 0)
}

fn is_on_hugetlbfs(links: &FdDirectory, number: &str) -> bool {
    let place = openat(links, number, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    place.is_ok_and(|place| hugetlbfs::has(place).unwrap_or(false))
}

fn anonymous_kind(name: &[u8]) -> Kind {
    match name {
        b"[eventfd]" => Kind::EventFd,
        b"[eventpoll]" => Kind::Epoll,
        b"[timerfd]" => Kind::TimerFd,
        b"[signalfd]" => Kind::SignalFd,
        b"inotify" => Kind::Inotify,
        b"[pidfd]" => Kind::Process,
        other => Kind::Other(format!("{} is not carried yet; close it first", String::from_utf8_lossy(other))),
    }
}

fn character_device(device: u64, name: &str) -> Kind {
    /// `/dev/ptmx`.
    const MASTER: (u32, u32) = (5, 2);
    /// Majors of terminals: virtual consoles and serial lines, /dev/tty and /dev/console, Unix 98 ptys (136 to 143).
    const TERMINALS: [std::ops::RangeInclusive<u32>; 2] = [4..=5, 136..=143];
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    if (major, minor) == MASTER {
        return Kind::TerminalMaster;
    }
    if CARRIED_DEVICES.contains(&(major, minor)) {
        Kind::Device
    } else if TERMINALS.iter().any(|majors| majors.contains(&major)) {
        Kind::Terminal
    } else {
        Kind::Other(format!("device {name} cannot be carried"))
    }
}
