//! `RunningProgram`: a program on a machine, `EmbeddedProgram`: a C++ program that this program installs there, and
//! `ConnectedPrograms`: a server and its clients. A command to a program is one letter or a line, its answer is one line.
//! `workload` and `baseline` define commands and answers.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, kill_process_group, pidfd_open, set_parent_process_death_signal,
};

use super::{Machine, prefix_command};
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
    /// Installs the program on a machine, executable by all users. Another program writes the file: if this process had it
    /// open for writing, a child that another thread forks at that moment would inherit the descriptor. Until that child
    /// calls execve(2), starting the program would fail with ETXTBSY.
    pub(crate) fn install(&self, machine: &dyn Machine) -> Result<(), BenchError> {
        machine.write_file(self.name, "755", self.bytes).map(drop)
    }

    /// The command of the installed program.
    pub(crate) fn command(&self, machine: &dyn Machine) -> Command {
        Command::new(machine.scratch().join(self.name))
    }

    /// Starts the installed program with these arguments.
    pub(crate) fn start(
        &self,
        machine: &dyn Machine,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<RunningProgram, BenchError> {
        machine.start(self.name, self.command(machine).args(arguments))
    }
}

/// A running program. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct RunningProgram {
    name: &'static str,
    /// The name of its machine, if that is a host.
    host: Option<String>,
    pid: u32,
    /// The process of this machine whose end ends the program.
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Whether the processes that it has forked are killed with it. Other programs have forks that clean up after them.
    kills_forks: bool,
    /// Time limit of each answer; `None` for no limit: a run may take hours.
    answer_limit: Option<Duration>,
}

impl RunningProgram {
    /// Starts the program in a session of its own, in the command's directory or else in `/`. Ctrl-C then reaches only the
    /// benchmark, which ends its programs itself. Also, CRIU clones only whole sessions. The first line of the output is the
    /// process id, which a shell prints before it executes the program.
    pub(super) fn start(machine: &dyn Machine, name: &'static str, program: &Command) -> Result<Self, BenchError> {
        let command = prefix_command(&["setsid", "sh", "-c", "echo pid $$ && exec \"$@\"", "sh"], program);
        let mut process = machine
            .command(&command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|cause| BenchError::Program { program: name, cause }.on_machine(machine.name()))?;
        let input = process.stdin.take().expect("a pipe");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        let host = machine.name().map(str::to_owned);
        let (pid, kills_forks, answer_limit) = Default::default();
        let mut started = Self { name, host, pid, process, input, output, kills_forks, answer_limit };
        let [pid] = started.read_answer("pid")?;
        started.pid = u32::try_from(pid).unwrap_or(0);
        Ok(started)
    }

    /// Waits until the program prints `ready`.
    pub(crate) fn ready(mut self) -> Result<Self, BenchError> {
        let [] = self.read_answer("ready")?;
        Ok(self)
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

    /// The program's process id on its machine.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// The program's exit status and remaining output; `None` while it runs.
    pub(crate) fn last_line_if_ended(&mut self) -> Option<String> {
        let status = self.process.try_wait().ok()??;
        let mut output = String::new();
        // The program has ended, so its output is complete.
        let _ = self.output.read_to_string(&mut output);
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
        let sent = self.input.write_all(&[command]);
        sent.map_err(|cause| BenchError::Program { program: self.name, cause })
    }

    /// Sends text to the standard input of the program.
    pub(crate) fn send_text(&mut self, words: &str) -> Result<(), BenchError> {
        let sent = self.input.write_all(words.as_bytes());
        sent.map_err(|cause| BenchError::Program { program: self.name, cause })
    }

    /// Reads the numbers of the next line, which must begin with `word`.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`] after a signal, [`BenchError::NoAnswer`] after the limit, [`BenchError::ProgramEnded`] if the program ended without an answer,
    /// and the errors of [`parse_numbers`].
    pub(crate) fn read_answer<const N: usize>(&mut self, word: &'static str) -> Result<[i64; N], BenchError> {
        self.read_numbers(word).map_err(|error| match error {
            BenchError::Interrupted => error,
            error => error.on_machine(self.host.as_deref()),
        })
    }

    fn read_numbers<const N: usize>(&mut self, word: &'static str) -> Result<[i64; N], BenchError> {
        parse_numbers(self.name, &self.read_line()?, word)
    }

    /// Reads the next line.
    ///
    /// # Errors
    /// As [`Self::read_answer`].
    pub(crate) fn read_line(&mut self) -> Result<String, BenchError> {
        self.wait_for_output()?;
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        let program = self.name;
        let failed = |cause| BenchError::Program { program, cause };
        if read.map_err(failed)? == 0 {
            self.wait_until_ended();
            self.kill();
            return Err(BenchError::ProgramEnded { program, status: self.process.wait().map_err(failed)? });
        }
        Ok(line)
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
        if !self.output.buffer().is_empty() {
            return Ok(());
        }
        let timeout = self.answer_limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut [PollFd::new(self.output.get_ref(), PollFlags::IN)], timeout.as_ref()) {
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

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            self.kill();
            let _ = self.process.wait();
        }
    }
}

/// A server and its clients. They are killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ConnectedPrograms {
    pub(crate) clients: Vec<RunningProgram>,
    pub(crate) server: RunningProgram,
}

impl ConnectedPrograms {
    /// Waits until a server program, which runs on the machine `on`, prints `listening PORT`. Then starts a client on each of
    /// the machines `clients`, and waits until each prints `ready`.
    ///
    /// # Errors
    /// A program cannot be started, or prints something else.
    pub(crate) fn start<'a>(
        on: &dyn Machine,
        mut server: RunningProgram,
        clients: impl IntoIterator<Item = &'a dyn Machine>,
        start_client: impl Fn(&dyn Machine, SocketAddr) -> Result<RunningProgram, BenchError>,
    ) -> Result<Self, BenchError> {
        let [port] = server.read_answer("listening")?;
        let to = SocketAddr::new(on.address(), port as u16);
        let clients = clients.into_iter().map(|machine| start_client(machine, to)?.ready());
        Ok(Self { clients: clients.collect::<Result<_, _>>()?, server })
    }

    /// Makes all clients begin at the same time.
    pub(crate) fn begin(&mut self) -> Result<(), BenchError> {
        self.clients.iter_mut().try_for_each(|client| client.send_message(b'g'))
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

/// The process id of the process of this program that has started this one.
const PARENT: &str = "FARFORK_BENCH_PARENT";

/// Makes a command of this program end with this process, even if SIGKILL ends it. Call it in a thread that runs until the
/// command has ended: the kernel sends the signal when that thread ends.
pub(crate) fn request_end_with_parent(command: &mut Command) {
    command.env(PARENT, std::process::id().to_string());
}

/// Makes this process get SIGTERM when its parent ends, if the parent has requested that. Other programs inherit the
/// variable too, but the process that it names is not their parent.
///
/// # Errors
/// prctl(2) fails.
pub(crate) fn end_with_parent() -> io::Result<()> {
    let parent = env::var(PARENT).ok().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    if parent.is_none() || getppid() != parent {
        return Ok(());
    }
    Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
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
