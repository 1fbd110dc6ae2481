//! Who is born in a group's unified directory, by clone3(2), is in the other hierarchies where its parent was: there it has to
//! be moved.

use farfork_sys::cgroup;
use farfork_sys::cgroup::hierarchy::Version;

use super::{CgroupError, ContainerCgroup};

/// Looks at a group that forks meanwhile: who is there at the last look forks where the others are.
const LOOKS_MAX: usize = 8;
/// There is no such process.
const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

impl ContainerCgroup {
    /// Moves all that were born in the unified directory, and what they have forked, into the others.
    ///
    /// # Errors
    /// [`CgroupError::Join`].
    pub(crate) fn gather(&self) -> Result<(), CgroupError> {
        let Some(unified) = self.places.iter().find(|place| place.version == Version::V2) else { return Ok(()) };
        let mut moved = Vec::new();
        let looks = if self.places.len() > 1 { LOOKS_MAX } else { 0 };
        for _ in 0..looks {
            let found = cgroup::processes(&unified.path).unwrap_or_default();
            let new: Vec<i32> = found.into_iter().filter(|pid| !moved.contains(pid)).collect();
            if new.is_empty() {
                break;
            }
            new.iter().try_for_each(|pid| self.join_if_alive(*pid))?;
            moved.extend(new);
        }
        Ok(())
    }

    fn join_if_alive(&self, pid: i32) -> Result<(), CgroupError> {
        match self.join_others(pid) {
            Err(CgroupError::Join { cause, .. }) if cause.raw_os_error() == Some(ESRCH) => Ok(()),
            joined => joined,
        }
    }
}
