//! The largest size that the descriptor of a process tree may have, from its numbers of threads and mappings. `survey` uses
//! it before anything is stopped, `attempt` before the reply. The exact size is known only when the descriptor is encoded.

use farfork_sys::cpu;
use farfork_wire::descriptor::{DESCRIPTOR_BYTES_MAX, XSTATE_BYTES_MAX};

use super::error::Refusal;

/// Largest size of a thread in a descriptor without its extended state, in bytes. Signals that wait for the thread may need
/// more, but rarely do for many threads at once.
const THREAD_BYTES: usize = 400;

/// Size of a mapping in a descriptor with its extent, in bytes.
const MAPPING_BYTES: usize = 64;

/// The parts of a process tree that determine the size of its descriptor.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DescriptorSize {
    /// Number of threads.
    pub(super) threads: usize,
    /// Number of mappings.
    pub(super) mappings: usize,
}

impl DescriptorSize {
    /// Adds the threads and mappings of one more process.
    pub(super) fn add(self, threads: usize, mappings: usize) -> Self {
        Self { threads: self.threads + threads, mappings: self.mappings + mappings }
    }

    /// Refuses a tree whose descriptor could exceed [`DESCRIPTOR_BYTES_MAX`]. `pid` is its first process.
    pub(super) fn refusal(self, pid: i32) -> Option<Refusal> {
        // CPUID is slow in a virtual machine, and only thousands of threads need the exact size of their state.
        if self.bytes(XSTATE_BYTES_MAX) <= DESCRIPTOR_BYTES_MAX {
            return None;
        }
        self.refusal_with(pid, cpu::extended_state().map_or(XSTATE_BYTES_MAX, |state| state.bytes as usize))
    }

    fn refusal_with(self, pid: i32, state_bytes: usize) -> Option<Refusal> {
        let (Self { threads, mappings }, bytes) = (self, self.bytes(state_bytes));
        let reason = || {
            format!(
                "its {threads} threads and {mappings} mappings need a descriptor of up to {bytes} bytes, and the largest has {DESCRIPTOR_BYTES_MAX} bytes"
            )
        };
        (bytes > DESCRIPTOR_BYTES_MAX).then(|| Refusal::new(format!("pid {pid}"), reason()))
    }

    fn bytes(self, state_bytes: usize) -> usize {
        self.threads * (state_bytes + THREAD_BYTES) + self.mappings * MAPPING_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size of the extended state with AVX-512, in bytes.
    const AVX512_BYTES: usize = 2696;

    #[test]
    fn too_many_threads_are_refused_with_the_size_and_the_limit() {
        let size = DescriptorSize::default().add(20_000, 40_100).add(12_768, 25_600);
        let reason = size.refusal_with(812, AVX512_BYTES).expect("it is too large").to_string();
        assert!(reason.starts_with("pid 812: its 32768 threads and 65700 mappings"), "{reason}");
        assert!(reason.contains(" 105654528 bytes") && reason.ends_with(" 67108864 bytes"), "{reason}");
        assert!(size.refusal(812).is_some() || cpu::extended_state().is_some_and(|state| state.bytes < 1500));
    }

    #[test]
    fn a_process_with_many_threads_or_mappings_is_not_refused() {
        for (threads, mappings) in [(1, 20), (4000, 8000), (20_000, 40_000), (1, 1_000_000)] {
            let size = DescriptorSize { threads, mappings };
            assert_eq!(size.refusal_with(812, AVX512_BYTES), None, "{size:?}");
        }
    }
}
