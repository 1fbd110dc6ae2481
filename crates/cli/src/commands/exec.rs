//! `farfork exec`: runs a program in the container of a child.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::limits::STREAM_MESSAGES_MAX;
use farfork_api::v1::exec_input::Input;
use farfork_api::v1::exec_output::Output;
use farfork_api::v1::{ExecInput, ExecRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::stdin;
use crate::GlobalArgs;
use crate::output;
use crate::signal::forward_signals;

/// Run a program in the container of a child.
///
/// The program sees the files, processes and network of the child. It has the user, the limits and the environment of the
/// child, and counts against the child's limits of memory, CPU and tasks. A program in an untrusted child has no right that
/// the child lacks.
///
/// Signals of this command are forwarded to the program. If this command is killed, the program is killed. The program also
/// ends with the child. Processes that it has started itself end with the child.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork exec n2.c00f3a96c5d217e84 -- cat /run/farfork/payload
  farfork exec n2.c00f3a96c5d217e84 -- sh -c 'ps -e; df /'
  tar -c src | farfork exec --stdin n2.c00f3a96c5d217e84 -- tar -x -C /tmp

Exit status: the status of the program, or 128 plus the number of the signal that killed it. 1 the child or its node refused, 125 the
container could not be entered, 126 the program cannot be executed, 127 it was not found, 2 wrong usage.")]
pub(crate) struct ExecCommand {
    /// Id of the child.
    child: String,
    /// Give the program the standard input of this command. Otherwise it is empty.
    #[arg(long, short = 'i')]
    stdin: bool,
    /// A variable that is added to the child's environment. May be repeated.
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// The working directory, as a path of the child [default: the child's].
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    directory: String,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

impl ExecCommand {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let (inputs, receiver) = mpsc::channel(STREAM_MESSAGES_MAX);
        let object = format!("child {}", self.child);
        let request = ExecRequest {
            child: self.child,
            arguments: self.command,
            environment: self.env.into_iter().collect(),
            directory: self.directory,
        };
        inputs.send(exec_input(Input::Request(request))).await?;
        forward_signals(&inputs, |number| exec_input(Input::Signal(number)))?;
        if self.stdin {
            stdin::forward_stdin(inputs, |piece| exec_input(piece.map_or(Input::StdinClosed(true), Input::Stdin)));
        } else {
            inputs.send(exec_input(Input::StdinClosed(true))).await?;
        }
        let failed = |status| Failure::from_status(&object, &status);
        let mut outputs = client.exec(ReceiverStream::new(receiver)).await.map_err(failed)?.into_inner();
        while let Some(message) = outputs.message().await.map_err(failed)? {
            match message.output {
                Some(Output::Stdout(piece)) => output::write_bytes(&piece)?,
                Some(Output::Stderr(piece)) => io::stderr().write_all(&piece)?,
                Some(Output::ExitStatus(status)) => return Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX))),
                None => {}
            }
        }
        let cause = "its node stopped reporting before the program ended";
        Err(Failure::new(Code::Unavailable, object, cause)
            .with_next_step("see `farfork ps` and `farfork nodes`")
            .into())
    }
}

fn exec_input(input: Input) -> ExecInput {
    ExecInput { input: Some(input) }
}
