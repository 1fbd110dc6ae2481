//! A parent whose children read what they are to do from a file. `parent.h` says how it waits.

use std::path::Path;
use std::process::Command;

use crate::error::BenchError;
use crate::program::{Image, Program};

/// A running parent; it ends with this value.
#[derive(Debug)]
pub(crate) struct Parent(Program);

impl Parent {
    /// Starts an image, installed as `program`, with so much private memory. A child finds its payload in that file.
    pub(crate) fn start(image: &Image, program: &Path, mib: u64, payload: &Path) -> Result<Self, BenchError> {
        let mut command = Command::new(program);
        command.arg(mib.to_string()).arg(payload);
        let mut program = Program::start(image.name, &command)?;
        let [] = program.answer("ready")?;
        Ok(Self(program))
    }

    /// What it said last, if it has ended by itself, as no parent does.
    pub(crate) fn last_words(&mut self) -> Option<String> {
        self.0.last_words()
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }
}
