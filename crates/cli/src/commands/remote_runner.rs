//! `farfork remote-runner`: runs a program on a host of an inventory. A coordinator starts it; users do not.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_remote::runner;

/// Run a program until it ends or the standard input ends. Then kill all its descendants.
#[derive(Args)]
pub(crate) struct RemoteRunner {
    /// Give the program the standard input. End it when the standard output is closed, or when no process locks this file.
    #[arg(long, value_name = "FILE")]
    lease: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl RemoteRunner {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let (program, arguments) = self.command.split_first().expect("clap requires a program");
        let status = runner::run_program(program, arguments, self.lease.as_deref()).await?;
        Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
    }
}
