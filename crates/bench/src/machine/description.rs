//! Describes the machine of a run: its kernel, CPUs, memory and load, on which the figures depend.

use std::fs;
use std::sync::OnceLock;

use farfork_sys::system_memory::SystemMemory;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// The properties of a machine that its figures depend on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MachineDescription {
    kernel: String,
    processor: String,
    processors: usize,
    memory_mib: u64,
}

/// The CPUs of the machine, divided so that offload processes have one CPU for themselves. Each field is a CPU list,
/// such as `0-2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuDivision {
    /// The last CPU, for the offload processes.
    pub(crate) offload: String,
    /// The other CPUs, for all other processes.
    pub(crate) others: String,
    /// Number of all CPUs.
    pub(crate) count: usize,
}

impl CpuDivision {
    /// Divides the CPUs of this machine; `None` if it has only one.
    pub(crate) fn detect() -> Option<Self> {
        let count = processor_count();
        let last = count - 1;
        (last > 0).then(|| Self { offload: last.to_string(), others: format!("0-{}", last - 1), count })
    }
}

/// Number of CPUs that this process could use at the first call. Later, a run may restrict this process to some of
/// them.
fn processor_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

impl MachineDescription {
    /// This machine.
    pub(crate) fn detect() -> Self {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        let processor = processor.trim_start_matches(['\t', ' ', ':']).trim().to_owned();
        Self { kernel, processor, processors: processor_count(), memory_mib: read_memory().total_bytes >> 20 }
    }

    /// Describes CPUs and memory for people.
    pub(crate) fn hardware_text(&self) -> String {
        let Self { processor, processors, memory_mib, .. } = self;
        format!("{processors} × {processor}, {} GiB", memory_mib.div_ceil(1024))
    }

    /// The kernel release.
    pub(crate) fn kernel(&self) -> &str {
        &self.kernel
    }
}

/// The machine of a run and its load.
#[derive(Debug, Clone)]
pub(crate) struct MachineState {
    pub(crate) machine: MachineDescription,
    /// Load average over one minute; NaN if the kernel does not report it.
    pub(crate) load_average: f64,
}

impl MachineState {
    /// The current state of this machine.
    pub(crate) fn detect() -> Self {
        let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load_average = text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN);
        Self { machine: MachineDescription::detect(), load_average }
    }
}

/// Memory that is free or can be freed, in MiB.
pub(crate) fn available_mib() -> u64 {
    read_memory().available_bytes >> 20
}

/// Checks that `needed_mib` of memory are available for a plan whose largest size is `mib`.
///
/// # Errors
/// `NotEnoughMemory`, with the `option` that sets the size.
pub(crate) fn require_memory(mib: u64, needed_mib: u64, option: &'static str) -> Result<(), BenchError> {
    let available_mib = available_mib();
    if needed_mib > available_mib {
        return Err(BenchError::NotEnoughMemory { mib, needed_mib, available_mib, option });
    }
    Ok(())
}

/// Reads the total and the available memory; zeroes if the kernel does not report them.
fn read_memory() -> SystemMemory {
    SystemMemory::read().unwrap_or(SystemMemory { total_bytes: 0, available_bytes: 0 })
}

#[cfg(test)]
mod tests {
    use super::{MachineState, available_mib};

    #[test]
    fn this_machine_is_described() {
        let MachineState { machine, load_average } = MachineState::detect();
        assert!(machine.memory_mib >= available_mib() && available_mib() > 0, "{machine:?}");
        assert!(!machine.kernel.is_empty() && machine.processors > 0 && load_average >= 0.0);
    }
}
