//! Settings of a whole process: OOM score, root, CPU affinity, scheduling limits, memory barriers, huge pages, /proc.

use farfork_container::OOM_SCORE_ADJUSTMENT;
use farfork_wire::Descriptor;
use rustix::fs::OFlags;
use rustix::mount::MountFlags;

use super::super::RestoreError;
use super::super::plan_layout::{
    STEP_ENTER_ROOT, STEP_HUGE_PAGES, STEP_MEMORY_BARRIER, STEP_OOM_SCORE, STEP_PROTECT_PROC, STEP_SCHEDULING,
};
use super::super::process_tree::TreePosition;
use super::{SyscallArgument, SyscallBuilder, abi, value};

/// Sets the OOM score adjustment of each process: the container's value, or the process's own if it is higher. Because of
/// the container's value, the OOM killer kills a container's processes before others of the node. A copy of a zygote starts
/// with the zygote's value, which is lower.
pub(super) fn set_oom_scores(
    descriptor: &Descriptor,
    place: &TreePosition<'_>,
    is_copy: bool,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    if is_copy || descriptor.process.oom_score_adj > OOM_SCORE_ADJUSTMENT {
        set_oom_score("self", descriptor.process.oom_score_adj, syscall_builder)?;
    }
    let others = place.fd_table_sharers().map(|member| &member.process);
    others
        .filter(|other| other.oom_score_adj > OOM_SCORE_ADJUSTMENT)
        .try_for_each(|other| set_oom_score(&other.pid.to_string(), other.oom_score_adj, syscall_builder))
}

fn set_oom_score(process: &str, score: i32, syscall_builder: &mut SyscallBuilder<'_>) -> Result<(), RestoreError> {
    syscall_builder.set_step(STEP_OOM_SCORE, 0);
    let (path, text) = (
        syscall_builder.text_argument(&format!("/proc/{process}/oom_score_adj"))?,
        score.max(OOM_SCORE_ADJUSTMENT).to_string(),
    );
    let (bytes, length) = (syscall_builder.bytes_argument(text.as_bytes())?, text.len() as u64);
    syscall_builder.call_expecting(0, abi::OPEN, &[path, value((OFlags::WRONLY | OFlags::CLOEXEC).bits())]);
    syscall_builder.call_expecting(length, abi::WRITE, &[value(0_u32), bytes, value(length)]);
    syscall_builder.call_expecting(0, abi::CLOSE, &[value(0_u32)]);
    Ok(())
}

/// Makes this mount of /proc read-only, because root in the container could otherwise change kernel settings. Runs after the
/// last write to /proc for the child, and before the child opens any file.
pub(super) fn make_proc_read_only(syscall_builder: &mut SyscallBuilder<'_>) -> Result<(), RestoreError> {
    const PROC_MOUNT_FLAGS: MountFlags =
        MountFlags::RDONLY.union(MountFlags::NOSUID).union(MountFlags::NODEV).union(MountFlags::NOEXEC);
    const MS_REMOUNT: u32 = 32;
    syscall_builder.set_step(STEP_PROTECT_PROC, 0);
    let flags = value((PROC_MOUNT_FLAGS | MountFlags::BIND).bits() | MS_REMOUNT);
    let (none, point) = (value(0_u32), syscall_builder.text_argument("/proc")?);
    syscall_builder.call_expecting(0, abi::MOUNT, &[none, point, none, flags, none]);
    Ok(())
}

/// Sets RLIMIT_NICE and RLIMIT_RTPRIO for a child in a user namespace, where capabilities do not allow a thread to
/// choose its scheduling. Each thread starts with the lowest nice value of all threads, and raises its own. If the node
/// can raise limits, threads may choose any value. The child's own limits are set later.
pub(super) fn raise_scheduling_limits(
    descriptor: &Descriptor,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    const PRIO_PROCESS: u32 = 0;
    const RLIMIT_NICE: u32 = 13;
    const RLIMIT_RTPRIO: u32 = 14;
    syscall_builder.set_step(STEP_SCHEDULING, 0);
    for (resource, most) in [(RLIMIT_NICE, 40), (RLIMIT_RTPRIO, 99)] {
        let (own, none, limit) = (value(0_u32), value(0_u32), syscall_builder.words_argument(&[most, most])?);
        syscall_builder.call_may_fail(abi::PRLIMIT64, &[own, value(resource), limit, none]);
    }
    let best = descriptor.threads.iter().map(|thread| thread.scheduling.nice).min().unwrap_or(0);
    let best = SyscallArgument::Value(i64::from(best).cast_unsigned());
    syscall_builder.call_expecting(0, abi::SETPRIORITY, &[value(PRIO_PROCESS), value(0_u32), best]);
    Ok(())
}

/// Changes the root directory. The current directory does not change, even if it is outside of the root.
pub(super) fn enter_root(
    descriptor: &Descriptor,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    let Some(root) = &descriptor.process.root else { return Ok(()) };
    syscall_builder.set_step(STEP_ENTER_ROOT, 0);
    let path = syscall_builder.text_argument(root)?;
    syscall_builder.call_expecting(0, abi::CHROOT, &[path]);
    Ok(())
}

/// The bits of MEMBARRIER_CMD_REGISTER_*: global 2, private 4, cores 6, restartable sequences 8.
const MEMBARRIER_REGISTRATIONS: [u32; 4] = [1 << 2, 1 << 4, 1 << 6, 1 << 8];

pub(super) fn register_membarriers(descriptor: &Descriptor, syscall_builder: &mut SyscallBuilder<'_>) {
    syscall_builder.set_step(STEP_MEMORY_BARRIER, 0);
    for command in MEMBARRIER_REGISTRATIONS
        .into_iter()
        .filter(|command| descriptor.process.membarrier_registrations & command != 0)
    {
        syscall_builder.call_expecting(0, abi::MEMBARRIER, &[value(command), value(0_u32), value(0_u32)]);
    }
}

/// Sets the CPU affinity of threads, as far as the node has their CPUs. If the node has none of a thread's CPUs, the
/// thread runs on any CPU.
pub(super) fn set_cpu_affinity(
    descriptor: &Descriptor,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    for thread in descriptor.threads.iter().filter(|thread| !thread.cpus.is_empty()) {
        let mut set: Vec<u8> = thread.cpus.iter().flat_map(|word| word.to_ne_bytes()).collect();
        set.resize(set.len().next_multiple_of(size_of::<u64>()), 0);
        let (bytes, length) = (syscall_builder.bytes_argument(&set)?, set.len() as u64);
        syscall_builder.call_may_fail(abi::SCHED_SETAFFINITY, &[value(thread.tid), value(length), bytes]);
    }
    Ok(())
}

/// Disables transparent huge pages if they were disabled for the process (PR_SET_THP_DISABLE). Runs before any mapping
/// that could get huge pages.
pub(super) fn disable_huge_pages(descriptor: &Descriptor, syscall_builder: &mut SyscallBuilder<'_>) {
    const PR_SET_THP_DISABLE: u32 = 41;
    if descriptor.process.is_thp_disabled {
        syscall_builder.set_step(STEP_HUGE_PAGES, 0);
        let [forbid, none] = [value(1_u32), value(0_u32)];
        syscall_builder.call_expecting(0, abi::PRCTL, &[value(PR_SET_THP_DISABLE), forbid, none, none, none]);
    }
}
