//! Drives the program that is forked (`parent.c`, which says what it answers to what).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context as _;

/// Builds the program: static, so that its memory map is its own.
pub(crate) fn compile(binary: &Path) -> anyhow::Result<()> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/journey/parent.c");
    let status = Command::new("gcc")
        .args(["-O2", "-g", "-static", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(binary)
        .arg(source)
        .status()
        .context("gcc cannot be started: run scripts/setup.sh")?;
    anyhow::ensure!(status.success(), "{source} does not compile");
    Ok(())
}

/// A running parent; it ends with this value.
#[derive(Debug)]
pub(crate) struct Parent {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Parent {
    /// Starts one with so much private memory, all of it touched.
    pub(crate) fn start(program: &Path, mib: u64) -> anyhow::Result<Self> {
        let mut process = Command::new(program)
            .arg(mib.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the parent cannot be started")?;
        let commands = process.stdin.take().expect("a pipe");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut parent = Self { process, commands, answers };
        parent.answer("ready")?;
        Ok(parent)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Has it write to every page, so that the next fork finds them as a busy program leaves them.
    pub(crate) fn write_all(&mut self) -> anyhow::Result<()> {
        self.ask("w", "written").map(drop)
    }

    /// How long its own fork(2) takes.
    pub(crate) fn fork_us(&mut self) -> anyhow::Result<f64> {
        self.ask("f", "fork")
    }

    /// How long a fork of it takes to write to every page, at random.
    pub(crate) fn copy_us(&mut self) -> anyhow::Result<f64> {
        self.ask("c", "copied")
    }

    /// A command, and the time that the answer tells, in microseconds.
    fn ask(&mut self, command: &str, answer: &str) -> anyhow::Result<f64> {
        self.commands.write_all(command.as_bytes())?;
        Ok(self.answer(answer)? / 1000.0)
    }

    fn answer(&mut self, word: &str) -> anyhow::Result<f64> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let number = line.strip_prefix(word).and_then(|rest| rest.trim().parse().ok());
        number.with_context(|| format!("the parent says `{}` instead of `{word} NUMBER`", line.trim()))
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
