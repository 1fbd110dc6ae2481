//! Floors of pausing: local forks that are paused between two requests, by SIGSTOP or by a bare cgroup freezer.
//! `paused_forks.cpp` is the program.

use std::path::PathBuf;
use std::time::Duration;

use farfork_sys::cgroup;

use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::program::{EmbeddedProgram, RunningProgram};
use crate::scratch::remove_group;
use crate::workload::functions::FunctionParent;
use crate::workload::warm_function::{ExpectedValue, FunctionRun};

/// The program.
pub(crate) const PAUSED_FORKS: EmbeddedProgram =
    EmbeddedProgram { name: "paused_forks", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/paused_forks")) };

/// Paused forks, and the program that drives them. They are killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct PausedForks {
    // Dropped before the groups, which must be empty to be removed.
    program: RunningProgram,
    expected: ExpectedValue,
    _groups: Option<FreezerGroups>,
}

/// The control groups of frozen forks.
#[derive(Debug)]
struct FreezerGroups(PathBuf);

impl PausedForks {
    /// Starts forks that SIGSTOP pauses.
    pub(crate) fn start_stopped(machine: &dyn Machine, steps: u64, children: usize) -> Result<Self, BenchError> {
        Self::start(machine, &["stop".to_owned(), steps.to_string(), children.to_string()], steps, None)
    }

    /// Starts forks that the cgroup freezer of version 2 pauses; `None` if the machine has no such freezer.
    pub(crate) fn start_frozen(machine: &dyn Machine, steps: u64, children: usize) -> Result<Option<Self>, BenchError> {
        let Some(groups) = FreezerGroups::create()? else { return Ok(None) };
        let arguments = ["freeze".to_owned(), steps.to_string(), children.to_string(), groups.path()];
        Self::start(machine, &arguments, steps, Some(groups)).map(Some)
    }

    /// Makes a function's parent start children by os.fork(), which the cgroup freezer of version 2 pauses; `None` if
    /// the machine has no such freezer. The children connect to a socket.
    pub(crate) fn start_frozen_functions(
        machine: &dyn Machine,
        parent: &mut FunctionParent,
        expected: ExpectedValue,
        children: usize,
    ) -> Result<Option<Self>, BenchError> {
        let Some(groups) = FreezerGroups::create()? else { return Ok(None) };
        let socket = machine.scratch().join(format!("{}-{}", PAUSED_FORKS.name, parent.pid()));
        let mut command = PAUSED_FORKS.command(machine);
        command.arg("adopt").arg(&socket).arg(children.to_string()).arg(groups.path());
        let mut program = machine.start(PAUSED_FORKS.name, &command)?;
        let [] = program.read_answer("listening")?;
        for index in 0..children {
            parent.fork_connected(index, &socket)?;
        }
        Ok(Some(Self { program: program.ready()?, expected, _groups: Some(groups) }))
    }

    fn start(
        machine: &dyn Machine,
        arguments: &[String],
        steps: u64,
        groups: Option<FreezerGroups>,
    ) -> Result<Self, BenchError> {
        let program = PAUSED_FORKS.start(machine, arguments)?.ready()?;
        Ok(Self { program, expected: ExpectedValue::Steps(steps), _groups: groups })
    }

    /// Makes `parallel` forks work concurrently for `time`. Each runs turns one after the other, at least one, with a
    /// gap before each. Returns the elapsed time and all turns.
    pub(crate) fn run(
        &mut self,
        parallel: usize,
        time: Duration,
        gap: Duration,
        first: u64,
    ) -> Result<(Duration, Vec<FunctionRun>), BenchError> {
        self.program.send_text(&format!("{parallel} {} {} {first}\n", time.as_millis(), gap.as_micros()))?;
        let ns = |ns: i64| Duration::from_nanos(ns.unsigned_abs());
        let [took, count] = self.program.read_answer("halted")?;
        let function_run = |_| {
            let [number, value, unpause, answer, pause] = self.program.read_answer("turn")?;
            let (number, value) = (number.cast_unsigned(), value.cast_unsigned());
            Ok(FunctionRun { number, value, unpause: ns(unpause), answer: ns(answer), pause: ns(pause) })
        };
        let all: Vec<FunctionRun> = (0..count).map(function_run).collect::<Result<_, BenchError>>()?;
        self.expected.check(&all)?;
        Ok((ns(took), all))
    }
}

impl FreezerGroups {
    /// Creates a parent group, if the machine has the unified hierarchy.
    fn create() -> Result<Option<Self>, BenchError> {
        let Some(path) = super::unified_cgroup_for(super::FREEZER_GROUP)? else { return Ok(None) };
        cgroup::create(&path).map_err(|cause| BenchError::File { path: path.clone(), cause })?;
        Ok(Some(Self(path)))
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for FreezerGroups {
    fn drop(&mut self) {
        // It kills remaining processes: forks of another program outlive the program that pauses them.
        if let Err(error) = remove_group(&self.0) {
            eprintln!("farfork: control groups are left at {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{PAUSED_FORKS, PausedForks};
    use crate::machine::namespace::NamespaceMachine;

    #[test]
    fn forks_run_in_turns_and_are_paused_between_them() {
        let scratch = tempfile::tempdir().unwrap();
        let machine = NamespaceMachine::own(scratch.path());
        PAUSED_FORKS.install(&machine).unwrap();
        let stopped = PausedForks::start_stopped(&machine, 5, 2).unwrap();
        let frozen = PausedForks::start_frozen(&machine, 5, 2).unwrap();
        for mut halts in [Some(stopped), frozen].into_iter().flatten() {
            let (_, turns) = halts.run(2, Duration::ZERO, Duration::ZERO, 40).unwrap();
            assert_eq!(turns.iter().map(|function_run| function_run.number).collect::<Vec<_>>(), [40, 41]);
            assert!(
                turns
                    .iter()
                    .all(|function_run| function_run.unpause <= function_run.answer && !function_run.pause.is_zero())
            );
            let (took, turns) = halts.run(1, Duration::from_millis(20), Duration::from_millis(5), 50).unwrap();
            assert!(turns.len() <= 4 && took >= Duration::from_millis(20), "{} in {took:?}", turns.len());
        }
    }
}
