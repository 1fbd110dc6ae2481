//! Link to the node's pager, a separate process that serves the children's memory and outlives the daemon. The link
//! finds or starts the pager, sends requests to it, and stores the reason why the node is not ready.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farfork_fork::pager::{CacheStats, ClientError, PagerClient, PagerCounters, RELEASE, SOCKET_FILE, TrustPolicy};
use farfork_trust::Credentials;
use farfork_wire::ChildId;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use farfork_api::run_dir::RunDir;

/// Time limit for a pager to end after a stop request.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the pager cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PagerError {
    /// The pager's log cannot be opened.
    #[error("its log cannot be opened: {0}")]
    Log(#[source] io::Error),
    /// The pager cannot be started.
    #[error("it cannot be started: {0}")]
    Spawn(#[source] io::Error),
    /// The pager does not reply, or refused a request.
    #[error("{cause}; see pager.log in the run directory")]
    Unresponsive {
        /// The error of the request.
        cause: ClientError,
    },
}

/// Result of a probe of the pager.
#[derive(Debug)]
pub(crate) enum PagerStatus {
    /// It replies.
    Running,
    /// A process listens at the pager's socket, but sends no valid reply in time, for this reason.
    Unresponsive(String),
    /// No process listens at the socket: keeper, pager and holder have all ended.
    Gone,
}

/// The options with which a pager is started.
#[derive(Debug)]
struct PagerConfig {
    run_dir: RunDir,
    credentials: Option<Credentials>,
    cache_bytes_max: u64,
}

/// Finds, starts and queries the node's pager.
#[derive(Debug)]
pub(crate) struct PagerLink {
    client: PagerClient,
    /// The options for starting another pager; `None` in tests.
    config: Option<PagerConfig>,
    /// Why the node accepts no children; `None` if it does.
    not_ready: Mutex<Option<String>>,
}

impl PagerLink {
    /// A link to a pager that was never started.
    #[cfg(test)]
    pub(crate) fn unconnected() -> Self {
        Self { client: PagerClient::new(Path::new("/nonexistent")), config: None, not_ready: Mutex::default() }
    }

    /// Finds the run directory's pager, or starts one. Its page cache is limited to `cache_bytes_max`.
    ///
    /// # Errors
    /// [`PagerError`].
    pub(crate) fn find_or_start(
        run_dir: &RunDir,
        credentials: Option<&Credentials>,
        cache_bytes_max: u64,
    ) -> Result<Self, PagerError> {
        let client = PagerClient::new(run_dir.root());
        let silent = |cause| PagerError::Unresponsive { cause };
        if !is_listening(&run_dir.root().join(SOCKET_FILE)) {
            spawn_pager(run_dir, credentials)?;
        } else if client.list_children().map_err(silent)?.is_empty() {
            // No child needs this pager, so replace it: its release or trust policy may differ.
            client.stop(STOP_TIMEOUT).map_err(silent)?;
            spawn_pager(run_dir, credentials)?;
        } else {
            reuse_pager(&client, &TrustPolicy::from_credentials(credentials)).map_err(silent)?;
        }
        client.set_cache_limit(cache_bytes_max).map_err(silent)?;
        let start = PagerConfig { run_dir: run_dir.clone(), credentials: credentials.cloned(), cache_bytes_max };
        Ok(Self { client, config: Some(start), not_ready: Mutex::default() })
    }

    /// Checks whether the pager answers. Blocks for a few seconds at most.
    pub(crate) fn probe(&self) -> PagerStatus {
        match self.connect() {
            // `WouldBlock` counts as connected: the backlog of the pager's socket is full.
            Ok(_) => {}
            Err(error) if is_not_listening(&error) => return PagerStatus::Gone,
            Err(error) => tracing::debug!(%error, "the pager's socket"),
        }
        match self.client.hello() {
            Ok(_) => PagerStatus::Running,
            Err(error) if self.connect().is_err_and(|error| is_not_listening(&error)) => {
                tracing::debug!(%error, "the pager ended during a probe");
                PagerStatus::Gone
            }
            Err(error) => PagerStatus::Unresponsive(error.to_string()),
        }
    }

    /// Connects to the pager. The connection ends with the process that serves it.
    ///
    /// # Errors
    /// The error of connect(2): `ConnectionRefused` or `NotFound` if no pager listens.
    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        let run_dir = &self.config.as_ref().ok_or(io::ErrorKind::NotFound)?.run_dir;
        connect(&run_dir.root().join(SOCKET_FILE))
    }

    /// Starts another pager after all of its processes have ended, and waits until it answers.
    ///
    /// # Errors
    /// [`PagerError`].
    pub(crate) fn restart(&self) -> Result<(), PagerError> {
        let Some(PagerConfig { run_dir, credentials, cache_bytes_max }) = &self.config else { return Ok(()) };
        spawn_pager(run_dir, credentials.as_ref())?;
        self.client.set_cache_limit(*cache_bytes_max).map_err(|cause| PagerError::Unresponsive { cause })?;
        Ok(())
    }

    /// Why the node accepts no children; `None` if it does.
    pub(crate) fn not_ready_reason(&self) -> Option<String> {
        self.lock_not_ready().clone()
    }

    /// Marks the node as ready. Returns whether it was not ready before.
    pub(crate) fn set_ready(&self) -> bool {
        self.lock_not_ready().take().is_some()
    }

    /// Marks the node as not ready. Returns whether it was ready, or not ready for another reason.
    pub(crate) fn set_not_ready(&self, reason: &str) -> bool {
        let before = self.lock_not_ready().replace(reason.to_owned());
        before.as_deref() != Some(reason)
    }

    fn lock_not_ready(&self) -> MutexGuard<'_, Option<String>> {
        self.not_ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client that sends requests to the pager.
    pub(crate) fn client(&self) -> &PagerClient {
        &self.client
    }

    /// The pager's counters of a child; `None` if the pager does not know the child or does not answer.
    pub(crate) fn counters(&self, child: &ChildId) -> Option<PagerCounters> {
        Some(self.client.stats(child).ok()?.counters)
    }

    /// The contents and counters of the page cache; `None` if the pager does not answer.
    pub(crate) fn cache_stats(&self) -> Option<CacheStats> {
        self.client.cache_stats().ok()
    }

    /// Releases the pager's state of a child that has ended.
    pub(crate) fn release(&self, child: &ChildId) {
        if let Err(error) = self.client.release(child) {
            tracing::debug!(%child, %error, "cannot release a child in the pager");
        }
    }

    /// Releases the pager's state of a child if all of its processes have ended. Returns the child's last counters, or
    /// `Some(None)` if the pager did not know the child. `None` if nothing was released.
    pub(crate) fn release_now(&self, child: &ChildId) -> Option<Option<PagerCounters>> {
        self.client.try_release(child).ok()
    }

    /// Stops the pager. No child may be running.
    pub(crate) fn stop(&self) {
        if let Err(error) = self.client.stop(STOP_TIMEOUT) {
            tracing::warn!(%error, "the pager does not stop");
        }
    }
}

/// Adopts a pager that children need, and gives it this daemon's trust policy.
fn reuse_pager(client: &PagerClient, trusting: &TrustPolicy) -> Result<(), ClientError> {
    let hello = client.hello()?;
    if hello.release == RELEASE {
        tracing::info!("continuing with the pager of an earlier daemon");
    } else {
        let release = hello.release;
        tracing::warn!(
            "continuing with the pager of an earlier daemon: it has release {release}, this daemon {RELEASE}; \
             to replace it, restart the daemon when no child runs"
        );
    }
    if hello.trust_policy != *trusting {
        client.set_trust_policy(trusting)?;
        tracing::info!(?trusting, "the pager was replaced by one with this daemon's trust policy");
    }
    Ok(())
}

/// Whether a process listens at a pager's socket. The socket of a dead pager refuses connections.
fn is_listening(socket: &Path) -> bool {
    !connect(socket).is_err_and(|error| is_not_listening(&error))
}

fn is_not_listening(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

fn connect(socket: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let ours = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match rustix::net::connect(&ours, &SocketAddrUnix::new(socket)?) {
        Ok(()) => Ok(ours),
        Err(Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Starts `farfork pager`, which creates its own session. A thread reaps the pager if it ends before the daemon. The
/// pager reads the trust directory itself, now and after each change, so no secret is passed to it.
fn spawn_pager(run_dir: &RunDir, credentials: Option<&Credentials>) -> Result<(), PagerError> {
    let log = OpenOptions::new().create(true).append(true).open(run_dir.pager_log()).map_err(PagerError::Log)?;
    // An upgrade may have replaced the binary at its path, but the pager must be of our own release.
    let mut command = Command::new("/proc/self/exe");
    command.arg("pager").arg("--run-dir").arg(run_dir.root());
    if let Some(credentials) = credentials {
        command.arg("--trust").arg(credentials.directory().root());
        command.arg("--encryption").arg(credentials.encryption().as_str());
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().map_err(PagerError::Spawn)?;
    thread::Builder::new()
        .name("pager-reaper".to_owned())
        .spawn(move || match child.wait() {
            Ok(status) if status.success() => tracing::debug!("the pager has ended"),
            Ok(status) => tracing::error!(%status, "the pager has ended; see pager.log in the run directory"),
            Err(error) => tracing::error!(%error, "cannot wait for the end of the pager"),
        })
        .map_err(PagerError::Spawn)?;
    Ok(())
}
