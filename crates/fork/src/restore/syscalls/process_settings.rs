//! Settings of a whole process: OOM score, root, CPU affinity, scheduling limits, memory barriers, huge pages, /proc.

use farfork_container::OOM_SCORE_ADJUSTMENT;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::LocalDescriptor;
use rustix::fs::OFlags;
use rustix::mount::MountFlags;

use super::super::RestoreError;
use super::super::plan_layout::{
    STEP_CORE_FILTER, STEP_ENTER_ROOT, STEP_HUGE_PAGES, STEP_LOCAL_DESCRIPTOR, STEP_MEMORY_BARRIER, STEP_OOM_SCORE,
    STEP_PROTECT_PROC, STEP_SCHEDULING,
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
    write_proc_file(process, "oom_score_adj", &score.max(OOM_SCORE_ADJUSTMENT).to_string(), syscall_builder)
}

/// Sets which memory the core dumps of processes have (core(5)).
pub(super) fn set_core_filters(
    descriptor: &Descriptor,
    place: &TreePosition<'_>,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    syscall_builder.set_step(STEP_CORE_FILTER, 0);
    if let Some(filter) = descriptor.own_attributes().and_then(|attributes| attributes.core_filter) {
        write_proc_file("self", "coredump_filter", &format!("{filter:#x}"), syscall_builder)?;
    }
    for member in place.fd_table_sharers() {
        if let Some(filter) = place.tree.attributes_of(member).and_then(|attributes| attributes.core_filter) {
            let pid = member.process.pid.to_string();
            write_proc_file(&pid, "coredump_filter", &format!("{filter:#x}"), syscall_builder)?;
        }
    }
    Ok(())
}

fn write_proc_file(
    process: &str,
    name: &str,
    text: &str,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    let path = syscall_builder.text_argument(&format!("/proc/{process}/{name}"))?;
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

/// Sets the entries of the local descriptor table (modify_ldt(2)).
pub(super) fn set_local_descriptors(
    descriptor: &Descriptor,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    const WRITE: u32 = 0x11;
    const USER_DESC_BYTES: u32 = 16;
    syscall_builder.set_step(STEP_LOCAL_DESCRIPTOR, 0);
    let entries = descriptor.own_attributes().map_or(&[][..], |attributes| &attributes.local_descriptors);
    for entry in entries {
        let entry = syscall_builder.words_argument(&user_desc(*entry))?;
        syscall_builder.call_expecting(0, abi::MODIFY_LDT, &[value(WRITE), entry, value(USER_DESC_BYTES)]);
    }
    Ok(())
}

//  segment  ┌ base 31:24 ┬ g ┬ d ┬ l ┬ avl ┬ limit 19:16 ┬ p ┬ dpl ┬ s ┬ type ┬ base 23:0 ┬ limit 15:0 ┐
//           63          55  54  53   52    48            47    45  44    40          16           0
/// Encodes `struct user_desc`: number and base, limit and flags.
fn user_desc(entry: LocalDescriptor) -> [u64; 2] {
    let LocalDescriptor { number, segment } = entry;
    let bits = |from: u32, count: u32| segment >> from & ((1 << count) - 1);
    let base = bits(16, 24) | bits(56, 8) << 24;
    let limit = bits(0, 16) | bits(48, 4) << 16;
    let is_read_only = 1 - bits(41, 1);
    let is_absent = 1 - bits(47, 1);
    let flags =
        bits(54, 1) | bits(42, 2) << 1 | is_read_only << 3 | bits(55, 1) << 4 | is_absent << 5 | bits(52, 1) << 6;
    [u64::from(number) | base << 32, limit | flags << 32]
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

/// Lets the kernel merge all memory with equal pages (PR_SET_MEMORY_MERGE), if it can. Applies to later mappings too.
pub(super) fn merge_memory(descriptor: &Descriptor, syscall_builder: &mut SyscallBuilder<'_>) {
    const PR_SET_MEMORY_MERGE: u32 = 67;
    if descriptor.own_attributes().is_some_and(|attributes| attributes.merges_memory) {
        let [merge, none] = [value(1_u32), value(0_u32)];
        syscall_builder.call_may_fail(abi::PRCTL, &[value(PR_SET_MEMORY_MERGE), merge, none, none, none]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_descriptor_is_encoded_as_user_desc() {
        // A 32-bit data segment with base 0x12345678 and limit 99 bytes: entry 3, seg_32bit and useable.
        let data = LocalDescriptor { number: 3, segment: 0x1250_f334_5678_0063 };
        assert_eq!(user_desc(data), [3 | 0x1234_5678 << 32, 99 | 0b100_0001 << 32]);
        // A readable 32-bit code segment of 4 GiB: contents 2 and limit_in_pages as well.
        let code = LocalDescriptor { number: 9, segment: 0x00df_fb00_0000_ffff };
        assert_eq!(user_desc(code), [9, 0xf_ffff | 0b101_0101 << 32]);
    }
}
