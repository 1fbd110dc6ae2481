//! `farfork exec-runner`: runs a program in the container of a child. The daemon starts it; users do not.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};

use clap::Args;
use farfork_container::ContainerCommand;
use rustix::process::{DumpableBehavior, Pid, Signal, kill_process};
use tokio::sync::mpsc;

use crate::signal::{FORWARDED_SIGNALS, forward_signals};

/// Exit statuses of env(1) and others: the program was not started, cannot be executed, or was not found.
const NOT_STARTED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Added to the number of the signal that killed the program, as shells do.
const SIGNAL_STATUS: i32 = 128;

/// Run a program in the container of a child. The first line of the standard input describes it; the rest is its input.
#[derive(Args)]
pub(crate) struct ExecRunner {}

impl ExecRunner {
    /// Runs the program until it ends. Namespaces are entered before there is a second thread.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        // Processes of the container must not read the memory of this one.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        let entered = read_line().and_then(|line| {
            let command: ContainerCommand = serde_json::from_slice(&line)?;
            let program = command.arguments.first().cloned().unwrap_or_default();
            Ok((command.enter_container()?, program))
        });
        let (command, program) = match entered {
            Ok(entered) => entered,
            Err(error) => return Ok(report("the container of the child", &error, NOT_STARTED)),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        match runtime.block_on(run_program(command)) {
            Ok(status) => {
                let status = status.code().unwrap_or_else(|| SIGNAL_STATUS + status.signal().unwrap_or_default());
                Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(report(&program, &error, NOT_FOUND)),
            Err(error) => Ok(report(&program, &error, NOT_EXECUTABLE)),
        }
    }
}

fn report(object: &str, error: &io::Error, status: u8) -> ExitCode {
    eprintln!("farfork: {object}: {error}");
    ExitCode::from(status)
}

/// Reads the first line of the standard input, and none of the bytes after it.
fn read_line() -> io::Result<Vec<u8>> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    loop {
        input.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => return Ok(line),
            [byte] => line.push(byte),
        }
    }
}

/// Starts the program, forwards signals to it, and waits for its end.
async fn run_program(command: Command) -> io::Result<ExitStatus> {
    let (sender, mut signals) = mpsc::channel(FORWARDED_SIGNALS.len());
    forward_signals(&sender, |number| number)?;
    let mut program = tokio::process::Command::from(command).spawn()?;
    let pid = program.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    loop {
        tokio::select! {
            status = program.wait() => return status,
            Some(number) = signals.recv() => {
                if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(number.cast_signed())) {
                    // The program may just have ended.
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }
}
