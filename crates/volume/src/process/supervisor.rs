//! The supervisors: start processes, and restart each one that dies. Acknowledged data is not lost.
//!
//! The daemon runs `NodeSupervisor` for the offload process and the worker of its node. `farfork volume mount` runs
//! `MountSupervisor` for one client. When a client dies, programs on its mount get ENOTCONN until the next client has
//! mounted the volume at the same path.

use std::env;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::pidfd;
use farfork_sys::process::ProcStat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::mount::{abort_mount, detach_dead_mounts, has_volume_mount};

/// Minimum time between two starts of a process.
const RESTART_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longest time between two starts of a process that fails by itself each time. The cause usually lasts longer than
/// milliseconds, and each start costs processor time.
const RESTART_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// A process that has run for this time was healthy: its next failure counts as the first one.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// Interval between two checks whether threads of a dead client are blocked in the kernel. No event reports this.
const HELD_CLIENT_INTERVAL: Duration = Duration::from_secs(1);
/// Environment variable with the process id of the supervisor.
const SUPERVISOR_VARIABLE: &str = "FARFORK_VOLUME_SUPERVISOR";
/// Exit status of a process that a panic has ended. A Rust program whose main thread panics has the same.
const EXIT_PANICKED: i32 = 101;
/// Exit status of a client that may succeed if it is started again: EX_TEMPFAIL of sysexits.h.
pub(super) const TRY_AGAIN_STATUS: i32 = 75;
/// Longest time for which a client is started again before it has mounted: its node may have left the chain, and returns.
const FIRST_MOUNT_TIMEOUT: Duration = Duration::from_secs(30);

/// The role of a supervised process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// Serves the mount of a volume. Writes a line to standard output when the mount is usable.
    Client,
    /// Reads the logs of the node's volumes, replicates them, and orders publishing.
    Offload,
    /// Changes the shared trees of the node's volumes.
    Worker,
}

impl ProcessRole {
    /// The processes that exist once per node, in the order in which they start.
    pub const OF_NODE: [Self; 2] = [Self::Worker, Self::Offload];

    /// The name, which is also an argument on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Offload => "offload",
            Self::Worker => "worker",
        }
    }
}

/// The running offload process and worker of a node. They end when this value is dropped.
#[derive(Debug)]
pub struct NodeSupervisor<C> {
    processes: SupervisedProcesses<C>,
}

impl<C: Fn(ProcessRole) -> Command> NodeSupervisor<C> {
    /// Starts both processes. `command` makes the command of a role. The calling thread must outlive this value: when the
    /// thread ends, the kernel kills the processes.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn start(command: C) -> io::Result<Self> {
        let mut processes = SupervisedProcesses { command, processes: Vec::new() };
        for role in ProcessRole::OF_NODE {
            processes.start(role)?;
        }
        Ok(Self { processes })
    }

    /// The id of the latest process of a role.
    pub fn process_id(&self, role: ProcessRole) -> u32 {
        self.processes.of(role).child.id()
    }

    /// Restarts processes that have died, once their restart is due.
    pub fn check(&mut self) {
        self.processes.collect_ended();
        self.processes.restart_due();
    }

    /// Waits until `check` has work, or one of these descriptors is readable, at most `limit`.
    ///
    /// # Errors
    /// As poll(2).
    pub fn wait(&self, wakeups: &[BorrowedFd<'_>], limit: Option<Duration>) -> io::Result<()> {
        self.processes.wait(wakeups, limit)
    }
}

/// The running client of one mount. Dropping this value ends the client and its mount.
#[derive(Debug)]
pub struct MountSupervisor<C> {
    mount_point: PathBuf,
    /// Whether a client of this supervisor has mounted. If not, another supervisor has the mount at the path.
    has_mounted: bool,
    processes: SupervisedProcesses<C>,
}

/// The error when a client ends before it has mounted. The client has written the cause to standard error.
pub const CLIENT_ENDED: &str = "the client ended before it had mounted";

impl<C: Fn(ProcessRole) -> Command> MountSupervisor<C> {
    /// Starts the client, and waits until the volume is mounted. `command` makes the command of the client. The calling
    /// thread must outlive this value: when the thread ends, the kernel kills the client.
    ///
    /// # Errors
    /// When the client cannot be started, or ends before it has mounted. A client whose node has just left the chain is started
    /// again for [`FIRST_MOUNT_TIMEOUT`].
    pub fn start(mount_point: &Path, command: C) -> io::Result<Self> {
        let processes = SupervisedProcesses { command, processes: Vec::new() };
        let mut supervisor = Self { mount_point: mount_point.to_owned(), has_mounted: false, processes };
        let deadline = Instant::now() + FIRST_MOUNT_TIMEOUT;
        loop {
            supervisor.processes.start(ProcessRole::Client)?;
            let client = &mut supervisor.processes.processes[0];
            let mut output = client.child.stdout.take().expect("standard output is a pipe");
            if output.read_exact(&mut [0; 1]).is_ok() {
                supervisor.has_mounted = true;
                return Ok(supervisor);
            }
            let status = client.child.wait()?;
            if status.code() != Some(TRY_AGAIN_STATUS) || Instant::now() >= deadline {
                return Err(io::Error::other(CLIENT_ENDED));
            }
            supervisor.processes.processes.clear();
            thread::sleep(RESTART_INTERVAL_MIN);
        }
    }

    /// The id of the latest client.
    pub fn process_id(&self) -> u32 {
        self.processes.of(ProcessRole::Client).child.id()
    }

    /// Restarts the client when it has died and its restart is due. Returns the exit status of the client once the volume is
    /// unmounted.
    pub fn check(&mut self) -> Option<ExitStatus> {
        if let Some(status) = self.processes.collect_ended().filter(ExitStatus::success) {
            return Some(status);
        }
        self.release_held_client();
        // The dead mount stays until the next client mounts, so that programs get ENOTCONN instead of the directory under
        // the mount.
        let client = self.processes.of(ProcessRole::Client);
        if (client.restart_at.is_some() || client.is_starting()) && self.is_unmounted() {
            return Some(ExitStatus::default());
        }
        self.processes.restart_due();
        None
    }

    /// Whether the dead mount was unmounted. False if this cannot be determined.
    fn is_unmounted(&self) -> bool {
        has_volume_mount(&self.mount_point).is_ok_and(|is_mounted| !is_mounted)
    }

    /// Supervises the client until the volume is unmounted.
    ///
    /// # Errors
    /// As poll(2).
    pub fn run(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.check() {
                return Ok(status);
            }
            self.processes.wait(&[], Some(HELD_CLIENT_INTERVAL))?;
        }
    }

    /// Aborts the FUSE connection if a killed client does not end. One of its threads may wait in the kernel for the lock of
    /// a directory, while a program has this lock and waits for the client.
    fn release_held_client(&mut self) {
        let client = &mut self.processes.processes[0];
        let is_exiting = || ProcStat::read(client.child.id().cast_signed()).is_ok_and(|stat| stat.is_exiting());
        let is_held = client.restart_at.is_none() && is_exiting() && matches!(client.child.try_wait(), Ok(None));
        if is_held {
            // An error means that the volume is unmounted, which has released the threads.
            let _ = abort_mount(&self.mount_point);
        }
    }
}

impl<C> Drop for MountSupervisor<C> {
    fn drop(&mut self) {
        self.processes.kill();
        let client = &mut self.processes.processes[0];
        if self.has_mounted && matches!(client.child.try_wait(), Ok(None)) {
            let _ = abort_mount(&self.mount_point);
        }
        self.processes.kill_and_wait();
        detach_dead_mounts(&self.mount_point);
    }
}

/// Processes, each with its role.
///
/// ```text
///            dies                      restart_at has passed
///   runs ──────────▶ waits for restart ─────────────────────▶ runs
/// ```
#[derive(Debug)]
struct SupervisedProcesses<C> {
    command: C,
    processes: Vec<SupervisedProcess>,
}

#[derive(Debug)]
struct SupervisedProcess {
    role: ProcessRole,
    child: Child,
    pidfd: OwnedFd,
    started: Instant,
    /// Number of consecutive times that the process has failed by itself in less than `HEALTHY_AFTER`.
    failures: u32,
    /// When to restart the process; none while it runs.
    restart_at: Option<Instant>,
}

impl SupervisedProcess {
    /// Whether this is a restarted client that has not mounted yet. It writes a line to standard output when it has mounted.
    fn is_starting(&self) -> bool {
        self.child.stdout.as_ref().is_some_and(|output| {
            let mut polled = [PollFd::new(output, PollFlags::IN)];
            poll(&mut polled, Some(&Timespec::default())) == Ok(0)
        })
    }

    /// Updates the number of failures of a process that has ended. Returns when to restart it.
    fn restart_after(&mut self, status: ExitStatus) -> Instant {
        // A process that was killed is restarted soon: the next one is probably not killed.
        let failed_by_itself = status.code().is_some() && self.started.elapsed() < HEALTHY_AFTER;
        self.failures = if failed_by_itself { self.failures + 1 } else { 0 };
        self.started + restart_interval(self.failures)
    }
}

/// Returns the minimum time between two starts. The time doubles with each failure after the first.
fn restart_interval(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    RESTART_INTERVAL_MIN.saturating_mul(1 << doublings).min(RESTART_INTERVAL_MAX)
}

impl<C: Fn(ProcessRole) -> Command> SupervisedProcesses<C> {
    fn start(&mut self, role: ProcessRole) -> io::Result<()> {
        let process = self.spawn(role)?;
        self.processes.push(process);
        Ok(())
    }

    fn spawn(&self, role: ProcessRole) -> io::Result<SupervisedProcess> {
        let mut command = (self.command)(role);
        command.env(SUPERVISOR_VARIABLE, std::process::id().to_string());
        if role == ProcessRole::Client {
            command.stdout(Stdio::piped());
        }
        let mut child = command.spawn()?;
        let pidfd = pidfd::open(child.id().cast_signed()).inspect_err(|_| {
            // Without a pidfd, the end of the process would not be noticed.
            let _ = child.kill().and_then(|()| child.wait());
        })?;
        Ok(SupervisedProcess { role, child, pidfd, started: Instant::now(), failures: 0, restart_at: None })
    }

    fn of(&self, role: ProcessRole) -> &SupervisedProcess {
        self.processes.iter().find(|process| process.role == role).expect("the role has a process")
    }

    /// Reaps processes that have ended. Returns the status of the last one.
    fn collect_ended(&mut self) -> Option<ExitStatus> {
        let mut last = None;
        for process in self.processes.iter_mut().filter(|process| process.restart_at.is_none()) {
            // An error means that the process was reaped elsewhere.
            let Ok(Some(status)) = process.child.try_wait() else { continue };
            process.restart_at = Some(process.restart_after(status));
            if process.role != ProcessRole::Client || !status.success() {
                tracing::warn!(role = process.role.name(), %status, "a volume process died and is started again");
            }
            last = Some(status);
        }
        last
    }

    /// Restarts processes whose restart is due. A failed start is repeated later.
    fn restart_due(&mut self) {
        for index in 0..self.processes.len() {
            let SupervisedProcess { role, restart_at, failures, .. } = self.processes[index];
            if restart_at.is_none_or(|at| at > Instant::now()) {
                continue;
            }
            match self.spawn(role) {
                Ok(process) => self.processes[index] = SupervisedProcess { failures, ..process },
                Err(error) => {
                    tracing::error!(role = role.name(), %error, "a volume process cannot be started and is tried again");
                    self.processes[index].restart_at = Some(Instant::now() + RESTART_INTERVAL_MAX);
                }
            }
        }
    }

    /// Waits until a process ends, a restart is due, or a descriptor is readable.
    fn wait(&self, wakeups: &[BorrowedFd<'_>], limit: Option<Duration>) -> io::Result<()> {
        let running = self.processes.iter().filter(|process| process.restart_at.is_none());
        let watched = running.map(|process| process.pidfd.as_fd()).chain(wakeups.iter().copied());
        let mut polled: Vec<PollFd<'_>> = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let restarts = self.processes.iter().filter_map(|process| process.restart_at);
        let until_restart = restarts.min().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = [limit, until_restart].into_iter().flatten().min();
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl<C> SupervisedProcesses<C> {
    fn kill(&mut self) {
        for process in &mut self.processes {
            // An error means that the process has ended.
            let _ = process.child.kill();
        }
    }

    fn kill_and_wait(&mut self) {
        // All are killed first, so that they end in parallel.
        self.kill();
        for process in &mut self.processes {
            let _ = process.child.wait();
        }
    }
}

impl<C> Drop for SupervisedProcesses<C> {
    fn drop(&mut self) {
        self.kill_and_wait();
    }
}

/// Makes the kernel kill the calling process when the supervisor's thread ends. Each supervised process calls this at its
/// start.
///
/// # Errors
/// As prctl(2); `NotFound` when the supervisor has ended already.
pub fn end_with_supervisor() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A supervisor that ended before the call above sends no signal.
    let Some(supervisor) = env::var_os(SUPERVISOR_VARIABLE) else { return Ok(()) };
    let parent = getppid().map_or(0, |parent| parent.as_raw_pid());
    if supervisor == parent.to_string().as_str() { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Makes a panic of any thread end the calling process. Otherwise its other threads, and programs, could wait for the ended
/// thread forever. The supervisor starts the next process.
pub fn end_after_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        tracing::error!("a thread has panicked: this process ends, and is started again");
        std::process::exit(EXIT_PANICKED);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::mount_volume;

    const WAIT_LIMIT: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_killed_process_is_restarted_and_the_other_continues() {
        let mut supervisor = NodeSupervisor::start(|_| shell("exec sleep 1000")).unwrap();
        let [worker, offload] = ProcessRole::OF_NODE.map(|role| supervisor.process_id(role));
        let killed = pidfd::open(worker.cast_signed()).unwrap();
        pidfd::send_signal(&killed, Signal::KILL.as_raw()).unwrap();
        let deadline = Instant::now() + WAIT_LIMIT;
        while supervisor.process_id(ProcessRole::Worker) == worker {
            assert!(Instant::now() < deadline);
            supervisor.wait(&[], Some(WAIT_LIMIT)).unwrap();
            supervisor.check();
        }
        assert_eq!(supervisor.process_id(ProcessRole::Offload), offload);
        let other = pidfd::open(offload.cast_signed()).unwrap();
        drop(supervisor);
        assert!(pidfd::wait_exit(&other, Duration::ZERO).unwrap(), "the processes end with the supervisor");
    }

    #[test]
    fn a_descriptor_ends_the_wait() {
        let supervisor = NodeSupervisor::start(|_| shell("exec sleep 1000")).unwrap();
        let (reader, writer) = io::pipe().unwrap();
        drop(writer);
        let began = Instant::now();
        supervisor.wait(&[reader.as_fd()], Some(WAIT_LIMIT)).unwrap();
        assert!(began.elapsed() < WAIT_LIMIT);
    }

    #[test]
    fn a_client_that_exits_with_success_ends_supervision() {
        let directory = tempfile::tempdir().unwrap();
        let mut supervisor = MountSupervisor::start(directory.path(), |_| shell("echo mounted; sleep 0.1")).unwrap();
        assert!(supervisor.run().unwrap().success());
    }

    #[test]
    fn a_first_client_is_started_again_only_if_that_may_help() {
        let directory = tempfile::tempdir().unwrap();
        let count = directory.path().join("count");
        let starts = || std::fs::read_to_string(&count).unwrap().lines().count();
        let script = format!("echo x >> {0}; [ $(wc -l < {0}) -ge 3 ] || exit 75; echo mounted", count.display());
        let mut supervisor = MountSupervisor::start(directory.path(), |_| shell(&script)).unwrap();
        assert!(supervisor.run().unwrap().success() && starts() == 3);
        let script = format!("echo x >> {}; exit 1", count.display());
        let refused = MountSupervisor::start(directory.path(), |_| shell(&script)).map(drop).unwrap_err();
        assert!(refused.to_string() == CLIENT_ENDED && starts() == 4);
    }

    #[test]
    fn a_client_that_dies_is_started_again() {
        let directory = tempfile::tempdir().unwrap();
        let (count, mount_point) = (directory.path().join("count"), directory.path().join("mount"));
        std::fs::create_dir(&mount_point).unwrap();
        // A mount without a client. The supervisor detaches it.
        let (device, mount) = mount_volume("data", &mount_point).unwrap();
        mount.forget();
        drop(device);
        let script = format!("echo mounted; echo x >> {0}; [ $(wc -l < {0}) -ge 3 ]", count.display());
        let mut supervisor = MountSupervisor::start(&mount_point, |_| shell(&script)).unwrap();
        assert!(supervisor.run().unwrap().success());
        assert_eq!(std::fs::read_to_string(count).unwrap().lines().count(), 3);
    }

    #[test]
    fn a_client_that_does_not_mount_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(MountSupervisor::start(directory.path(), |_| shell("exit 1")).is_err());
    }

    #[test]
    fn restarts_after_failures_have_growing_pauses() {
        assert_eq!(restart_interval(0), RESTART_INTERVAL_MIN);
        assert_eq!(restart_interval(1), RESTART_INTERVAL_MIN);
        assert_eq!(restart_interval(3), 4 * RESTART_INTERVAL_MIN);
        assert_eq!(restart_interval(40), RESTART_INTERVAL_MAX);
    }
}
