//! Installs and starts the C++ programs that this program embeds. A command to a program is one letter, its answer is
//! one line. `workload` and `baseline` define the commands and answers.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::Serialize;
use serde_json::json;

use crate::end_with_parent;
use crate::error::BenchError;

/// Time limit for a program to end after it has closed its output.
const END_LIMIT: Duration = Duration::from_millis(500);

/// An embedded executable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmbeddedProgram {
    pub(crate) name: &'static str,
    pub(crate) bytes: &'static [u8],
}

impl EmbeddedProgram {
    /// Writes the program into a directory, executable by all users.
    pub(crate) fn install(&self, directory: &Path) -> Result<PathBuf, BenchError> {
        let path = directory.join(self.name);
        self.write_to(&path).map_err(|cause| BenchError::File { path: path.clone(), cause })?;
        Ok(path)
    }

    /// Writes the file through install(1). If this process had the file open for writing, a child that another thread
    /// forks at that moment would inherit the descriptor. Until that child calls execve(2), starting the program would
    /// fail with ETXTBSY.
    fn write_to(&self, path: &Path) -> io::Result<()> {
        let mut command = Command::new("install");
        let mut writer = command.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped()).spawn()?;
        let written = writer.stdin.take().expect("a pipe").write_all(self.bytes);
        let status = writer.wait()?;
        written?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("install(1): {status}"))) }
    }
}

/// A running program. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ChildProgram {
    name: &'static str,
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Whether the processes that it has forked are killed with it. Other programs have forks that clean up after them.
    kills_forks: bool,
    /// Time limit of each answer; `None` for no limit: a run may take hours.
    answer_limit: Option<Duration>,
}

impl ChildProgram {
    /// Starts the program in a session of its own, in the command's directory or else in `/`. Ctrl-C then reaches only the
    /// benchmark, which ends its programs itself. Also, CRIU clones only whole sessions.
    pub(crate) fn start(name: &'static str, command: &Command) -> Result<Self, BenchError> {
        let mut process = Command::new("setsid")
            .arg(command.get_program())
            .args(command.get_args())
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .current_dir(command.get_current_dir().unwrap_or("/".as_ref()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|cause| BenchError::Program { program: name, cause })?;
        let commands = process.stdin.take().expect("a pipe");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        Ok(Self { name, process, commands, answers, kills_forks: false, answer_limit: None })
    }

    /// Starts a hidden command of `farfork bench` from this same executable, with a specification as its last argument. So
    /// lists of processes show what it works on. Waits until it prints `ready`.
    pub(crate) fn start_bench_command(
        name: &'static str,
        farfork: &Path,
        command: &[&str],
        specification: &impl Serialize,
    ) -> Result<Self, BenchError> {
        Self::start_bench(name, farfork, &[command, &[&json!(specification).to_string()]].concat(), "")
    }

    /// As `start_bench_command`, but the command reads its specification as [`read_specification`].
    pub(crate) fn start_bench_command_with_input(
        name: &'static str,
        farfork: &Path,
        command: &[&str],
        specification: &impl Serialize,
    ) -> Result<Self, BenchError> {
        Self::start_bench(name, farfork, command, &format!("{}\n", json!(specification)))
    }

    fn start_bench(name: &'static str, farfork: &Path, arguments: &[&str], input: &str) -> Result<Self, BenchError> {
        let mut process = Command::new(farfork);
        process.arg("bench").args(arguments);
        // The process may wait for a node that no longer exists, so the end of its input does not end it.
        end_with_parent::request(&mut process);
        let mut program = Self::start(name, &process)?;
        let sent = program.send_text(input);
        // If the process has ended, its status explains more than the error of the pipe.
        let [] = program.read_answer("ready")?;
        sent.map(|()| program)
    }

    /// Makes the end of the program also kill the processes that it has forked.
    pub(crate) fn killing_forks(mut self) -> Self {
        self.kills_forks = true;
        self
    }

    /// Sets the time limit of each answer.
    pub(crate) fn with_answer_limit(mut self, limit: Duration) -> Self {
        self.answer_limit = Some(limit);
        self
    }

    /// The program's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The program's exit status and remaining output; `None` while it runs.
    pub(crate) fn last_line_if_ended(&mut self) -> Option<String> {
        let status = self.process.try_wait().ok()??;
        let mut output = String::new();
        // The program has ended, so its output is complete.
        let _ = self.answers.read_to_string(&mut output);
        Some(format!("{status}: {}", output.trim()))
    }

    /// Sends a command, and reads the numbers of its answer.
    pub(crate) fn request<const N: usize>(
        &mut self,
        command: u8,
        answer: &'static str,
    ) -> Result<[i64; N], BenchError> {
        self.send_message(command)?;
        self.read_answer(answer)
    }

    /// Sends a command of one letter.
    pub(crate) fn send_message(&mut self, command: u8) -> Result<(), BenchError> {
        let sent = self.commands.write_all(&[command]);
        sent.map_err(|cause| BenchError::Program { program: self.name, cause })
    }

    /// Sends text to the standard input of the program.
    pub(crate) fn send_text(&mut self, words: &str) -> Result<(), BenchError> {
        let sent = self.commands.write_all(words.as_bytes());
        sent.map_err(|cause| BenchError::Program { program: self.name, cause })
    }

    /// Reads the numbers of the next line, which must begin with `word`.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`] after a signal, [`BenchError::NoAnswer`] after the limit, [`BenchError::ProgramEnded`] if the program ended without an answer,
    /// and the errors of [`parse_numbers`].
    pub(crate) fn read_answer<const N: usize>(&mut self, word: &'static str) -> Result<[i64; N], BenchError> {
        self.wait_for_output()?;
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        let program = self.name;
        let failed = |cause| BenchError::Program { program, cause };
        if read.map_err(failed)? == 0 {
            self.wait_until_ended();
            self.kill();
            return Err(BenchError::ProgramEnded { program, status: self.process.wait().map_err(failed)? });
        }
        parse_numbers(program, &line, word)
    }

    /// Waits a short time for the program, which has closed its output: its own end explains more than a kill.
    fn wait_until_ended(&self) {
        let limit = Timespec::try_from(END_LIMIT).ok();
        let ended = pidfd_open(Pid::from_child(&self.process), PidfdFlags::empty());
        // An error means that the program is killed at once.
        let _ = ended.and_then(|ended| poll(&mut [PollFd::new(&ended, PollFlags::IN)], limit.as_ref()));
    }

    /// Kills the program, and its process group if its forks are killed. Call it before the program is waited for:
    /// afterwards the number of the group could be another group's.
    fn kill(&mut self) {
        if self.kills_forks {
            // An error means that setsid(1) has not made the group yet, so nothing has been forked.
            let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        }
        // An error means that the program has ended on its own.
        let _ = self.process.kill();
    }

    /// Waits until there is output, or the program has ended.
    fn wait_for_output(&self) -> Result<(), BenchError> {
        if !self.answers.buffer().is_empty() {
            return Ok(());
        }
        let timeout = self.answer_limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut [PollFd::new(self.answers.get_ref(), PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => {
                let limit = self.answer_limit.unwrap_or_default();
                Err(BenchError::NoAnswer { program: self.name, limit })
            }
            Ok(_) => Ok(()),
            // The handlers of SIGINT and similar signals interrupt poll(2); see signal(7).
            Err(Errno::INTR) => Err(BenchError::Interrupted),
            Err(error) => Err(BenchError::Program { program: self.name, cause: error.into() }),
        }
    }
}

impl Drop for ChildProgram {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            self.kill();
            let _ = self.process.wait();
        }
    }
}

/// Reads the specification of a hidden command from standard input: a line of JSON. It may be longer than an argument can
/// be (execve(2): 128 KiB), because it may contain the payload of a function.
///
/// # Errors
/// As read(2).
pub(crate) fn read_specification() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(line)
}

/// Parses the numbers of a line that a program has printed.
///
/// # Errors
/// [`BenchError::ProgramFailed`] if the line is `failed WHY`, else [`BenchError::UnexpectedAnswer`].
pub(crate) fn parse_numbers<const N: usize>(
    program: &'static str,
    line: &str,
    word: &'static str,
) -> Result<[i64; N], BenchError> {
    if let Some(why) = line.strip_prefix("failed ") {
        return Err(BenchError::ProgramFailed { program, why: why.trim().to_owned() });
    }
    let mut words = line.split_whitespace();
    let parsed = (words.next() == Some(word)).then(|| words.map(|word| word.parse().ok()).collect::<Option<Vec<_>>>());
    let numbers = parsed.flatten().and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or_else(|| BenchError::UnexpectedAnswer { program, output: line.trim().to_owned(), expected: word })
}

#[cfg(test)]
mod tests {
    use super::parse_numbers;

    #[test]
    fn a_line_must_have_its_keyword_and_all_numbers() {
        assert_eq!(parse_numbers::<2>("p", "copied 12 -3\n", "copied").unwrap(), [12, -3]);
        assert!(parse_numbers::<0>("p", "ready\n", "ready").is_ok());
        for line in ["", "copied 1\n", "copied 1 2 3\n", "copied 1 x\n", "forked 1 2\n"] {
            let error = parse_numbers::<2>("p", line, "copied").unwrap_err().to_string();
            assert!(error.contains("instead of `copied`"), "{error}");
        }
        let error = parse_numbers::<2>("p", "failed no such size\n", "copied").unwrap_err().to_string();
        assert_eq!(error, "program `p`: no such size");
    }
}
