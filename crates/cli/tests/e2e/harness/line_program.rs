//! `LineProgram`: a program whose output is read line by line. For programs that are not a [`super::Parent`].

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::wait;

/// A running program in a process group of its own. Dropping it kills the group.
pub(crate) struct LineProgram {
    process: Child,
    lines: Receiver<String>,
    input: Option<ChildStdin>,
}

impl LineProgram {
    /// Starts a program with a pipe as its standard input.
    pub(crate) fn start(command: &mut Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).process_group(0);
        let mut process = command.spawn().map_err(|error| format!("{command:?}: {error}: run scripts/setup.sh"))?;
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        // File names in a program's output need not be UTF-8.
        let text = |line: Vec<u8>| String::from_utf8_lossy(&line).into_owned();
        thread::spawn(move || stdout.split(b'\n').map_while(Result::ok).try_for_each(|line| sender.send(text(line))));
        let input = process.stdin.take();
        Ok(Self { process, lines, input })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.id().cast_signed()
    }

    pub(crate) fn pid_text(&self) -> String {
        self.process.id().to_string()
    }

    /// Returns all lines before the line that equals `last`. Each line must arrive within `limit`.
    pub(crate) fn read_until(&self, last: &str, limit: Duration) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(limit) {
                Ok(line) if line == last => return Ok(lines),
                Ok(line) => lines.push(line),
                Err(error) => return Err(format!("no `{last}` after {} lines: {error}\n", lines.len())),
            }
        }
    }

    /// Writes to the program's standard input, and closes it.
    pub(crate) fn write_input(&mut self, words: &str) -> Result<(), String> {
        let mut input = self.input.take().ok_or("its standard input was already closed")?;
        input.write_all(words.as_bytes()).map_err(|error| error.to_string())
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("our own child");
    }

    /// Kills the program, and waits until it has ended.
    pub(crate) fn kill(&mut self, limit: Duration) {
        self.process.kill().expect("our own child can be killed");
        wait::wait_exit(&mut self.process, "a killed program", limit);
    }
}

impl Drop for LineProgram {
    fn drop(&mut self) {
        wait::kill_group(&mut self.process);
    }
}
