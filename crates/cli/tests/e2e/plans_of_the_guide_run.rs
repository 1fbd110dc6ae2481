//! The plans in `docs/guide/plans`, which the guide shows next to the published run files, run as they are. Only the values of
//! their parameters are small, and the inventory has three hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::Farfork;
use crate::harness::ssh_hosts::SshHosts;
use crate::harness::wait::{self, CommandOutput};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("each_plan_is_valid_and_in_the_guide", each_plan_is_valid),
    Test::alone("each_plan_runs_on_hosts", each_plan_runs).long(),
];

/// Time limit of one plan, on a busy machine.
const LIMIT: Duration = Duration::from_secs(900);

/// A function of a host that needs no packages.
const FUNCTION_FILE: &str = "/var/tmp/square.py";
const FUNCTION: &str = "function=/var/tmp/square.py:square";

/// The plans, and small values of their parameters.
const PLANS: [(&str, &[&str]); 17] = [
    ("calls", &["clients=1,2", "threads=2", "client_seconds=1", "server_seconds=20", "report_interval=0.5"]),
    ("connections-by-machines", &["clients=1,2", "seconds=0.1"]),
    ("connections-by-threads", &["threads=1,2", "seconds=0.1"]),
    ("connections-latency", &["seconds=1"]),
    ("connections-two-cards", &["threads_per_card=1", "seconds=0.5"]),
    ("fork", &["mib=1,4", "runs=2"]),
    ("functions", &[FUNCTION, "runs=1"]),
    ("peak", &[FUNCTION, "clients=1", "seconds=2"]),
    ("program", &["seconds=1"]),
    ("strategies", &["strategy=cow", "strategy=prefetch,cache", FUNCTION, "clients=1", "seconds=2"]),
    ("volume-availability", &["files=50", "period=2"]),
    ("volume-copy-methods", &["copy_methods=event", "points=300", "runs=1"]),
    ("volume-filebench", &["files=50", "seconds=0.5", "runs=1"]),
    ("volume-interference", &["points=300", "runs=1"]),
    ("volume-leveldb", &["workloads=fillseq,readseq", "entries=100", "replicas=idle", "runs=1"]),
    ("volume-microbenchmarks", &["operations=50", "mib=4", "processes=2", "replicas=idle", "runs=1"]),
    ("warm-start", &[FUNCTION, "parallel=1,2", "runs=1", "seconds=0.1"]),
];

fn plans_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/plans")
}

fn each_plan_is_valid() {
    let (directory, farfork) = (plans_directory(), Farfork::at(Path::new("/nonexistent")));
    let guide = fs::read_to_string(directory.join("../coordinator.md")).expect("the guide");
    let files = fs::read_dir(&directory).expect("the plans").map(|entry| entry.expect("a file").file_name());
    let files = files.map(|name| name.into_string().expect("UTF-8"));
    let mut names: Vec<String> = files.filter_map(|file| Some(file.strip_suffix(".toml")?.to_owned())).collect();
    names.retain(|name| !name.starts_with("HOSTS"));
    names.sort();
    assert_eq!(names, PLANS.map(|(name, _)| name), "a test runs each plan");
    for (name, sizes) in PLANS {
        assert!(guide.contains(&format!("(plans/{name}.toml)")), "the guide does not mention {name}.toml");
        let file = directory.join(format!("{name}.toml"));
        for sizes in [&[][..], sizes] {
            let settings = sizes.iter().flat_map(|size| ["--set", size]);
            let plan = [&["bench", "run", file.to_str().expect("UTF-8"), "--check"], &settings.collect::<Vec<_>>()[..]];
            let checked = farfork.run(&plan.concat());
            assert!(checked.status.success() && checked.stdout.starts_with("hosts: n1"), "{name}: {}", checked.stderr);
        }
    }
}

/// Three hosts with two addresses each, and a copy of the plans next to their inventories.
struct PlanHosts {
    hosts: SshHosts,
    directory: PathBuf,
}

impl PlanHosts {
    fn start() -> Self {
        let hosts = SshHosts::start(3);
        hosts.add_bench_program();
        let inventory = hosts.write_inventory("[groups]\nserver = [\"n1\"]\nclients = [\"n2\", \"n3\"]", "");
        let directory = inventory.parent().expect("a directory").to_owned();
        let copied = Command::new("cp").arg("-r").arg(plans_directory().join(".")).arg(&directory).status();
        assert!(copied.is_ok_and(|status| status.success()), "cp(1)");
        let mut text = fs::read_to_string(inventory).expect("it was just written");
        fs::write(directory.join("HOSTS.toml"), &text).expect("a small file can be written");
        for number in 1..=3 {
            let address = format!("10.98.0.{number}");
            hosts.run_on(number - 1, &["ip", "address", "add", &format!("{address}/24"), "dev", "eth0"]);
            text = text.replacen("[\"eth0\"]", &format!("[\"{address}\"]"), 1);
        }
        fs::write(directory.join("HOSTS-second-card.toml"), text).expect("a small file can be written");
        fs::write(hosts.path_on(0, FUNCTION_FILE), "def square(payload):\n    return 7 * 7\n").expect("a small file");
        Self { hosts, directory }
    }

    /// Runs a plan to its end.
    fn run(&self, name: &str, sizes: &[&str]) -> CommandOutput {
        let plan = self.directory.join(format!("{name}.toml"));
        let mut arguments = vec!["bench", "run", plan.to_str().expect("UTF-8")];
        arguments.extend(sizes.iter().flat_map(|size| ["--set", size]));
        let running = self.hosts.coordinator(&arguments).spawn().expect("it starts");
        wait::wait_with_output(running, name, LIMIT)
    }

    fn result(&self, path: &str) -> String {
        let path = self.directory.join("results/latest").join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

fn each_plan_runs() {
    let plans = PlanHosts::start();
    let inventory = plans.directory.join("HOSTS.toml");
    let deploy = ["cluster", "deploy", "--inventory", inventory.to_str().expect("UTF-8")];
    plans.hosts.run_coordinator(&deploy).require_success();
    for (name, sizes) in PLANS {
        let ran = plans.run(name, sizes);
        assert!(ran.status.success(), "{name}: {}{}", ran.stdout, ran.stderr);
        let outcome: Value = serde_json::from_str(&plans.result("outcome.json")).expect("a JSON document");
        assert!(outcome["steps"].as_array().is_some_and(|steps| !steps.is_empty()), "{name}: {outcome}");
    }
}
