//! Commands on a host: scripts of `sh` that are short, and programs whose output is read line by line.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempPath;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::connection::{NO_CONNECTION_MESSAGE, RemoteHost, one_line};
use super::error::RemoteError;
use crate::runner::{HEARTBEAT_INTERVAL, shell_status};
use crate::shell::{is_variable_name, quote, quote_all};

/// Exit status of ssh(1) if the connection fails. A remote command may have it, too.
const SSH_FAILED: i32 = 255;

/// Longest output of a script, in bytes. Its scripts print lists and JSON documents.
const SCRIPT_OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// Longest line, in bytes. A longer one is delivered in parts.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Lines that wait for the reader. More of them make the remote program wait.
const LINES_QUEUED_MAX: usize = 256;

/// Longest wait for an answer of a script with little to do, even on a busy host.
pub(super) const SCRIPT_LIMIT: Duration = Duration::from_secs(600);

/// Output and exit status of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptOutput {
    /// Exit status; as in a shell, 128 and the signal's number if a signal ended it.
    pub status: i32,
    /// Standard output. Invalid UTF-8 is replaced.
    pub stdout: String,
    /// Standard error. Invalid UTF-8 is replaced.
    pub stderr: String,
}

/// A program to start on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostCommand {
    /// The program: a path, or a name that the host's PATH has.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Working directory; `None` for the user's home.
    pub directory: Option<String>,
    /// Variables of its environment. They are visible in the list of processes.
    pub environment: Vec<(String, String)>,
}

/// One line of output, without its newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputLine {
    /// Where it was written.
    pub stream: OutputStream,
    /// Its bytes; at most 64 KiB of a longer line.
    pub bytes: Vec<u8>,
    /// Whether a newline followed: not after a part of a longer line, nor at an end without one.
    pub has_newline: bool,
}

/// A stream of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A program that runs on a host. Dropping it kills the program.
#[derive(Debug)]
pub struct RunningCommand {
    child: Child,
    lines: mpsc::Receiver<OutputLine>,
    heartbeat: tokio::task::JoinHandle<()>,
    /// The file with the messages of ssh, if the program runs on a host.
    messages: Option<TempPath>,
}

impl RemoteHost {
    /// Runs a script of `sh` with arguments `$1` and so on. `input` is its standard input.
    ///
    /// # Errors
    /// The connection ends, or an argument contains NUL. Another exit status than 0 is no error.
    pub async fn script(&self, script: &str, arguments: &[&str], input: &[u8]) -> Result<ScriptOutput, RemoteError> {
        arguments.iter().try_for_each(|argument| self.check_argument(argument))?;
        let mut command = self.script_command(script, arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |cause| RemoteError::Local { action: "run ssh", cause };
        let mut child = command.spawn().map_err(failed)?;
        let mut stdin = child.stdin.take().expect("it is piped");
        let (stdout, stderr) = (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
        let write = async move {
            // A script that needs no more input closes the pipe.
            let _ = stdin.write_all(input).await;
        };
        let (mut output, mut messages) = (Vec::new(), Vec::new());
        let read_all = async {
            let (mut stdout, mut stderr) = (stdout.take(SCRIPT_OUTPUT_BYTES_MAX), stderr.take(SCRIPT_OUTPUT_BYTES_MAX));
            let ((), out, err) =
                tokio::join!(write, stdout.read_to_end(&mut output), stderr.read_to_end(&mut messages));
            out.and(err).map(drop)
        };
        tokio::time::timeout(SCRIPT_LIMIT, read_all)
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(failed)?;
        let status = child.wait().await.map_err(failed)?;
        let status = self.remote_status(status, &messages).await?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(ScriptOutput { status, stdout: text(output), stderr: text(messages) })
    }

    /// ssh(1) with a script of `sh` and its arguments.
    pub(super) fn script_command(&self, script: &str, arguments: &[&str]) -> Command {
        self.ssh(&quote_all(["exec", "sh", "-c", script, "sh"].into_iter().chain(arguments.iter().copied())))
    }

    /// As [`Self::script`], and requires exit status 0. Returns the standard output.
    ///
    /// # Errors
    /// As [`Self::script`]; the script fails. `action` names its purpose.
    pub async fn require_script(
        &self,
        action: &str,
        script: &str,
        arguments: &[&str],
        input: &[u8],
    ) -> Result<String, RemoteError> {
        let output = self.script(script, arguments, input).await?;
        self.require_success(action, output.status, output.stderr.as_bytes())?;
        Ok(output.stdout)
    }

    /// Starts a program with the runner `runner`: a copy of `farfork` on the host. If this coordinator, its connection or
    /// the returned value ends, the runner kills the program and all its descendants ([`crate::runner`]).
    ///
    /// # Errors
    /// ssh cannot be started, or a value cannot be passed to a program. If the program cannot be started, its exit status
    /// is 127.
    pub fn start(&self, runner: &str, command: &HostCommand) -> Result<RunningCommand, RemoteError> {
        let (line, messages) = (self.command_line(&[runner, "remote-runner"], command)?, self.make_messages_file()?);
        let mut running = RunningCommand::spawn("run ssh", self.ssh_with_messages(&messages, &line))?;
        running.messages = Some(messages);
        Ok(running)
    }

    /// The local command whose standard streams and exit status are those of a program on the host. The program runs with the
    /// runner `runner`: a copy of `farfork` on the host. The runner kills the program and all its descendants when the command
    /// ends, when the connection ends, or when nothing locks the file `lease` of the host ([`HostDirectory::lease`](super::HostDirectory::lease)).
    ///
    /// # Errors
    /// A value cannot be passed to a program.
    pub fn leased_command(
        &self,
        runner: &str,
        lease: &str,
        command: &HostCommand,
    ) -> Result<std::process::Command, RemoteError> {
        let line = self.command_line(&[runner, "remote-runner", "--lease", lease], command)?;
        Ok(self.ssh_with_own_connection(&line).into_std())
    }

    /// The line for the host's shell that starts a program with the runner, a command with options.
    fn command_line(&self, runner: &[&str], command: &HostCommand) -> Result<String, RemoteError> {
        let HostCommand { program, arguments, directory, environment } = command;
        let arguments = || arguments.iter().map(String::as_str);
        let words = runner.iter().copied().chain([program.as_str()]).chain(arguments());
        let values = environment.iter().map(|(_, value)| value.as_str()).chain(directory.as_deref());
        words.chain(values).try_for_each(|word| self.check_argument(word))?;
        let mut line = String::new();
        if let Some(directory) = directory {
            line += &format!("cd -- {} && ", quote(directory));
        }
        for (name, value) in environment {
            if !is_variable_name(name) {
                let rule = "is not the name of a variable: letters, digits and _";
                return Err(RemoteError::Argument { host: self.name().to_owned(), argument: name.clone(), rule });
            }
            line += &format!("export {name}={} && ", quote(value));
        }
        let words = ["exec"].iter().chain(runner).copied().chain(["--", program.as_str()]);
        Ok(line + &quote_all(words.chain(arguments())))
    }

    fn check_argument(&self, argument: &str) -> Result<(), RemoteError> {
        if !argument.contains('\0') {
            return Ok(());
        }
        let (host, argument) = (self.name().to_owned(), argument.to_owned());
        Err(RemoteError::Argument { host, argument, rule: "contains NUL, which no argument can contain" })
    }

    /// The exit status of a remote command, by the status of its ssh.
    pub(super) async fn remote_status(&self, status: ExitStatus, messages: &[u8]) -> Result<i32, RemoteError> {
        match status.code() {
            Some(SSH_FAILED) | None if !self.is_connected().await => {
                let cause = ssh_cause(messages);
                let detail = if cause.is_empty() { "ssh gives no reason".to_owned() } else { cause };
                Err(RemoteError::Disconnected { host: self.name().to_owned(), detail })
            }
            code => Ok(code.unwrap_or(SSH_FAILED)),
        }
    }

    /// Requires that a command has ended with status 0. `action` names its purpose.
    pub(super) fn require_success(&self, action: &str, status: i32, messages: &[u8]) -> Result<(), RemoteError> {
        if status == 0 {
            return Ok(());
        }
        let messages = one_line(messages);
        let detail = if messages.is_empty() { format!("exit status {status}") } else { messages };
        Err(self.command_error(action, detail))
    }

    pub(super) fn command_error(&self, action: impl Into<String>, detail: impl Into<String>) -> RemoteError {
        RemoteError::Command { host: self.name().to_owned(), action: action.into(), detail: detail.into() }
    }
}

impl RunningCommand {
    /// As [`RemoteHost::start`], on this machine. `runner` is a copy of `farfork`.
    ///
    /// # Errors
    /// The runner cannot be started.
    pub fn start_here(runner: &Path, command: &HostCommand) -> Result<Self, RemoteError> {
        let HostCommand { program, arguments, directory, environment } = command;
        let mut local = Command::new(runner);
        local.args(["remote-runner", "--", program]).args(arguments).envs(environment.iter().cloned());
        if let Some(directory) = directory {
            local.current_dir(directory);
        }
        Self::spawn("run the command", local)
    }

    /// Starts a process that ends with its standard input.
    fn spawn(action: &'static str, mut command: Command) -> Result<Self, RemoteError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C must reach only the coordinator, which cleans up.
        command.process_group(0);
        let mut child = command.spawn().map_err(|cause| RemoteError::Local { action, cause })?;
        let (sender, lines) = mpsc::channel(LINES_QUEUED_MAX);
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        tokio::spawn(forward_lines(stdout, OutputStream::Stdout, sender.clone()));
        tokio::spawn(forward_lines(stderr, OutputStream::Stderr, sender));
        let heartbeat = tokio::spawn(send_heartbeats(child.stdin.take().expect("it is piped")));
        Ok(RunningCommand { child, lines, heartbeat, messages: None })
    }

    /// The next line of output; `None` when the program and its descendants have closed both streams.
    pub async fn next_line(&mut self) -> Option<OutputLine> {
        self.lines.recv().await
    }

    /// Tells the runner to end the program: SIGTERM, then SIGKILL. Read lines until [`Self::next_line`] returns `None`,
    /// then call [`Self::wait`].
    pub fn stop(&mut self) {
        self.heartbeat.abort();
    }

    /// As [`Self::wait`], for a program of this machine.
    ///
    /// # Errors
    /// The program cannot be waited for.
    pub async fn wait_here(mut self) -> Result<i32, RemoteError> {
        self.wait_process().await.map(shell_status)
    }

    /// Waits for the end of the program, and drops lines that were not read. Returns the exit status; as in a shell, 128
    /// and the signal's number if a signal ended it.
    ///
    /// # Errors
    /// The connection ended before, or had no room for another program.
    pub async fn wait(mut self, host: &RemoteHost) -> Result<i32, RemoteError> {
        let status = self.wait_process().await?;
        let messages = self.messages.take().and_then(|file| std::fs::read(file).ok()).unwrap_or_default();
        match host.remote_status(status, &messages).await? {
            SSH_FAILED if !messages.is_empty() => Err(host.command_error("run another program", ssh_cause(&messages))),
            status => Ok(status),
        }
    }

    /// Waits for the end of the local process, the runner or ssh(1).
    async fn wait_process(&mut self) -> Result<ExitStatus, RemoteError> {
        while self.lines.recv().await.is_some() {}
        self.child.wait().await.map_err(|cause| RemoteError::Local { action: "wait for the command", cause })
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

/// The messages of ssh without those about the connection that it must not make.
fn ssh_cause(messages: &[u8]) -> String {
    let text = String::from_utf8_lossy(messages);
    let lines = text.lines().filter(|line| !line.starts_with(NO_CONNECTION_MESSAGE));
    let cause = one_line(lines.collect::<Vec<_>>().join("\n").as_bytes());
    if !cause.contains("Session open refused") {
        return cause;
    }
    format!(
        "{cause}; the limit is `MaxSessions` of sshd_config(5): raise it on the host, or run fewer steps there at once"
    )
}

/// Writes to the runner at intervals, so that it detects a dead connection.
pub(super) async fn send_heartbeats(mut input: ChildStdin) {
    let mut ticks = interval(HEARTBEAT_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if input.write_all(b"\n").await.is_err() {
            return;
        }
    }
}

/// Sends the lines of a stream to the reader, until either ends.
async fn forward_lines(mut reader: impl AsyncBufRead + Unpin, stream: OutputStream, lines: mpsc::Sender<OutputLine>) {
    loop {
        let mut bytes = Vec::new();
        let mut limited = (&mut reader).take(LINE_BYTES_MAX as u64);
        if !matches!(limited.read_until(b'\n', &mut bytes).await, Ok(1..)) {
            return;
        }
        let has_newline = bytes.pop_if(|last| *last == b'\n').is_some();
        if lines.send(OutputLine { stream, bytes, has_newline }).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LINE_BYTES_MAX, OutputStream, forward_lines};

    #[tokio::test]
    async fn output_is_split_into_lines_of_limited_length() {
        let (sender, mut lines) = tokio::sync::mpsc::channel(8);
        let long = vec![b'x'; LINE_BYTES_MAX + 1];
        let text = [b"a\n\n", &long[..], b"\nlast"].concat();
        forward_lines(&text[..], OutputStream::Stdout, sender).await;
        let (mut lengths, mut newlines) = (Vec::new(), Vec::new());
        while let Some(line) = lines.recv().await {
            lengths.push(line.bytes.len());
            newlines.push(line.has_newline);
        }
        assert_eq!(lengths, [1, 0, LINE_BYTES_MAX, 1, 4]);
        assert_eq!(newlines, [true, true, false, true, false]);
    }
}
