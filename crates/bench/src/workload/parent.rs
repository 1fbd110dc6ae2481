//! `ParentProgram`: a parent whose children read their commands from a payload file. `parent.h` has the wait for it.

use std::path::Path;
use std::process::Command;

use crate::embedded_program::{ChildProgram, EmbeddedProgram};
use crate::error::BenchError;

/// A running parent; it ends with this value.
#[derive(Debug)]
pub(crate) struct ParentProgram(ChildProgram);

impl ParentProgram {
    /// Starts an image, installed as `program`, with so much private memory. A child finds its payload in that file.
    pub(crate) fn start(image: &EmbeddedProgram, program: &Path, mib: u64, payload: &Path) -> Result<Self, BenchError> {
        let mut command = Command::new(program);
        command.arg(mib.to_string()).arg(payload);
        let mut program = ChildProgram::start(image.name, &command)?;
        let [] = program.read_answer("ready")?;
        Ok(Self(program))
    }

    /// What it said last, if it has ended by itself, as no parent does.
    pub(crate) fn last_line_if_ended(&mut self) -> Option<String> {
        self.0.last_line_if_ended()
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }
}
