//! One child, attached: its standard streams, signals and exit status are this command's own.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::thread;

use farfork_node::api::v1::attach_input::Input;
use farfork_node::api::v1::attach_output::Output;
use farfork_node::api::v1::{AttachInput, Child, KillRequest};
use farfork_node::client::{Client, within};
use farfork_node::failure::Failure;
use farfork_node::limits::{OUTPUT_CHUNK_BYTES, QUERY_TIMEOUT, STREAM_MESSAGES_MAX};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::output;

/// Signals that the child gets in this command's place: those that a user or a supervisor sends to a program.
const PASSED_ON: [i32; 7] = [
    1,  // SIGHUP
    2,  // SIGINT
    3,  // SIGQUIT
    10, // SIGUSR1
    12, // SIGUSR2
    15, // SIGTERM
    18, // SIGCONT
];

/// Stays with the child until it ends; gives its exit status.
pub(super) async fn stay(client: &mut Client, child: &Child, with_stdin: bool) -> anyhow::Result<ExitCode> {
    let (inputs, receiver) = mpsc::channel(STREAM_MESSAGES_MAX);
    inputs.send(message(Input::Child(child.id.clone()))).await?;
    pass_signals_on(client, &child.id)?;
    if with_stdin {
        pass_stdin_on(inputs);
    } else {
        inputs.send(message(Input::StdinClosed(true))).await?;
    }

    let lost = |status| {
        Failure::from_status(format!("child {}", child.id), &status)
            .with_next_step("it may run on: see `farfork ps` and `farfork logs`")
    };
    let answer = client.attach(ReceiverStream::new(receiver)).await;
    let mut outputs = answer.map_err(lost)?.into_inner();
    while let Some(message) = outputs.message().await.map_err(lost)? {
        match message.output {
            Some(Output::Stdout(piece)) => output::raw(&piece)?,
            Some(Output::Stderr(piece)) => io::stderr().write_all(&piece)?,
            Some(Output::Ended(child)) => return conclude(&child),
            None => {}
        }
    }
    let cause = "its node stopped telling of it before it ended";
    let failure = Failure::new(Code::Unavailable, format!("child {}", child.id), cause);
    Err(failure.with_next_step("it may run on: see `farfork ps` and `farfork logs`").into())
}

fn message(input: Input) -> AttachInput {
    AttachInput { input: Some(input) }
}

/// The child's own exit status; a lost child is a failure.
fn conclude(child: &Child) -> anyhow::Result<ExitCode> {
    let exit = child.exit.as_ref();
    match exit.and_then(output::exit_code) {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))),
        None => {
            let object = format!("child {}", child.id);
            Err(Failure::new(Code::Aborted, object, output::exit_text(exit)).into())
        }
    }
}

/// Each as a request of its own, so that none waits behind input that the child does not read.
fn pass_signals_on(client: &Client, child: &str) -> io::Result<()> {
    for number in PASSED_ON {
        let mut signals = signal(SignalKind::from_raw(number))?;
        let (mut client, child) = (client.clone(), child.to_owned());
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                let request = KillRequest { child: child.clone(), signal: number.unsigned_abs() };
                // A child that has just ended needs no signal; its end is on its way.
                let _ = client.kill(within(QUERY_TIMEOUT, request)).await;
            }
        });
    }
    Ok(())
}

/// A thread of its own, since read(2) on a terminal or pipe cannot be given up. It ends with the process.
fn pass_stdin_on(inputs: mpsc::Sender<AttachInput>) {
    thread::spawn(move || {
        let mut buffer = vec![0; OUTPUT_CHUNK_BYTES];
        loop {
            let input = match io::stdin().lock().read(&mut buffer) {
                Ok(0) => Input::StdinClosed(true),
                Ok(count) => Input::Stdin(buffer[..count].to_vec()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => Input::StdinClosed(true),
            };
            let is_last = matches!(input, Input::StdinClosed(_));
            if inputs.blocking_send(message(input)).is_err() || is_last {
                return;
            }
        }
    });
}
