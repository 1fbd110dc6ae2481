//! `ParentProgram`: a parent whose children read their commands from a payload file. `parent.h` has the code that waits
//! for the file.

use std::path::Path;
use std::process::Command;

use super::parent_root::ParentRoot;
use crate::embedded_program::{ChildProgram, EmbeddedProgram};
use crate::error::BenchError;

/// A running parent. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ParentProgram(ChildProgram);

impl ParentProgram {
    /// Starts an image, installed as `program`, with `mib` of private memory. A child reads the file `payload`.
    pub(crate) fn start(image: &EmbeddedProgram, program: &Path, mib: u64, payload: &Path) -> Result<Self, BenchError> {
        Self::start_in(None, image, program, mib, payload)
    }

    /// As `start`, with a root of its own.
    pub(crate) fn start_in(
        root: Option<&ParentRoot>,
        image: &EmbeddedProgram,
        program: &Path,
        mib: u64,
        payload: &Path,
    ) -> Result<Self, BenchError> {
        let mut command = Command::new(program);
        command.arg(mib.to_string()).arg(payload);
        if let Some(root) = root {
            command = root.wrap(&command);
        }
        let mut program = ChildProgram::start(image.name, &command)?;
        let [] = program.read_answer("ready")?;
        Ok(Self(program))
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
