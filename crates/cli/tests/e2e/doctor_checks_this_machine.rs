//! `farfork doctor` finds what a node would lack, and names a remedy.

use std::process::{Command, Output};
use std::time::Duration;

use crate::harness::{BINARY, Cluster, wait};
use crate::test::Test;

/// Time limit until a heartbeat was fast enough to compare clocks. Heartbeats are sent each second.
const AGREEMENT_LIMIT: Duration = Duration::from_secs(60);

pub(crate) const TESTS: &[Test] = &[
    Test::shared("a_machine_that_runs_nodes", a_machine_that_runs_nodes),
    Test::shared("rights_and_limits_that_are_missing", rights_and_limits_that_are_missing),
    Test::shared("ports_that_are_used", ports_that_are_used),
];

/// Returns the finding of a check as status and text.
#[track_caller]
fn finding<'a>(report: &'a serde_json::Value, check: &str) -> (&'a str, &'a str) {
    let findings = report["findings"].as_array().expect("findings");
    let found = findings.iter().find(|finding| finding["check"] == check).expect("the check");
    assert_eq!(found["status"] == "ok", found["remedy"].is_null(), "{found}");
    (found["status"].as_str().expect("a status"), found["found"].as_str().expect("a text"))
}

fn a_machine_that_runs_nodes(cluster: &Cluster) {
    let report = cluster.first().json(&["doctor", "--listen", "127.0.0.1:0"]);
    for check in
        ["kernel", "userfaultfd", "checkpoint", "kcmp", "ptrace", "namespaces", "capabilities", "overlay", "ports"]
    {
        assert_eq!(finding(&report, check).0, "ok", "{report}");
    }
    // A heartbeat that was late counts as a difference until the next one.
    wait::wait_until("the nodes of one machine share a clock", AGREEMENT_LIMIT, || {
        let report = cluster.first().json(&["doctor", "--listen", "127.0.0.1:0"]);
        let (status, found) = finding(&report, "clock");
        (status == "ok" && found.starts_with("differs from ")).then_some(())
    });
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let doctor = [BINARY, "doctor", "--json", "--listen", "127.0.0.1:0", "--socket", "/dev/null"];
    Command::new(program).args(arguments).args(doctor).output().expect("the program runs")
}

fn rights_and_limits_that_are_missing(_: &Cluster) {
    let without_ptrace = run("setpriv", &["--bounding-set", "-sys_ptrace"]);
    assert_eq!(without_ptrace.status.code(), Some(1), "{without_ptrace:?}");
    let report: serde_json::Value = serde_json::from_slice(&without_ptrace.stdout).expect("JSON");
    assert_eq!(finding(&report, "capabilities"), ("problem", "missing: CAP_SYS_PTRACE to read memory"));

    let few_descriptors = run("prlimit", &["--nofile=1000"]);
    let report: serde_json::Value = serde_json::from_slice(&few_descriptors.stdout).expect("JSON");
    assert_eq!(finding(&report, "descriptors"), ("warning", "hard limit 1000"));
    assert_eq!(few_descriptors.status.code(), Some(0), "a warning is no failure: {few_descriptors:?}");
    assert_eq!(finding(&report, "clock"), ("warning", "not compared: no daemon answers at /dev/null"));
}

fn ports_that_are_used(cluster: &Cluster) {
    let (netns, address) = (format!("--net=/run/netns/{}", cluster.netns(0)), cluster.address(0).to_string());
    let doctor = |socket: &str| {
        let arguments = [&netns, BINARY, "doctor", "--json", "--listen", &address, "--socket", socket];
        let output = Command::new("nsenter").args(arguments).output().expect("nsenter(1) runs");
        (output.status.code(), serde_json::from_slice(&output.stdout).expect("JSON"))
    };
    let socket = cluster.run_dir(0).join("node.sock");
    let (status, report) = doctor(socket.to_str().expect("UTF-8"));
    let own = format!("node {} listens at {address}", cluster.name(0));
    assert_eq!((status, finding(&report, "ports")), (Some(0), ("ok", own.as_str())));
    let (status, report) = doctor("/dev/null");
    assert_eq!((status, finding(&report, "ports").0), (Some(1), "problem"), "{report}");
}
