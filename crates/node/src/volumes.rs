//! Runs the offload process and the host worker of the node's volumes. Reports the directories of the volumes to
//! `farfork volume`, at `volumes.sock` in the run directory. `daemon` starts and stops this service.
//!
//! The processes start with the first connection, or when the catalog has a volume or a node that serves volumes. A
//! cluster without volumes therefore has none of these processes, and each node makes one stat(2) every half second.

use std::fs::DirBuilder;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::{IpAddr, Shutdown};
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farfork_cluster::catalog::CatalogLocation;
use farfork_trust::Credentials;
use farfork_volume::process::{
    NodeSupervisor, OffloadMode, OffloadOptions, ProcessRole, STORE_PATH_BYTES_MAX, VolumeStore, run_offload,
};
use farfork_wire::NodeName;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::options::VolumeOptions;

/// Interval between checks whether the cluster uses volumes. The first `farfork volume create` waits for the next
/// check.
const CATALOG_INTERVAL: Duration = Duration::from_millis(500);
/// Delay before the processes are started again after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit for a daemon to report the location of its volumes.
const LOCATE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a reply, in bytes. A reply has two paths and a reason.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// The location of a node's volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLocation {
    /// The node.
    pub node: NodeName,
    /// The directory of the node's replicas.
    pub store: PathBuf,
    /// The cluster's catalog.
    pub catalog: CatalogLocation,
    /// Why the processes of the volumes do not run; `None` while they are supervised.
    pub failure: Option<String>,
}

/// Requests the location of a node's volumes from the daemon with this API socket. The request makes the daemon start
/// the processes of the volumes.
///
/// # Errors
/// No daemon listens at the socket, or the daemon sends no valid reply in time.
pub fn locate_volumes(node_socket: &Path) -> io::Result<VolumeLocation> {
    let stream = UnixStream::connect(farfork_api::run_dir::volume_socket_near(node_socket))?;
    stream.set_read_timeout(Some(LOCATE_TIMEOUT))?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    serde_json::from_slice(&answer).map_err(io::Error::other)
}

/// Configuration of the processes of the volumes.
#[derive(Debug)]
pub(crate) struct VolumeServiceConfig {
    pub(crate) node: NodeName,
    pub(crate) options: VolumeOptions,
    pub(crate) listen: IpAddr,
    pub(crate) credentials: Option<Credentials>,
}

/// The thread that supervises the processes of the node's volumes. Dropping this value ends the processes.
#[derive(Debug)]
pub(crate) struct VolumeService {
    /// Dropping the writer stops the thread. It is an `Option` so that it can be dropped before the thread is joined.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl VolumeService {
    /// Starts the thread, which replies to connections at the listener.
    ///
    /// # Errors
    /// The error of pipe(2), or of the start of a thread.
    pub(crate) fn start(config: VolumeServiceConfig, listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (stopped, stop) = io::pipe()?;
        let serve = move || {
            let service = VolumeServiceThread { config, listener, stopped };
            if let Err(error) = service.run() {
                tracing::error!(%error, "the processes of volumes are not supervised any more: restart this daemon");
            }
        };
        let thread = thread::Builder::new().name("volumes".to_owned()).spawn(serve)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for VolumeService {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic of the thread has been logged.
        self.thread.take().map(JoinHandle::join);
    }
}

/// The reason for which a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServiceWakeup {
    /// The daemon stops.
    Stop,
    /// Commands have connected.
    Connections,
    /// The time limit has passed.
    Timeout,
}

/// ```text
///  idle ── a command connects, or the catalog is in use ──▶ starting ──▶ supervising ──▶ the daemon stops
///                                                             ▲  │ failure: answered to commands
///                                                             └──┘ after RETRY_INTERVAL
/// ```
struct VolumeServiceThread {
    config: VolumeServiceConfig,
    listener: UnixListener,
    stopped: PipeReader,
}

impl VolumeServiceThread {
    fn run(&self) -> io::Result<()> {
        if self.wait_until_used()? == ServiceWakeup::Stop {
            return Ok(());
        }
        loop {
            let started = match self.config.options.offload_mode {
                OffloadMode::On => self.start_processes().map(|supervisor| self.supervise(supervisor)),
                OffloadMode::Inline => self.start_inline().map(|offload| self.wait_for_inline(&offload)),
            };
            let failure = match started {
                Ok(ended) => return ended,
                Err(failure) => failure,
            };
            tracing::error!(failure, "this node serves no volumes; trying again");
            self.answer_all(Some(&failure));
            if self.wait(RETRY_INTERVAL)? == ServiceWakeup::Stop {
                return Ok(());
            }
        }
    }

    fn supervise(&self, mut supervisor: NodeSupervisor<impl Fn(ProcessRole) -> Command>) -> io::Result<()> {
        tracing::info!(store = %self.config.options.store.display(), "this node serves volumes");
        loop {
            self.answer_all(None);
            supervisor.wait(&[self.stopped.as_fd(), self.listener.as_fd()], None)?;
            if self.wait(Duration::ZERO)? == ServiceWakeup::Stop {
                return Ok(());
            }
            supervisor.check();
        }
    }

    /// Replies to commands while the threads of the volumes run.
    fn wait_for_inline(&self, offload: &JoinHandle<()>) -> io::Result<()> {
        tracing::info!(store = %self.config.options.store.display(), "this node serves volumes in threads of the daemon");
        loop {
            // Failed threads cannot be started again, because other threads of the volumes may still run.
            let failure = offload.is_finished().then_some("its threads have ended, see the log: restart the daemon");
            self.answer_all(failure);
            if self.wait(CATALOG_INTERVAL)? == ServiceWakeup::Stop {
                return Ok(());
            }
        }
    }

    /// Waits until commands have connected, the daemon stops, or the time limit has passed.
    fn wait(&self, limit: Duration) -> io::Result<ServiceWakeup> {
        let watched = [self.stopped.as_fd(), self.listener.as_fd()];
        let mut polled = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        rustix::io::retry_on_intr(|| poll(&mut polled, Some(&limit)))?;
        let [stop, connections] = polled.map(|fd| !fd.revents().is_empty());
        Ok(match (stop, connections) {
            (true, _) => ServiceWakeup::Stop,
            (false, true) => ServiceWakeup::Connections,
            (false, false) => ServiceWakeup::Timeout,
        })
    }

    /// Waits until a command connects, the catalog is in use, or the daemon stops. A catalog that cannot be read counts as used:
    /// the offload process reports it.
    fn wait_until_used(&self) -> io::Result<ServiceWakeup> {
        let Ok(catalog) = self.config.options.catalog.open() else { return Ok(ServiceWakeup::Timeout) };
        while catalog.read().is_ok_and(|contents| !contents.is_in_use()) {
            let wakeup = self.wait(CATALOG_INTERVAL)?;
            if wakeup != ServiceWakeup::Timeout {
                return Ok(wakeup);
            }
        }
        Ok(ServiceWakeup::Timeout)
    }

    /// Sends the location of the volumes to all connected commands.
    fn answer_all(&self, failure: Option<&str>) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            let location = VolumeLocation {
                node: self.config.node.clone(),
                store: self.config.options.store.clone(),
                catalog: self.config.options.catalog.clone(),
                failure: failure.map(str::to_owned),
            };
            // The write does not block: the reply fits into the buffer of a new connection. Errors are ignored, because
            // the command may have ended.
            let sent = serde_json::to_writer(&mut stream, &location).map_err(io::Error::from);
            let _ = sent.and_then(|()| stream.flush()).and_then(|()| stream.shutdown(Shutdown::Write));
        }
    }

    /// Starts the processes. The error is the reason why they cannot run.
    fn start_processes(&self) -> Result<NodeSupervisor<impl Fn(ProcessRole) -> Command>, String> {
        self.prepare_store()?;
        let started = NodeSupervisor::start(|role| self.command(role));
        started.map_err(|error| format!("cannot start its processes: {error}"))
    }

    /// Starts the work of the processes in threads of the daemon. The error is the reason why it cannot run.
    fn start_inline(&self) -> Result<JoinHandle<()>, String> {
        self.prepare_store()?;
        let VolumeServiceConfig { node, options, listen, credentials } = &self.config;
        let options = OffloadOptions {
            node: node.clone(),
            store: options.store.clone(),
            catalog: options.catalog.clone(),
            listen: *listen,
            detection_time: Duration::from_millis(options.detection_ms),
            replica_rate_min: options.replica_rate_min,
            scrub_interval: Duration::from_secs(3600 * u64::from(options.scrub_hours)),
            mode: OffloadMode::Inline,
            copy_method: options.copy_method,
            priority: options.work_priority,
            compression: options.compression,
            credentials: credentials.clone(),
        };
        let run = move || {
            if let Err(error) = run_offload(&options) {
                tracing::error!(%error, "the threads of the volumes have ended");
            }
        };
        let started = thread::Builder::new().name("volume offload".to_owned()).spawn(run);
        started.map_err(|error| format!("cannot start its threads: {error}"))
    }

    /// Makes the directories, and checks that the store supports the copy method.
    fn prepare_store(&self) -> Result<(), String> {
        let VolumeOptions { store, catalog, .. } = &self.config.options;
        let length = store.as_os_str().len();
        if length > STORE_PATH_BYTES_MAX {
            return Err(format!(
                "the path {} has {length} bytes, {STORE_PATH_BYTES_MAX} at most: choose another one with --volumes",
                store.display()
            ));
        }
        if let Some(file) = catalog.file() {
            require_catalog(store, file)?;
        }
        for directory in [Some(store.as_path()), catalog.file().and_then(Path::parent)].into_iter().flatten() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|error| format!("cannot make the directory {}: {error}", directory.display()))?;
        }
        self.config.options.copy_method.check(store).map_err(|error| error.to_string())
    }

    fn command(&self, role: ProcessRole) -> Command {
        let VolumeServiceConfig { node, options, listen, credentials } = &self.config;
        // An upgrade may have replaced the binary at its path, but the processes must be of our own release.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("farfork");
        command.args(["volume", role.name(), "--store"]).arg(&options.store);
        command.args(["--copy", options.copy_method.name(), "--priority", options.work_priority.name()]);
        if role == ProcessRole::Offload {
            command.args(["--catalog", &options.catalog.to_string()]);
            command.args(["--name", node.as_str(), "--listen", &listen.to_string()]);
            command.args(["--compress", options.compression.name()]);
            command.args(["--detect-ms", &options.detection_ms.to_string()]);
            command.args(["--replica-rate-min", &options.replica_rate_min.to_string()]);
            command.args(["--scrub-hours", &options.scrub_hours.to_string()]);
            if let Some(cpus) = &options.offload_cpus {
                command.args(["--cpus", cpus]);
            }
            // The process reads the trust directory by itself, so no secret is passed to it.
            if let Some(credentials) = credentials {
                command.arg("--trust").arg(credentials.directory().root());
                command.args(["--encryption", credentials.encryption().as_str()]);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// Refuses to create an empty catalog if the store has replicas: the catalog may be on a file system that is not
/// mounted yet.
fn require_catalog(store: &Path, catalog: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot read {}: {error}", store.display());
    if catalog.try_exists().map_err(|error| format!("cannot read {}: {error}", catalog.display()))? {
        return Ok(());
    }
    let volumes = VolumeStore::new(store).volume_names().map_err(failed)?;
    if volumes.is_empty() {
        return Ok(());
    }
    Err(format!(
        "its catalog {} is missing, but {} has replicas of volumes {}: bring the file back, or remove the replicas",
        catalog.display(),
        store.display(),
        volumes.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(directory: &Path, store: PathBuf) -> VolumeService {
        let node = NodeName::new("n1").unwrap();
        let config = VolumeServiceConfig {
            options: VolumeOptions::new(&node, Some(store), Some(directory.join("shared/catalog").into())),
            node,
            listen: "127.0.0.1".parse().unwrap(),
            credentials: None,
        };
        let listener = UnixListener::bind(directory.join("volumes.sock")).unwrap();
        VolumeService::start(config, listener).unwrap()
    }

    #[test]
    fn a_store_with_a_long_path_is_reported_to_commands() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("x".repeat(STORE_PATH_BYTES_MAX));
        let running = service(directory.path(), store.clone());
        let location = locate_volumes(&directory.path().join("node.sock")).unwrap();
        assert_eq!((location.node.as_str(), &location.store), ("n1", &store));
        assert!(location.failure.unwrap().contains("--volumes"));
        drop(running);
        assert!(!store.exists());
    }

    #[test]
    fn a_node_without_volumes_creates_no_store() {
        let directory = tempfile::tempdir().unwrap();
        let running = service(directory.path(), directory.path().join("volumes"));
        thread::sleep(2 * CATALOG_INTERVAL);
        drop(running);
        assert!(!directory.path().join("volumes").exists() && !directory.path().join("shared").exists());
    }
}
