//! Runs the offload process and the host worker of the node's volumes. `daemon` starts and stops this service.
//!
//! The processes start with the first request, or when the catalog has a volume or a node that serves volumes. A
//! cluster without volumes therefore has none of these processes, and each node makes one stat(2) every half second.

use std::fs::DirBuilder;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farfork_cluster::catalog::CatalogLocation;
use farfork_trust::Credentials;
use farfork_volume::process::{
    NodeSupervisor, OffloadMode, OffloadOptions, ProcessRole, STORE_PATH_BYTES_MAX, VolumeStore, run_offload,
};
use farfork_wire::NodeName;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::OffloadRequests;
use crate::options::VolumeOptions;

/// Interval between checks whether the cluster uses volumes. The first `farfork volume create` waits for the next
/// check.
const CATALOG_INTERVAL: Duration = Duration::from_millis(500);
/// Delay before the processes are started again after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The reply to a request to start the processes: why they do not run; `None` while they are supervised.
type StartReply = Option<String>;

/// Sends requests to the thread that supervises the processes.
#[derive(Debug)]
pub(super) struct StartRequests {
    replies: mpsc::Sender<mpsc::SyncSender<StartReply>>,
    /// Gets one byte for each request, so that the thread wakes up.
    wakeup: PipeWriter,
}

impl StartRequests {
    /// Makes the thread start the processes, if they do not run. Returns `None` if there is no reply within `limit`.
    pub(super) fn request(&self, limit: Duration) -> Option<StartReply> {
        let (reply, replied) = mpsc::sync_channel(1);
        self.replies.send(reply).ok()?;
        (&self.wakeup).write_all(&[0]).ok()?;
        replied.recv_timeout(limit).ok()
    }
}

/// Configuration of the processes of the volumes.
#[derive(Debug)]
pub(crate) struct VolumeServiceConfig {
    pub(crate) node: NodeName,
    pub(crate) options: VolumeOptions,
    pub(crate) catalog: CatalogLocation,
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
    /// Starts the thread.
    ///
    /// # Errors
    /// The error of pipe(2), or of the start of a thread.
    pub(crate) fn start(config: VolumeServiceConfig) -> io::Result<(Self, OffloadRequests)> {
        let (stopped, stop) = io::pipe()?;
        let (wakeups, wakeup) = io::pipe()?;
        let (replies, requests) = mpsc::channel();
        let starts = StartRequests { replies, wakeup };
        let offload = OffloadRequests::new(&config, starts);
        let serve = move || {
            let service = VolumeServiceThread { config, requests, wakeups, stopped };
            if let Err(error) = service.run() {
                tracing::error!(%error, "the processes of volumes are not supervised any more: restart this daemon");
            }
        };
        let thread = thread::Builder::new().name("volumes".to_owned()).spawn(serve)?;
        Ok((Self { stop: Some(stop), thread: Some(thread) }, offload))
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
    /// There are requests.
    Requests,
    /// The time limit has passed.
    Timeout,
}

/// ```text
///  idle ── a request, or the catalog is in use ──▶ starting ──▶ supervising ──▶ the daemon stops
///                                                   ▲  │ failure: answered to requests
///                                                   └──┘ after RETRY_INTERVAL, or with the next request
/// ```
struct VolumeServiceThread {
    config: VolumeServiceConfig,
    requests: mpsc::Receiver<mpsc::SyncSender<StartReply>>,
    /// Readable while there are requests.
    wakeups: PipeReader,
    stopped: PipeReader,
}

impl VolumeServiceThread {
    fn run(&self) -> io::Result<()> {
        if self.wait_until_used()? == ServiceWakeup::Stop {
            return Ok(());
        }
        let mut last_failure = None;
        loop {
            let started = match self.config.options.offload_mode {
                OffloadMode::On => self.start_processes().map(|supervisor| self.supervise(supervisor)),
                OffloadMode::Inline => self.start_inline().map(|offload| self.wait_for_inline(&offload)),
            };
            let failure = match started {
                Ok(ended) => return ended,
                Err(failure) => failure,
            };
            // Each request causes an attempt.
            if last_failure.as_ref() != Some(&failure) {
                tracing::error!(failure, "this node serves no volumes; trying again");
            }
            self.answer_all(Some(&failure));
            last_failure = Some(failure);
            if self.wait(RETRY_INTERVAL)? == ServiceWakeup::Stop {
                return Ok(());
            }
        }
    }

    fn supervise(&self, mut supervisor: NodeSupervisor<impl Fn(ProcessRole) -> Command>) -> io::Result<()> {
        tracing::info!(store = %self.config.options.store.display(), "this node serves volumes");
        loop {
            self.answer_all(None);
            supervisor.wait(&[self.stopped.as_fd(), self.wakeups.as_fd()], None)?;
            if self.wait(Duration::ZERO)? == ServiceWakeup::Stop {
                return Ok(());
            }
            supervisor.check();
        }
    }

    /// Replies to requests while the threads of the volumes run.
    fn wait_for_inline(&self, offload: &JoinHandle<()>) -> io::Result<()> {
        tracing::info!(store = %self.config.options.store.display(), "this node serves volumes in threads of the daemon");
        loop {
            // Failed threads cannot be started again, because other threads of the volumes may still run.
            let failure = offload.is_finished().then(|| {
                let cause = VolumeStore::new(&self.config.options.store).start_failure();
                format!("its threads have ended: {}: restart the daemon", cause.as_deref().unwrap_or("see the log"))
            });
            self.answer_all(failure.as_deref());
            if self.wait(CATALOG_INTERVAL)? == ServiceWakeup::Stop {
                return Ok(());
            }
        }
    }

    /// Waits until there are requests, the daemon stops, or the time limit has passed.
    fn wait(&self, limit: Duration) -> io::Result<ServiceWakeup> {
        let watched = [self.stopped.as_fd(), self.wakeups.as_fd()];
        let mut polled = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        rustix::io::retry_on_intr(|| poll(&mut polled, Some(&limit)))?;
        let [stop, requests] = polled.map(|fd| !fd.revents().is_empty());
        Ok(match (stop, requests) {
            (true, _) => ServiceWakeup::Stop,
            (false, true) => ServiceWakeup::Requests,
            (false, false) => ServiceWakeup::Timeout,
        })
    }

    /// Waits until there is a request, the catalog is in use, or the daemon stops. A catalog that cannot be read counts as used:
    /// the offload process reports it.
    fn wait_until_used(&self) -> io::Result<ServiceWakeup> {
        let Ok(catalog) = self.config.catalog.open() else { return Ok(ServiceWakeup::Timeout) };
        while catalog.read().is_ok_and(|contents| !contents.is_in_use()) {
            let wakeup = self.wait(CATALOG_INTERVAL)?;
            if wakeup != ServiceWakeup::Timeout {
                return Ok(wakeup);
            }
        }
        Ok(ServiceWakeup::Timeout)
    }

    /// Replies to all requests.
    fn answer_all(&self, failure: Option<&str>) {
        while let Ok(reply) = self.requests.try_recv() {
            // Waits for the byte of the request if its thread has not written it yet.
            let _ = (&self.wakeups).read(&mut [0]);
            // The requester may have stopped waiting.
            let _ = reply.try_send(failure.map(str::to_owned));
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
        let VolumeServiceConfig { node, options, catalog, listen, credentials } = &self.config;
        let options = OffloadOptions {
            node: node.clone(),
            store: options.store.clone(),
            catalog: catalog.clone(),
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
        let (store, catalog) = (&self.config.options.store, &self.config.catalog);
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
        // The failure of an earlier daemon may have ended.
        VolumeStore::new(store).record_start_failure(None).map_err(|error| error.to_string())?;
        self.config.options.copy_method.check(store).map_err(|error| error.to_string())
    }

    fn command(&self, role: ProcessRole) -> Command {
        let VolumeServiceConfig { node, options, catalog, listen, credentials } = &self.config;
        // An upgrade may have replaced the binary at its path, but the processes must be of our own release.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("farfork");
        command.args(["volume", role.name(), "--store"]).arg(&options.store);
        command.args(["--copy", options.copy_method.name(), "--priority", options.work_priority.name()]);
        if role == ProcessRole::Offload {
            command.args(["--catalog", &catalog.to_string()]);
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
    use std::path::PathBuf;

    use super::*;

    fn service(directory: &Path, store: PathBuf) -> (VolumeService, OffloadRequests) {
        let node = NodeName::new("n1").unwrap();
        let config = VolumeServiceConfig {
            options: VolumeOptions::new(&node, Some(store), None),
            catalog: directory.join("shared/catalog").into(),
            node,
            listen: "127.0.0.1".parse().unwrap(),
            credentials: None,
        };
        VolumeService::start(config).unwrap()
    }

    #[test]
    fn a_store_with_a_long_path_is_reported_to_each_request() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("x".repeat(STORE_PATH_BYTES_MAX));
        let (running, offload) = service(directory.path(), store.clone());
        for _ in 0..2 {
            let failure = offload.require_processes("the volumes").unwrap_err();
            assert!(failure.cause().contains("node n1") && failure.cause().contains("--volumes"), "{failure}");
        }
        drop(running);
        assert!(offload.require_processes("the volumes").is_err(), "the daemon has stopped");
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
