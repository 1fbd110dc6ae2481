//! `WorkerProcess`: the supervisor's handle for a worker. Starts a worker in its own control groups and directory,
//! requests tests, and stops or kills the worker.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::group_set::GroupSet;
use super::outcome::{Failure, FailureKind};
use super::protocol::{self, Channel, Report, Request};
use super::run_context::RunContext;
use super::worker::WORKER_ARGUMENT;
use super::{cleanup, diagnosis, log_directory, run_directory};
use crate::harness::{leftovers, print_error, wait};

/// Longest wait until a worker has started and joined its groups, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait until the shared cluster is taken down and all its remains have disappeared.
const STOP_LIMIT: Duration = Duration::from_secs(180);

/// Longest wait until a worker has ended after its last report.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Interval at which the output of a running test is forwarded.
const FORWARD_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of bytes that are forwarded at once. The terminal may be slower than the test.
const FORWARD_BYTES_MAX: u64 = 1 << 20;

/// Unit of the limit for the output of a test.
const MIB: u64 = 1 << 20;

/// Longest wait for the command line of a process. Reading it may block on a lock that a hanging process holds.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(5);

/// A running worker.
pub(super) struct WorkerProcess<'a> {
    run: &'a RunContext,
    process: Child,
    traces: WorkerTraces,
    requests: UnixStream,
    reports: Receiver<Report>,
    output: WorkerOutput,
}

/// The groups and the directory that contain everything that a worker makes.
struct WorkerTraces {
    groups: GroupSet,
    directory: PathBuf,
    /// A part of the paths of the worker's groups, which no other group has in its path.
    mark: String,
}

/// The output of the worker and the tests. It is a file, so that no process blocks on a pipe.
struct WorkerOutput {
    file: File,
    forwarded_bytes: u64,
    /// Position at which the output of the current test begins.
    test_begin: u64,
}

impl<'a> WorkerProcess<'a> {
    /// Starts a worker. The caller must hold `RunContext::lock_workers`.
    pub(super) fn start(run: &'a RunContext) -> io::Result<Self> {
        let traces = WorkerTraces::make(run)?;
        let output_path = traces.directory.join("output");
        let output = File::options().create(true).append(true).open(&output_path)?;
        let socket = traces.directory.join("supervisor.sock");
        let listener = UnixListener::bind(&socket)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("test-worker").arg(WORKER_ARGUMENT).arg(&socket).env("TMPDIR", &traces.directory);
        // A process group of its own: signals of the terminal must reach only the supervisor, which ends the worker.
        command.process_group(0).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut process = command.spawn()?;
        let connected = connect(&listener, &mut process, &traces.groups);
        let (requests, reports) = match connected {
            Ok(ends) => ends,
            Err(error) => {
                let _ = process.kill();
                traces.remove();
                let _ = process.try_wait();
                return Err(error);
            }
        };
        let output = WorkerOutput { file: File::open(output_path)?, forwarded_bytes: 0, test_begin: 0 };
        Ok(Self { run, process, traces, requests, reports, output })
    }

    /// Runs a test. If the test, or a wait within it, times out, writes the state of its processes to `log`. If the
    /// test fails, also writes its output to `log`, and the caller must discard the worker.
    pub(super) fn run_test(&mut self, test: &str, limit: Duration, log: &Path) -> Result<(), Failure> {
        self.output.begin_test();
        let outcome = self.await_end(test, limit, log).and_then(|()| self.require_no_leak());
        self.output.forward();
        if let Err(failure) = &outcome {
            let written = self.output.append_to(log, self.run.output_bytes_max, failure);
            written.unwrap_or_else(|error| print_error(format_args!("{}: {error}", log.display())));
        }
        outcome
    }

    fn await_end(&mut self, test: &str, limit: Duration, log: &Path) -> Result<(), Failure> {
        let deadline = Instant::now() + limit;
        let mut panics: Vec<Failure> = Vec::new();
        // Sending fails if the worker has ended. Then its socket is closed, and the channel of reports shows that.
        let _ = protocol::send(&mut self.requests, &Request::Run { test: test.to_owned() });
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let report = self.reports.recv_timeout(left.min(FORWARD_INTERVAL));
            self.output.forward();
            match report {
                Ok(Report::Panicked(failure)) => {
                    if failure.kind == FailureKind::TimedOut {
                        // Record a timeout only if it is the first failure: it causes further ones.
                        if panics.is_empty() {
                            self.record(log);
                        }
                        let _ = protocol::send(&mut self.requests, &Request::Resume);
                    }
                    panics.push(failure);
                }
                Ok(Report::Ended { failure }) => return failure.map_or(Ok(()), Err),
                _ if self.output.bytes_of_test() > self.run.output_bytes_max => {
                    let limit_mib = self.run.output_bytes_max / MIB;
                    panics.push(Failure::wrong(format!("the test has written more than {limit_mib} MiB")));
                    return Failure::from_panics(&panics).map_or(Ok(()), Err);
                }
                Ok(Report::Entered | Report::Stopped { .. }) | Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Ok(_) | Err(RecvTimeoutError::Timeout) => {
                    self.record(log);
                    panics.push(Failure::timed_out(format!("not done after {} s", limit.as_secs())));
                    return Failure::from_panics(&panics).map_or(Ok(()), Err);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panics.push(self.exit_failure());
                    return Failure::from_panics(&panics).map_or(Ok(()), Err);
                }
            }
        }
    }

    /// Requires that the programs and commands of a test have ended. Processes of nodes are in other groups.
    fn require_no_leak(&self) -> Result<(), Failure> {
        let own = self.process.id().cast_signed();
        let has_left = || {
            let mut members = self.traces.groups.leaf_members();
            members.remove(&own);
            members
        };
        let Some(()) = wait::poll_within(self.run.leak_limit, || has_left().is_empty().then_some(())) else {
            let list: Vec<String> = has_left().into_iter().map(describe_process).collect();
            return Err(Failure::wrong(format!("the test has left processes: {}", list.join("\n"))));
        };
        Ok(())
    }

    fn record(&self, log: &Path) {
        diagnosis::record(&self.traces.groups, &self.traces.directory, &self.traces.mark, log);
    }

    fn exit_failure(&mut self) -> Failure {
        match wait::poll_within(END_LIMIT, || self.process.try_wait().transpose()) {
            Some(Ok(status)) => Failure::wrong(format!("the worker ended: {status}")),
            _ => Failure::wrong("the worker closed its socket"),
        }
    }

    /// Stops the shared cluster, ends the worker, and removes everything that was left on the machine. Returns these
    /// remains.
    pub(super) fn stop(mut self) -> Vec<String> {
        let _ = protocol::send(&mut self.requests, &Request::Stop);
        let deadline = Instant::now() + STOP_LIMIT;
        let mut remains = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let report = self.reports.recv_timeout(left);
            match report {
                Ok(Report::Stopped { remains }) => break remains,
                // A thread waits for the answer, and the worker cannot report anything before.
                Ok(Report::Panicked(failure)) if failure.kind == FailureKind::TimedOut => {
                    let _ = protocol::send(&mut self.requests, &Request::Resume);
                }
                Ok(_) => {}
                Err(_) => break vec!["the shared cluster was not stopped".to_owned()],
            }
        };
        self.output.forward();
        let _ = wait::poll_within(END_LIMIT, || self.process.try_wait().transpose());
        remains.extend(self.traces.groups.members().unwrap_or_default().into_iter().map(describe_process));
        remains.extend(self.discard());
        remains
    }

    /// Kills all processes of the worker, and removes everything that it has made. Returns the objects that could not
    /// be removed.
    pub(super) fn discard(mut self) -> Vec<String> {
        let _ = self.process.kill();
        let held = self.run.lock_workers();
        let problems = self.traces.remove();
        drop(held);
        let _ = wait::poll_within(END_LIMIT, || self.process.try_wait().transpose());
        problems
    }
}

impl WorkerTraces {
    fn make(run: &RunContext) -> io::Result<Self> {
        let name = run.next_worker_name();
        let groups = run.groups.create_below(&name)?;
        let directory = run.directory.join(&name);
        run_directory::make(&directory)?;
        Ok(Self { groups, directory, mark: format!("{}/{name}", run.name) })
    }

    fn remove(&self) -> Vec<String> {
        cleanup::remove_all(&self.groups, &self.directory, &self.mark)
    }
}

impl WorkerOutput {
    fn begin_test(&mut self) {
        self.forward();
        self.test_begin = self.forwarded_bytes;
    }

    /// Writes new output to standard error. Processes may write at the same time, so only the output until now is read.
    fn forward(&mut self) {
        let length = self.length();
        if length < self.forwarded_bytes {
            // A program has opened `/dev/stderr`, which truncates the file.
            (self.test_begin, self.forwarded_bytes) = (0, 0);
        }
        let new_bytes = length - self.forwarded_bytes;
        let mut new = Vec::new();
        let _ = self.read_from(self.forwarded_bytes, new_bytes.min(FORWARD_BYTES_MAX)).read_to_end(&mut new);
        let _ = io::stderr().write_all(&new);
        if new_bytes > FORWARD_BYTES_MAX {
            print_error(format_args!("\n{} bytes of output are not shown", new_bytes - FORWARD_BYTES_MAX));
        }
        self.forwarded_bytes = length;
    }

    /// Returns the number of bytes that the current test has written.
    fn bytes_of_test(&self) -> u64 {
        self.length().saturating_sub(self.test_begin)
    }

    fn length(&self) -> u64 {
        self.file.metadata().map_or(self.forwarded_bytes, |data| data.len())
    }

    fn read_from(&mut self, begin: u64, bytes_max: u64) -> impl io::Read {
        // Seeking in a regular file does not fail.
        let _ = self.file.seek(SeekFrom::Start(begin));
        (&mut self.file).take(bytes_max)
    }

    /// Appends the failure, and at most `bytes_max` of the output of the current test, to a file.
    fn append_to(&mut self, path: &Path, bytes_max: u64, failure: &Failure) -> io::Result<()> {
        let mut log = log_directory::open_log(path)?;
        writeln!(log, "== failure\n{}\n== output of the test", failure.reason)?;
        let bytes = self.bytes_of_test().min(bytes_max);
        io::copy(&mut self.read_from(self.test_begin, bytes), &mut log)?;
        Ok(())
    }
}

/// Waits until the worker has connected and joined its groups.
fn connect(
    listener: &UnixListener,
    process: &mut Child,
    groups: &GroupSet,
) -> io::Result<(UnixStream, Receiver<Report>)> {
    listener.set_nonblocking(true)?;
    let accepted = wait::poll_within(START_LIMIT, || match listener.accept() {
        Ok((stream, _)) => Some(Ok(stream)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let status = process.try_wait().ok()??;
            Some(Err(io::Error::other(format!("the worker ended: {status}"))))
        }
        Err(error) => Some(Err(error)),
    });
    let stream = accepted.ok_or(io::ErrorKind::TimedOut)??;
    stream.set_nonblocking(false)?;
    let mut channel = Channel::new(stream.try_clone()?)?;
    channel.send(&Request::Enter { supervisor: std::process::id(), groups: groups.leaves() })?;
    let (sender, reports) = mpsc::channel();
    let forward_reports = move || {
        while let Ok(report) = channel.receive() {
            if sender.send(report).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().spawn(forward_reports)?;
    match reports.recv_timeout(START_LIMIT) {
        Ok(Report::Entered) => Ok((stream, reports)),
        Ok(other) => Err(io::Error::other(format!("the worker begins with {other:?}"))),
        Err(error) => Err(io::Error::other(format!("the worker did not join its groups: {error}"))),
    }
}

fn describe_process(pid: i32) -> String {
    format!("process {pid}: {}", leftovers::command_line_within(pid, DESCRIBE_LIMIT))
}
