//! `farfork bench` and `farfork stress` run their experiments on hosts over ssh. Nothing is left on them, however they end.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::ssh_hosts::SshHosts;
use crate::harness::wait::{self, CommandOutput};
use crate::test::Test;

/// Longest wait for a step of a coordinator, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) const TESTS: &[Test] = &[
    Test::alone("a_server_and_its_clients_are_hosts", server_and_clients).long(),
    Test::alone("nodes_of_hosts_are_measured", nodes_are_measured).long(),
];

/// Hosts, and their inventory.
struct ExperimentHosts {
    hosts: SshHosts,
    count: usize,
    inventory: PathBuf,
}

impl ExperimentHosts {
    fn start(count: usize, tables: &str, more_hosts: &str) -> Self {
        let hosts = SshHosts::start(count);
        hosts.add_bench_program();
        let inventory = hosts.write_inventory(tables, more_hosts);
        Self { hosts, count, inventory }
    }

    /// The arguments of an experiment on the hosts of the inventory.
    fn arguments<'a>(&'a self, experiment: &[&'a str]) -> Vec<&'a str> {
        [experiment, &["--inventory", self.inventory.to_str().expect("UTF-8")]].concat()
    }

    fn run(&self, experiment: &[&str]) -> CommandOutput {
        self.hosts.run_coordinator(&self.arguments(experiment))
    }

    /// Runs an experiment. Returns its document, in which no host has errors or leftovers.
    #[track_caller]
    fn measure(&self, experiment: &[&str]) -> Value {
        let output = self.run(&[experiment, &["--json"]].concat());
        output.require_success();
        let document: Value = serde_json::from_str(&output.stdout).expect("a JSON document");
        for host in document["hosts"].as_array().expect("a list of hosts") {
            assert_eq!((&host["errors"], &host["left"]), (&json!([]), &json!([])), "{document}");
        }
        self.wait_until_clean();
        document
    }

    /// Waits until no host has anything of an experiment.
    fn wait_until_clean(&self) {
        const TRACES: [&str; 4] = ["farfork-experiment", "bench process", "remote-runner", "coordinator.lock"];
        let is_trace = |change: &String| TRACES.iter().any(|trace| change.contains(trace));
        wait::wait_until("the hosts have nothing left", LIMIT, || {
            (0..self.count).all(|index| !self.hosts.changes_on(index).iter().any(is_trace)).then_some(())
        });
    }

    /// Sends a signal to a coordinator whose endpoints run on all hosts. Nothing may be left.
    fn require_clean_after(&self, signal: Signal) {
        let stress = ["stress", "rpc", "--seconds", "600", "--report-interval", "600", "--hosts", "up"];
        self.end_when(signal, &stress, || {
            let is_endpoint = |change: &String| change.contains("bench process endpoint");
            (0..self.count).all(|index| self.hosts.changes_on(index).iter().any(is_endpoint))
        });
    }

    /// Sends a signal to the coordinator of an experiment when it has reached a state. Nothing may be left.
    fn end_when(&self, signal: Signal, experiment: &[&str], is_reached: impl Fn() -> bool) {
        let running = self.hosts.coordinator(&self.arguments(experiment)).spawn().expect("it starts");
        wait::wait_until("the experiment runs", LIMIT, || is_reached().then_some(()));
        kill_process(Pid::from_child(&running), signal).expect("our own child");
        let ended = wait::wait_with_output(running, "the coordinator", LIMIT);
        assert!(!ended.status.success(), "{}{}", ended.stdout, ended.stderr);
        self.wait_until_clean();
    }

    /// Whether the node of the first host has seeds.
    fn has_seeds(&self) -> bool {
        let listed = self.hosts.run_on(0, &["farfork", "seeds", "--json"]);
        let listed: Value = serde_json::from_str(&listed).expect("a JSON document");
        !listed["seeds"].as_array().expect("a list of seeds").is_empty()
    }
}

/// The names in a list of hosts, in their order.
fn host_names(hosts: &Value) -> Vec<&str> {
    let hosts = hosts.as_array().expect("a list of hosts").iter();
    hosts.map(|host| host["host"].as_str().expect("a name")).collect()
}

fn server_and_clients() {
    let down = "[[hosts]]\nname = \"n9\"\naddress = \"10.99.0.9\"\n";
    let coordinator = ExperimentHosts::start(2, "connect_timeout_s = 10\n[groups]\nup = [\"n1\", \"n2\"]", down);
    let calls = ["bench", "rpc", "--runs", "1", "--client-seconds", "0.2", "--threads", "2"];
    let document = coordinator.measure(&[&calls[..], &["--exclude", "n9"]].concat());
    let case = &document["cases"][0];
    assert_eq!((host_names(&document["hosts"]), host_names(&case["hosts"])), (vec!["n1", "n2"], vec!["n2"]));
    assert!(case["hosts"][0]["per_s"].as_f64() > Some(0.0) && case["hosts"][0]["per_s"] == case["per_s"], "{case}");

    let stress = ["stress", "rpc", "--threads", "2", "--seconds", "2", "--floor", "0", "--exclude", "n9"];
    let text = coordinator.run(&stress);
    text.require_success();
    let rows = |name: &str| text.stdout.lines().filter(|line| line.trim_start().starts_with(name)).count();
    // The calls by hosts and their sum, and the hosts of the run.
    assert_eq!(["n1 ", "n2 ", "all "].map(rows), [1, 2, 1], "{}", text.stdout);
    let document = coordinator.measure(&stress);
    assert_eq!(host_names(&document["outcome"]["hosts"]), ["n2"]);

    coordinator.run(&calls).require_failure(1, &["host n9: ", "10.99.0.9"]);
    coordinator.wait_until_clean();
    let refused = coordinator.run(&["stress", "paging", "--seconds", "1"]);
    refused.require_failure(1, &["`farfork stress paging --inventory`", "it kills nodes"]);
    coordinator.run(&[&calls[..], &["--cpus", "0"]].concat()).require_failure(1, &["--cpus and --numa", "numa_node"]);
    coordinator.require_clean_after(Signal::INT);
}

/// The nodes that `farfork cluster deploy` has started are measured, and continue.
fn nodes_are_measured() {
    let coordinator = ExperimentHosts::start(3, "[groups]\nup = [\"n1\", \"n2\", \"n3\"]", "");
    let fork = ["bench", "fork", "--mib", "1", "--runs", "2", "--within", "20"];
    let missing = coordinator.run(&fork);
    missing.require_failure(1, &["host n1: no node answers at /run/farfork/node.sock", "`farfork cluster deploy`"]);
    assert_eq!(missing.stderr.matches('`').count(), 2, "one next step: {}", missing.stderr);
    coordinator.wait_until_clean();
    let deployed = coordinator.run(&["cluster", "deploy"]);
    deployed.require_success();

    let document = coordinator.measure(&fork);
    let figures = document["figures"].as_array().expect("figures");
    let is_resume = |figure: &&Value| figure["figure"] == "resume" && figure["node"] == "other";
    assert!(figures.iter().find(is_resume).is_some_and(|figure| figure["samples"] == 2), "{document}");
    assert!(document["section"]["notes"].to_string().contains("own node: n1; other node: n2"), "{document}");
    let clear = coordinator.run(&[&fork[..], &["--encryption", "off"]].concat());
    clear.require_failure(1, &["--encryption off does not match"]);
    // More parents than a connection of ssh has sessions.
    let faults = ["bench", "fault", "--runs", "1", "--stream-mib", "64"];
    assert_eq!(host_names(&coordinator.measure(&faults)["hosts"]), ["n1", "n2", "n3"]);
    for experiment in [
        &["bench", "churn", "--mib", "8", "--runs", "1"][..],
        &["bench", "tree", "--processes", "1,3", "--mib", "1", "--shared-mib", "1", "--runs", "2"],
    ] {
        let document = coordinator.measure(experiment);
        assert_eq!(host_names(&document["hosts"]), ["n1", "n2", "n3"]);
        assert!(document["figures"].as_array().is_some_and(|figures| !figures.is_empty()), "{document}");
    }

    // By default, the workload sparse and clients on all hosts but the first.
    let peak = coordinator.run(&["bench", "peak", "--clients", "1", "--seconds", "2"]);
    assert!(
        peak.status.success() && ["n2", "n3", "all"].iter().all(|name| peak.stdout.contains(name)),
        "{}{}",
        peak.stdout,
        peak.stderr
    );
    let stress = coordinator.measure(&["stress", "fork", "--nodes", "2", "--clients", "2", "--seconds", "2"]);
    assert_eq!(host_names(&stress["outcome"]["hosts"]), ["n1", "n2"]);

    let connections = ["bench", "connect", "--runs", "1", "--seconds", "0.2", "--clients", "1,2", "--threads", "1"];
    let document = coordinator.measure(&connections);
    for case in document["cases"].as_array().expect("cases") {
        let rates = case["hosts"].as_array().expect("hosts").iter().map(|host| host["per_s"].as_f64().expect("a rate"));
        assert!((rates.sum::<f64>() - case["per_s"].as_f64().expect("a rate")).abs() < 1.0, "{case}");
    }
    coordinator.run(&[&connections[..], &["--exclude", "n1"]].concat()).require_failure(1, &["needs 3 hosts", "2 are"]);
    coordinator.require_clean_after(Signal::KILL);
    for signal in [Signal::INT, Signal::KILL] {
        coordinator.end_when(signal, &["bench", "fork", "--mib", "16", "--within", "120"], || coordinator.has_seeds());
        wait::wait_until("the seeds are dropped", LIMIT, || (!coordinator.has_seeds()).then_some(()));
    }
    let undeployed = coordinator.run(&["cluster", "undeploy"]);
    undeployed.require_success();
}
