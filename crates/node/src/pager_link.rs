//! The node's pager: a process of its own, which serves the children's memory and outlives the daemon. Here it is found
//! or started, and asked.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use farfork_fork::pager::{CacheStats, ClientError, PagerClient, PagerCounters, RELEASE, SOCKET_FILE, Trusting};
use farfork_trust::Credentials;
use farfork_wire::ChildId;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::run_dir::RunDir;

/// For a pager to end when it is told to.
const STOP_LIMIT: Duration = Duration::from_secs(5);

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
    Silent {
        /// What came instead.
        cause: ClientError,
    },
}

/// The way to the node's pager.
#[derive(Debug)]
pub(crate) struct PagerLink {
    client: PagerClient,
}

impl PagerLink {
    /// The way to one that nobody started.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self { client: PagerClient::new(Path::new("/nonexistent")) }
    }

    /// Finds the run directory's pager, or starts one. Its cache of pages takes so much memory at most.
    ///
    /// # Errors
    /// [`PagerError`].
    pub(crate) fn establish(
        run_dir: &RunDir,
        credentials: Option<&Credentials>,
        cache_bytes_max: u64,
    ) -> Result<Self, PagerError> {
        let client = PagerClient::new(run_dir.root());
        let silent = |cause| PagerError::Silent { cause };
        if !is_there(&run_dir.root().join(SOCKET_FILE)) {
            start(run_dir, credentials)?;
        } else if client.children().map_err(silent)?.is_empty() {
            // Of whatever release, and whomever it trusts: nobody needs it.
            client.stop(STOP_LIMIT).map_err(silent)?;
            start(run_dir, credentials)?;
        } else {
            go_on(&client, &Trusting::of(credentials)).map_err(silent)?;
        }
        match client.limit_cache(cache_bytes_max) {
            Ok(_) => Ok(Self { client }),
            Err(cause) => Err(PagerError::Silent { cause }),
        }
    }

    /// What asks the pager.
    pub(crate) fn client(&self) -> &PagerClient {
        &self.client
    }

    /// What it has counted for a child; `None` where it no longer knows the child.
    pub(crate) fn counts(&self, child: &ChildId) -> Option<PagerCounters> {
        Some(self.client.stats(child).ok()?.counters)
    }

    /// What its cache of pages holds; `None` where it does not answer.
    pub(crate) fn cache(&self) -> Option<CacheStats> {
        self.client.cache().ok()
    }

    /// Has it forget a child that has ended.
    pub(crate) fn release(&self, child: &ChildId) {
        if let Err(error) = self.client.release(child) {
            tracing::debug!(%child, %error, "the pager does not forget a child");
        }
    }

    /// Has it forget a child all of whose processes have ended, as far as is known; `None` where it has not, else what it had
    /// counted.
    pub(crate) fn release_at_once(&self, child: &ChildId) -> Option<Option<PagerCounters>> {
        self.client.release_at_once(child).ok()
    }

    /// Ends it. Only where no child runs any more.
    pub(crate) fn stop(&self) {
        if let Err(error) = self.client.stop(STOP_LIMIT) {
            tracing::warn!(%error, "the pager does not stop");
        }
    }
}

/// Has a pager that children need go on as this daemon would have started it.
fn go_on(client: &PagerClient, trusting: &Trusting) -> Result<(), ClientError> {
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
    if hello.trusting != *trusting {
        client.trust(trusting)?;
        tracing::info!(?trusting, "another pager has taken its place, which trusts as this daemon does");
    }
    Ok(())
}

/// Whether somebody listens at a pager's socket; the socket of one that has died refuses.
fn is_there(socket: &Path) -> bool {
    let connect = || {
        let ours = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
        rustix::net::connect(&ours, &SocketAddrUnix::new(socket)?)
    };
    connect().is_ok()
}

/// Starts `farfork pager`, which leaves our session by itself; a thread reaps it if it ends before us.
/// It reads the trust directory for itself, now and whenever the files change: no secret is handed over.
fn start(run_dir: &RunDir, credentials: Option<&Credentials>) -> Result<(), PagerError> {
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
