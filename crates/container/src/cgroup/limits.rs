//! Limits on what the processes of a group use together, and whether a process was killed for lack of memory. Limits
//! are set only on request: writing them takes time, and a group is removed with its container, never reused. A
//! container without limits has no group in version 1 hierarchies next to the unified one.

use std::io;

use farfork_sys::cgroup;
use farfork_sys::cgroup::hierarchy::CgroupVersion;

use super::container::{by_version, write_file};
use super::{CgroupDirectory, CgroupError, ContainerCgroup};

/// Period over which processor time is limited, in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;

/// Least processor time, in thousandths of a processor: the kernel takes no less than a millisecond in a period.
pub const CPU_MILLICORES_MIN: u64 = 10;

/// Least memory, in bytes: what the kernel keeps for a few processes (page tables, stacks) and a program's first pages.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// The container's own process, which is in its group.
const INIT_TASKS: u64 = 1;

/// Most that the kernel charges a group with at once, in bytes: who is refused that has met the limit.
const CHARGE_BYTES_MAX: u64 = 64 * 4096;

/// What the processes of a container may use together; `None` for all that its node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContainerLimits {
    /// Memory, in bytes. There is no swap beyond it.
    pub memory_bytes_max: Option<u64>,
    /// Processor time, in thousandths of a processor.
    pub cpu_millicores_max: Option<u64>,
    /// Processes and threads, besides the container's own.
    pub tasks_max: Option<u64>,
}

/// What made the kernel kill a process of a group for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OomCause {
    /// The group's own limit.
    OwnLimit,
    /// The machine, or what the node may use.
    NodeFull,
}

impl ContainerCgroup {
    /// Limits what the group's processes may use. A container's group must have been made for it.
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`], [`CgroupError::File`].
    pub fn set_limits(&self, limits: &ContainerLimits) -> Result<(), CgroupError> {
        limits.memory_bytes_max.map_or(Ok(()), |bytes| self.set_memory_bytes_max(bytes))?;
        limits.cpu_millicores_max.map_or(Ok(()), |millicores| self.set_cpu_millicores_max(millicores))?;
        limits.tasks_max.map_or(Ok(()), |tasks| self.set_tasks_max(tasks.saturating_add(INIT_TASKS)))
    }

    /// Limits the memory of the group's processes together, in bytes, and has none of it swapped out instead.
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`], [`CgroupError::File`].
    pub fn set_memory_bytes_max(&self, bytes: u64) -> Result<(), CgroupError> {
        let directory = self.directory_with("memory")?;
        write_file(directory, by_version(directory, "memory.limit_in_bytes", "memory.max"), &bytes.to_string())?;
        // Version 1 limits memory and swap as one sum, which may not be less than the memory.
        let without_swap = match directory.version {
            CgroupVersion::V1 => write_file(directory, "memory.memsw.limit_in_bytes", &bytes.to_string()),
            CgroupVersion::V2 => write_file(directory, "memory.swap.max", "0"),
        };
        match without_swap {
            // A kernel that cannot swap has no such file.
            Err(CgroupError::File { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    /// Limits the processor time of the group's processes together, in thousandths of a core.
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`], [`CgroupError::File`].
    pub fn set_cpu_millicores_max(&self, millicores: u64) -> Result<(), CgroupError> {
        let directory = self.directory_with("cpu")?;
        let quota_us = millicores * CPU_PERIOD_US / 1000;
        match directory.version {
            CgroupVersion::V2 => write_file(directory, "cpu.max", &format!("{quota_us} {CPU_PERIOD_US}")),
            CgroupVersion::V1 => {
                write_file(directory, "cpu.cfs_period_us", &CPU_PERIOD_US.to_string())?;
                write_file(directory, "cpu.cfs_quota_us", &quota_us.to_string())
            }
        }
    }

    /// Why the kernel killed a process of the group for want of memory; `None` where it killed none, or does not say.
    pub fn oom_cause(&self) -> Option<OomCause> {
        let directory = self.directory_with("memory").ok().filter(|directory| read_oom_kills(directory) > 0)?;
        Some(if has_met_limit(directory) { OomCause::OwnLimit } else { OomCause::NodeFull })
    }

    /// As [`Self::oom_cause`], of a group one of whose processes was killed. Where it has no count of its own, that of all
    /// without limits tells of as many as the kernel has killed.
    pub fn oom_cause_of_killed(&self) -> Option<OomCause> {
        match &self.unlimited {
            Some(common) => common.take_oom_kill().then_some(OomCause::NodeFull),
            None => self.oom_cause(),
        }
    }
}

/// How many processes of a group the kernel has killed for want of memory; none where it does not say.
pub(super) fn read_oom_kills(directory: &CgroupDirectory) -> u64 {
    let file = by_version(directory, "memory.oom_control", "memory.events");
    cgroup::read_keyed_number(&directory.path, file, "oom_kill").unwrap_or(0)
}

fn has_met_limit(directory: &CgroupDirectory) -> bool {
    match directory.version {
        // Its count of failed charges stays 0 on kernels of today.
        CgroupVersion::V1 => {
            let read = |file| cgroup::read_number(&directory.path, file);
            let (peak, limit) = (read("memory.max_usage_in_bytes"), read("memory.limit_in_bytes"));
            peak.is_ok_and(|peak| limit.is_ok_and(|limit| peak + CHARGE_BYTES_MAX >= limit))
        }
        // Not of what is above: that has a file of its own.
        CgroupVersion::V2 => {
            cgroup::read_keyed_number(&directory.path, "memory.events", "oom").is_ok_and(|times| times > 0)
        }
    }
}
