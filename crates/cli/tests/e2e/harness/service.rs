//! `Service`: a real server as a parent, reached through its port. The parent's server is in the network of the tests,
//! a child's server in the child's own network.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farfork_sys::{namespace, pidfd};
use rustix::process::{Pid, Signal, kill_process};

use super::scratch::TestDirectory;
use super::{print_error, scratch, wait};

/// Longest wait until a server listens, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Number of log lines of a server that a failure shows.
const LOG_LINES_MAX: usize = 20;

/// A running server. Dropping it kills it and its workers.
pub(crate) struct Service {
    process: Child,
    files: TestDirectory,
}

impl Service {
    /// Starts the command that `command` returns for the server's directory. Waits until the server listens.
    pub(crate) fn start(port: u16, command: impl FnOnce(&std::path::Path) -> Command) -> Self {
        let files = scratch::directory();
        let mut command = command(files.path());
        let log = File::create(files.path().join("log")).expect("a scratch directory can be written");
        let errors = log.try_clone().expect("a descriptor is left");
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let process = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}: run scripts/setup.sh"));
        let mut service = Self { process, files };
        wait::wait_until(&format!("{command:?} listens"), READY_LIMIT, || {
            service.require_alive();
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        });
        service
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid_text().parse().expect("a process id")
    }

    pub(crate) fn pid_text(&self) -> String {
        self.process.id().to_string()
    }

    /// Sends a signal to the server.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("our own child");
    }

    /// Ends the server with a signal that requests termination. Requires success as its exit status.
    pub(crate) fn end(&mut self, signal: Signal) {
        self.signal(signal);
        let ended = || self.process.try_wait().expect("our own child");
        let status = wait::wait_until("the server ends", ANSWER_LIMIT, ended);
        assert!(status.success(), "the server ended: {status}");
    }

    /// Requires that the server has not ended.
    pub(crate) fn require_alive(&mut self) {
        if let Some(status) = self.process.try_wait().expect("our own child") {
            panic!("the server ended: {status}");
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if thread::panicking() {
            let text = fs::read_to_string(self.files.path().join("log")).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            print_error(format_args!(
                "-- the server's log:\n{}",
                lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n")
            ));
        }
        wait::kill_group(&mut self.process);
    }
}

/// Returns a port without a listener.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

/// Connects to a server. Reads and writes have time limits.
pub(crate) fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server listens");
    stream.set_read_timeout(Some(ANSWER_LIMIT)).expect("a limit can be set");
    stream.set_write_timeout(Some(ANSWER_LIMIT)).expect("a limit can be set");
    stream
}

/// Calls a function in the network namespace of a process.
pub(crate) fn run_in_network_of<T: Send>(pid: i32, body: impl FnOnce() -> T + Send) -> T {
    let enter = || {
        let process = pidfd::open(pid).expect("the child lives");
        namespace::enter_network_of(std::os::fd::AsFd::as_fd(&process)).expect("root may enter any network");
        body()
    };
    let outcome = thread::scope(|scope| scope.spawn(enter).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A thread that sends requests to a server continuously.
pub(crate) struct RequestLoad {
    is_over: Arc<AtomicBool>,
    asking: Option<JoinHandle<u64>>,
}

impl RequestLoad {
    /// Starts a thread that calls `ask` repeatedly with its own connection.
    pub(crate) fn start(port: u16, mut ask: impl FnMut(&mut TcpStream) + Send + 'static) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, mut stream) = (Arc::clone(&is_over), connect(port));
        let asking = thread::spawn(move || {
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                ask(&mut stream);
                count += 1;
            }
            count
        });
        Self { is_over, asking: Some(asking) }
    }

    /// Stops the thread. Returns the number of requests, all of which were answered.
    pub(crate) fn stop(mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        let asking = self.asking.take().expect("it is stopped once");
        asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for RequestLoad {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
