//! `farfork bench run` runs the steps of a plan on hosts over ssh. Nothing is left on them, however it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::scratch::{self, TestDirectory};
use crate::harness::ssh_hosts::SshHosts;
use crate::harness::wait::{self, CommandOutput};
use crate::test::Test;

/// Longest wait for a step of a coordinator, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) const TESTS: &[Test] = &[
    Test::alone("steps_run_in_the_order_of_the_plan", steps_run_in_order),
    Test::alone("a_failure_stops_all_commands_and_cleans_up", failures_clean_up),
    Test::alone("a_gibibyte_of_output_is_kept", large_output).long(),
];

/// A file that the cleanup of each plan makes on each host.
const CLEANED: &str = "/tmp/cleaned";

/// Two hosts, and the directory of the plans.
struct Coordinator {
    hosts: SshHosts,
    directory: TestDirectory,
    inventory: PathBuf,
}

impl Coordinator {
    fn start() -> Self {
        let hosts = SshHosts::start(2);
        hosts.add_bench_program();
        let inventory = hosts.write_inventory("[groups]\nclients = [\"n2\"]", "");
        Self { hosts, directory: scratch::directory(), inventory }
    }

    fn write_plan(&self, steps: &str) -> PathBuf {
        let path = self.directory.path().join("plan.toml");
        let clean = |name: &str, command: &str| {
            format!("\n[[cleanup]]\nname = \"{name}\"\nhosts = [\"all\"]\ncommand = [\"{command}\", \"{CLEANED}\"]\n")
        };
        // The second step needs the first one.
        let cleanup = clean("clean", "touch") + &clean("require", "cat");
        let text = format!("inventory = {:?}\n{steps}{cleanup}", self.inventory);
        fs::write(&path, text).expect("a small file can be written");
        path
    }

    /// Runs `farfork bench` with a plan.
    fn bench(&self, command: &str, plan: &Path, arguments: &[&str]) -> CommandOutput {
        self.hosts.run_coordinator(&[&["bench", command, plan.to_str().expect("UTF-8")], arguments].concat())
    }

    fn result(&self, path: &str) -> String {
        let path = self.directory.path().join("results/latest").join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Requires that the cleanup ran on both hosts, and removes its traces.
    #[track_caller]
    fn require_cleaned(&self) {
        for index in 0..2 {
            self.hosts.run_on(index, &["rm", CLEANED]);
        }
    }

    /// Waits until no command of a plan runs on any host.
    fn wait_until_idle(&self, program: &str) {
        wait::wait_until("the hosts run nothing", LIMIT, || {
            let is_running = |changes: Vec<String>| changes.iter().any(|change| change.contains(program));
            (0..2).all(|index| !is_running(self.hosts.changes_on(index))).then_some(())
        });
    }
}

const ORDERED_STEPS: &str = r#"
[defaults]
timeout_s = 60

[sweep]
size = [1, 22]

[[sync]]
from = "tools"
to = "/tmp/plan-tools"
hosts = ["all"]

[[steps]]
name = "build"
once = true
hosts = ["all"]
command = ["sh", "/tmp/plan-tools/build.sh"]

[[steps]]
name = "server"
hosts = ["n1"]
command = ["python3", "-m", "http.server", "8111", "--bind", "{address}", "--directory", "/tmp/plan-tools"]
ready = { port = 8111 }

[[steps]]
name = "clients"
hosts = ["clients"]
directory = "/tmp/plan-tools"
retries = 1
environment = { GREETING = "it's {size}\n\"$HOME\"" }
command = ["sh", "-c", "[ -e tried ] || {{ touch tried; exit 3; }}; cat built; python3 -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())' http://{address.n1}:8111/build.sh; printf '%s|%s|' \"$GREETING\" \"$1\"; echo to the log >&2", "sh", " a  'b' \"c\" $d\n-e"]

[[steps]]
name = "sum"
command = ["sh", "-c", "echo size {size} on $(uname -n); cat /proc/net/dev | wc -l"]
"#;

/// An experiment on the hosts of the plan.
const EXPERIMENT: &str = r#"
[sweep]
threads = [12]

[[steps]]
name = "connections"
hosts = ["n1", "clients"]
experiment = ["connect", "--clients", "1", "--threads", "{threads}", "--runs", "1", "--seconds", "0.1"]
"#;

/// Changes hosts that the plan has locked, as an experiment does.
const NESTED_COMMAND: &str = r#"
[[steps]]
name = "nested"
once = true
command = [PROGRAM, "cluster", "undeploy", "--inventory", INVENTORY]
"#;

fn steps_run_in_order() {
    let coordinator = Coordinator::start();
    fs::create_dir(coordinator.directory.path().join("tools")).expect("a directory");
    let script = "# of the coordinator\necho built on $(cat /proc/sys/kernel/hostname) > /tmp/plan-tools/built\n";
    fs::write(coordinator.directory.path().join("tools/build.sh"), script).expect("a small file can be written");
    let nested = NESTED_COMMAND
        .replace("PROGRAM", &format!("{:?}", coordinator.hosts.program()))
        .replace("INVENTORY", &format!("{:?}", coordinator.inventory));
    let plan = coordinator.write_plan(&(ORDERED_STEPS.to_owned() + &nested));
    let checked = coordinator.bench("run", &plan, &["--check", "--json"]);
    let checked: Value = serde_json::from_str(&checked.stdout).expect("a JSON document");
    assert_eq!(
        (checked["hosts"].to_string(), checked["rounds"].to_string()),
        (r#"["n1","n2"]"#.to_owned(), r#"[{"size":"1"},{"size":"22"}]"#.to_owned())
    );

    let ran = coordinator.bench("run", &plan, &[]);
    ran.require_success();
    assert!(
        ran.stdout.contains("n2 [clients] to the log") && ran.stdout.contains("HERE [sum] size 22 on"),
        "{}",
        ran.stdout
    );
    for (round, size) in [(1, 1), (2, 22)] {
        let output = coordinator.result(&format!("round-{round}/clients.n2.out"));
        assert!(output.starts_with("built on ") && output.contains("# of the coordinator"), "{output}");
        let home = "$HOME";
        assert!(output.contains(&format!("it's {size}\n\"{home}\"| a  'b' \"c\" $d\n-e|")), "{output}");
        assert!(coordinator.result(&format!("round-{round}/sum.HERE.out")).starts_with(&format!("size {size} on ")));
    }
    assert!(coordinator.result("hosts/n1.log").contains("GET /build.sh"));
    let outcome: Value = serde_json::from_str(&coordinator.result("outcome.json")).expect("a JSON document");
    let steps = outcome["steps"].as_array().expect("a list");
    let attempts = |round: &str, step: &str| {
        let is_it = |outcome: &&Value| outcome["round"] == round && outcome["step"] == step;
        steps.iter().find(is_it).expect("it ran")["attempts"].as_u64()
    };
    assert_eq!((attempts("round-1", "clients"), attempts("round-2", "clients")), (Some(2), Some(1)));
    assert_eq!((steps.len(), &outcome["failure"]), (2 + 1 + 2 * 3 + 4, &Value::Null));
    let followed = coordinator.bench("run", &plan, &["--follow", "n2"]);
    assert_eq!(followed.stdout, coordinator.result("hosts/n2.log"));
    coordinator.bench("run", &plan, &["--follow", "n9"]).require_failure(1, &["no host `n9` in the plan"]);
    coordinator.require_cleaned();

    let excluded = coordinator.bench("run", &plan, &["--exclude", "n2"]);
    excluded.require_success();
    assert!(excluded.stdout.contains("HERE [clients] skipped: `--exclude` omits all"), "{}", excluded.stdout);
    coordinator.hosts.run_on(0, &["rm", CLEANED]);
    let cleaned = coordinator.bench("clean", &plan, &[]);
    cleaned.require_success();
    coordinator.require_cleaned();
    coordinator.wait_until_idle("");
    coordinator.hosts.run_on(1, &["mkdir", "/tmp/plan-tools"]);
    for command in ["run", "clean"] {
        let foreign = coordinator.bench(command, &plan, &[]);
        foreign.require_failure(1, &["host n2: /tmp/plan-tools was not made by `farfork bench run`", "move it away"]);
        coordinator.require_cleaned();
    }
    coordinator.hosts.run_on(1, &["rmdir", "/tmp/plan-tools"]);
    coordinator.wait_until_idle("");
    experiments_run(&coordinator);
}

/// An experiment has the hosts of its step and the parameter of the option. It shows its progress and its tables.
fn experiments_run(coordinator: &Coordinator) {
    let plan = coordinator.write_plan(EXPERIMENT);
    let ran = coordinator.bench("run", &plan, &["--set", "threads=2"]);
    ran.require_success();
    for line in ["HERE [round-1] threads = 2", "HERE [connections] TCP alone: 1 × "] {
        assert!(ran.stdout.contains(line), "no {line:?} in {}", ran.stdout);
    }
    let is_row = |line: &str| line.starts_with("HERE [connections] ") && line.contains(" n2 ");
    assert!(ran.stdout.lines().any(is_row), "no table: {}", ran.stdout);
    let document = coordinator.result("experiments/connections-round-1.json");
    let document: Value = serde_json::from_str(&document).expect("a JSON document");
    let case = &document["cases"][0];
    assert_eq!((&case["threads"], &case["hosts"][0]["host"]), (&2.into(), &"n2".into()), "{document}");
    coordinator.require_cleaned();
    let excluded = coordinator.bench("run", &plan, &["--exclude", "all", "--check"]);
    assert!(excluded.stdout.contains("connections (skipped)"), "{}", excluded.stdout);
    coordinator.bench("run", &plan, &["--set", "size=1"]).require_failure(1, &["--set size", "it has threads"]);
}

/// A command with a descendant in another session. With an argument, it ignores SIGTERM.
const ENDLESS: &str = "\"sh\", \"-c\", \"[ -z \\\"$1\\\" ] || trap '' TERM; setsid sleep 4321 & sleep 1234\", \"sh\"";

fn failures_clean_up() {
    let coordinator = Coordinator::start();
    let endless = |argument: &str, more: &str| {
        format!("[[steps]]\nname = \"endless\"\nhosts = [\"all\"]\ncommand = [{ENDLESS}{argument}]\n{more}\n")
    };
    let failing = endless("", "")
        + "[[steps]]\nname = \"failing\"\nafter = []\nhosts = [\"n2\"]\ncommand = [\"sh\", \"-c\", \"sleep 1; exit 7\"]\n";
    let failed = coordinator.bench("run", &coordinator.write_plan(&failing), &[]);
    failed.require_failure(1, &["step failing on n2: exit status 7; see", "hosts/n2.log"]);
    coordinator.wait_until_idle("sleep");
    coordinator.require_cleaned();
    let outcome: Value = serde_json::from_str(&coordinator.result("outcome.json")).expect("a JSON document");
    let is_cancelled = |step: &&Value| step["step"] == "endless" && step["failure"] == "cancelled";
    assert_eq!(outcome["steps"].as_array().expect("a list").iter().filter(is_cancelled).count(), 2, "{outcome}");

    // The failure on the first host leaves the second one alone.
    let uneven = "[[cleanup]]\nname = \"uneven\"\nhosts = [\"all\"]\ncommand = [\"sh\", \"-c\", \"[ {host} = n2 ] && sleep 1 && touch /tmp/late\"]";
    let hanging = coordinator.write_plan(&(endless(", \"stubborn\"", "timeout_s = 1") + uneven));
    let hanging = coordinator.bench("run", &hanging, &["--json"]);
    hanging.require_failure(1, &["step endless on n", "did not end within 1 s", "step uneven on n1: exit status 1"]);
    let document: Value = serde_json::from_str(&hanging.stdout).expect("one JSON document");
    assert!(document["error"].to_string().contains("did not end within 1 s"), "{document}");
    coordinator.hosts.run_on(1, &["rm", "/tmp/late"]);
    coordinator.wait_until_idle("sleep");
    coordinator.require_cleaned();

    let early = coordinator.directory.path().join("early.toml");
    let service = "[[steps]]\nname = \"service\"\ncommand = [\"true\"]\nready = { port = 1 }\n";
    fs::write(&early, service).expect("a small file can be written");
    let early = coordinator.bench("run", &early, &[]);
    early.require_failure(1, &["step service on HERE: it ended before it was ready (exit status 0)"]);

    let plan = coordinator.write_plan(&endless("", ""));
    let start = || {
        let running = coordinator.hosts.coordinator(&["bench", "run", plan.to_str().expect("UTF-8")]).spawn();
        wait::wait_until("both hosts run the command", LIMIT, || {
            let runs = |index| coordinator.hosts.changes_on(index).iter().any(|change| change.contains("sleep 4321"));
            (runs(0) && runs(1)).then_some(())
        });
        running.expect("it starts")
    };
    let signal = |process: &Child, signal| kill_process(Pid::from_child(process), signal).expect("our own child");
    let interrupted = start();
    coordinator
        .bench("clean", &plan, &[])
        .require_failure(1, &["host n1: another coordinator", "`farfork bench run` of"]);
    signal(&interrupted, Signal::INT);
    let interrupted = wait::wait_with_output(interrupted, "the interrupted coordinator", LIMIT);
    interrupted.require_failure(1, &["interrupted"]);
    coordinator.wait_until_idle("sleep");
    coordinator.require_cleaned();

    let mut killed = start();
    signal(&killed, Signal::KILL);
    wait::reap_killed(&mut killed);
    coordinator.wait_until_idle("sleep");
    // A host that is down leaves the others alone.
    let lost = "[[hosts]]\nname = \"n9\"\naddress = \"10.99.0.9\"\n";
    coordinator.hosts.write_inventory("[groups]\nclients = [\"n2\"]", lost);
    coordinator.bench("clean", &plan, &[]).require_failure(1, &["host n9: no connection"]);
    coordinator.require_cleaned();
    coordinator.wait_until_idle("");
}

fn large_output() {
    let coordinator = Coordinator::start();
    let steps = "[[steps]]\nname = \"large\"\nhosts = [\"all\"]\ncommand = [\"sh\", \"-c\", \"head -c 1073741824 /dev/zero | tr '\\\\0' x | fold -w 4095\"]\n";
    let plan = coordinator.write_plan(steps);
    let ran = coordinator.bench("run", &plan, &["--json"]);
    ran.require_success();
    for host in ["n1", "n2"] {
        let path = coordinator.directory.path().join(format!("results/latest/round-1/large.{host}.out"));
        assert!(fs::metadata(path).expect("the output").len() >= 1 << 30);
    }
    assert!(coordinator.bench("clean", &plan, &[]).status.success());
}
