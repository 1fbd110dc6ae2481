//! Exec: runs a program in the container of a child. A runner process (`farfork exec-runner`) enters the container, starts the
//! program, and exits with its status. It is in the control group of the child before it does anything.
//!
//! ```text
//!  caller ── ExecInput ──▶ daemon ── description, then input ──▶ runner ── namespaces, rights ──▶ program
//! ```

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use farfork_api::failure::Failure;
use farfork_api::limits::OUTPUT_CHUNK_BYTES;
use farfork_api::v1;
use farfork_api::v1::exec_input::Input;
use farfork_api::v1::exec_output::Output;
use farfork_container::ContainerCommand;
use farfork_fork::restore;
use farfork_sys::mount::{self, MountDepth};
use farfork_sys::process::ProcStatus;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child as Runner, ChildStdin, Command};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{StreamExt as _, once};
use tonic::{Code, Status, Streaming};

use super::route::{PeerStream, RequestTarget, child_target, forwarded_failure, parse_child_id};
use super::stream::{ResponseSender, relay_stream, send, spawn_stream};
use crate::children::{Child, ChildStatus};
use crate::node::Node;

/// The command of `farfork` that runs a program.
const EXEC_RUNNER: &str = "exec-runner";

/// Added to the number of the signal that killed the runner, as shells do.
const SIGNAL_STATUS: u32 = 128;

/// Runs the program that the first message describes.
pub(super) async fn exec(
    node: &Arc<Node>,
    mut inputs: Streaming<v1::ExecInput>,
) -> Result<ReceiverStream<Result<v1::ExecOutput, Status>>, Failure> {
    let first = inputs.message().await.map_err(forwarded_failure("exec"))?;
    let Some(v1::ExecInput { input: Some(Input::Request(request)) }) = &first else {
        return Err(Failure::new(Code::InvalidArgument, "exec", "its first message names no child"));
    };
    let id = parse_child_id(&request.child)?;
    if request.arguments.is_empty() {
        return Err(Failure::new(Code::InvalidArgument, format!("child {id}"), "the request names no program"));
    }
    match child_target(node, &id)? {
        RequestTarget::Local => {
            let child = node.children.get(&id)?;
            require_running(&child)?;
            let description = describe_command(&child, request.clone())?;
            let mut runner = start_runner(&child)?;
            let (pid, stdin) = (runner.id().unwrap_or_default(), runner.stdin.take());
            tokio::spawn(forward_inputs(pid.cast_signed(), stdin, description, inputs));
            Ok(spawn_stream(|sink| async move { forward_output(&child, runner, &sink).await }))
        }
        RequestTarget::Remote(mut owner) => {
            // An unreadable input ends the stream, like a disconnect of the caller.
            let inputs = once(first).chain(inputs.map(Result::ok)).map_while(|input| input);
            let object = format!("child {id}");
            let outputs = PeerStream::open(owner.exec(inputs), node, id.node(), &object).await?;
            Ok(spawn_stream(|sink| async move { relay_stream(outputs, &sink).await }))
        }
    }
}

fn require_running(child: &Child) -> Result<(), Failure> {
    match &*child.status().borrow() {
        ChildStatus::Running => Ok(()),
        ChildStatus::Ended(_) => Err(child.ended_failure()),
        ChildStatus::Paused => {
            let failure = child.failure(Code::FailedPrecondition, "it is paused, so nothing in its container runs");
            Err(failure.with_next_step("continue it with `farfork unpause`"))
        }
    }
}

/// Starts the runner, and moves it into the control groups of the child. It waits for its description. It is killed when the
/// result is dropped, and the program with it.
///
/// # Errors
/// The child has ended, or the kernel's error.
fn start_runner(child: &Child) -> Result<Runner, Failure> {
    // The root of the container may have other files now.
    child.disable_root_reuse();
    let internal = |error: io::Error| child.failure(Code::Internal, format!("its runner: {error}"));
    let binary = open_own_binary().map_err(internal)?;
    let mut command = Command::new(format!("/proc/self/fd/{}", binary.as_raw_fd()));
    command.arg(EXEC_RUNNER).current_dir("/").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let runner = command.spawn().map_err(internal)?;
    child.adopt_process(runner.id().unwrap_or_default().cast_signed())?;
    Ok(runner)
}

/// Opens the binary of this process on a read-only mount of its own. A process of the container may open the binary of the
/// runner for writing by its link in `/proc` (CVE-2019-5736), even if it may not write to the mounts of its container.
fn open_own_binary() -> io::Result<OwnedFd> {
    let binary = mount::clone_mount(Path::new("/proc/self/exe"), MountDepth::Single)?;
    mount::make_read_only(binary.as_fd())?;
    Ok(binary)
}

/// Returns the description of the program, as the runner reads it: a line.
///
/// # Errors
/// The child has ended, or has seccomp filters that the program would lack.
fn describe_command(child: &Child, request: v1::ExecRequest) -> Result<Vec<u8>, Failure> {
    let is_untrusted = child.record().untrusted;
    let status = ProcStatus::read(child.host_pid()?).map_err(|_| child.ended_failure())?;
    if status.seccomp_filters > u32::from(is_untrusted) {
        let cause = "its program has installed seccomp filters, which the new program would lack";
        return Err(child
            .failure(Code::FailedPrecondition, cause)
            .with_next_step("see `farfork logs` and `farfork core`"));
    }
    let command = ContainerCommand {
        process: child.record().process.clone(),
        directory: (!request.directory.is_empty()).then(|| request.directory.into()),
        environment: request.environment.into_iter().collect(),
        arguments: request.arguments,
        filter: is_untrusted.then(restore::encode_untrusted_filter),
    };
    let mut line = serde_json::to_vec(&command).map_err(|error| child.failure(Code::Internal, error))?;
    line.push(b'\n');
    Ok(line)
}

/// Writes the description and the input to the runner, and sends it the signals, which it forwards to the program.
async fn forward_inputs(
    runner: i32,
    mut stdin: Option<ChildStdin>,
    description: Vec<u8>,
    mut inputs: Streaming<v1::ExecInput>,
) {
    if let Some(pipe) = &mut stdin
        && pipe.write_all(&description).await.is_err()
    {
        return;
    }
    while let Ok(Some(v1::ExecInput { input: Some(input) })) = inputs.message().await {
        match input {
            Input::Request(_) => {}
            Input::StdinClosed(_) => stdin = None,
            Input::Stdin(bytes) => {
                // The program may have closed its standard input. The rest is then discarded.
                let Some(pipe) = &mut stdin else { continue };
                if pipe.write_all(&bytes).await.is_err() {
                    stdin = None;
                }
            }
            Input::Signal(number) => {
                let signal = Signal::from_named_raw(number.cast_signed());
                if let (Some(pid), Some(signal)) = (Pid::from_raw(runner), signal) {
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }
}

/// Sends the output of the program, and then its exit status.
async fn forward_output(
    child: &Child,
    mut runner: Runner,
    sink: &ResponseSender<v1::ExecOutput>,
) -> Result<(), Failure> {
    let (stdout, stderr) = (runner.stdout.take(), runner.stderr.take());
    tokio::join!(copy(stdout, sink, Output::Stdout), copy(stderr, sink, Output::Stderr));
    let status = runner.wait().await.map_err(|error| child.failure(Code::Internal, format!("its runner: {error}")))?;
    let signal = || SIGNAL_STATUS + status.signal().unwrap_or_default().cast_unsigned();
    let exit_status = status.code().map_or_else(signal, i32::cast_unsigned);
    // The caller may have disconnected.
    let _ = send(sink, v1::ExecOutput { output: Some(Output::ExitStatus(exit_status)) }).await;
    Ok(())
}

async fn copy(
    output: Option<impl AsyncRead + Unpin>,
    sink: &ResponseSender<v1::ExecOutput>,
    wrap: fn(Vec<u8>) -> Output,
) {
    let Some(mut output) = output else { return };
    let mut buffer = vec![0; OUTPUT_CHUNK_BYTES];
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        if send(sink, v1::ExecOutput { output: Some(wrap(buffer[..count].to_vec())) }).await.is_err() {
            return;
        }
    }
}
