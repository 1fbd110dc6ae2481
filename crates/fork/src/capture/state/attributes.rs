//! Builds the attributes that few processes set (`farfork_wire::descriptor::ProcessAttributes`).

use std::collections::BTreeMap;

use farfork_sys::process;
use farfork_wire::descriptor::{
    LocalDescriptor, MCE_KILL_DEFAULT, MemoryPolicy, NUMA_NODE_WORDS, ProcessAttributes, ThreadAttributes,
};

use super::ThreadExtendedState;
use crate::capture::error::CaptureError;
use crate::capture::injection::injector::InjectedCall;
use crate::capture::injection::script::read_word;
use crate::capture::injection::thread_queries::ThreadAnswers;
use crate::capture::stop::stop_guard::ProcessSnapshot;
use crate::capture::survey::ThreadProfile;

/// Size of the answer to [`memory_policy_call`]: the mode, padded to a word, and the nodes.
pub(in crate::capture) const MEMORY_POLICY_BYTES: u64 = 8 + 8 * NUMA_NODE_WORDS as u64;

/// The call that writes the memory policy of a thread to `address`. Fails on a kernel without NUMA, where all threads have
/// the default.
pub(in crate::capture) fn memory_policy_call(address: u64) -> InjectedCall {
    const GET_MEMPOLICY: u64 = 239;
    let nodes_max = NUMA_NODE_WORDS as u64 * 64 + 1;
    InjectedCall::new("get_mempolicy", GET_MEMPOLICY, [address, address + 8, nodes_max, 0, 0]).never_failing()
}

/// Parses the answer of [`memory_policy_call`].
pub(in crate::capture) fn parse_memory_policy(answers: &[u8], at: usize) -> Option<MemoryPolicy> {
    let mode = read_word(answers, at) as u32;
    let nodes: Vec<u64> = (1..=NUMA_NODE_WORDS).map(|word| read_word(answers, at + word * 8)).collect();
    let used = nodes.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    (mode != 0).then(|| MemoryPolicy { mode, nodes: nodes[..used].to_vec() })
}

/// Attributes of a whole process.
pub(in crate::capture) struct ProcessWideAttributes {
    pub(in crate::capture) merges_memory: bool,
    pub(in crate::capture) core_filter: Option<u32>,
    pub(in crate::capture) local_descriptors: Vec<LocalDescriptor>,
}

impl ProcessWideAttributes {
    /// Adds the attributes of the threads. Returns an empty list if all have their defaults.
    pub(in crate::capture) fn build(
        self,
        snapshot: &ProcessSnapshot,
        extended_states: &[ThreadExtendedState],
        answers: &[ThreadAnswers],
        profiles: &BTreeMap<i32, ThreadProfile>,
    ) -> Vec<ProcessAttributes> {
        let Self { merges_memory, core_filter, local_descriptors } = self;
        let of_threads = snapshot.threads.iter().zip(extended_states).zip(answers);
        let threads = of_threads.filter_map(|((thread, extended_state), answers)| {
            let profile = profiles.get(&thread.tid)?;
            let attributes = ThreadAttributes {
                tid: profile.inner_id(),
                io_priority: profile.io_priority,
                mce_kill: Some(profile.flags.mce_kill()).filter(|policy| *policy != MCE_KILL_DEFAULT),
                is_io_flusher: profile.flags.is_io_flusher(),
                memory_policy: answers.memory_policy.clone(),
                user_dispatch: extended_state.user_dispatch,
            };
            (!attributes.is_default()).then_some(attributes)
        });
        let attributes =
            ProcessAttributes { process: 0, merges_memory, core_filter, local_descriptors, threads: threads.collect() };
        if attributes.is_default() { Vec::new() } else { vec![attributes] }
    }
}

/// Reads which memory a core dump of `subject` has, if the process `pid` has chosen it.
pub(in crate::capture) fn read_core_filter(pid: i32, subject: i32) -> Result<Option<u32>, CaptureError> {
    const DEFAULT: u32 = 0x33;
    let line = process::read_line(&format!("/proc/{subject}/coredump_filter"));
    let line = line.map_err(CaptureError::reading(pid, "coredump_filter"))?;
    Ok(u32::from_str_radix(&line, 16).ok().filter(|filter| *filter != DEFAULT))
}
