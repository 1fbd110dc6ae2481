//! `attach_child`: connects this command to a single child. The child uses this command's standard streams, and the
//! command exits with the child's exit status. `signals` forwards the signals.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::slice;
use std::time::{Duration, Instant};

use farfork_api::client::Client;
use farfork_api::failure::Failure;
use farfork_api::limits::STREAM_MESSAGES_MAX;
use farfork_api::v1::attach_input::Input;
use farfork_api::v1::attach_output::Output;
use farfork_api::v1::exit::How;
use farfork_api::v1::{AttachInput, Child};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::super::stdin;
use super::signals::{self, SIGPIPE, SIGTERM};
use crate::output;

/// Time after SIGPIPE during which the child may still write. The first write after this time causes a SIGTERM.
const SILENCE_LIMIT: Duration = Duration::from_secs(1);

/// Forwards the child's input and output until the child ends. Returns its exit status.
pub(super) async fn attach_child(client: &mut Client, child: &Child, with_stdin: bool) -> anyhow::Result<ExitCode> {
    let (inputs, receiver) = mpsc::channel(STREAM_MESSAGES_MAX);
    inputs.send(attach_input(Input::Child(child.id.clone()))).await?;
    if with_stdin {
        stdin::forward_stdin(inputs, |piece| attach_input(piece.map_or(Input::StdinClosed(true), Input::Stdin)));
    } else {
        inputs.send(attach_input(Input::StdinClosed(true))).await?;
    }

    let lost = |status| {
        Failure::from_status(format!("child {}", child.id), &status)
            .with_next_step("it may still run: see `farfork ps` and `farfork logs`")
    };
    let answer = client.attach(ReceiverStream::new(receiver)).await;
    let mut outputs = answer.map_err(lost)?.into_inner();
    let mut readers = OutputRelay { client, child: slice::from_ref(&child.id), closed_at: None };
    while let Some(message) = outputs.message().await.map_err(lost)? {
        match message.output {
            Some(Output::Stdout(piece) | Output::Result(piece)) => {
                readers.handle_write(output::write_bytes(&piece)).await?
            }
            Some(Output::Stderr(piece)) => readers.handle_write(io::stderr().write_all(&piece)).await?,
            Some(Output::Ended(child)) => return child_exit_code(&child),
            None => {}
        }
    }
    let cause = "its node stopped reporting before the child ended";
    let failure = Failure::new(Code::Unavailable, format!("child {}", child.id), cause);
    Err(failure.with_next_step("it may still run: see `farfork ps` and `farfork logs`").into())
}

fn attach_input(input: Input) -> AttachInput {
    AttachInput { input: Some(input) }
}

/// Returns the child's exit status, or 128 plus the number of the signal that killed it. A lost child is a failure.
/// Prints the limit for which the child was killed: its exit status does not show it.
fn child_exit_code(child: &Child) -> anyhow::Result<ExitCode> {
    let exit = child.exit.as_ref();
    if exit.is_some_and(|exit| !exit.limit.is_empty() && matches!(exit.how, Some(How::Signal(_)))) {
        output::print_note(format_args!("farfork: child {}: {}", child.id, output::exit_text(exit)));
    }
    match exit.and_then(output::exit_code) {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))),
        None => {
            let object = format!("child {}", child.id);
            Err(Failure::new(Code::Aborted, object, output::exit_text(exit)).into())
        }
    }
}

/// Signals the child when the reader of this command's output has closed the pipe.
struct OutputRelay<'a> {
    client: &'a Client,
    child: &'a [String],
    /// The time of the first write that failed with EPIPE. The child was then sent SIGPIPE.
    closed_at: Option<Instant>,
}

impl OutputRelay<'_> {
    /// Handles the result of writing one piece of output. The child writes to files, so the kernel does not send it
    /// SIGPIPE: this function does. If the child still writes after [`SILENCE_LIMIT`], it is sent SIGTERM.
    async fn handle_write(&mut self, written: io::Result<()>) -> io::Result<()> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => return written,
        }
        match self.closed_at {
            None => {
                self.closed_at = Some(Instant::now());
                signals::send_signal(self.client, self.child, SIGPIPE).await;
            }
            Some(since) if since.elapsed() > SILENCE_LIMIT => {
                signals::send_signal(self.client, self.child, SIGTERM).await
            }
            Some(_) => {}
        }
        Ok(())
    }
}
