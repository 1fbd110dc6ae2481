//! `Farfork`: runs the real binary, like a user of one node.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::wait::{self, CommandOutput};

/// For any command that ends by itself. Its own limits are shorter, or meant for far larger parents. It allows for a
/// busy machine.
pub(super) const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// The time limit of `wait` for children that end by themselves: less than the command may take.
pub(crate) const WAIT_TIMEOUT: &str = "100s";

/// Messages of requests that timed out. Such a failure counts as a timeout, not as a refusal.
const TIMEOUT_TEXTS: [&str; 2] = ["it did not answer in time", "operation timed out"];

/// Fails the test with a message. If the message is about a timeout, the failure is one, and the test runs again.
#[track_caller]
pub(super) fn fail_or_time_out(message: String) -> ! {
    match TIMEOUT_TEXTS.iter().any(|text| message.contains(text)) {
        true => wait::time_out(message),
        false => panic!("{message}"),
    }
}

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_farfork");

/// The command `farfork`, connected to one node's daemon.
#[derive(Debug, Clone)]
pub(crate) struct Farfork {
    socket: PathBuf,
}

/// A failed command: its message and its exit status.
#[derive(Debug)]
pub(crate) struct FailedCommand {
    pub(crate) message: String,
    pub(crate) status: i32,
}

impl Farfork {
    /// Connects to the daemon at a socket.
    pub(crate) fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// The daemon's socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// A command that is not started yet, with an empty standard input.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(arguments).env("FARFORK_SOCKET", &self.socket);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts a command without waiting for it.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().expect("the binary under test can be started")
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.run_within(COMMAND_LIMIT, arguments)
    }

    /// As [`Self::run`], with another limit.
    pub(crate) fn run_within(&self, limit: Duration, arguments: &[&str]) -> CommandOutput {
        wait::wait_with_output(self.spawn(arguments), &format!("farfork {}", arguments.join(" ")), limit)
    }

    /// Runs a command with `--json` that must succeed.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let ended = self.run(&with_json(arguments));
        let describe =
            || format!("farfork {}: {}\n{}{}", arguments.join(" "), ended.status, ended.stderr, ended.stdout);
        if !ended.status.success() {
            fail_or_time_out(describe());
        }
        document(&ended, arguments)
    }

    /// Runs a command with `--json`, whatever its exit status: children that end with 42 make `wait` fail.
    pub(crate) fn json_ignoring_status(&self, arguments: &[&str]) -> Value {
        document(&self.run(&with_json(arguments)), arguments)
    }

    /// Runs a command that must fail, with a message.
    pub(crate) fn run_failing(&self, arguments: &[&str]) -> FailedCommand {
        let ended = self.run(arguments);
        assert!(!ended.status.success(), "farfork {} succeeded: {}", arguments.join(" "), ended.stdout);
        assert!(!ended.stderr.trim().is_empty(), "farfork {} failed without a word", arguments.join(" "));
        FailedCommand::of(ended)
    }
}

impl FailedCommand {
    /// The failure of a command that has ended.
    pub(crate) fn of(ended: CommandOutput) -> Self {
        Self { message: ended.stderr, status: ended.status.code().unwrap_or(-1) }
    }

    /// Requires that the message contains each of these, in any case, and that the command failed without a crash.
    pub(crate) fn require_mentions(&self, parts: &[&str]) {
        assert_eq!(self.status, 1, "exit status 1 is what a failure has: {}", self.message);
        let message = self.message.to_lowercase();
        for part in parts {
            assert!(message.contains(&part.to_lowercase()), "the message does not name `{part}`: {}", self.message);
        }
        assert!(!message.contains("panicked"), "{}", self.message);
    }
}

fn with_json<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    arguments.iter().copied().chain(["--json"]).collect()
}

fn document(ended: &CommandOutput, arguments: &[&str]) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| {
        panic!("farfork {}: no JSON ({error}): {}{}", arguments.join(" "), ended.stdout, ended.stderr)
    })
}
