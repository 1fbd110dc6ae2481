//! `Parent`: one of the test programs, running as a parent. Threads read its output.
//!
//! The program prints `ready PID HASH` once, then `tick MICROSECONDS` every 2 ms, so that any pause is visible as a
//! gap.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::programs::Program;
use super::wait;

/// Longest wait until a program is ready. On a busy machine, Python takes long to import NumPy and to fill its arrays.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Longest time between two ticks of a running parent on a busy machine.
const TICK_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait, after the end of a parent, until a thread has read its last output.
const LAST_WORDS_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait until a parent has ended. It may check its state first: programs wait up to 40 s for each condition.
const END_LIMIT: Duration = Duration::from_secs(100);

/// The output of a parent so far.
#[derive(Default)]
struct ParentOutput {
    ready: Option<(i32, u64)>,
    /// Times of the ticks, in microseconds of the parent's clock.
    ticks_us: Vec<u64>,
    /// All lines other than `ready` and `tick`.
    others: Vec<String>,
    errors: String,
}

/// A running parent. Dropping it kills it.
pub(crate) struct Parent {
    process: Child,
    output: Arc<Mutex<ParentOutput>>,
    pid: i32,
    hash: u64,
}

impl Parent {
    /// Starts a program and waits until it is ready.
    pub(crate) fn start(program: Program, arguments: &[&str]) -> Self {
        Self::start_command(program.command().args(arguments))
    }

    /// Starts a program in a new session, as its leader.
    pub(crate) fn start_in_own_session(program: Program, arguments: &[&str]) -> Self {
        let program = program.command();
        let mut command = Command::new("setsid");
        Self::start_command(command.arg(program.get_program()).args(program.get_args()).args(arguments))
    }

    /// Starts a command, and waits until it is ready.
    pub(crate) fn start_command(command: &mut Command) -> Self {
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut process = spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let parent_output = Arc::new(Mutex::new(ParentOutput::default()));
        read_output(process.stdout.take().expect("a pipe"), Arc::clone(&parent_output));
        collect_errors(process.stderr.take().expect("a pipe"), Arc::clone(&parent_output));
        let mut parent = Self { process, output: parent_output, pid: 0, hash: 0 };
        (parent.pid, parent.hash) = wait::wait_until(&format!("{command:?} is ready"), READY_LIMIT, || {
            parent.require_alive();
            parent.output().ready
        });
        parent
    }

    /// Process id of the parent on the host.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Process id of the parent on the host, as text for a command line.
    pub(crate) fn pid_text(&self) -> String {
        self.pid.to_string()
    }

    /// Returns the answer of a correct child to a payload that begins with this number.
    pub(crate) fn expected_answer(&self, number: u64) -> u64 {
        self.hash.wrapping_add(number)
    }

    /// Number of ticks so far. Use it as a mark for [`Self::longest_gap_since`].
    pub(crate) fn ticks_count(&self) -> usize {
        self.output().ticks_us.len()
    }

    /// Returns the longest time between two consecutive ticks since a mark.
    pub(crate) fn longest_gap_since(&self, mark: usize) -> Duration {
        let parent_output = self.output();
        let ticks_us = &parent_output.ticks_us[mark.saturating_sub(1)..];
        let longest = ticks_us.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max();
        Duration::from_micros(longest.unwrap_or(0))
    }

    /// Waits until the parent has printed this many more ticks.
    pub(crate) fn wait_for_ticks(&mut self, count: usize) {
        let goal = self.ticks_count() + count;
        while self.ticks_count() < goal {
            let before = self.ticks_count();
            wait::wait_until("the parent continues", TICK_LIMIT, || {
                self.require_alive();
                (self.ticks_count() > before).then_some(())
            });
        }
    }

    /// Requires that the parent runs, ticks, and has reported no error.
    pub(crate) fn require_unharmed(&mut self) {
        self.wait_for_ticks(5);
        let parent_output = self.output();
        assert!(
            parent_output.errors.is_empty() && parent_output.others.is_empty(),
            "the parent says: {}{:?}",
            parent_output.errors,
            parent_output.others
        );
    }

    /// Waits for the first line that is neither `ready` nor `tick`. Returns it.
    pub(crate) fn last_line(&self) -> String {
        wait::wait_until("the parent's last words", LAST_WORDS_LIMIT, || self.output().others.first().cloned())
    }

    /// Kills the parent, and waits until it has ended.
    pub(crate) fn kill(&mut self) -> ExitStatus {
        // kill(2) fails if the parent has ended.
        let _ = self.process.kill();
        wait::wait_exit(&mut self.process, "the killed parent ends", END_LIMIT)
    }

    /// Waits until the parent has ended, by itself or by a signal of another process.
    pub(crate) fn wait_end(&mut self) -> ExitStatus {
        wait::wait_exit(&mut self.process, "the parent ends", END_LIMIT)
    }

    fn output(&self) -> std::sync::MutexGuard<'_, ParentOutput> {
        self.output.lock().expect("readers do not panic")
    }

    /// Requires that the parent has not ended.
    pub(crate) fn require_alive(&mut self) {
        if let Some(status) = self.process.try_wait().expect("our own child") {
            let signal = status.signal();
            panic!("the parent ended: {status} (signal {signal:?}); its standard error: {}", self.output().errors);
        }
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        // kill(2) fails if the parent has ended.
        let _ = self.process.kill();
        wait::reap_killed(&mut self.process);
    }
}

fn read_output(stdout: impl Read + Send + 'static, parent_output: Arc<Mutex<ParentOutput>>) {
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let mut parent_output = parent_output.lock().expect("no thread panics with the lock held");
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["tick", time] => parent_output.ticks_us.push(time.parse().unwrap_or(0)),
                ["ready", pid, hash] => parent_output.ready = pid.parse().ok().zip(hash.parse().ok()),
                _ => parent_output.others.push(line),
            }
        }
    });
}

fn collect_errors(mut stderr: impl Read + Send + 'static, parent_output: Arc<Mutex<ParentOutput>>) {
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = stderr.read(&mut piece) {
            parent_output
                .lock()
                .expect("no thread panics with the lock held")
                .errors
                .push_str(&String::from_utf8_lossy(&piece[..count]));
        }
    });
}
