//! Daemons as processes on this machine's loopback: how they find, lose and find each other again. What they do with
//! processes and children is for the end-to-end tests. Needs root, as the daemon does.
//!
//! This program is its own daemon and pager: `node NAME DIR [JOIN]`, and `pager`, as the daemon calls it.

use std::ffi::OsStr;
use std::fs;
use std::future::Future;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use farfork_fork::pager::{self, PagerConfig};
use farfork_node::api::v1::{InspectRequest, ListNodesRequest, NodeState, NodeView};
use farfork_node::client::{self, within};
use farfork_node::daemon;
use farfork_node::failure::Failure;
use farfork_node::limits::QUERY_TIMEOUT;
use farfork_node::options::Options;
use farfork_node::run_dir::RunDir;
use farfork_wire::NodeName;
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// For a daemon to answer, to end, or to hear of another.
const LIMIT: Duration = Duration::from_secs(20);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["pager", "--run-dir", run_dir] => pager::run(&PagerConfig { run_dir: run_dir.into() }).expect("a pager runs"),
        ["node", name, run_dir] => run_node(name, run_dir, None),
        ["node", name, run_dir, join] => run_node(name, run_dir, Some(join)),
        _ => run_tests(),
    }
}

fn run_tests() {
    let tests: [(&str, fn()); 5] = [
        ("who_leaves_is_gone_at_once_and_leaves_nothing", who_leaves),
        ("a_killed_daemon_knows_its_cluster_again", killed),
        ("a_run_directory_has_one_daemon", one_daemon),
        ("a_name_has_one_node", one_name),
        ("a_request_goes_to_the_node_of_its_object", passed_on),
    ];
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), tests.map(trial).into()).exit();
}

fn run_node(name: &str, run_dir: &str, join: Option<&str>) {
    let options = Options {
        name: NodeName::new(name).expect("a name"),
        run_dir: run_dir.into(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        fabric_port: 0,
        join: join.map(|join| join.parse().expect("an address")).into_iter().collect(),
        pool_size: 1,
        metrics: None,
    };
    if let Err(error) = block_on(daemon::run(options)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work)
}

/// A daemon, stopped when this is dropped.
struct Node {
    process: Child,
    run_dir: RunDir,
}

impl Node {
    fn spawn(name: &str, run_dir: &Path, join: Option<SocketAddr>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.args([OsStr::new("node"), OsStr::new(name), run_dir.as_os_str()]);
        command.args(join.map(|address| address.to_string())).stdin(Stdio::null()).stderr(Stdio::piped());
        Self { process: command.spawn().expect("a process"), run_dir: RunDir::new(run_dir) }
    }

    /// Starts it, and waits until it answers.
    fn start(name: &str, run_dir: &Path, join: Option<SocketAddr>) -> Self {
        let node = Self::spawn(name, run_dir, join);
        until("the daemon answers", || node.nodes().ok());
        node
    }

    fn nodes(&self) -> Result<Vec<NodeView>, Failure> {
        block_on(async {
            let mut client = client::connect(&self.run_dir.socket()).await?;
            let answer = client.list_nodes(within(QUERY_TIMEOUT, ListNodesRequest {})).await;
            Ok(answer.map_err(|status| Failure::from_status("nodes", &status))?.into_inner().nodes)
        })
    }

    /// Names of the nodes that it hears of.
    fn alive(&self) -> Vec<String> {
        let nodes = self.nodes().expect("it answers").into_iter();
        nodes.filter(|node| node.state() == NodeState::Alive).map(|node| node.name).collect()
    }

    fn address(&self) -> SocketAddr {
        let me = self.nodes().expect("it answers").into_iter().find(|node| node.is_self);
        me.expect("it knows itself").address.parse().expect("an address")
    }

    /// What it says of an id that nothing has.
    fn inspect(&self, id: &str) -> Failure {
        block_on(async {
            let mut client = client::connect(&self.run_dir.socket()).await.expect("it answers");
            let answer = client.inspect(within(QUERY_TIMEOUT, InspectRequest { id: id.to_owned() })).await;
            Failure::from_status(id, &answer.expect_err("there is nothing of this id"))
        })
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it lives");
    }

    fn wait(&mut self) -> ExitStatus {
        until("the daemon has ended", || self.process.try_wait().expect("wait(2) works"))
    }

    /// What a daemon that has ended said.
    fn said(&mut self) -> String {
        let mut said = String::new();
        let stderr = self.process.stderr.as_mut().expect("it is piped");
        stderr.read_to_string(&mut said).expect("text");
        said
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal(Signal::TERM);
            self.wait();
        }
    }
}

fn until<T>(what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(result) = happened() {
            return result;
        }
        assert!(Instant::now() < deadline, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Directories for two daemons.
fn run_dirs() -> (TempDir, PathBuf, PathBuf) {
    let parent = tempfile::tempdir().expect("a directory");
    let (one, other) = (parent.path().join("a"), parent.path().join("b"));
    (parent, one, other)
}

fn who_leaves() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let a = Node::start("a", &dir_a, None);
    let mut b = Node::start("b", &dir_b, Some(a.address()));
    assert_eq!(b.alive(), ["a", "b"], "a node knows its cluster when it answers");
    b.signal(Signal::TERM);
    assert!(b.wait().success());
    assert_eq!(a.alive(), ["a"]);
    for left in [b.run_dir.socket(), b.run_dir.fabric_socket(), b.run_dir.members(), dir_b.join("pager.sock")] {
        assert!(!left.exists(), "{} is left", left.display());
    }
}

fn killed() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let mut a = Node::start("a", &dir_a, None);
    let _b = Node::start("b", &dir_b, Some(a.address()));
    until("a has written down that it knows b", || fs::exists(a.run_dir.members()).unwrap_or(false).then_some(()));
    a.signal(Signal::KILL);
    a.wait();
    // Under another name: its port is another too, and `a` counts as alive for some seconds.
    let again = Node::start("a2", &dir_a, None);
    assert!(again.alive().contains(&"b".to_owned()), "it was told of nobody to join");
}

fn one_daemon() {
    let (_parent, dir_a, _) = run_dirs();
    let a = Node::start("a", &dir_a, None);
    let mut second = Node::spawn("b", &dir_a, None);
    assert!(!second.wait().success());
    let said = second.said();
    assert!(said.contains(&*dir_a.to_string_lossy()) && said.contains("another daemon uses it"), "{said}");
    assert_eq!(a.alive(), ["a"], "the first goes on");
}

fn one_name() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let a = Node::start("a", &dir_a, None);
    let mut second = Node::spawn("a", &dir_b, Some(a.address()));
    assert!(!second.wait().success());
    let said = second.said();
    assert!(said.contains(&a.address().to_string()) && said.contains("the name is taken"), "{said}");
}

fn passed_on() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let a = Node::start("a", &dir_a, None);
    let _b = Node::start("b", &dir_b, Some(a.address()));
    let failure = a.inspect("b.c0123456789abcdef");
    assert_eq!((failure.object(), failure.cause()), ("child b.c0123456789abcdef", "its node knows no such child"));
    let failure = a.inspect("b.s0123456789abcdef");
    assert_eq!((failure.object(), failure.cause()), ("seed b.s0123456789abcdef", "its node has no such seed"));
    let failure = a.inspect("elsewhere.c0123456789abcdef");
    assert_eq!(failure.next_step(), "this cluster has: a, b");
}
