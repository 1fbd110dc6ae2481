//! PostgreSQL: processes that share memory, while clients move money between accounts.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, str};

use rustix::process::Signal;

use super::web::{children_of, end};
use crate::harness::service;
use crate::harness::{Cluster, Service, require_fresh_child_same, scratch, wait};

const ACCOUNTS_COUNT: usize = 20_000;

/// Number of clients, each with a server process.
const CLIENTS_COUNT: &str = "4";

/// Longest wait until the server answers queries, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait until clients have connected and transferred, on a busy machine.
const MOVED_LIMIT: Duration = Duration::from_secs(60);

/// A pgbench script: a transfer between two accounts in one transaction.
const MOVE: &str = "\\set from random(1, 20000)\n\\set to random(1, 20000)\nBEGIN;\n\
    UPDATE account SET balance = balance - 1 WHERE id = :from;\nUPDATE account SET balance = balance + 1 WHERE id = :to;\n\
    INSERT INTO move VALUES (:from, :to);\nCOMMIT;\n";

/// A query of sums that transfers do not change. More than one server process computes them.
const WHOLE: &str = "SET max_parallel_workers_per_gather = 2; SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0; \
    SELECT count(*), sum(balance), sum(hashtext(note)::bigint) FROM account";

/// A query that returns 0 if the accounts agree with all transfers.
const AGREES: &str = "SELECT sum(abs(balance - 100 - coalesce(came, 0) + coalesce(went, 0))) FROM account \
    LEFT JOIN (SELECT whence, count(*) AS went FROM move GROUP BY 1) AS a ON whence = id \
    LEFT JOIN (SELECT whither, count(*) AS came FROM move GROUP BY 1) AS b ON whither = id";

pub(super) fn postgresql(cluster: &Cluster) {
    let port = service::free_port();
    let mut server = Service::start(port, |directory| prepared(directory, port));
    wait_until_started(port);
    let ask = |query: &str| ask(port, query);
    ask(&format!(
        "CREATE TABLE account AS SELECT id, 100::bigint AS balance, md5(id::text) AS note FROM generate_series(1, {ACCOUNTS_COUNT}) AS id"
    ));
    ask("ALTER TABLE account ADD PRIMARY KEY (id)");
    ask("CREATE TABLE move (whence int, whither int)");
    let whole = ask(WHOLE);
    // Write all pending data now. Otherwise the server would write while parent and child are compared.
    ask("CHECKPOINT");
    require_fresh_child_same(cluster.first(), cluster.name(1), server.pid());
    let mut clients = Clients::start(port);
    wait::wait_until("clients have made transfers", MOVED_LIMIT, || {
        (ask("SELECT count(*) > 100 FROM move") == "t").then_some(())
    });
    // The server continues to write its log in place. A child reads only parts of the log that were written before
    // prepare.
    let (_seed, children) = children_of(cluster, &server, &["--changed-files", "allow"]);
    for child in &children {
        let ask = |query: &str| service::run_in_network_of(child.pid, || ask(query));
        assert_eq!((ask(WHOLE), ask(AGREES)), (whole.clone(), "0".to_owned()), "{}", child.id);
        ask("CREATE TABLE only_here AS SELECT * FROM generate_series(1, 1000) AS number");
        ask("CHECKPOINT");
        assert_eq!(ask("SELECT sum(number) FROM only_here"), "500500", "{}", child.id);
    }
    clients.require_alive();
    assert_eq!((ask(WHOLE), ask(AGREES)), (whole, "0".to_owned()), "the parent");
    assert_eq!(ask("SELECT to_regclass('only_here') IS NULL"), "t", "a child's table is in the parent");
    drop(clients);
    end(cluster, &children);
    // The server removes its System V shared memory only on a clean shutdown.
    server.end(Signal::INT);
}

/// Makes a command for a new server, which writes only for its clients. PostgreSQL refuses to run as root.
fn prepared(directory: &Path, port: u16) -> Command {
    let data = directory.join("data");
    run(Command::new("chown").arg("postgres").arg(directory));
    run(as_postgres("initdb").args(["--auth=trust", "--no-sync", "--username=postgres", "--pgdata"]).arg(&data));
    let mut command = as_postgres("postgres");
    command.arg("-D").arg(data).args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k"]).arg(directory);
    command.args(["-c", "wal_level=minimal", "-c", "max_wal_senders=0", "-c", "autovacuum=off"]);
    command
}

/// Returns a command for a program of the server, run as the user `postgres`. Debian installs the programs by version.
fn as_postgres(program: &str) -> Command {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut paths: Vec<_> = versions.map(|version| version.path().join("bin").join(program)).collect();
    paths.sort();
    let path = paths.pop().expect("PostgreSQL is installed: run scripts/setup.sh");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(path);
    command
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: run scripts/setup.sh"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {errors}", output.status);
    str::from_utf8(&output.stdout).expect("text").trim_end().to_owned()
}

/// Waits until the server answers queries. It listens before it can answer.
fn wait_until_started(port: u16) {
    wait::wait_until("PostgreSQL has started", START_LIMIT, || {
        let mut command = query_command(port, "SELECT 1");
        command.output().is_ok_and(|output| output.status.success()).then_some(())
    });
}

/// Sends a query on a new connection, in the current network namespace. Returns the server's answer.
fn ask(port: u16, query: &str) -> String {
    run(&mut query_command(port, query))
}

fn query_command(port: u16, query: &str) -> Command {
    let mut command = Command::new("psql");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres", "-X", "-q", "-A", "-t", "-c", query]);
    command.env("PGCONNECT_TIMEOUT", "20");
    command
}

/// Clients that make transfers until this is dropped, or until their connections are lost.
struct Clients {
    process: Child,
    _script: tempfile::NamedTempFile,
}

impl Clients {
    fn start(port: u16) -> Self {
        let script = scratch::file(MOVE);
        let mut command = Command::new("pgbench");
        command.args(["-n", "-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres"]);
        command.args(["-c", CLIENTS_COUNT, "-T", "3600", "-f"]).arg(script.path()).arg("postgres");
        let process =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("pgbench is installed with the server");
        Self { process, _script: script }
    }

    fn require_alive(&mut self) {
        let ended = self.process.try_wait().expect("our own child");
        assert!(ended.is_none(), "the parent's clients lost their connections: {ended:?}");
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
