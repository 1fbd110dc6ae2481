//! Freezes a control group: all its tasks, and those of the groups below, stop until it is thawed. Version 2 stops a
//! task where a signal would, and still delivers SIGKILL and ptrace requests. Version 1 blocks even those.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::hierarchy::CgroupVersion;

/// Between two looks at a version 1 group on its way: looking is what makes the kernel count its tasks.
const V1_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// For so long a version 2 group is looked at again and again: most tasks stop within some microseconds, and no timer is as short.
const V2_YIELD_TIME: Duration = Duration::from_micros(100);

/// Then from one look to the next. Each time twice as long, at most the least time between two events of a group that the kernel reports.
const V2_POLL_FIRST: Duration = Duration::from_micros(20);
const V2_POLL_MAX: Duration = Duration::from_millis(10);

/// cgroup.events is shorter: two lines of a word and a number.
const EVENTS_BYTES_MAX: usize = 256;

/// Freezes a group and waits until all its tasks stand, at most `limit`. Where that fails it is thawed again.
///
/// # Errors
/// `TimedOut` where a task does not stop in time: it is in uninterruptible sleep, or in a system call that waits for a page;
/// else as writing the group's files: ENOENT where it has no freezer (before Linux 5.2).
pub fn freeze(group: &Path, version: CgroupVersion, limit: Duration) -> io::Result<()> {
    let frozen = match version {
        CgroupVersion::V2 => return FreezerFiles::open(group)?.freeze(limit),
        CgroupVersion::V1 => freeze_v1(group, Instant::now() + limit),
    };
    if frozen.is_err() {
        let _ = thaw(group, version);
    }
    frozen
}

/// Lets the tasks of a group go on; one that is not frozen stays so.
///
/// # Errors
/// As writing the group's file.
pub fn thaw(group: &Path, version: CgroupVersion) -> io::Result<()> {
    match version {
        CgroupVersion::V2 => super::write(group, "cgroup.freeze", "0"),
        CgroupVersion::V1 => super::write(group, "freezer.state", "THAWED"),
    }
}

/// Whether a group was told to freeze; a group without a freezer was not.
pub fn is_frozen(group: &Path, version: CgroupVersion) -> bool {
    let (file, word) = match version {
        CgroupVersion::V2 => ("cgroup.freeze", "0"),
        CgroupVersion::V1 => ("freezer.self_freezing", "0"),
    };
    fs::read_to_string(group.join(file)).is_ok_and(|state| state.trim() != word)
}

/// The open files of a version 2 freezer: a handle that pauses and resumes a group without looking up its path each time.
#[derive(Debug)]
pub struct FreezerFiles {
    /// cgroup.freeze
    freeze: File,
    /// cgroup.events
    events: File,
}

impl FreezerFiles {
    /// Opens the files of a version 2 group.
    ///
    /// # Errors
    /// As open(2): ENOENT where the group has no freezer (before Linux 5.2) or was removed.
    pub fn open(group: &Path) -> io::Result<Self> {
        let freeze = OpenOptions::new().write(true).open(group.join("cgroup.freeze"))?;
        Ok(Self { freeze, events: File::open(group.join("cgroup.events"))? })
    }

    /// Freezes the group and waits until all its tasks stop, at most `limit`. If that fails, the group is thawed again.
    ///
    /// # Errors
    /// As [`freeze`]; ENODEV if the group was removed.
    pub fn freeze(&self, limit: Duration) -> io::Result<()> {
        let frozen = self.freeze_until(Instant::now() + limit);
        if frozen.is_err() {
            let _ = self.thaw();
        }
        frozen
    }

    /// Resumes the tasks of the group; one that is not frozen stays so.
    ///
    /// # Errors
    /// As write(2); ENODEV if the group was removed.
    pub fn thaw(&self) -> io::Result<()> {
        self.freeze.write_all_at(b"0", 0)
    }

    /// The kernel reports the last task that stops by an event of the events' file. It delays the event up to 10 ms if the group was
    /// thawed a moment before, so the file is also read again.
    fn freeze_until(&self, deadline: Instant) -> io::Result<()> {
        self.freeze.write_all_at(b"1", 0)?;
        let (began, mut look) = (Instant::now(), V2_POLL_FIRST);
        while !self.is_stopped()? {
            let now = Instant::now();
            if now >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if now - began < V2_YIELD_TIME {
                std::thread::yield_now();
                continue;
            }
            let until = Timespec::try_from((deadline - now).min(look)).map_err(|_| io::ErrorKind::InvalidInput)?;
            match poll(&mut [PollFd::new(&self.events, PollFlags::PRI)], Some(&until)) {
                Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
                _ => look = (look * 2).min(V2_POLL_MAX),
            }
        }
        Ok(())
    }

    /// Whether all tasks of the group are stopped.
    fn is_stopped(&self) -> io::Result<bool> {
        let mut text = [0; EVENTS_BYTES_MAX];
        let length = self.events.read_at(&mut text, 0)?;
        Ok(text[..length].split(|byte| *byte == b'\n').any(|line| line == b"frozen 1"))
    }
}

fn freeze_v1(group: &Path, deadline: Instant) -> io::Result<()> {
    super::write(group, "freezer.state", "FROZEN")?;
    while fs::read_to_string(group.join("freezer.state"))?.trim() != "FROZEN" {
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(V1_POLL_INTERVAL);
    }
    Ok(())
}
