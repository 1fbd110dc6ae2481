//! `Test`: a name and a function. A test uses the shared cluster or starts its own cluster, and has a time limit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libtest_mimic::Trial;

use crate::harness::Cluster;

/// Time limit of a test. Nearly all tests need much less time.
const TEST_LIMIT: Duration = Duration::from_secs(300);

/// Time limit of a test that is marked as long. Such tests run only in `cargo xtask test-long`.
const LONG_TEST_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// Number of nodes of the shared cluster: one for the parents, two for children.
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

/// The cluster that the tests of one worker share. The first test that needs it starts it.
#[derive(Default)]
pub(crate) struct SharedCluster {
    cluster: Mutex<Option<Arc<Cluster>>>,
    /// Set during a start. It stays set if the start fails.
    is_starting: AtomicBool,
}

impl Test {
    /// Makes a test that leaves the shared cluster as it was.
    pub(crate) const fn shared(name: &'static str, body: fn(&Cluster)) -> Self {
        Self { name, body: Body::Shared(body), limit: || TEST_LIMIT, is_long: false }
    }

    /// Makes a test that starts everything that it needs.
    pub(crate) const fn alone(name: &'static str, body: fn()) -> Self {
        Self { name, body: Body::Alone(body), limit: || TEST_LIMIT, is_long: false }
    }

    /// Sets another time limit, for a test that users can extend.
    pub(crate) const fn within(self, limit: fn() -> Duration) -> Self {
        Self { limit, ..self }
    }

    /// Marks a test as long. The runner counts it as ignored, unless it is selected (`--ignored`, `--include-ignored`).
    pub(crate) const fn long(self) -> Self {
        Self { limit: || LONG_TEST_LIMIT, is_long: true, ..self }
    }

    /// Returns whether only `cargo xtask test-long` runs the test.
    pub(crate) const fn is_long(&self) -> bool {
        self.is_long
    }

    /// Returns whether the test needs the shared cluster.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.body, Body::Shared(_))
    }

    /// Returns the time limit of the test.
    pub(crate) fn limit(&self) -> Duration {
        (self.limit)()
    }

    /// Returns the name of the test with the name of its file as a prefix.
    pub(crate) fn full_name(&self, sentence: &str) -> String {
        format!("{sentence}::{}", self.name)
    }

    /// Converts the test to libtest's form, for selection and listing by arguments.
    pub(crate) fn trial(&self, sentence: &str) -> Trial {
        Trial::test(self.full_name(sentence), || Ok(())).with_ignored_flag(self.is_long)
    }

    /// Runs the test.
    pub(crate) fn run(&self, shared: &SharedCluster) {
        match self.body {
            Body::Shared(body) => body(&shared.get()),
            Body::Alone(body) => body(),
        }
    }
}

impl SharedCluster {
    fn get(&self) -> Arc<Cluster> {
        let mut cluster = self.lock();
        let start = || {
            self.is_starting.store(true, Ordering::Relaxed);
            let started = Arc::new(Cluster::start(SHARED_NODES));
            self.is_starting.store(false, Ordering::Relaxed);
            started
        };
        Arc::clone(cluster.get_or_insert_with(start))
    }

    /// Returns whether a test needed the cluster and the cluster did not start.
    pub(crate) fn has_failed_to_start(&self) -> bool {
        self.is_starting.load(Ordering::Relaxed)
    }

    /// Prints the ends of the daemons' logs, if the cluster was started.
    pub(crate) fn print_logs(&self) {
        if let Some(cluster) = &*self.lock() {
            cluster.print_logs();
        }
    }

    /// Takes the cluster down. Returns everything that it left; nothing if it was never started.
    pub(crate) fn stop(&self) -> Vec<String> {
        let cluster = self.lock().take();
        match cluster.map(Arc::try_unwrap) {
            None => Vec::new(),
            Some(Ok(cluster)) => cluster.stop(),
            Some(Err(_)) => vec!["a thread of a test still uses the shared cluster".to_owned()],
        }
    }

    /// Locks the cluster. A poisoned lock is usable: a start that panicked has stored no cluster.
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Cluster>>> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
