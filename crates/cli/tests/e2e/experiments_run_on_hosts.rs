//! `farfork bench` and `farfork stress` run their experiments on hosts over ssh. Nothing is left on them, however they end.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::ssh_hosts::SshHosts;
use crate::harness::wait::{self, CommandOutput};
use crate::test::Test;

/// Longest wait for a step of a coordinator, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) const TESTS: &[Test] = &[Test::alone("a_server_and_its_clients_are_hosts", server_and_clients)];

/// Hosts without nodes, and their inventory.
struct Coordinator {
    hosts: SshHosts,
    inventory: PathBuf,
}

impl Coordinator {
    fn start(count: usize, tables: &str, more_hosts: &str) -> Self {
        let hosts = SshHosts::start(count);
        hosts.add_bench_program();
        let inventory = hosts.write_inventory(tables, more_hosts);
        Self { hosts, inventory }
    }

    /// The arguments of an experiment on the hosts of the inventory.
    fn arguments<'a>(&'a self, experiment: &[&'a str]) -> Vec<&'a str> {
        [experiment, &["--inventory", self.inventory.to_str().expect("UTF-8")]].concat()
    }

    fn run(&self, experiment: &[&str]) -> CommandOutput {
        self.hosts.run_coordinator(&self.arguments(experiment))
    }

    /// Runs an experiment, and returns its document.
    #[track_caller]
    fn measure(&self, experiment: &[&str]) -> Value {
        let output = self.run(&[experiment, &["--json"]].concat());
        assert!(output.status.success(), "{}{}", output.stdout, output.stderr);
        serde_json::from_str(&output.stdout).expect("a JSON document")
    }

    /// Waits until no host has anything of an experiment.
    fn wait_until_clean(&self, count: usize) {
        wait::wait_until("the hosts have nothing left", LIMIT, || {
            (0..count).all(|index| self.hosts.changes_on(index).is_empty()).then_some(())
        });
    }
}

/// The names in the list `hosts` of an object, in their order.
fn host_names(object: &Value) -> Vec<&str> {
    let hosts = object["hosts"].as_array().expect("a list of hosts");
    hosts.iter().map(|host| host["host"].as_str().expect("a name")).collect()
}

fn server_and_clients() {
    let down = "[[hosts]]\nname = \"n9\"\naddress = \"10.99.0.9\"\n";
    let coordinator =
        Coordinator::start(3, "connect_timeout_s = 10\n[groups]\nall-up = [\"n1\", \"n2\", \"n3\"]", down);
    let calls = ["bench", "rpc", "--runs", "1", "--client-seconds", "0.3", "--threads", "2", "--hosts", "all-up"];
    let document = coordinator.measure(&[&calls[..], &["--clients", "1,2"]].concat());
    let cases = document["cases"].as_array().expect("cases");
    assert_eq!((host_names(&cases[0]), host_names(&cases[1])), (vec!["n2"], vec!["n2", "n3"]));
    let sum: f64 = cases[1]["hosts"].as_array().unwrap().iter().map(|host| host["per_s"].as_f64().unwrap()).sum();
    assert!((sum - cases[1]["per_s"].as_f64().unwrap()).abs() < 1.0, "{document}");
    coordinator.wait_until_clean(3);

    let connections = ["bench", "connect", "--runs", "1", "--seconds", "0.2", "--hosts", "all-up", "--exclude", "n1"];
    let printed = coordinator.run(&[&connections[..], &["--clients", "1"]].concat());
    assert!(printed.status.success(), "{}{}", printed.stdout, printed.stderr);
    assert!(printed.stdout.contains("host") && printed.stdout.contains("n3"), "{}", printed.stdout);
    assert!(!printed.stdout.contains("n1") && !printed.stdout.contains("n2"), "{}", printed.stdout);
    coordinator.run(&[&connections[..], &["--clients", "2"]].concat()).require_failure(1, &["needs 3 hosts", "2 are"]);

    coordinator.run(&["bench", "rpc"]).require_failure(1, &["host n9: ", "10.99.0.9"]);
    let refused = coordinator.run(&["stress", "paging", "--seconds", "1"]);
    refused.require_failure(1, &["`farfork stress paging --inventory`", "it kills nodes"]);
    require_clean_after_signals(&coordinator);
}

/// Ctrl-C, and SIGKILL, leave nothing on the hosts.
fn require_clean_after_signals(coordinator: &Coordinator) {
    for signal in [Signal::INT, Signal::KILL] {
        let stress = ["stress", "rpc", "--seconds", "600", "--report-interval", "600", "--hosts", "all-up"];
        let running = coordinator.hosts.coordinator(&coordinator.arguments(&stress)).spawn().expect("it starts");
        wait::wait_until("all hosts run an endpoint", LIMIT, || {
            let is_endpoint = |change: &String| change.contains("bench process endpoint");
            (0..3).all(|index| coordinator.hosts.changes_on(index).iter().any(is_endpoint)).then_some(())
        });
        kill_process(Pid::from_child(&running), signal).expect("our own child");
        let ended = wait::wait_with_output(running, "the coordinator", LIMIT);
        assert!(!ended.status.success(), "{}{}", ended.stdout, ended.stderr);
        coordinator.wait_until_clean(3);
    }
}
