//! Starts the daemons of a test, and creates their directories and their cluster.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use farfork_api::client::{self, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::run_dir::RunDir;
use farfork_api::v1::{InspectRequest, ListNodesRequest, NodeState, NodeView};
use farfork_trust::{NODE_VALID, Role, TrustDirectory, member};
use farfork_wire::NodeName;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Time limit for a daemon to reply, to end, or to discover another daemon.
const LIMIT: Duration = Duration::from_secs(60);

/// The nodes that have an identity before they start; `a` holds the authority.
const MEMBERS: [&str; 2] = ["b", "a2"];

/// Returns a node's trust directory, next to the run directories of the test.
pub(crate) fn trust_dir(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.with_file_name(format!("trust-{name}"))
}

/// Returns the path of the file with a node's join token.
pub(crate) fn token_file(run_dir: &Path) -> PathBuf {
    run_dir.with_extension("token")
}

/// Parses a node name.
pub(crate) fn name(text: &str) -> NodeName {
    NodeName::new(text).expect("a name")
}

/// Returns run directories for two daemons, `a` and `b`, and creates a cluster with their identities.
pub(crate) fn run_dirs() -> (TempDir, PathBuf, PathBuf) {
    let parent = tempfile::tempdir().expect("a directory");
    let (one, other) = (parent.path().join("a"), parent.path().join("b"));
    let first = TrustDirectory::new(trust_dir(&one, "a"));
    let now = SystemTime::now();
    member::create_cluster(&first, &name("test"), &name("a"), now).expect("a cluster");
    for member in MEMBERS {
        let into = TrustDirectory::new(trust_dir(&one, member));
        member::issue_client_directory(&first, &into, Role::Node, &name(member), now, NODE_VALID).expect("an identity");
    }
    (parent, one, other)
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work)
}

/// A daemon process. Dropping this stops the daemon.
pub(crate) struct TestDaemon {
    process: Child,
    pub(crate) run_dir: RunDir,
}

impl TestDaemon {
    pub(crate) fn spawn(name: &str, run_dir: &Path, join: Option<SocketAddr>) -> Self {
        let log = File::create(run_dir.with_extension("log")).expect("a log");
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.args([OsStr::new("node"), OsStr::new(name), run_dir.as_os_str()]);
        command.args(join.map(|address| address.to_string())).stdin(Stdio::null()).stderr(log);
        Self { process: command.spawn().expect("a process"), run_dir: RunDir::new(run_dir) }
    }

    /// Starts a daemon, and waits until it replies.
    pub(crate) fn start(name: &str, run_dir: &Path, join: Option<SocketAddr>) -> Self {
        let node = Self::spawn(name, run_dir, join);
        until("the daemon answers", || node.nodes().ok());
        node
    }

    pub(crate) fn nodes(&self) -> Result<Vec<NodeView>, Failure> {
        block_on(async {
            let mut client = client::connect(&self.run_dir.socket()).await?;
            let answer = client.list_nodes(request_with_timeout(QUERY_TIMEOUT, ListNodesRequest {})).await;
            Ok(answer.map_err(|status| Failure::from_status("nodes", &status))?.into_inner().nodes)
        })
    }

    /// Returns the names of the nodes that the daemon considers alive.
    pub(crate) fn alive(&self) -> Vec<String> {
        let nodes = self.nodes().expect("it answers").into_iter();
        nodes.filter(|node| node.state() == NodeState::Alive).map(|node| node.name).collect()
    }

    /// Waits until the daemon considers exactly these nodes alive. It may answer before it has joined its cluster.
    pub(crate) fn wait_alive(&self, names: &[&str]) {
        until(&format!("{names:?} are alive"), || (self.alive() == names).then_some(()));
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let own_view = self.nodes().expect("it answers").into_iter().find(|node| node.is_self);
        own_view.expect("it knows itself").address.parse().expect("an address")
    }

    /// Requests the details of an id that does not exist. Returns the failure.
    pub(crate) fn inspect(&self, id: &str) -> Failure {
        block_on(async {
            let mut client = client::connect(&self.run_dir.socket()).await.expect("it answers");
            let answer =
                client.inspect(request_with_timeout(QUERY_TIMEOUT, InspectRequest { id: id.to_owned() })).await;
            Failure::from_status(id, &answer.expect_err("there is nothing of this id"))
        })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it lives");
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("the daemon has ended", || self.process.try_wait().expect("wait(2) works"))
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("wait(2) works").is_none()
    }

    /// Returns the daemon's log so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.run_dir.root().with_extension("log")).expect("its log")
    }

    /// Waits until a line of the log contains all of these parts.
    pub(crate) fn says(&self, parts: &[&str]) {
        let line = |said: String| said.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        until(&format!("the log has {parts:?}"), || line(self.said()).then_some(()));
    }

    /// Returns the daemon's resident memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a status");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal(Signal::TERM);
            self.wait();
        }
    }
}

pub(crate) fn until<T>(what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(result) = happened() {
            return result;
        }
        assert!(Instant::now() < deadline, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
