//! `ParentProgram`: a parent whose children read their commands from a payload file. `parent.h` has the code that waits
//! for the file.

use super::micro::PAYLOAD_PATH;
use super::parent_root::ParentRoot;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::program::{EmbeddedProgram, RunningProgram};

/// A running parent. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ParentProgram(RunningProgram);

impl ParentProgram {
    /// Starts an installed program with `mib` of private memory. Its children read the file [`PAYLOAD_PATH`].
    pub(crate) fn start(machine: &dyn Machine, program: &EmbeddedProgram, mib: u64) -> Result<Self, BenchError> {
        Self::start_in(None, machine, program, mib)
    }

    /// As `start`, with a root of its own.
    pub(crate) fn start_in(
        root: Option<&ParentRoot>,
        machine: &dyn Machine,
        program: &EmbeddedProgram,
        mib: u64,
    ) -> Result<Self, BenchError> {
        let mut command = program.command(machine);
        command.arg(mib.to_string()).arg(PAYLOAD_PATH);
        if let Some(root) = root {
            command = root.wrap(&command);
        }
        machine.start(program.name, &command)?.ready().map(Self)
    }

    /// The parent's exit status and remaining output; `None` while it runs. A parent should not end on its own.
    pub(crate) fn last_line_if_ended(&mut self) -> Option<String> {
        self.0.last_line_if_ended()
    }

    /// The process id of the parent.
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }
}
