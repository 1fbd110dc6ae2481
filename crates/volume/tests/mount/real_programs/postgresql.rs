//! PostgreSQL: kills the server during transactions of pgbench. Then runs the server on the mounts of other nodes.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::Durability;
use farfork_volume::process::ProcessRole;
use rustix::process::Signal;
use tempfile::TempDir;

use super::run;
use crate::mounted_volume::LOG_BYTES;
use crate::test_node::{NO_DETECTION_MS, WAIT_LIMIT};
use crate::volume_cluster::{THREE_NODES, VolumeCluster};

const CLIENTS: &str = "4";
/// Number of transactions that are committed before each kill, and again on each other node.
const TRANSACTIONS: u64 = 100;

/// Query for the sums of the tables of pgbench, which are equal between transactions.
const SUMS: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches), \
    (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)";
const COUNT: &str = "SELECT count(*) FROM pgbench_history";

/// The processes that are killed during transactions.
#[derive(Clone, Copy, Debug)]
enum KillTarget {
    /// Every process of the server.
    Server,
    /// Processes of the volume on the node of the server.
    Volume(ProcessRole),
}

/// A server must have all committed transactions after a kill, and other nodes must continue. Processes of the volume are
/// killed, too.
pub(super) fn keeps_committed_transactions() {
    use KillTarget::{Server, Volume};
    let kills = [
        Server,
        Volume(ProcessRole::Worker),
        Volume(ProcessRole::Client),
        Server,
        Volume(ProcessRole::Offload),
        Server,
        Volume(ProcessRole::Client),
    ];
    run_on_each_node(Durability::Memory, &kills);
    run_on_each_node(Durability::Disk, &kills);
}

/// Runs kills on node 0, then starts a server on each node.
fn run_on_each_node(durability: Durability, kills: &[KillTarget]) {
    let cluster = VolumeCluster::mounted(&THREE_NODES, LOG_BYTES, durability, NO_DETECTION_MS);
    let sockets = create_database(&cluster);
    let mut server = DatabaseServer::start(&data_directory(&cluster, 0), sockets.path());
    server.initialize();
    for kill in kills {
        println!("{durability:?}: {kill:?} is killed");
        server = server.check_kill(*kill, &cluster);
    }
    for node in [1, 2, 0] {
        server.stop();
        let data = data_directory(&cluster, node);
        run(as_postgres("pg_checksums").args(["--check", "--pgdata"]).arg(&data));
        server = DatabaseServer::start(&data, sockets.path());
        server.require_sums();
        run(server.client("pgbench").args(["--no-vacuum", "--client", CLIENTS, "--transactions", "25"]));
    }
    server.require_sums();
    run(server.client("pg_amcheck").args(["--install-missing", "--heapallindexed", "--database=postgres"]));
    server.stop();
}

/// The data directory as a node sees it.
pub(super) fn data_directory(cluster: &VolumeCluster, node: usize) -> PathBuf {
    cluster.path(node).join("data")
}

/// Creates a data directory in the volume, and a local directory for the sockets of its server.
pub(super) fn create_database(cluster: &VolumeCluster) -> TempDir {
    let sockets = tempfile::tempdir().unwrap();
    give_to_postgres(sockets.path());
    // The user of the server must reach the mounts, which are below a directory of mode 0700.
    fs::set_permissions(cluster.path(0).ancestors().nth(2).unwrap(), fs::Permissions::from_mode(0o711)).unwrap();
    let data = data_directory(cluster, 0);
    fs::create_dir(&data).unwrap();
    give_to_postgres(&data);
    let mut initdb = as_postgres("initdb");
    initdb.args(["--auth=trust", "--username=postgres", "--wal-segsize=1", "--data-checksums", "--pgdata"]);
    run(initdb.arg(data));
    sockets
}

fn give_to_postgres(directory: &Path) {
    run(Command::new("chown").arg("postgres:postgres").arg(directory));
}

/// Path of a program of the server, which Debian installs in a directory for each version.
fn program_path(program: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut paths: Vec<_> = versions.map(|version| version.path().join("bin").join(program)).collect();
    paths.sort();
    paths.pop().expect("PostgreSQL is installed: run scripts/setup.sh")
}

/// Runs a program as the user postgres, because the server refuses to run as root.
fn as_postgres(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program_path(program));
    command
}

/// Committed transactions that are known when the server is killed.
#[derive(Debug)]
pub(super) struct ExpectedCommits {
    /// Transactions before the clients started.
    before: u64,
    /// Transactions that a query has found.
    seen: u64,
}

/// A running server. Dropping the value kills the server.
pub(super) struct DatabaseServer {
    process: Child,
    data: PathBuf,
    sockets: PathBuf,
}

impl DatabaseServer {
    /// Starts a server on an existing data directory, and waits until it answers.
    pub(super) fn start(data: &Path, sockets: &Path) -> Self {
        let messages = File::options().create(true).append(true).open(sockets.join("messages")).unwrap();
        let mut command = as_postgres("postgres");
        command.arg("-D").arg(data).args(["-h", "", "-k"]).arg(sockets);
        // Shared memory of parallel queries is in files of the data directory, too.
        command.args(["-c", "dynamic_shared_memory_type=mmap", "-c", "shared_buffers=16MB", "-c", "max_wal_size=8MB"]);
        command.stdin(Stdio::null()).stdout(messages.try_clone().unwrap()).stderr(messages);
        let process = command.spawn().unwrap();
        let mut server = Self { process, data: data.to_owned(), sockets: sockets.to_owned() };
        server.wait_for("it answers", |server| server.query("SELECT 1").as_deref() == Some("1"));
        server
    }

    /// Returns a command of a program that connects to this server.
    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program_path(program));
        command.arg("--host").arg(&self.sockets).args(["--username", "postgres"]).env("PGDATABASE", "postgres");
        command
    }

    /// Executes a query; none if the server does not answer.
    fn query(&self, statement: &str) -> Option<String> {
        let mut client = self.client("psql");
        client.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--command", statement]);
        let output = client.stdin(Stdio::null()).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    fn committed(&self) -> u64 {
        self.query(COUNT).expect("the server answers").parse().unwrap()
    }

    /// Requires equal sums, so that no transaction is incomplete.
    fn require_sums(&self) {
        let sums = self.query(SUMS).expect("the server answers");
        assert!(sums.split('|').all(|sum| Some(sum) == sums.split('|').next()), "{sums}: {}", self.messages());
    }

    fn messages(&self) -> String {
        fs::read_to_string(self.sockets.join("messages")).unwrap()
    }

    fn wait_for(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + WAIT_LIMIT;
        while !condition(self) {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "{what}: the server ended: {ended:?}: {}", self.messages());
            assert!(Instant::now() < deadline, "{what}: not within {WAIT_LIMIT:?}: {}", self.messages());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Creates the tables of pgbench.
    pub(super) fn initialize(&self) {
        run(self.client("pgbench").args(["--initialize", "--quiet"]));
    }

    /// Starts clients that run transactions until the server is killed, and waits until some are committed.
    pub(super) fn start_clients(&mut self) -> (Child, ExpectedCommits) {
        let before = self.committed();
        let mut clients = self.client("pgbench");
        clients.args(["--no-vacuum", "--client", CLIENTS, "--time", "3600"]).stdin(Stdio::null());
        let clients = clients.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        self.wait_for("transactions are committed", |server| server.committed() >= before + TRANSACTIONS);
        (clients, ExpectedCommits { before, seen: self.committed() })
    }

    /// Checks that this server has all transactions that clients of the killed server have seen.
    pub(super) fn check_clients(&self, clients: Child, expected: ExpectedCommits) {
        let output = clients.wait_with_output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = self.committed();
        let acknowledged = expected.before + acknowledged_transactions(&report);
        let at_least = acknowledged.max(expected.seen);
        assert!(found >= at_least, "{found} transactions, {acknowledged} were committed, {expected:?}");
        let at_most = acknowledged + CLIENTS.parse::<u64>().unwrap();
        assert!(found <= at_most, "{found} transactions, {acknowledged} were committed");
        self.require_sums();
    }

    /// Kills the target during transactions, starts the next server, and compares it with the transactions that clients have
    /// seen.
    fn check_kill(mut self, kill: KillTarget, cluster: &VolumeCluster) -> Self {
        let (clients, expected) = self.start_clients();
        if let KillTarget::Volume(role) = kill {
            cluster.nodes[0].kill(&[role]);
            if role != ProcessRole::Client {
                let continued = |server: &Self| server.committed() >= expected.seen + TRANSACTIONS;
                self.wait_for("transactions are committed after the kill", continued);
            }
        }
        self.kill();
        let (data, sockets) = (self.data.clone(), self.sockets.clone());
        drop(self);
        let next = Self::start(&data, &sockets);
        next.check_clients(clients, expected);
        next
    }

    /// Stops the server with a fast shutdown, which writes a checkpoint.
    pub(super) fn stop(mut self) {
        send_signal(&open_process(self.process.id()).unwrap(), Signal::INT);
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.messages());
    }

    /// Kills all processes of the server.
    pub(super) fn kill(&mut self) {
        if self.process.try_wait().unwrap().is_some() {
            return;
        }
        // The stopped server cannot start other processes during the kill.
        send_signal(&open_process(self.process.id()).unwrap(), Signal::STOP);
        let children: Vec<_> = children_of(self.process.id()).into_iter().filter_map(open_process).collect();
        children.iter().for_each(|child| send_signal(child, Signal::KILL));
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        for child in children {
            assert!(farfork_sys::pidfd::wait_exit(&child, WAIT_LIMIT).unwrap(), "a process of the server does not end");
        }
    }
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads the number of transactions that pgbench prints, even if its connections are lost.
fn acknowledged_transactions(report: &str) -> u64 {
    let line = report.lines().find_map(|line| line.strip_prefix("number of transactions actually processed: "));
    let count = line.unwrap_or_else(|| panic!("pgbench reports no transactions: {report}"));
    count.split('/').next().unwrap().trim().parse().unwrap()
}

/// Opens a pidfd; none if the process has ended.
fn open_process(process_id: u32) -> Option<OwnedFd> {
    farfork_sys::pidfd::open(process_id.cast_signed()).ok()
}

fn send_signal(process: &OwnedFd, signal: Signal) {
    // A process that has ended needs no signal.
    let _ = farfork_sys::pidfd::send_signal(process, signal.as_raw());
}

fn children_of(process_id: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{process_id}/task/{process_id}/children")).unwrap();
    children.split_ascii_whitespace().map(|child| child.parse().unwrap()).collect()
}
