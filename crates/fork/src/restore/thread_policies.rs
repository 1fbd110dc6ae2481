//! Writes the scheduling and memory policies of threads into a plan, if they need more than a number. `plan` calls it.

use farfork_wire::descriptor::{DeadlineParameters, MemoryPolicy, NUMA_NODE_WORDS, Thread};

use super::RestoreError;
use super::plan_writer::PlanWriter;

/// Writes `struct sched_attr` for a SCHED_DEADLINE thread. Returns its offset; 0 for other threads.
pub(super) fn write_sched_attr(thread: &Thread, writer: &mut PlanWriter) -> Result<u32, RestoreError> {
    const SCHED_DEADLINE: u64 = 6;
    const SCHED_ATTR_BYTES: u64 = 48;
    let Some(deadline) = thread.scheduling.deadline else { return Ok(0) };
    let DeadlineParameters { flags, runtime_ns, deadline_ns, period_ns } = deadline;
    let nice_and_priority = 0;
    let words = [SCHED_ATTR_BYTES | SCHED_DEADLINE << 32, flags, nice_and_priority, runtime_ns, deadline_ns, period_ns];
    Ok(writer.write_table(&words)?.offset)
}

/// Writes `struct plan_memory_policy`. Returns its offset; 0 for the default policy.
pub(super) fn write_memory_policy(policy: Option<&MemoryPolicy>, writer: &mut PlanWriter) -> Result<u32, RestoreError> {
    let Some(MemoryPolicy { mode, nodes }) = policy else { return Ok(0) };
    let node_count = if nodes.is_empty() { 0 } else { NUMA_NODE_WORDS as u64 * 64 + 1 };
    let mut words = vec![u64::from(*mode), node_count];
    words.extend(nodes);
    words.resize(2 + NUMA_NODE_WORDS, 0);
    Ok(writer.write_table(&words)?.offset)
}
