//! Runs one script after the other in the main thread of a process: of a parent in its pause, or of its template afterwards.
//!
//! `state` and `memory` query the process this way, and `template` makes it clone itself. `thread_queries` lists the calls
//! that all threads of a parent make at once; `pause` runs those itself.

use std::fs::File;
use std::os::unix::fs::FileExt;

use farfork_sys::ptrace::Registers;

use super::injector::{InjectedCall, Injector};
use super::pages::{InjectionPages, SLOTS_BYTES_MIN};
use super::script::{self, RunningScript};
use crate::capture::error::CaptureError;
use crate::capture::stop::stop_guard::ProcessSnapshot;
use crate::capture::survey::Survey;
use crate::capture::tracer::executor::run_ready;

/// A process whose main thread makes injected calls: the parent in the pause; afterwards the process that holds its state,
/// which is its template, or the parent itself in freeze mode.
pub(in crate::capture) struct InjectionTarget<'a> {
    pub(in crate::capture) pid: i32,
    /// Registers for injected calls.
    pub(in crate::capture) registers: &'a Registers,
    /// Id of the main thread in its pid namespace.
    pub(in crate::capture) inner_id: u32,
    pub(in crate::capture) mem: &'a File,
}

/// The pages and the injector with which the scripts of a process run.
pub(in crate::capture) struct ScriptRunner<'a, 'd> {
    /// The pages that hold the scripts.
    pub(in crate::capture) pages: &'a InjectionPages,
    /// Starts the scripts, and waits for their ends.
    pub(in crate::capture) injector: &'a mut Injector<'d>,
}

impl<'a> InjectionTarget<'a> {
    /// The main thread of a stopped parent.
    pub(in crate::capture) fn leader(snapshot: &'a ProcessSnapshot, survey: &Survey, mem: &'a File) -> Self {
        Self { pid: snapshot.pid, registers: &snapshot.leader().registers, inner_id: survey.inner_id(), mem }
    }

    /// Runs calls in the target, and returns the contents of its slot afterwards.
    pub(in crate::capture) fn run_script(
        &self,
        calls: &[InjectedCall],
        runner: &mut ScriptRunner<'_, '_>,
    ) -> Result<Vec<u8>, CaptureError> {
        let running = self.start_script(calls, runner)?;
        self.finish_script(running, SLOTS_BYTES_MIN as usize, runner)
    }

    /// Writes calls into the first slot, and starts them.
    pub(in crate::capture) fn start_script(
        &self,
        calls: &[InjectedCall],
        runner: &ScriptRunner<'_, '_>,
    ) -> Result<RunningScript, CaptureError> {
        let running = self.write_script(calls, runner.pages)?;
        runner.injector.start_script(&running, self.registers)?;
        Ok(running)
    }

    /// Writes calls into the first slot. Returns their script, which is not started yet.
    pub(in crate::capture) fn write_script(
        &self,
        calls: &[InjectedCall],
        pages: &InjectionPages,
    ) -> Result<RunningScript, CaptureError> {
        let script = script::encode(calls, (self.inner_id, self.inner_id), pages.end_signal());
        let written = self.mem.write_all_at(&script, pages.slot_address(0));
        written.map_err(CaptureError::tracing("write the calls of", self.pid))?;
        Ok(pages.script_of(0, self.pid, calls.len()))
    }

    /// Waits for the end of a script, and returns the first `bytes` bytes of its slot.
    pub(in crate::capture) fn finish_script(
        &self,
        running: RunningScript,
        bytes: usize,
        runner: &mut ScriptRunner<'_, '_>,
    ) -> Result<Vec<u8>, CaptureError> {
        run_ready(runner.injector.wait_scripts(&mut vec![running], |_| true))?;
        let mut slot = vec![0; bytes];
        self.mem
            .read_exact_at(&mut slot, runner.pages.slot_address(0))
            .map_err(CaptureError::tracing("read the answers of", self.pid))?;
        Ok(slot)
    }
}
