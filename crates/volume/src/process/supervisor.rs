//! The supervisor: starts the processes of a mount, starts each again when it dies, and ends with the mount.
//!
//! The command `farfork volume mount` runs it. A client that dies takes its mount along: programs get ENOTCONN until the
//! next client has mounted again at the same place. Nothing that was acknowledged is lost.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::statvfs;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Signal, set_parent_process_death_signal};

/// How often the supervisor looks for dead processes.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// A process that dies at once is not started again before this.
const RESTART_INTERVAL: Duration = Duration::from_millis(100);

/// A process of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// Has the mount. Writes a line to standard output when it is usable.
    Client,
    /// Reads the log and orders publishing.
    Offload,
    /// Changes the shared tree.
    Worker,
}

impl ProcessRole {
    /// In the order in which they start.
    pub const ALL: [Self; 3] = [Self::Worker, Self::Offload, Self::Client];

    /// The name, also as an argument of the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Offload => "offload",
            Self::Worker => "worker",
        }
    }
}

/// The running processes of one mount. They end when this value is dropped.
#[derive(Debug)]
pub struct MountSupervisor<C> {
    command: C,
    mount_point: PathBuf,
    processes: Vec<SupervisedProcess>,
}

#[derive(Debug)]
struct SupervisedProcess {
    role: ProcessRole,
    child: Child,
    started: Instant,
}

impl<C: Fn(ProcessRole) -> Command> MountSupervisor<C> {
    /// Starts all processes, and waits until the volume is mounted. `command` makes the command of a role.
    ///
    /// # Errors
    /// When a process cannot be started, or the client ends before it has mounted.
    pub fn start(mount_point: &Path, command: C) -> io::Result<Self> {
        let mut supervisor = Self { command, mount_point: mount_point.to_owned(), processes: Vec::new() };
        supervisor.detach_dead_mount();
        for role in ProcessRole::ALL {
            let process = supervisor.spawn(role)?;
            supervisor.processes.push(process);
        }
        let client = supervisor.process_mut(ProcessRole::Client);
        let mut line = [0; 1];
        let mut output = client.child.stdout.take().expect("standard output is a pipe");
        output.read_exact(&mut line).map_err(|_| io::Error::other("the client ended before it had mounted"))?;
        Ok(supervisor)
    }

    /// The process id of a role.
    pub fn process_id(&self, role: ProcessRole) -> u32 {
        let process = self.processes.iter().find(|process| process.role == role);
        process.expect("every role has a process").child.id()
    }

    /// Restarts what has died. The client's exit status when the volume is unmounted.
    ///
    /// # Errors
    /// When a process cannot be started again.
    pub fn check(&mut self) -> io::Result<Option<ExitStatus>> {
        for index in 0..self.processes.len() {
            let process = &mut self.processes[index];
            let Some(status) = process.child.try_wait()? else { continue };
            let role = process.role;
            if role == ProcessRole::Client && status.success() {
                return Ok(Some(status));
            }
            tracing::warn!(role = role.name(), %status, "a process of the volume died and is started again");
            thread::sleep(RESTART_INTERVAL.saturating_sub(process.started.elapsed()));
            if role == ProcessRole::Client {
                self.detach_dead_mount();
            }
            self.processes[index] = self.spawn(role)?;
        }
        Ok(None)
    }

    /// Supervises until the volume is unmounted.
    ///
    /// # Errors
    /// As `check`.
    pub fn run(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.check()? {
                return Ok(status);
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }

    fn spawn(&self, role: ProcessRole) -> io::Result<SupervisedProcess> {
        let mut command = (self.command)(role);
        if role == ProcessRole::Client {
            command.stdout(Stdio::piped());
        }
        Ok(SupervisedProcess { role, child: command.spawn()?, started: Instant::now() })
    }

    fn process_mut(&mut self, role: ProcessRole) -> &mut SupervisedProcess {
        let process = self.processes.iter_mut().find(|process| process.role == role);
        process.expect("every role has a process")
    }
}

impl<C> MountSupervisor<C> {
    /// Detaches the mounts of clients that died, and no other. stat(2) would be answered from the kernel's cache; statfs(2)
    /// asks the client.
    fn detach_dead_mount(&self) {
        while statvfs(&self.mount_point).is_err_and(|error| error == Errno::NOTCONN) {
            if unmount(&self.mount_point, UnmountFlags::DETACH).is_err() {
                return;
            }
        }
    }
}

impl<C> Drop for MountSupervisor<C> {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // An error means that it has ended.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        self.detach_dead_mount();
    }
}

/// Called by each process at its start: it ends with its supervisor, whose thread must live as long.
///
/// # Errors
/// As prctl(2).
pub fn end_with_supervisor() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
