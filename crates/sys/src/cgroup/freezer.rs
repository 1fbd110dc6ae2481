//! Freezes a control group: all its tasks, and those of the groups below, stop until it is thawed. Version 2 stops a
//! task where a signal would, and still delivers SIGKILL and ptrace requests. Version 1 blocks even those.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::hierarchy::CgroupVersion;

/// Between two looks at a version 1 group on its way: looking is what makes the kernel count its tasks.
const V1_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// From the first look at a version 2 group to the second: most stand after some microseconds. Then each time twice as long, at
/// most the time between two changes of a group's events that the kernel tells of, however many there are.
const V2_POLL_FIRST: Duration = Duration::from_micros(20);
const V2_POLL_MAX: Duration = Duration::from_millis(10);

/// Freezes a group and waits until all its tasks stand, at most `limit`. Where that fails it is thawed again.
///
/// # Errors
/// `TimedOut` where a task does not stop in time: it is in uninterruptible sleep, or in a system call that waits for a page;
/// else as writing the group's files: ENOENT where it has no freezer (before Linux 5.2).
pub fn freeze(group: &Path, version: CgroupVersion, limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    let frozen = match version {
        CgroupVersion::V2 => freeze_v2(group, deadline),
        CgroupVersion::V1 => freeze_v1(group, deadline),
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

/// The kernel tells when the last task stands: a change of the events' file. Of a group that was thawed a moment before it
/// tells up to 10 ms late, so that nobody waits for that alone.
fn freeze_v2(group: &Path, deadline: Instant) -> io::Result<()> {
    let mut events = File::open(group.join("cgroup.events"))?;
    super::write(group, "cgroup.freeze", "1")?;
    let (mut text, mut look) = (String::new(), V2_POLL_FIRST);
    loop {
        text.clear();
        events.rewind()?;
        events.read_to_string(&mut text)?;
        if text.lines().any(|line| line == "frozen 1") {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let until = Timespec::try_from(left.min(look)).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&until)) {
            Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
            _ => look = (look * 2).min(V2_POLL_MAX),
        }
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
