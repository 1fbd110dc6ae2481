//! What a test is: a name and a function, on a cluster that it shares with others or by itself. Each is bounded in time.

use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};

use crate::harness::Cluster;

/// Far above what nearly any test takes, far below the patience of who waits for the run.
const TEST_LIMIT: Duration = Duration::from_secs(300);

/// For a long test, which says so by itself and is run by `cargo xtask test-long` alone.
const LONG_TEST_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// Nodes of the shared cluster: one for the parents, two for children.
const SHARED_NODES: usize = 3;

/// One test.
pub(crate) struct Test {
    name: &'static str,
    body: Body,
    limit: fn() -> Duration,
    is_long: bool,
}

#[derive(Clone, Copy)]
enum Body {
    Shared(fn(&Cluster)),
    Alone(fn()),
}

/// The cluster that tests share; started by the first that wants it.
#[derive(Default)]
pub(crate) struct SharedCluster {
    cluster: Mutex<Option<Arc<Cluster>>>,
}

impl Test {
    /// Leaves the shared cluster as it found it.
    pub(crate) const fn shared(name: &'static str, body: fn(&Cluster)) -> Self {
        Self { name, body: Body::Shared(body), limit: || TEST_LIMIT, is_long: false }
    }

    /// Starts what it needs by itself.
    pub(crate) const fn alone(name: &'static str, body: fn()) -> Self {
        Self { name, body: Body::Alone(body), limit: || TEST_LIMIT, is_long: false }
    }

    /// The test, with another limit: one that may be asked to do more than usual.
    pub(crate) const fn within(self, limit: fn() -> Duration) -> Self {
        Self { limit, ..self }
    }

    /// A long campaign: the runner counts it as ignored, unless it is asked for (`--ignored`, `--include-ignored`).
    pub(crate) const fn long(self) -> Self {
        Self { limit: || LONG_TEST_LIMIT, is_long: true, ..self }
    }

    /// Whether only `cargo xtask test-long` runs it.
    pub(crate) const fn is_long(&self) -> bool {
        self.is_long
    }

    /// The test as the runner takes it.
    pub(crate) fn trial(&self, sentence: &str, shared: &Arc<SharedCluster>) -> Trial {
        let (body, limit, shared) = (self.body, self.limit, Arc::clone(shared));
        Trial::test(format!("{sentence}::{}", self.name), move || {
            let used = Arc::clone(&shared);
            let outcome = within_limit(limit(), move || match body {
                Body::Shared(body) => body(&used.get()),
                Body::Alone(body) => body(),
            });
            if outcome.is_err() && matches!(body, Body::Shared(_)) {
                shared.get().print_logs();
            }
            outcome
        })
        .with_ignored_flag(self.is_long)
    }
}

impl SharedCluster {
    fn get(&self) -> Arc<Cluster> {
        let mut cluster = self.cluster.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Arc::clone(cluster.get_or_insert_with(|| Arc::new(Cluster::start(SHARED_NODES))))
    }

    /// Takes the cluster down; what it left, if it was ever started.
    pub(crate) fn stop(&self) -> Vec<String> {
        let cluster = self.cluster.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        match cluster.map(Arc::try_unwrap) {
            None => Vec::new(),
            Some(Ok(cluster)) => cluster.stop(),
            Some(Err(_)) => vec!["a test that ran out of time still uses it".to_owned()],
        }
    }
}

/// Ends the run at once, with the reason, where these tests cannot run: none of them is skipped in silence.
pub(crate) fn require_root() {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "the end-to-end tests need root: they stop processes, and make namespaces, mounts and control groups"
        );
        std::process::exit(1);
    }
}

/// Whoever started this run may have left descriptors open, such as the pipe of a job server. Parents would inherit them,
/// and be refused for them.
pub(crate) fn close_inherited_descriptors() {
    farfork_sys::fork::close_all_but(&[0, 1, 2]).expect("/proc/self/fd can be read");
}

/// Runs a body in a thread, and gives it up when it takes too long.
fn within_limit(limit: Duration, body: impl FnOnce() + Send + 'static) -> Result<(), Failed> {
    let (sender, receiver) = mpsc::channel();
    let runner = thread::spawn(move || {
        let outcome = panic::catch_unwind(AssertUnwindSafe(body));
        // The receiver is gone when time was up.
        let _ = sender.send(());
        outcome
    });
    match receiver.recv_timeout(limit) {
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {}
        Err(RecvTimeoutError::Timeout) => return Err(format!("not done after {} s", limit.as_secs()).into()),
    }
    let outcome = runner.join().expect("panics of the body are caught");
    outcome.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").into()
    })
}
