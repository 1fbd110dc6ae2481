//! Starts, awaits, signals and stops the daemons of a local cluster, each in its own namespace and control groups.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::process_identity::ProcessIdentity;
use farfork_sys::{clone, namespace, pidfd};
use rustix::process::Signal;

use super::cgroups;
use super::error::LocalError;
use super::network::netns_path;
use super::node::{DaemonCommand, LocalNode};
use super::trust;
use crate::catalog::CatalogLocation;

/// Longest wait for a daemon to answer, in milliseconds: many daemons may start at the same time on a slow machine.
const READY_MS_MAX: u64 = 30_000;
/// Pause between two attempts to connect to a daemon, in milliseconds.
const READY_RETRY_MS: u64 = 10;
/// Longest wait for daemons to end after SIGTERM, in milliseconds. Then they are killed.
const STOP_MS_MAX: u64 = 10_000;
/// Variables of the environment that select a daemon for commands. A daemon is started without them.
pub const COMMAND_VARIABLES: [&str; 4] = ["FARFORK_SOCKET", "FARFORK_RUN_DIR", "FARFORK_NODE", "FARFORK_TRUST"];
/// Number of bytes at the end of a log that an error shows.
const LOG_TAIL_BYTES: u64 = 4096;

/// The variable that `farfork_container::HIDDEN_PATHS_VARIABLE` names.
const HIDDEN_PATHS_VARIABLE: &str = "FARFORK_HIDDEN_PATHS";

/// A shell script: moves itself into the control groups that its arguments up to `--` name, then executes the daemon in a
/// new session.
const ENTER_CGROUPS_SCRIPT: &str = r#"
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 125; shift; done
shift
exec setsid -- "$@"
"#;

/// The settings for starting a daemon that are not part of [`LocalNode`].
#[derive(Debug)]
pub(super) struct LaunchOptions<'a> {
    /// The node to join.
    pub(super) join: Option<SocketAddr>,
    /// The catalog of volumes, which all nodes share.
    pub(super) catalog: &'a CatalogLocation,
    /// The program.
    pub(super) command: &'a DaemonCommand,
    /// The paths that the node's children must not see: the files of all daemons, separated by colons.
    pub(super) hidden_paths: &'a OsStr,
}

/// Starts a node's daemon.
pub(super) fn start_daemon(node: &LocalNode, launch: &LaunchOptions<'_>) -> Result<ProcessIdentity, LocalError> {
    // A process that a killed daemon was starting keeps the daemon's socket open until it executes its program. Without the
    // removal, `wait_ready` could connect to that socket.
    let _ = fs::remove_file(&node.socket);
    let started = start_logged(&node.netns, daemon_command(node, launch), &node.log_path());
    started.map_err(|cause| LocalError::Start {
        node: node.name.clone(),
        command: launch.command.program.clone(),
        cause,
    })
}

/// A command that enters control groups. The program that it executes and the arguments follow.
pub(super) fn command_in_cgroups(cgroups: impl Iterator<Item = PathBuf>) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", ENTER_CGROUPS_SCRIPT, "sh"]).args(cgroups).arg("--");
    command
}

/// Starts a command in a namespace. Its output is appended to a log.
pub(super) fn start_logged(netns: &str, mut command: Command, log: &Path) -> io::Result<ProcessIdentity> {
    let log = File::options().create(true).append(true).open(log)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let child = spawn_in_netns(netns, command)?;
    ProcessIdentity::of(child.id().cast_signed())
}

fn daemon_command(node: &LocalNode, launch: &LaunchOptions<'_>) -> Command {
    let mut command = command_in_cgroups(cgroups::daemon_cgroups(node));
    command.arg(&launch.command.program).args(["node", "--name", &node.name]);
    command.arg("--run-dir").arg(&node.run_dir);
    command.arg("--listen").arg(node.address.to_string());
    command.arg("--trust").arg(trust::node_trust_dir(&node.run_dir));
    command.arg("--volumes").arg(node.volumes_dir());
    command.arg("--catalog").arg(launch.catalog.to_string());
    if let Some(first) = launch.join {
        command.arg("--join").arg(first.to_string());
    }
    command.args(&launch.command.arguments);
    // A user may have set them for this cluster or another one.
    for variable in COMMAND_VARIABLES {
        command.env_remove(variable);
    }
    command.env(HIDDEN_PATHS_VARIABLE, launch.hidden_paths);
    command.envs(launch.command.environment.iter().map(|(name, value)| (name, value)));
    command.current_dir("/");
    command
}

/// Starts a process from a new thread in the namespace `netns`: a process inherits the network namespace of the thread that
/// starts it.
fn spawn_in_netns(netns: &str, mut command: Command) -> io::Result<Child> {
    let netns = File::open(netns_path(netns))?;
    let body = move || {
        namespace::enter_network(netns.as_fd())?;
        command.spawn()
    };
    let thread = thread::Builder::new().name("start-daemon".to_owned()).spawn(body)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
}

/// Waits until a daemon accepts connections at its socket.
pub(super) fn wait_ready(node: &LocalNode) -> Result<(), LocalError> {
    let limit = Duration::from_millis(READY_MS_MAX);
    let began = Instant::now();
    while UnixStream::connect(&node.socket).is_err() {
        if node.wait_exit(Duration::from_millis(READY_RETRY_MS)) {
            return Err(LocalError::DaemonEnded { node: node.name.clone(), log_tail: read_log_tail(&node.log_path()) });
        }
        if began.elapsed() > limit {
            return Err(LocalError::NoAnswer {
                node: node.name.clone(),
                socket: node.socket.clone(),
                waited_ms: READY_MS_MAX,
                log_tail: read_log_tail(&node.log_path()),
            });
        }
    }
    Ok(())
}

/// Sends a signal to a node's daemon.
pub(super) fn signal_daemon(node: &LocalNode, signal: i32) -> Result<(), LocalError> {
    let daemon = node.open_daemon().ok_or_else(|| LocalError::NotRunning { node: node.name.clone() })?;
    pidfd::send_signal(&daemon, signal).map_err(|cause| LocalError::Signal { node: node.name.clone(), signal, cause })
}

/// Sends SIGTERM to all daemons, waits for their end, and kills those that do not end in time.
pub(super) fn stop_all(nodes: &[LocalNode]) {
    let deadline = Instant::now() + Duration::from_millis(STOP_MS_MAX);
    // Open all daemons first: once a daemon has removed its socket, it can no longer be found by the socket.
    let daemons: Vec<_> = nodes.iter().filter_map(|node| Some((node, node.open_daemon()?))).collect();
    for (_, daemon) in &daemons {
        let _ = pidfd::send_signal(daemon, Signal::TERM.as_raw());
    }
    for (node, daemon) in &daemons {
        if !clone::reap_within(daemon, deadline.saturating_duration_since(Instant::now())).unwrap_or(true) {
            tracing::warn!(node = node.name, "daemon did not stop within {STOP_MS_MAX} ms and is killed");
            let _ = pidfd::send_signal(daemon, Signal::KILL.as_raw());
        }
    }
}

/// The end of a log, for an error message.
pub fn read_log_tail(log: &Path) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&tail).trim_end().to_owned())
    };
    match read() {
        Ok(tail) if tail.is_empty() => "(it is empty)".to_owned(),
        Ok(tail) => tail,
        Err(error) => format!("(cannot read it: {error})"),
    }
}
