//! A node for one test, and requests to the init of its containers.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use farfork_container::{Container, ContainerConfig, ContainerPool, RootSpec};
use farfork_sys::fd_passing;

/// Longest wait for a container in a test. Test machines may be slow.
const WAIT: Duration = Duration::from_secs(60);

/// The init program of these tests, compiled once.
fn init_image() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("init");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/container/probe/init.c");
        let status = Command::new("gcc").args(["-O1", "-static", "-o"]).arg(&program).arg(source).status();
        assert!(status.expect("gcc is needed").success(), "the tests' init does not compile");
        fs::read(&program).unwrap()
    })
}

/// The mounts of the namespace in which all tests of this program run. Containers show them, and an ended container's root
/// is not reused after they change.
static MOUNTS: RwLock<()> = RwLock::new(());

/// The right to use the mounts of the tests' namespace, or to change them.
enum MountsGuard {
    Unchanged { _guard: RwLockReadGuard<'static, ()> },
    Own { _guard: RwLockWriteGuard<'static, ()> },
}

/// A node's run directory, and the configuration of its containers.
pub(crate) struct Node {
    directory: tempfile::TempDir,
    pub(crate) config: ContainerConfig,
    /// Dropped last, after the directory.
    _mounts: MountsGuard,
}

impl Node {
    /// A node whose mounts do not change. A test has only one node: a second one would wait for a test that changes mounts,
    /// which waits for the first.
    pub(crate) fn new() -> Self {
        Self::with_mounts(MountsGuard::Unchanged { _guard: MOUNTS.read().unwrap_or_else(PoisonError::into_inner) })
    }

    /// A node of a test that changes the mounts. No other test has a node meanwhile.
    pub(crate) fn with_changing_mounts() -> Self {
        Self::with_mounts(MountsGuard::Own { _guard: MOUNTS.write().unwrap_or_else(PoisonError::into_inner) })
    }

    fn with_mounts(mounts: MountsGuard) -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests make namespaces and mounts: run them as root");
        // A failed test then shows why a root was not reused.
        let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_test_writer().try_init();
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        fs::create_dir(&run_dir).unwrap();
        fs::write(run_dir.join("token"), "secret").unwrap();
        let mut config = ContainerConfig::new("n1", &run_dir, init_image());
        config.user_ranges = directory.path().join("user-ranges");
        // Otherwise, a root could expire between two steps of a test on a busy machine.
        config.cached_roots_unused_limit = Duration::from_secs(600);
        Self { directory, config, _mounts: mounts }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn pool(&self, size: usize) -> ContainerPool {
        ContainerPool::start(self.config.clone(), size).unwrap()
    }

    /// The processes in the node's control groups, except this one.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mut directories: Vec<PathBuf> = self.cgroup_dirs().into_iter().map(PathBuf::from).collect();
        let mut found = Vec::new();
        while let Some(directory) = directories.pop() {
            let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            let inside = fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path());
            directories.extend(inside.filter(|path| path.is_dir()));
        }
        found.retain(|pid| *pid != std::process::id().cast_signed());
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The directories of the node's control groups.
    pub(crate) fn cgroup_dirs(&self) -> Vec<String> {
        let text = fs::read_to_string(self.config.run_dir.join("cgroups")).unwrap();
        text.lines().filter(|line| Path::new(line).exists()).map(str::to_owned).collect()
    }
}

pub(crate) fn take(pool: &ContainerPool, root: RootSpec) -> Container {
    pool.take(root, Instant::now() + WAIT).unwrap()
}

/// Sends a request to the container's init, and returns its reply, which must not be a failure.
pub(crate) fn ask(container: &Container, question: &str) -> String {
    try_ask(container, question).unwrap_or_else(|failure| panic!("{question}: {failure}"))
}

/// Sends a request to the container's init, and returns its reply, or the failure that it reports.
pub(crate) fn try_ask(container: &Container, question: &str) -> Result<String, String> {
    fd_passing::send(container.control(), question.as_bytes(), &[]).unwrap();
    let mut bytes = vec![0; 65536];
    let (length, _) = fd_passing::receive(container.control().as_fd(), &mut bytes, 0).unwrap();
    let answer = String::from_utf8(bytes[..length].to_vec()).unwrap();
    match answer.strip_prefix('=').expect("init has ended").strip_prefix('!') {
        Some(failure) => Err(failure.to_owned()),
        None => Ok(answer[1..].to_owned()),
    }
}

/// Waits until `condition` holds.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {WAIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
