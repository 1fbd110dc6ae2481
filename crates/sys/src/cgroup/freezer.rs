//! Freezes a control group: all tasks of the group and of the groups below it stop until it is thawed. Version 2 stops a
//! task where a signal would stop it, and still delivers SIGKILL and ptrace requests. Version 1 delivers neither.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::hierarchy::CgroupVersion;

/// Interval between two reads of the state of a version 1 group that is freezing. The read itself makes the kernel count the
/// stopped tasks.
const V1_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Time for which a version 2 group is polled without sleeping. Most tasks stop within a few microseconds. Even the shortest
/// sleep takes longer.
const V2_YIELD_TIME: Duration = Duration::from_micros(100);

/// First interval between two polls after `V2_YIELD_TIME`. Each interval is twice the previous one, up to `V2_POLL_MAX`: the
/// kernel reports at most one event of a group per 10 ms.
const V2_POLL_FIRST: Duration = Duration::from_micros(20);
const V2_POLL_MAX: Duration = Duration::from_millis(10);

/// Size of the buffer for `cgroup.events`, in bytes. The file has two lines of a word and a number.
const EVENTS_BYTES_MAX: usize = 256;

/// Freezes a group and waits until all its tasks are stopped, at most `limit`. If that fails, the group is thawed again.
///
/// # Errors
/// `TimedOut` if a task does not stop in time. Such a task is in uninterruptible sleep, or in a system call that waits for a
/// page. Otherwise as writing the group's files: ENOENT if the group has no freezer (before Linux 5.2).
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

/// Resumes the tasks of a group. A group that is not frozen is unchanged.
///
/// # Errors
/// As writing the group's file.
pub fn thaw(group: &Path, version: CgroupVersion) -> io::Result<()> {
    match version {
        CgroupVersion::V2 => super::write(group, "cgroup.freeze", "0"),
        CgroupVersion::V1 => super::write(group, "freezer.state", "THAWED"),
    }
}

/// Whether a group is frozen or being frozen; `false` for a group without a freezer.
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
    /// As open(2): ENOENT if the group has no freezer (before Linux 5.2) or was removed.
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

    /// Resumes the tasks of the group. A group that is not frozen is unchanged.
    ///
    /// # Errors
    /// As write(2); ENODEV if the group was removed.
    pub fn thaw(&self) -> io::Result<()> {
        self.freeze.write_all_at(b"0", 0)
    }

    /// Freezes the group, and waits until all tasks have stopped. Then the kernel raises an event (POLLPRI) on
    /// `cgroup.events`. It delays the event by up to 10 ms after a recent thaw, so the file is also read at intervals.
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
