//! Link to the node's pager, a process of its own that serves the children's memory and outlives the daemon. Finds it
//! or starts it, sends it requests, and records why the node is not ready while it does not answer.

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

/// For a pager to end when it is told to.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no pager.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PagerError {
    /// Its log cannot be opened.
    #[error("its log cannot be opened: {0}")]
    Log(#[source] io::Error),
    /// It cannot be started.
    #[error("it cannot be started: {0}")]
    Spawn(#[source] io::Error),
    /// It was started and does not answer.
    #[error("{cause}; see pager.log in the run directory")]
    Unresponsive {
        /// What came instead.
        cause: ClientError,
    },
}

/// What came of looking for the pager.
#[derive(Debug)]
pub(crate) enum PagerStatus {
    /// It answers.
    Running,
    /// Somebody holds its socket, and nobody answers in time, for this reason.
    Unresponsive(String),
    /// Nobody holds its socket: keeper, pager and holder have all ended.
    Gone,
}

/// What a pager is started with.
#[derive(Debug)]
struct PagerConfig {
    run_dir: RunDir,
    credentials: Option<Credentials>,
    cache_bytes_max: u64,
}

/// The way to the node's pager.
#[derive(Debug)]
pub(crate) struct PagerLink {
    client: PagerClient,
    /// How to start another; `None` in tests.
    config: Option<PagerConfig>,
    /// Why the node takes no children, where it takes none.
    not_ready: Mutex<Option<String>>,
}

impl PagerLink {
    /// The way to one that nobody started.
    #[cfg(test)]
    pub(crate) fn unconnected() -> Self {
        Self { client: PagerClient::new(Path::new("/nonexistent")), config: None, not_ready: Mutex::default() }
    }

    /// Finds the run directory's pager, or starts one. Its cache of pages takes so much memory at most.
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
            // Of whatever release, and whomever it trusts: nobody needs it.
            client.stop(STOP_TIMEOUT).map_err(silent)?;
            spawn_pager(run_dir, credentials)?;
        } else {
            reuse_pager(&client, &TrustPolicy::from_credentials(credentials)).map_err(silent)?;
        }
        client.set_cache_limit(cache_bytes_max).map_err(silent)?;
        let start = PagerConfig { run_dir: run_dir.clone(), credentials: credentials.cloned(), cache_bytes_max };
        Ok(Self { client, config: Some(start), not_ready: Mutex::default() })
    }

    /// Looks whether the pager answers. Blocks, for some seconds at most.
    pub(crate) fn probe(&self) -> PagerStatus {
        match self.connect() {
            // Its backlog may be full for a moment.
            Ok(_) => {}
            Err(error) if is_not_listening(&error) => return PagerStatus::Gone,
            Err(error) => tracing::debug!(%error, "the pager's socket"),
        }
        match self.client.hello() {
            Ok(_) => PagerStatus::Running,
            Err(error) if self.connect().is_err_and(|error| is_not_listening(&error)) => {
                tracing::debug!(%error, "the pager ended while it was asked");
                PagerStatus::Gone
            }
            Err(error) => PagerStatus::Unresponsive(error.to_string()),
        }
    }

    /// A connection to the pager, which ends with the process that serves it.
    ///
    /// # Errors
    /// As connect(2): `ConnectionRefused` or `NotFound` where there is none.
    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        let run_dir = &self.config.as_ref().ok_or(io::ErrorKind::NotFound)?.run_dir;
        connect(&run_dir.root().join(SOCKET_FILE))
    }

    /// Starts a pager in the place of one that is gone, and waits until it answers.
    ///
    /// # Errors
    /// [`PagerError`].
    pub(crate) fn restart(&self) -> Result<(), PagerError> {
        let Some(PagerConfig { run_dir, credentials, cache_bytes_max }) = &self.config else { return Ok(()) };
        spawn_pager(run_dir, credentials.as_ref())?;
        self.client.set_cache_limit(*cache_bytes_max).map_err(|cause| PagerError::Unresponsive { cause })?;
        Ok(())
    }

    /// Why the node takes no children, where it takes none.
    pub(crate) fn not_ready_reason(&self) -> Option<String> {
        self.lock_not_ready().clone()
    }

    /// The node takes children. Tells whether it did not before.
    pub(crate) fn set_ready(&self) -> bool {
        self.lock_not_ready().take().is_some()
    }

    /// The node takes no children. Tells whether it did before, or for another reason.
    pub(crate) fn set_not_ready(&self, reason: &str) -> bool {
        let before = self.lock_not_ready().replace(reason.to_owned());
        before.as_deref() != Some(reason)
    }

    fn lock_not_ready(&self) -> MutexGuard<'_, Option<String>> {
        self.not_ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What asks the pager.
    pub(crate) fn client(&self) -> &PagerClient {
        &self.client
    }

    /// What it has counted for a child; `None` where it no longer knows the child.
    pub(crate) fn counters(&self, child: &ChildId) -> Option<PagerCounters> {
        Some(self.client.stats(child).ok()?.counters)
    }

    /// What its cache of pages holds; `None` where it does not answer.
    pub(crate) fn cache_stats(&self) -> Option<CacheStats> {
        self.client.cache_stats().ok()
    }

    /// Has it forget a child that has ended.
    pub(crate) fn release(&self, child: &ChildId) {
        if let Err(error) = self.client.release(child) {
            tracing::debug!(%child, %error, "the pager does not forget a child");
        }
    }

    /// Has it forget a child all of whose processes have ended, as far as is known; `None` where it has not, else what it had
    /// counted.
    pub(crate) fn release_now(&self, child: &ChildId) -> Option<Option<PagerCounters>> {
        self.client.try_release(child).ok()
    }

    /// Ends it. Only where no child runs any more.
    pub(crate) fn stop(&self) {
        if let Err(error) = self.client.stop(STOP_TIMEOUT) {
            tracing::warn!(%error, "the pager does not stop");
        }
    }
}

/// Has a pager that children need go on as this daemon would have started it.
fn reuse_pager(client: &PagerClient, trusting: &TrustPolicy) -> Result<(), ClientError> {
    let hello = client.hello()?;
    if hello.release == RELEASE {
        tracing::info!("the pager of an earlier daemon goes on");
    } else {
        let release = hello.release;
        tracing::warn!(
            "the pager of an earlier daemon goes on: it is of release {release}, this daemon of {RELEASE}; \
             a daemon that is started when no child runs any more replaces it"
        );
    }
    if hello.trust_policy != *trusting {
        client.set_trust_policy(trusting)?;
        tracing::info!(?trusting, "another pager has taken its place, which trusts as this daemon does");
    }
    Ok(())
}

/// Whether somebody listens at a pager's socket; the socket of one that has died refuses.
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

/// Starts `farfork pager`, which leaves our session by itself; a thread reaps it if it ends before us.
/// It reads the trust directory for itself, now and whenever the files change: no secret is handed over.
fn spawn_pager(run_dir: &RunDir, credentials: Option<&Credentials>) -> Result<(), PagerError> {
    let log = OpenOptions::new().create(true).append(true).open(run_dir.pager_log()).map_err(PagerError::Log)?;
    // Not the path of the binary, which an upgrade may have replaced: the pager must be of our own release.
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
            Err(error) => tracing::error!(%error, "the pager cannot be waited for"),
        })
        .map_err(PagerError::Spawn)?;
    Ok(())
}
