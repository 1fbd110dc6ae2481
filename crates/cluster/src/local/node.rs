//! One node of a local cluster: its name and paths, how its daemon is started, and which processes it runs.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use farfork_sys::namespace::enter_network;
use farfork_sys::process::ProcStat;
use farfork_sys::process_identity::ProcessIdentity;
use farfork_sys::{cgroup, clone, fd_passing};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use super::cgroups;
use super::network::netns_path;

/// The command that starts a daemon: program, further arguments, additions to the environment.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DaemonCommand {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
}

/// Returns the process that listens at a Unix socket; `None` if there is none.
pub fn listening_process(socket: &Path) -> Option<ProcessIdentity> {
    // Nonblocking: connect(2) would block if the daemon is stopped and its queue of connections is full.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let connection = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    rustix::net::connect(&connection, &SocketAddrUnix::new(socket).ok()?).ok()?;
    ProcessIdentity::of(fd_passing::peer_pid(connection.as_fd()).ok()??).ok()
}

/// A node of a local cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LocalNode {
    /// Its name: `n1`.
    pub name: String,
    /// The address at which its daemon listens, reachable only from the cluster's nodes.
    pub address: SocketAddr,
    /// Name of its network namespace, for `ip netns exec`.
    pub netns: String,
    /// The Unix socket of its daemon.
    pub socket: PathBuf,
    /// Its run directory.
    pub run_dir: PathBuf,
    /// Directories of the control groups that hold the daemon and all that it starts.
    pub cgroups: Vec<PathBuf>,
    /// The daemon that was started last, in the text form of [`ProcessIdentity`].
    process: Option<String>,
}

impl LocalNode {
    /// The directory of its replicas of volumes.
    pub fn volumes_dir(&self) -> PathBuf {
        self.run_dir.join("volumes")
    }

    /// A node whose daemon has not been started yet.
    pub(super) fn new(
        name: String,
        address: SocketAddr,
        netns: String,
        run_dir: PathBuf,
        cgroups: Vec<PathBuf>,
    ) -> Self {
        Self { socket: run_dir.join("node.sock"), name, address, netns, run_dir, cgroups, process: None }
    }

    /// The daemon that was started last; it may have ended.
    pub fn process(&self) -> Option<ProcessIdentity> {
        self.process.as_ref()?.parse().ok()
    }

    /// The process id of the daemon that was started last.
    pub fn pid(&self) -> Option<i32> {
        self.process().map(|process| process.pid)
    }

    /// Keeper, pager and holder: the processes of the daemon's control group, without the daemon.
    pub fn pager_pids(&self) -> Vec<i32> {
        let daemon = self.pid();
        let members = cgroups::daemon_cgroups(self).find_map(|group| cgroup::processes(&group).ok());
        members.into_iter().flatten().filter(|pid| Some(*pid) != daemon).collect()
    }

    /// The pager: the process whose parent, the keeper, is in the same group. `None` between the end of a pager and the
    /// start of the next one.
    pub fn pager_pid(&self) -> Option<i32> {
        let pids = self.pager_pids();
        let is_pager = |pid: &i32| ProcStat::read(*pid).is_ok_and(|stat| pids.contains(&stat.parent));
        pids.iter().copied().find(is_pager)
    }

    /// Whether the daemon runs.
    pub fn is_alive(&self) -> bool {
        !self.wait_exit(Duration::ZERO)
    }

    /// Waits until the daemon has ended, at most `limit`. Returns whether it has ended. A daemon that was never started
    /// counts as ended.
    pub(super) fn wait_exit(&self, limit: Duration) -> bool {
        // Also reaps the daemon if it is a child of this process.
        self.open_daemon().is_none_or(|daemon| clone::reap_within(&daemon, limit).unwrap_or(false))
    }

    /// Opens the running daemon: the one that was started last, or else the process that listens at the node's socket, such
    /// as a daemon that a user started by hand.
    pub(super) fn open_daemon(&self) -> Option<OwnedFd> {
        let started = self.process().and_then(|process| process.open().ok()?);
        started.or_else(|| listening_process(&self.socket)?.open().ok()?)
    }

    /// The process id of the running daemon that was started last.
    pub fn daemon_pid(&self) -> Option<i32> {
        let process = self.process()?;
        process.open().ok()?.map(|_| process.pid)
    }

    /// Runs `to_do` in the network namespace of the node, in a new thread. Sockets that it opens stay in that namespace.
    ///
    /// # Errors
    /// As open(2) and setns(2), and as `to_do`.
    pub fn run_in_network<T: Send>(&self, to_do: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let namespace = File::open(netns_path(&self.netns))?;
        let run = move || enter_network(namespace.as_fd()).and_then(|()| to_do());
        thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The daemon's log.
    pub fn log_path(&self) -> PathBuf {
        self.run_dir.join("node.log")
    }

    pub(super) fn set_process(&mut self, process: ProcessIdentity) {
        self.process = Some(process.to_string());
    }
}
