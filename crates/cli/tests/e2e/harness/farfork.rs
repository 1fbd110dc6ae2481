//! `Farfork`: runs the real binary, like a user of one node does.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::wait::{self, CommandOutput};

/// Longest run of a command that ends by itself. The command's own time limits are shorter, or intended for much larger
/// parents. Allows for a busy machine.
pub(super) const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// `--timeout` of `farfork wait` for children that end by themselves. Shorter than `COMMAND_LIMIT`.
pub(crate) const WAIT_TIMEOUT: &str = "100s";

/// Texts in the messages of requests that timed out. Such a failure counts as a timeout, not as a refusal.
const TIMEOUT_TEXTS: [&str; 5] = [
    "it did not answer in time",
    "operation timed out",
    "was not captured within",
    "does not answer (timed out)",
    "could not be read from the kernel in time",
];

/// Begins the message of a program that found a wrong value (`tests/programs/forked.h`).
const WRONG_TEXT: &str = "wrong: ";

/// Fails the test with a message. If the message reports a timeout, and no wrong value, the failure counts as a timeout, and the
/// test runs again.
#[track_caller]
pub(crate) fn fail_or_time_out(message: String) -> ! {
    match TIMEOUT_TEXTS.iter().any(|text| message.contains(text)) && !message.contains(WRONG_TEXT) {
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
    /// Makes a command that connects to the daemon at this socket.
    pub(crate) fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// The daemon's socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Makes a command that is not started yet, with an empty standard input.
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

    /// Runs a command until it ends.
    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.run_within(COMMAND_LIMIT, arguments)
    }

    /// As [`Self::run`], with another time limit.
    pub(crate) fn run_within(&self, limit: Duration, arguments: &[&str]) -> CommandOutput {
        wait::wait_with_output(self.spawn(arguments), &format!("farfork {}", arguments.join(" ")), limit)
    }

    /// Runs a command with `--json` that must succeed.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        self.json_within(COMMAND_LIMIT, arguments)
    }

    /// As [`Self::json`], with another time limit.
    #[track_caller]
    pub(crate) fn json_within(&self, limit: Duration, arguments: &[&str]) -> Value {
        let ended = self.run_within(limit, &with_json(arguments));
        let describe =
            || format!("farfork {}: {}\n{}{}", arguments.join(" "), ended.status, ended.stderr, ended.stdout);
        if !ended.status.success() {
            fail_or_time_out(describe());
        }
        document(&ended, arguments)
    }

    /// Runs a command with `--json`, and ignores its exit status: `wait` fails if a child ends with 42.
    pub(crate) fn json_ignoring_status(&self, arguments: &[&str]) -> Value {
        self.json_ignoring_status_within(COMMAND_LIMIT, arguments)
    }

    /// As [`Self::json_ignoring_status`], with another time limit.
    pub(crate) fn json_ignoring_status_within(&self, limit: Duration, arguments: &[&str]) -> Value {
        document(&self.run_within(limit, &with_json(arguments)), arguments)
    }

    /// Runs a command that must fail with a message.
    pub(crate) fn run_failing(&self, arguments: &[&str]) -> FailedCommand {
        let ended = self.run(arguments);
        assert!(!ended.status.success(), "farfork {} succeeded: {}", arguments.join(" "), ended.stdout);
        assert!(!ended.stderr.trim().is_empty(), "farfork {} failed without a message", arguments.join(" "));
        FailedCommand::of(ended)
    }
}

impl FailedCommand {
    /// Makes the failure of a command that has ended.
    pub(crate) fn of(ended: CommandOutput) -> Self {
        Self { message: ended.stderr, status: ended.status.code().unwrap_or(-1) }
    }

    /// Requires that the message contains each of these parts, in upper or lower case, and that the command did not
    /// panic.
    #[track_caller]
    pub(crate) fn require_mentions(&self, parts: &[&str]) {
        assert_eq!(self.status, 1, "a failure must have exit status 1: {}", self.message);
        let message = self.message.to_lowercase();
        for part in parts {
            if !message.contains(&part.to_lowercase()) {
                fail_or_time_out(format!("the message does not name `{part}`: {}", self.message));
            }
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
