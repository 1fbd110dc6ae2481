//! The kind of a file descriptor, from its link in `/proc` and the inode that the link refers to.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use super::kernel_file;
use super::path_identity::{self, OTHER_NAME_REASON, OtherName};
use crate::capture::state::node_root::ProcDirectory;
use crate::file_identity;
use farfork_sys::hugetlbfs;
use farfork_sys::mount::table::Mount;
use farfork_sys::process::FdDirectory;
use farfork_wire::descriptor::{FileIdentity, FileStatus};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags, fstatfs, makedev, openat, statat, statx};

/// The kind of object that a descriptor refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum FdKind {
    /// A regular file; or anything with a path, if the descriptor is for the location only (O_PATH).
    Regular,
    Directory,
    /// A deleted directory, which is empty.
    DeletedDirectory(FileStatus),
    /// A pipe, or a deleted named pipe.
    Pipe,
    NamedPipe,
    EventFd,
    Epoll,
    TimerFd,
    SignalFd,
    Inotify,
    /// A pidfd.
    PidFd,
    /// A file that is carried with its contents: for example, a memfd, a deleted file, or POSIX shared memory.
    Memory,
    /// `/dev/null` and similar devices.
    Device,
    Terminal,
    /// The master of a pseudo-terminal.
    TerminalMaster,
    Socket,
    /// A connection of the process to the daemon.
    DaemonSocket {
        /// Whether the process waits on it for the reply to its checkpoint request.
        is_caller: bool,
    },
    /// Anything else, as a description for the user.
    Other(String),
}

impl FdKind {
    /// Whether a child opens the file by its path, also on another node.
    pub(super) fn has_path(&self) -> bool {
        matches!(self, Self::Regular | Self::Directory | Self::NamedPipe)
    }
}

const MEMFD_PREFIX: &[u8] = b"/memfd:";

/// The directory of POSIX shared memory.
pub(in super::super) const SHARED_MEMORY_PREFIX: &[u8] = b"/dev/shm/";

/// The kernel appends this to the path of a file that was deleted or replaced since it was opened.
pub(in super::super) const DELETED_SUFFIX: &[u8] = b" (deleted)";

/// Major and minor numbers of the devices that are carried, and their paths.
const CARRIED_DEVICES: [((u32, u32), &[u8]); 5] = [
    ((1, 3), b"/dev/null"),
    ((1, 5), b"/dev/zero"),
    ((1, 7), b"/dev/full"),
    ((1, 8), b"/dev/random"),
    ((1, 9), b"/dev/urandom"),
];

/// The inode that a link refers to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inode {
    statx: Statx,
    pub(super) device: u64,
    pub(super) number: u64,
    /// Id of the mount through which the link refers to the inode.
    pub(super) mount: u64,
    pub(super) links: u32,
    mode: u16,
    uid: u32,
    gid: u32,
    /// Block size of the file system.
    block_bytes: u32,
    /// Device number, if it is a device file.
    device_number: u64,
    /// Whether the inode is a regular file that this node lacks at the path of the link.
    is_absent_on_node: bool,
}

impl Inode {
    /// Reads the inode that a link of a process refers to. `link` is the text of the link.
    pub(super) fn read(links: &FdDirectory, name: &str, link: &[u8]) -> io::Result<Self> {
        let found = statx(links, name, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
        let is_file = FileType::from_raw_mode(found.stx_mode.into()).is_file();
        let is_its = |mount: &Mount| u64::from(mount.id) == found.stx_mnt_id;
        let process = ProcDirectory { directory: links.as_fd(), prefix: &links.viewer_directory() };
        Ok(Self {
            is_absent_on_node: is_file
                && !links.shares_mount_namespace()
                && path_identity::is_absent_on_node(link, &found, process, is_its),
            statx: found,
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            number: found.stx_ino,
            mount: found.stx_mnt_id,
            links: found.stx_nlink,
            mode: found.stx_mode,
            uid: found.stx_uid,
            gid: found.stx_gid,
            block_bytes: found.stx_blksize,
            device_number: makedev(found.stx_rdev_major, found.stx_rdev_minor),
        })
    }

    /// Whether a file without a path may be a pseudo file, which holds no data.
    pub(super) fn may_be_pseudo_file(&self, link: &[u8]) -> bool {
        !link.starts_with(MEMFD_PREFIX) && !link.starts_with(SHARED_MEMORY_PREFIX)
    }

    /// Identity of the file when this inode was read.
    pub(super) fn identity(&self) -> FileIdentity {
        file_identity::from_statx(&self.statx)
    }

    /// Mode and owner.
    pub(super) fn status(&self) -> FileStatus {
        const PERMISSIONS: u16 = 0o7777;
        FileStatus { mode: (self.mode & PERMISSIONS).into(), uid: self.uid, gid: self.gid }
    }
}

/// Returns another path that leads to a file whose opened name was removed, or the reason why there is none. `None` if the
/// link stays as it is. A device is the same device under any path.
pub(super) fn find_other_path(links: &FdDirectory, link: &[u8], inode: &Inode) -> Option<Result<Vec<u8>, FdKind>> {
    if !link.ends_with(DELETED_SUFFIX) {
        return None;
    }
    let file_type = FileType::from_raw_mode(inode.mode.into());
    if file_type.is_char_device() && is_unlinked(link, inode) {
        let name = String::from_utf8_lossy(link);
        return match character_device(inode.device_number, &name) {
            FdKind::Device => carried_device_path(inode.device_number).map(|path| Ok(path.to_vec())),
            // `refuse_terminals` knows whether the terminal was hung up.
            FdKind::Terminal | FdKind::TerminalMaster => None,
            _ => Some(Err(FdKind::Other(format!(
                "{name} is a device file that was removed, so that no child can open it: not carried; close it first"
            )))),
        };
    }
    match OtherName::find(link, &inode.statx) {
        _ if !links.shares_mount_namespace() => None,
        OtherName::NotNeeded => None,
        OtherName::Found(path) => Some(Ok(path)),
        OtherName::Elsewhere => {
            Some(Err(FdKind::Other(format!("{} {OTHER_NAME_REASON}", String::from_utf8_lossy(link)))))
        }
    }
}

/// The path of a carried device.
fn carried_device_path(device: u64) -> Option<&'static [u8]> {
    let numbers = (rustix::fs::major(device), rustix::fs::minor(device));
    CARRIED_DEVICES.iter().find(|(known, _)| *known == numbers).map(|(_, path)| *path)
}

/// Returns the kind to use instead of `kind` if the path now leads to another file: the file's mount was removed, or another
/// mount covers the path. A regular file is then carried like a deleted one.
pub(super) fn kind_without_path(kind: &FdKind, links: &FdDirectory, link: &[u8], inode: &Inode) -> Option<FdKind> {
    if !kind.has_path()
        || inode.links == 0
        || !links.shares_mount_namespace()
        || path_identity::is_at_path(link, &inode.statx)
    {
        return None;
    }
    let is_file = FileType::from_raw_mode(inode.mode.into()).is_file();
    Some(if is_file {
        FdKind::Memory
    } else {
        FdKind::Other(format!("{} {NO_PATH_REASON}", String::from_utf8_lossy(link)))
    })
}

/// The reason for refusing a location that can be reached only through an open descriptor.
pub(in super::super) const NO_PATH_REASON: &str = "is on a mount that was removed, is covered by another mount, or was never \
     attached (open_tree(2)), so that no path leads there; that is not carried";

/// Returns the kind of a kernel file without data to copy. `None` for other files.
pub(super) fn pseudo_file_kind(links: &FdDirectory, number: &str, link: &[u8]) -> Option<FdKind> {
    /// POSIX message queues (mq_overview(7)), memfd_secret(2), `/proc`, `/sys`, and control groups.
    const PSEUDO_FILE_SYSTEMS: [(u64, &str); 6] = [
        (0x1980_0202, "a POSIX message queue"),
        (0x5345_434d, "secret memory (memfd_secret), which no other process may read"),
        (0x9fa0, "a file of /proc that no longer exists"),
        (0x6265_6572, "a file of /sys that no longer exists"),
        (0x0027_e0eb, "a file of a control group that no longer exists"),
        (0x6367_7270, "a file of a control group that no longer exists"),
    ];
    let path_fd = openat(links, number, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let magic = fstatfs(path_fd).ok()?.f_type as u64;
    let (_, what) = PSEUDO_FILE_SYSTEMS.into_iter().find(|(known, _)| *known == magic)?;
    Some(FdKind::Other(format!("{} is {what}: not carried; close it first", String::from_utf8_lossy(link))))
}

/// The kind of a descriptor; `number` is its link in `links`.
pub(super) fn detect_kind(links: &FdDirectory, number: &str, link: &[u8], inode: &Inode) -> FdKind {
    let name = || String::from_utf8_lossy(link).into_owned();
    let file_type = FileType::from_raw_mode(inode.mode.into());
    if let Some(anonymous) = link.strip_prefix(b"anon_inode:") {
        return anonymous_kind(anonymous);
    }
    let is_plain = file_type.is_file() || file_type.is_dir();
    if link.starts_with(b"/") && !is_plain && is_path_only(links, number) {
        return FdKind::Regular;
    }
    if file_type.is_socket() {
        FdKind::Socket
    } else if file_type.is_fifo() {
        if link.starts_with(b"pipe:") || is_unlinked(link, inode) { FdKind::Pipe } else { FdKind::NamedPipe }
    } else if file_type.is_char_device() {
        character_device(inode.device_number, &name())
    } else if file_type.is_block_device() {
        FdKind::Other(format!(
            "block device {} is not carried: a child would write to it next to its parent; close it first",
            name()
        ))
    } else if file_type.is_dir() {
        if inode.links == 0 { FdKind::DeletedDirectory(inode.status()) } else { FdKind::Directory }
    } else if file_type.is_file() && is_memory(link, inode, || is_on_hugetlbfs(links, number)) {
        FdKind::Memory
    } else if link.starts_with(b"/") && file_type.is_file() {
        match kernel_file::refusal_reason(links, number, link) {
            Some(reason) => FdKind::Other(format!("{} {reason}: not carried; close it first", name())),
            None => FdKind::Regular,
        }
    } else if link.starts_with(b"pidfd:") {
        FdKind::PidFd
    } else {
        FdKind::Other(format!("{} is not carried; close it first", name()))
    }
}

/// Whether a regular file is carried with its contents. That is a memfd; a deleted file; POSIX shared memory, which its
/// processes keep writing; a file in huge pages, which another node may lack; or a file that this node lacks.
fn is_memory(link: &[u8], inode: &Inode, is_on_hugetlbfs: impl FnOnce() -> bool) -> bool {
    /// Smallest block size of hugetlbfs.
    const HUGE_PAGE_BYTES_MIN: u32 = 2 << 20;
    let is_without_path = link.starts_with(MEMFD_PREFIX) || link.starts_with(SHARED_MEMORY_PREFIX);
    is_without_path
        || inode.is_absent_on_node
        || is_unlinked(link, inode)
        || (inode.block_bytes >= HUGE_PAGE_BYTES_MIN && is_on_hugetlbfs())
}

/// Whether no path leads to the inode, or only a path that the kernel does not report.
fn is_unlinked(link: &[u8], inode: &Inode) -> bool {
    let is_there = || {
        let found = fs::metadata(OsStr::from_bytes(link));
        found.is_ok_and(|found| (found.dev(), found.ino()) == (inode.device, inode.number))
    };
    inode.links == 0 || (link.ends_with(DELETED_SUFFIX) && !is_there())
}

/// Whether a descriptor is for the location only (O_PATH): its link shows neither read nor write permission.
fn is_path_only(links: &FdDirectory, number: &str) -> bool {
    const OWNER_PERMISSIONS: u32 = 0o700;
    statat(links, number, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|link| link.st_mode & OWNER_PERMISSIONS == 0)
}

fn is_on_hugetlbfs(links: &FdDirectory, number: &str) -> bool {
    let path_fd = openat(links, number, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    path_fd.is_ok_and(|path_fd| hugetlbfs::is_on_hugetlbfs(path_fd).unwrap_or(false))
}

/// The programs are those that create a ring by themselves.
const IO_URING_REASON: &str = "it is an io_uring(7), which is not carried: let the program start without it (MariaDB: \
                               --skip-innodb-use-native-aio; Node.js and other programs with libuv: UV_USE_IO_URING=0)";

fn anonymous_kind(name: &[u8]) -> FdKind {
    match name {
        b"[eventfd]" => FdKind::EventFd,
        b"[eventpoll]" => FdKind::Epoll,
        b"[timerfd]" => FdKind::TimerFd,
        b"[signalfd]" => FdKind::SignalFd,
        b"inotify" => FdKind::Inotify,
        b"[pidfd]" => FdKind::PidFd,
        b"[io_uring]" => FdKind::Other(IO_URING_REASON.to_owned()),
        other => FdKind::Other(format!("{} is not carried yet; close it first", String::from_utf8_lossy(other))),
    }
}

fn character_device(device: u64, name: &str) -> FdKind {
    /// `/dev/ptmx`.
    const PTMX_DEVICE: (u32, u32) = (5, 2);
    /// Majors of terminals: virtual consoles and serial lines, /dev/tty and /dev/console, Unix 98 ptys (136 to 143).
    const PTS_MAJORS: [std::ops::RangeInclusive<u32>; 2] = [4..=5, 136..=143];
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    if (major, minor) == PTMX_DEVICE {
        return FdKind::TerminalMaster;
    }
    if carried_device_path(device).is_some() {
        FdKind::Device
    } else if PTS_MAJORS.iter().any(|majors| majors.contains(&major)) {
        FdKind::Terminal
    } else {
        let remedy = DEVICE_REMEDIES.iter().find(|(numbers, _)| *numbers == (major, minor)).map(|(_, remedy)| *remedy);
        let remedy = remedy.map_or(String::new(), |remedy| format!(", {remedy}"));
        FdKind::Other(format!(
            "device {name} is not carried, because its driver does not show its state: close it first{remedy}"
        ))
    }
}

/// Remedies for a program that keeps a device open, by the numbers of the device.
const DEVICE_REMEDIES: [((u32, u32), &str); 5] = [
    ((1, 11), "and log to standard error or syslog(3) instead of /dev/kmsg"),
    (
        (10, 200),
        "and open /dev/net/tun in the child; children reach other hosts with `farfork fork --egress` or `--net`",
    ),
    ((10, 229), "that is, unmount what the program serves (FUSE), or serve it from a program outside of the tree"),
    ((10, 232), "that is, end the virtual machine (KVM) and start it in the child"),
    ((10, 237), "and set up loop devices outside of the program"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_objects_have_a_remedy() {
        let reason = |kind| match kind {
            FdKind::Other(reason) => reason,
            other => panic!("{other:?}"),
        };
        for (minor, parts) in [
            (200, ["/dev/x", "/dev/net/tun", "--egress"]),
            (229, ["/dev/x", "FUSE", "unmount"]),
            (232, ["/dev/x", "KVM", "start it in the child"]),
            (237, ["/dev/x", "loop", "outside"]),
            (183, ["/dev/x", "not carried", "close it first"]),
        ] {
            let reason = reason(character_device(makedev(10, minor), "/dev/x"));
            assert!(parts.iter().all(|part| reason.contains(part)), "{minor}: {reason}");
        }
        assert!(reason(character_device(makedev(1, 11), "/dev/kmsg")).contains("syslog(3)"));
        let ring = reason(anonymous_kind(b"[io_uring]"));
        assert!(ring.contains("--skip-innodb-use-native-aio") && ring.contains("UV_USE_IO_URING=0"), "{ring}");
    }
}
