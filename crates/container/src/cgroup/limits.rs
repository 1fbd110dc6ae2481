//! Limits on what the processes of a group use together, and whether a process was killed for lack of memory. Limits
//! are set only on request: writing them takes time, and a group is removed with its container, never reused. A
//! container without limits has no group in version 1 hierarchies next to the unified one.

use std::io;

use farfork_sys::cgroup;
use farfork_sys::cgroup::hierarchy::CgroupVersion;

use super::container::{by_version, write_file};
use super::{CgroupDirectory, CgroupError, ContainerCgroup};

/// Period of the CPU limit, in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;

/// Lowest CPU limit, in thousandths of a CPU: the kernel accepts no less than a millisecond per period.
pub const CPU_MILLICORES_MIN: u64 = 10;

/// Lowest memory limit, in bytes. It covers the kernel's memory for a few processes (page tables, stacks) and a program's
/// first pages.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// Number of tasks of the container's init, which is in the same group.
const INIT_TASKS: u64 = 1;

/// The kernel charges a group at most this much at once, in bytes. A group whose peak is this close to its limit has reached
/// it.
const CHARGE_BYTES_MAX: u64 = 64 * 4096;

/// Limits for all processes of a container together; `None` for no limit other than the node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContainerLimits {
    /// Memory, in bytes. Swap is not available in addition.
    pub memory_bytes_max: Option<u64>,
    /// Processor time, in thousandths of a processor.
    pub cpu_millicores_max: Option<u64>,
    /// Processes and threads, without the container's init.
    pub tasks_max: Option<u64>,
}

/// The reason why the kernel killed a process of a group for lack of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OomCause {
    /// The group's own limit.
    OwnLimit,
    /// Memory of the machine, or the limit of the node.
    NodeFull,
}

impl ContainerCgroup {
    /// Limits what the group's processes may use. A container's group must have been created for limits.
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`], [`CgroupError::File`].
    pub fn set_limits(&self, limits: &ContainerLimits) -> Result<(), CgroupError> {
        limits.memory_bytes_max.map_or(Ok(()), |bytes| self.set_memory_bytes_max(bytes))?;
        limits.cpu_millicores_max.map_or(Ok(()), |millicores| self.set_cpu_millicores_max(millicores))?;
        limits.tasks_max.map_or(Ok(()), |tasks| self.set_tasks_max(tasks.saturating_add(INIT_TASKS)))
    }

    /// Limits the memory of all processes of the group together, in bytes. None of it may be swapped out.
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`], [`CgroupError::File`].
    pub fn set_memory_bytes_max(&self, bytes: u64) -> Result<(), CgroupError> {
        let directory = self.directory_with("memory")?;
        write_file(directory, by_version(directory, "memory.limit_in_bytes", "memory.max"), &bytes.to_string())?;
        // Version 1 limits the sum of memory and swap, which must not be below the memory limit.
        let without_swap = match directory.version {
            CgroupVersion::V1 => write_file(directory, "memory.memsw.limit_in_bytes", &bytes.to_string()),
            CgroupVersion::V2 => write_file(directory, "memory.swap.max", "0"),
        };
        match without_swap {
            // A kernel without swap accounting has no file for this limit.
            Err(CgroupError::File { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    /// Limits the CPU time of all processes of the group together, in thousandths of a CPU.
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

    /// Why the kernel killed a process of the group for lack of memory; `None` if it killed none, or does not report it.
    pub fn oom_cause(&self) -> Option<OomCause> {
        let directory = self.directory_with("memory").ok().filter(|directory| read_oom_kills(directory) > 0)?;
        Some(if has_met_limit(directory) { OomCause::OwnLimit } else { OomCause::NodeFull })
    }

    /// Like [`Self::oom_cause`], for a group whose process was killed. If the group has no counter of its own, uses the
    /// counter of the common group without limits. Each count is attributed to one killed process only.
    pub fn oom_cause_of_killed(&self) -> Option<OomCause> {
        match &self.unlimited {
            Some(common) => common.take_oom_kill().then_some(OomCause::NodeFull),
            None => self.oom_cause(),
        }
    }
}

/// The number of processes of a group that the kernel has killed for lack of memory; 0 if it does not report it.
pub(super) fn read_oom_kills(directory: &CgroupDirectory) -> u64 {
    let file = by_version(directory, "memory.oom_control", "memory.events");
    cgroup::read_keyed_number(&directory.path, file, "oom_kill").unwrap_or(0)
}

fn has_met_limit(directory: &CgroupDirectory) -> bool {
    match directory.version {
        // Version 1 counts failed charges, but the count stays 0 on current kernels. Compare the peak with the limit.
        CgroupVersion::V1 => {
            let read = |file| cgroup::read_number(&directory.path, file);
            let (peak, limit) = (read("memory.max_usage_in_bytes"), read("memory.limit_in_bytes"));
            peak.is_ok_and(|peak| limit.is_ok_and(|limit| peak + CHARGE_BYTES_MAX >= limit))
        }
        // `oom` counts only hits of the group's own limit: groups above have their own files.
        CgroupVersion::V2 => {
            cgroup::read_keyed_number(&directory.path, "memory.events", "oom").is_ok_and(|times| times > 0)
        }
    }
}
