//! Reads the VmFlags of a template's mappings from a flag probe: a short-lived clone of the template.
//!
//! Only `smaps` shows the flags. To print them, the kernel counts all pages: 20 ms per GiB, for which the first fork would
//! wait. The probe has the same mappings and almost no pages, since large mappings get MADV_WIPEONFORK before the clone.

use std::fs::File;

use farfork_sys::process::{self, MapEntry};
use farfork_sys::ptrace;
use rustix::process::{Pid, Signal, kill_process};

use crate::capture::error::CaptureError;
use crate::capture::injection::injector::InjectedCall;
use crate::capture::injection::script;
use crate::capture::injection::script_runner::ScriptRunner;
use crate::capture::template::{TemplateClone, clone_call, reap_call};
use crate::capture::tracer::deadline::Deadline;
use crate::capture::tracer::executor::run_ready;

/// Maximum number of large mappings that are marked. The probe gets the pages of all other mappings.
pub(in crate::capture) const LARGE_MAPPINGS_MAX: usize = 64;

//  template   madvise(large mapping, MADV_WIPEONFORK) … ─ clone ────────────────────────── wait4(probe)
//  probe                                                    └ starts stopped ─ its smaps ─ killed
//
// The template keeps the marks: it is never forked again, and its pages stay. A mapping with pages cannot have had the
// mark in the parent, since fork(2) would have wiped it.
/// Reads the mappings of `clone`, with their flags. Those in `large` have the flag `wf`, too.
///
/// # Errors
/// For example, if a limit forbids one more process. The flags can still be read from the template itself.
pub(in crate::capture) fn read_flags(
    clone: &TemplateClone,
    large: &[&MapEntry],
    mem: &File,
    runner: &mut ScriptRunner<'_, '_>,
) -> Result<Vec<MapEntry>, CaptureError> {
    let calls: Vec<InjectedCall> = large.iter().map(|entry| wipe_on_fork_call(entry)).chain([clone_call()]).collect();
    let slot = clone.injection_target(mem).run_script(&calls, runner)?;
    let result = |index: usize| calls[index].check_result(clone.pid, script::result_of(&slot, index));
    let inner_id = result(large.len())?;
    let probe = FlagProbe(run_ready(runner.injector.wait_clone())?);
    ptrace::set_options(probe.0, ptrace::OPTION_EXIT_KILL)
        .map_err(CaptureError::tracing("set the options of", probe.0))?;
    // Check the marks only when the probe is sure to end.
    let marked: Result<Vec<u64>, _> = (0..large.len()).map(result).collect();
    let areas = process::read_smaps(probe.0).map_err(CaptureError::reading(clone.pid, "the memory map"));
    probe.kill_and_reap(runner.injector.deadline());
    run_ready(runner.injector.call(clone.pid, &clone.registers, reap_call(inner_id)))?;
    marked.and(areas)
}

fn wipe_on_fork_call(entry: &MapEntry) -> InjectedCall {
    const MADVISE: u64 = 28;
    const MADV_WIPEONFORK: u64 = 18;
    InjectedCall::new("madvise(MADV_WIPEONFORK)", MADVISE, [entry.start, entry.bytes(), MADV_WIPEONFORK])
}

/// A flag probe by its process id; 0 after it has ended.
struct FlagProbe(i32);

impl FlagProbe {
    /// Kills the probe, and waits until it has ended.
    fn kill_and_reap(mut self, deadline: &Deadline) {
        self.kill();
        if deadline.wait_end(self.0) {
            // Another process may have its id from now on.
            self.0 = 0;
        }
    }

    fn kill(&self) {
        if let Some(pid) = Pid::from_raw(self.0) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for FlagProbe {
    /// Kills a probe after an error.
    fn drop(&mut self) {
        self.kill();
    }
}
