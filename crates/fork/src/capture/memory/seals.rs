//! Detects sealed mappings (mseal(2)), which a child cannot rebuild, before the reply. Only mapping flags in `smaps` show
//! the seal, and they are read after the reply.
//!
//! A template makes mprotect(2) calls that set the protection each mapping already has. A sealed mapping returns EPERM.
//! For any other mapping, the call changes nothing. A parent never makes these calls.

use farfork_sys::process::MapEntry;

use crate::capture::error::{CaptureError, Refusal};
use crate::capture::injection::injector::InjectedCall;
use crate::capture::injection::script;
use crate::capture::injection::script_runner::{InjectionTarget, ScriptRunner};
use crate::capture::state::inherited_state::PROBES_MAX;

/// The mappings to probe, and the calls that probe them.
#[derive(Debug, Default)]
pub(in crate::capture) struct SealProbes<'a> {
    mappings: Vec<&'a MapEntry>,
    calls: Vec<InjectedCall>,
}

impl<'a> SealProbes<'a> {
    /// Builds the probes for all mappings of the program. Builds none under READ_IMPLIES_EXEC (personality(2)): there, the
    /// call would make readable mappings executable. In this case, the mapping flags show the seals after the reply.
    pub(in crate::capture) fn for_mappings(personality: u32, entries: &'a [MapEntry]) -> Self {
        const READ_IMPLIES_EXEC: u32 = 0x40_0000;
        if personality & READ_IMPLIES_EXEC != 0 {
            return Self::default();
        }
        let entries: Vec<&MapEntry> = entries.iter().filter(|entry| !entry.path.starts_with(b"[v")).collect();
        let calls = entries.iter().map(|entry| protect_call(entry)).collect();
        Self { mappings: entries, calls }
    }

    /// Returns the first calls, which `SessionDetach` makes in its own script.
    pub(in crate::capture) fn first_calls(&self) -> &[InjectedCall] {
        &self.calls[..self.calls.len().min(PROBES_MAX)]
    }

    /// Makes the other calls, and checks all results. `results`: the results of the first calls.
    pub(in crate::capture) fn run(
        &self,
        pid: i32,
        injection_target: &InjectionTarget<'_>,
        mut results: Vec<u64>,
        runner: &mut ScriptRunner<'_, '_>,
    ) -> Result<(), CaptureError> {
        for calls in self.calls[results.len()..].chunks(PROBES_MAX) {
            let slot = injection_target.run_script(calls, runner)?;
            results.extend((0..calls.len()).map(|index| script::result_of(&slot, index)));
        }
        let sealed = self.mappings.iter().zip(&results).filter(|(_, result)| is_sealed(**result));
        let refusals: Vec<Refusal> = sealed.map(|(entry, _)| refusal(pid, entry)).collect();
        if refusals.is_empty() { Ok(()) } else { Err(CaptureError::refused(pid, refusals)) }
    }
}

fn protect_call(entry: &MapEntry) -> InjectedCall {
    const MPROTECT: u64 = 10;
    InjectedCall::new("mprotect", MPROTECT, [entry.start, entry.bytes(), u64::from(entry.protection)])
}

fn is_sealed(result: u64) -> bool {
    const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
    result == u64::from(EPERM.unsigned_abs()).wrapping_neg()
}

fn refusal(pid: i32, entry: &MapEntry) -> Refusal {
    let name = String::from_utf8_lossy(&entry.path);
    let object = format!("pid {pid}, mapping {:#x}-{:#x} {name}", entry.start, entry.end);
    Refusal::new(object.trim_end(), "it is sealed (mseal), and a sealed area cannot be rebuilt")
}
