//! `farfork cluster deploy` makes hosts of an inventory nodes of one cluster, and `undeploy` leaves nothing on them.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::ssh_hosts::SshHosts;
use crate::harness::wait::{self, CommandOutput};
use crate::test::Test;

/// Longest wait for a step of a coordinator, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The path of the lock on a host.
const LOCK: &str = "/run/farfork-coordinator.lock";

pub(crate) const TESTS: &[Test] = &[
    Test::alone("hosts_that_cannot_be_used_are_named", hosts_that_cannot_be_used_are_named),
    Test::alone("nodes_are_installed_and_removed", nodes_are_installed_and_removed),
];

fn deploy(hosts: &SshHosts, inventory: &Path, arguments: &[&str]) -> CommandOutput {
    let inventory = inventory.to_str().expect("UTF-8");
    hosts.run_coordinator(&[&["cluster", "deploy", "--inventory", inventory], arguments].concat())
}

fn undeploy(hosts: &SshHosts, inventory: &Path, arguments: &[&str]) -> CommandOutput {
    let inventory = inventory.to_str().expect("UTF-8");
    hosts.run_coordinator(&[&["cluster", "undeploy", "--inventory", inventory], arguments].concat())
}

/// Requires success. Returns the outcome of each host from the JSON document.
#[track_caller]
fn outcomes(output: &CommandOutput) -> Vec<(String, String)> {
    output.require_success();
    let document: Value = serde_json::from_str(&output.stdout).expect("a JSON document");
    let value = |host: &Value, key: &str| host[key].as_str().expect("text").to_owned();
    let hosts = document["hosts"].as_array().expect("hosts").iter();
    hosts.map(|host| (value(host, "host"), value(host, "outcome"))).collect()
}

fn pairs(outcome: &str) -> Vec<(String, String)> {
    ["n1", "n2"].map(|host| (host.to_owned(), outcome.to_owned())).to_vec()
}

/// Requires that the hosts have nothing that they did not have at their start. Waits, because sshd ends the processes of a
/// connection only after the client has closed it.
#[track_caller]
fn require_unchanged(hosts: &SshHosts) {
    for index in 0..2 {
        let is_unchanged = || hosts.changes_on(index).is_empty().then_some(());
        let unchanged = wait::poll_within(LIMIT, is_unchanged);
        assert!(unchanged.is_some(), "n{}: {:?}", index + 1, hosts.changes_on(index));
    }
}

fn hosts_that_cannot_be_used_are_named() {
    let hosts = SshHosts::start(2);
    let lost = "[[hosts]]\nname = \"n9\"\naddress = \"10.99.0.9\"\n";
    let inventory = hosts.write_inventory("connect_timeout_s = 2", lost);
    let began = Instant::now();
    deploy(&hosts, &inventory, &[]).require_failure(1, &["host n9: ", "10.99.0.9", "nothing was changed on any host"]);
    assert!(began.elapsed() < LIMIT, "the limit is 2 s");
    require_unchanged(&hosts);

    let inventory = hosts.write_inventory("", "");
    hosts.swap_known_host_keys();
    deploy(&hosts, &inventory, &[]).require_failure(1, &["host n1: the key of 10.99.0.1", "host n2: the key of"]);
    let accepting = deploy(&hosts, &inventory, &["--accept-new-host-keys"]);
    accepting.require_failure(1, &["host n1: the key of 10.99.0.1", "correct the file"]);
    require_unchanged(&hosts);

    let option = "[[hosts]]\nname = \"-oProxyCommand=touch /tmp/farfork-was-run\"\n";
    let inventory = hosts.write_inventory("", option);
    let refused = deploy(&hosts, &inventory, &[]);
    refused.require_failure(1, &["hosts.toml:15:8: ", "-oProxyCommand=touch"]);
    assert!(!Path::new("/tmp/farfork-was-run").exists());
    let inventory = hosts.write_inventory("", "");
    deploy(&hosts, &inventory, &["--hosts=-oProxyCommand=id"]).require_failure(1, &["no host or group"]);

    // Something else listens at the port of the node.
    let listen =
        "import socket, time; s = socket.create_server(('10.99.0.2', 7400)); print(flush=True); time.sleep(1000)";
    let mut listener = hosts.command_on(1, &["python3", "-c", listen]).spawn().expect("nsenter(1) runs");
    std::io::Read::read_exact(listener.stdout.as_mut().expect("piped"), &mut [0]).expect("it listens");
    let refused = deploy(&hosts, &inventory, &[]);
    refused.require_failure(1, &["host n2 cannot run a node: ports: 10.99.0.2:7400: ", "ss -ltnp"]);
    hosts.run_on(1, &["sh", "-c", "kill $(pgrep -x python3)"]);
    wait::wait_exit(&mut listener, "the listener", LIMIT);
}

fn nodes_are_installed_and_removed() {
    let hosts = SshHosts::start(2);
    let inventory = hosts.write_inventory("", "");
    assert_eq!(outcomes(&deploy(&hosts, &inventory, &["--json"])), pairs("deployed"));
    require_members(&hosts);
    require_fork_across_hosts(&hosts);

    let daemons = [0, 1].map(|index| hosts.run_on(index, &["pgrep", "-x", "-o", "farfork"]));
    let files = [0, 1].map(|index| installed_files(&hosts, index));
    assert_eq!(outcomes(&deploy(&hosts, &inventory, &["--json"])), pairs("unchanged"));
    assert_eq!([0, 1].map(|index| hosts.run_on(index, &["pgrep", "-x", "-o", "farfork"])), daemons);
    assert_eq!([0, 1].map(|index| installed_files(&hosts, index)), files, "a second run changes nothing");

    require_one_coordinator(&hosts, &inventory);
    require_daemon_survives_failures(&hosts);
    require_other_nodes_stay(&hosts);
    let inventory = hosts.write_inventory("", "");
    let refused = undeploy(&hosts, &inventory, &["--hosts", "n1"]);
    refused.require_failure(1, &["host n1 holds the authority of the cluster, which still has the nodes n2"]);
    let down = "[[hosts]]\nname = \"n9\"\naddress = \"127.0.0.1\"\nport = 1\n";
    let refused = undeploy(&hosts, &hosts.write_inventory("", down), &["--hosts", "n1,n9"]);
    refused.require_failure(1, &["host n1 holds the authority of the cluster, and n9 failed", "--exclude"]);
    let inventory = hosts.write_inventory("", "");
    // The daemon is killed: its pager and its files stay.
    hosts.run_on(1, &["sh", "-c", "kill -9 $(pgrep -x -o farfork)"]);
    assert_eq!(outcomes(&undeploy(&hosts, &inventory, &["--json"])).len(), 2);
    require_unchanged(&hosts);
    // A deployment that was killed leaves a copied program.
    hosts.run_on(1, &["touch", "/usr/local/bin/farfork.staged"]);
    assert_eq!(outcomes(&undeploy(&hosts, &inventory, &["--json", "--hosts", "n2"])), pairs("removed")[1..]);
    require_unchanged(&hosts);
    assert_eq!(
        outcomes(&undeploy(&hosts, &inventory, &["--json"])),
        [pairs("absent")[1].clone(), pairs("absent")[0].clone()]
    );
}

fn require_members(hosts: &SshHosts) {
    for index in 0..2 {
        wait::wait_until("each node sees both", LIMIT, || {
            let document = hosts.run_on(index, &["farfork", "nodes", "--json"]);
            let document: Value = serde_json::from_str(&document).expect("a JSON document");
            let nodes = document["nodes"].as_array().expect("nodes").iter();
            let alive = nodes.filter(|node| node["state"] == "alive").count();
            // A node writes the addresses of the others shortly after it has seen them.
            let is_saved = || hosts.path_on(index, "/etc/farfork/members.json").exists();
            (alive == 2 && is_saved()).then_some(())
        });
    }
}

/// A failing deployment does not end a daemon that runs.
fn require_daemon_survives_failures(hosts: &SshHosts) {
    let daemons = || [0, 1].map(|index| hosts.run_on(index, &["pgrep", "-x", "-o", "farfork"]));
    let before = daemons();
    let inventory = hosts.write_inventory("[install]\narguments = [\"--bogus\"]", "");
    deploy(hosts, &inventory, &[]).require_failure(1, &["`arguments` of [install]", "unexpected argument '--bogus'"]);
    let inventory = hosts.write_inventory("", "");
    let text = fs::read_to_string(&inventory).expect("it was just written");
    fs::write(&inventory, text.replacen("\"eth0\"", "\"10.9.9.9\"", 1) + "cpus = \"7777\"\n").expect("a small file");
    let causes = ["host n1 cannot run a node: ports: 10.9.9.9:7400", "host n2: `cpus` of the inventory is 7777"];
    deploy(hosts, &inventory, &[]).require_failure(1, &causes);
    assert_eq!(daemons(), before);

    // Only the daemon itself finds that this machine lacks the address.
    let inventory = hosts.write_inventory("[install]\narguments = [\"--metrics\", \"10.9.9.9:9470\"]", "");
    let refused = deploy(hosts, &inventory, &["--hosts", "n2"]);
    refused.require_failure(1, &["the previous daemon runs again", "10.9.9.9:9470", "run deploy again"]);
    let error = refused.stderr.lines().find(|line| line.contains("10.9.9.9")).expect("it was found");
    assert!(error.len() < 700, "only the last lines of the log: {error}");
    let inventory = hosts.write_inventory("", "");
    assert_eq!(outcomes(&deploy(hosts, &inventory, &["--json"])), pairs("unchanged"));
}

/// `undeploy` does not remove a node that the inventory does not describe.
fn require_other_nodes_stay(hosts: &SshHosts) {
    let inventory = hosts.write_inventory("[install]\ncluster = \"other\"", "");
    let refused = undeploy(hosts, &inventory, &["--hosts", "n2"]);
    refused.require_failure(1, &["host n2: /etc/farfork has the identity farfork://farfork/node/n2", "by hand"]);
    let inventory = hosts.write_inventory("authority = \"n2\"", "");
    let refused = undeploy(hosts, &inventory, &["--hosts", "n1"]);
    refused.require_failure(1, &["farfork://farfork/node/n1 holds the authority of its cluster", "`authority`"]);
    let text = fs::read_to_string(&inventory).expect("it was just written");
    fs::write(&inventory, text.replace("\"n2\"", "\"zz\"")).expect("a small file");
    undeploy(hosts, &inventory, &["--hosts", "zz"]).require_failure(1, &["not farfork://farfork/node/zz"]);
}

/// Forks a parent on the first host to the second one.
fn require_fork_across_hosts(hosts: &SshHosts) {
    let script = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!";
    let parent = hosts.run_on(0, &["sh", "-c", script]);
    let seed = hosts.run_on(0, &["farfork", "prepare", parent.trim()]);
    let child = hosts.run_on(0, &["farfork", "fork", seed.trim(), "--to", "n2", "--detach"]);
    assert!(child.starts_with("n2."), "{child}");
    let document: Value = serde_json::from_str(&hosts.run_on(1, &["farfork", "ps", "--json"])).expect("JSON");
    assert!(document.to_string().contains(child.trim()), "{document}");
    let end = format!("farfork kill {0}; farfork wait {0}; farfork rm {0}", child.trim());
    hosts.run_on(0, &["sh", "-c", &end]);
    hosts.run_on(0, &["farfork", "drop", seed.trim()]);
    hosts.run_on(0, &["kill", parent.trim()]);
}

/// The installed files of a host, with their times of change.
fn installed_files(hosts: &SshHosts, index: usize) -> String {
    let paths = ["/usr/local/bin", "/etc/farfork"];
    hosts.run_on(index, &[&["find"], &paths[..], &["-type", "f", "-printf", "%p %T@ %i\n"]].concat())
}

/// A second coordinator is refused while the first one runs. A killed one leaves no lock.
fn require_one_coordinator(hosts: &SshHosts, inventory: &Path) {
    let path = inventory.to_str().expect("UTF-8");
    let start = || hosts.coordinator(&["cluster", "deploy", "--inventory", path, "--json"]).spawn().expect("it starts");
    let lock = hosts.path_on(0, LOCK);
    let has_holder = || fs::read_to_string(&lock).is_ok_and(|holder| holder.contains("process"));
    let wait_for_lock = |is_held: bool| {
        wait::wait_until("the lock", LIMIT, || (has_holder() == is_held).then_some(()));
    };
    let signal = |process: &Child, signal| kill_process(Pid::from_child(process), signal).expect("our own child");
    // The first one may have released the lock before it is stopped.
    let first = loop {
        let first = start();
        wait_for_lock(true);
        signal(&first, Signal::STOP);
        if has_holder() {
            break first;
        }
        signal(&first, Signal::CONT);
        wait::wait_with_output(first, "a coordinator", LIMIT);
    };
    let refused = deploy(hosts, inventory, &[]);
    refused.require_failure(1, &["host n1: another coordinator uses it: `farfork cluster deploy` of ", "process"]);
    signal(&first, Signal::CONT);
    let first = wait::wait_with_output(first, "the first coordinator", LIMIT);
    assert_eq!(outcomes(&first), pairs("unchanged"));
    let mut killed = start();
    wait_for_lock(true);
    signal(&killed, Signal::KILL);
    wait::reap_killed(&mut killed);
    wait_for_lock(false);
}
