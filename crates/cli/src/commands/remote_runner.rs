//! `farfork remote-runner`: runs a program on a host of an inventory. A coordinator starts it; users do not.

use std::process::ExitCode;

use clap::Args;
use farfork_remote::runner;

/// Run a program until it ends or the standard input ends. Then kill all its descendants.
#[derive(Args)]
pub(crate) struct RemoteRunner {
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl RemoteRunner {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let (program, arguments) = self.command.split_first().expect("clap requires a program");
        let status = runner::run_program(program, arguments).await?;
        Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
    }
}
