//! Parses `/proc/PID/fd` and `fdinfo`: open files.

mod state;

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};

use crate::namespace;

use super::{malformed, numeric_entries_of, open_directory, read_once, read_once_from};
pub use state::{LockEntry, LockKind, TimerState, WatchEntry};

/// A directory of a process with an entry for each of its file descriptors. Looking up an entry relative to this directory
/// takes half the time of looking up its whole path.
#[derive(Debug)]
pub struct FdDirectory {
    directory: OwnedFd,
    /// Computed on first use, by [`Self::shares_mount_namespace`].
    has_our_mounts: OnceLock<bool>,
    /// The process in whose mount namespace the links are paths; `None` for the process of the directory.
    viewer: Option<i32>,
}

impl FdDirectory {
    fn new(directory: OwnedFd) -> Self {
        Self { directory, has_our_mounts: OnceLock::new(), viewer: None }
    }

    /// Whether the process is in the mount namespace of this process. Then a link's path leads to the same file here.
    pub fn shares_mount_namespace(&self) -> bool {
        let namespace = || format!("{}/ns/mnt", self.viewer_directory());
        *self.has_our_mounts.get_or_init(|| namespace::is_main_thread_namespace(self.as_fd(), &namespace()))
    }

    /// Opens the directory of links to the open files.
    ///
    /// # Errors
    /// NotFound if the process has ended.
    pub fn open_links(pid: i32) -> io::Result<Self> {
        open_directory(&format!("/proc/{pid}/fd")).map(Self::new)
    }

    /// Opens the directory of links to the open files of this process, where some are copies of another process's files. Their
    /// paths are those of the mount namespace of the process `viewer`.
    ///
    /// # Errors
    /// As open(2), if there is no `/proc`.
    pub fn open_copied_links(viewer: i32) -> io::Result<Self> {
        let own = open_directory("/proc/self/fd")?;
        Ok(Self { viewer: Some(viewer), ..Self::new(own) })
    }

    /// The directory in `/proc` of the process whose mounts the paths of the links belong to. A relative path is relative to
    /// this directory.
    pub fn viewer_directory(&self) -> Cow<'static, str> {
        self.viewer.map_or(Cow::Borrowed(".."), |viewer| Cow::Owned(format!("/proc/{viewer}")))
    }

    /// Opens the directory of the files that [`FdInfo`] parses.
    ///
    /// # Errors
    /// NotFound if the process has ended.
    pub fn open_infos(pid: i32) -> io::Result<Self> {
        open_directory(&format!("/proc/{pid}/fdinfo")).map(Self::new)
    }

    /// Reads the numbers of the descriptors, in ascending order. Can be called only once.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn numbers(&self) -> io::Result<Vec<u32>> {
        numeric_entries_of(&self.directory)
    }

    /// Reads the `fdinfo` of one descriptor. This must be a directory from [`Self::open_infos`].
    ///
    /// # Errors
    /// NotFound if the process has ended or the descriptor is closed.
    pub fn info(&self, number: u32) -> io::Result<FdInfo> {
        let file =
            rustix::fs::openat(&self.directory, number.to_string(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        FdInfo::from_bytes(&read_once_from(file.into())?)
    }
}

impl AsFd for FdDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// The contents of the `fdinfo` of one descriptor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FdInfo {
    /// File position, in bytes.
    pub offset: u64,
    /// O_* flags, with O_CLOEXEC if the descriptor has FD_CLOEXEC.
    pub flags: u32,
    /// Id of the mount on which the file was opened.
    pub mount: u64,
    /// Inode number.
    pub inode: u64,
    /// The counter of an eventfd.
    pub event_counter: Option<EventCounter>,
    /// The entries of an epoll.
    pub epoll: Vec<EpollEntry>,
    /// The state of a timerfd.
    pub timer: Option<TimerState>,
    /// The signals that a signalfd accepts; bit N−1 is signal N.
    pub signal_mask: Option<u64>,
    /// The watches of an inotify.
    pub watches: Vec<WatchEntry>,
    /// The process of a pidfd, by its id in the reader's pid namespace.
    pub process: Option<i32>,
    /// Locks on the file that the process holds through this descriptor.
    pub locks: Vec<LockEntry>,
    /// Number of descriptors in flight to a Unix socket (SCM_RIGHTS).
    pub files_in_flight: u32,
}

/// The state of an eventfd(2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventCounter {
    /// The counter.
    pub count: u64,
    /// EFD_SEMAPHORE.
    pub semaphore: bool,
    /// The id of the eventfd, unique on the machine; `None` before Linux 5.2.
    pub number: Option<u32>,
}

/// One file that an epoll(7) instance watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpollEntry {
    /// The descriptor number that it was registered with.
    pub number: u32,
    /// EPOLL* events and flags.
    pub events: u32,
    /// The program's own data word.
    pub data: u64,
    /// Inode of the file.
    pub inode: u64,
}

impl FdInfo {
    /// Reads the `fdinfo` of one descriptor.
    ///
    /// # Errors
    /// NotFound if the process has ended or the descriptor is closed.
    pub fn read(pid: i32, number: u32) -> io::Result<Self> {
        Self::from_bytes(&read_once(&format!("/proc/{pid}/fdinfo/{number}"))?)
    }

    /// The locks that belong to the process, not to the open file: each process that has the file open has its own.
    pub fn process_locks(&self) -> impl Iterator<Item = &LockEntry> {
        self.locks.iter().filter(|lock| lock.kind == LockKind::Posix)
    }

    fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        Self::parse(str::from_utf8(bytes).map_err(|_| malformed("fdinfo"))?)
    }

    /// Parses the text of an `fdinfo` file.
    ///
    /// # Errors
    /// InvalidData if the text does not have the expected form.
    pub fn parse(text: &str) -> io::Result<Self> {
        let mut info = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            info.parse_line(key, value.trim()).ok_or_else(|| malformed("fdinfo"))?;
        }
        Ok(info)
    }

    fn parse_line(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            // A character device may show a negative position.
            "pos" => self.offset = value.parse::<i64>().ok()?.max(0) as u64,
            "flags" => self.flags = u32::from_str_radix(value, 8).ok()?,
            "mnt_id" => self.mount = value.parse().ok()?,
            "ino" => self.inode = value.parse().ok()?,
            "eventfd-count" => self.counter().count = u64::from_str_radix(value, 16).ok()?,
            "eventfd-id" => self.counter().number = Some(value.parse().ok()?),
            "eventfd-semaphore" => self.counter().semaphore = value != "0",
            "tfd" => self.epoll.push(parse_epoll_entry(value)?),
            "clockid" => self.timer().clock = value.parse().ok()?,
            "ticks" => self.timer().ticks = value.parse().ok()?,
            "settime flags" => self.timer().flags = u32::from_str_radix(value, 8).ok()?,
            "it_value" => self.timer().left_ns = state::parse_time(value)?,
            "it_interval" => self.timer().interval_ns = state::parse_time(value)?,
            "sigmask" => self.signal_mask = Some(u64::from_str_radix(value, 16).ok()?),
            "inotify wd" => self.watches.push(state::parse_watch(value)?),
            "Pid" => self.process = Some(value.parse().ok()?),
            "lock" => self.locks.push(state::parse_lock(value)?),
            "scm_fds" => self.files_in_flight = value.parse().ok()?,
            _ => {}
        }
        Some(())
    }

    fn timer(&mut self) -> &mut TimerState {
        self.timer.get_or_insert_default()
    }

    fn counter(&mut self) -> &mut EventCounter {
        self.event_counter.get_or_insert_default()
    }
}

/// Parses `NUMBER events: HEX data: HEX pos:N ino:HEX sdev:HEX`, which follows `tfd:`.
fn parse_epoll_entry(text: &str) -> Option<EpollEntry> {
    let spaced = text.replace(':', " ");
    let words: Vec<&str> = spaced.split_ascii_whitespace().collect();
    let hex_after = |key: &str| {
        let at = words.iter().position(|word| *word == key)?;
        u64::from_str_radix(words.get(at + 1)?, 16).ok()
    };
    Some(EpollEntry {
        number: words.first()?.parse().ok()?,
        events: hex_after("events")? as u32,
        data: hex_after("data")?,
        inode: hex_after("ino").unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_an_epoll_is_parsed() {
        let text = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t1057\n\
                    tfd:        5 events:       19 data:     7ffc00000005  pos:0 ino:6a sdev:f\n";
        let info = FdInfo::parse(text).unwrap();
        assert_eq!((info.flags, info.inode), (0o2_000_002, 1057));
        assert_eq!(info.epoll, [EpollEntry { number: 5, events: 0x19, data: 0x7ffc_0000_0005, inode: 0x6a }]);
    }

    #[test]
    fn the_state_of_an_eventfd_is_parsed() {
        let info = FdInfo::parse(
            "pos:\t0\nflags:\t02\neventfd-count:               1f\neventfd-id: 7\neventfd-semaphore: 1\n",
        )
        .unwrap();
        assert_eq!(info.event_counter, Some(EventCounter { count: 31, semaphore: true, number: Some(7) }));
    }

    #[test]
    fn descriptors_of_this_process_are_listed() {
        let pid = std::process::id() as i32;
        let (links, infos) = (FdDirectory::open_links(pid).unwrap(), FdDirectory::open_infos(pid).unwrap());
        let first = links.numbers().unwrap()[0];
        assert_eq!(infos.numbers().unwrap()[0], first);
        assert_eq!(infos.info(first).unwrap().inode, FdInfo::read(pid, first).unwrap().inode);
    }
}
