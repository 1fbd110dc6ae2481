//! Runs all commands of all guides as printed on the pages, except those that `exceptions.rs` lists. If the commands of
//! a page need a setup, other commands run first. A command that is added to a page is run too.

mod exceptions;
mod page;
mod script;

use std::path::PathBuf;

use rustix::mount::{UnmountFlags, unmount};
use serde_json::{Value, json};

use crate::harness::{Cluster, WAIT_TIMEOUT};
use crate::test::Test;
use page::{Block, Page, root};
use script::{PageOutput, PageScript};

pub(crate) const TESTS: &[Test] = &[
    Test::shared("in_the_first_fork_guide", first_fork),
    Test::shared("in_the_python_guide", python),
    Test::shared("in_the_python_libraries_guide", python_libraries),
    Test::shared("in_the_c_guide", c_program),
    Test::shared("in_the_independence_guide", independence),
    Test::shared("in_the_lifetimes_guide", lifetimes),
    Test::shared("in_the_networks_guide", networks),
    Test::alone("in_the_observing_guide", observing),
    Test::shared("in_the_reuse_guide", reuse),
    Test::alone("in_the_several_machines_guide", several_machines),
    Test::alone("in_the_volumes_guide", volumes),
    Test::alone("every_guide_is_run", every_guide),
];

/// The setup for the page about several machines.
const MACHINES: &str = include_str!("machines.sh");

/// A setup that starts a web server. `$WEB` is its seed, and the file `web.port` has its port.
const WEB_SERVER: &str = r#"
cat > web.py <<'END'
import http.server
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_address[1], flush=True)
server.serve_forever()
END
python3 web.py > web.port 2> web.log &
WEB_PID=$!
wait_until test -s web.port
WEB=$(farfork prepare $WEB_PID)
"#;

/// The shared cluster, and the ids of the seeds and children that existed before the page. Dropping this removes all
/// seeds and children that the page made.
struct PageCluster<'a> {
    cluster: &'a Cluster,
    seeds: Vec<String>,
    children: Vec<String>,
}

impl<'a> PageCluster<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, seeds: ids(cluster, "seeds", "seed"), children: ids(cluster, "ps", "child") }
    }

    /// Runs a page whose commands use the daemon of the first node.
    fn run(&self, script: PageScript) -> PageOutput {
        script.with("FARFORK_SOCKET", self.cluster.first().socket()).run()
    }
}

impl Drop for PageCluster<'_> {
    fn drop(&mut self) {
        let farfork = self.cluster.first();
        // kill and wait fail for children that have ended.
        for child in ids(self.cluster, "ps", "child").iter().filter(|id| !self.children.contains(id)) {
            farfork.run(&["kill", "--signal", "KILL", child]);
            farfork.run(&["wait", "--timeout", WAIT_TIMEOUT, child]);
        }
        for seed in ids(self.cluster, "seeds", "seed").iter().filter(|id| !self.seeds.contains(id)) {
            farfork.run(&["drop", "--force", seed]);
        }
    }
}

/// Returns the ids that a command lists. Returns none if the command fails: after a failed test there may be no daemon.
fn ids(cluster: &Cluster, command: &str, key: &str) -> Vec<String> {
    let said: Value = serde_json::from_str(&cluster.first().run(&[command, "--json"]).stdout).unwrap_or_default();
    let lists = said.as_object().into_iter().flatten().filter_map(|(_, list)| list.as_array());
    lists.flatten().filter_map(|item| item[key].as_str()).map(str::to_owned).collect()
}

/// Requires `times` lines for each of the numbers that the pages use as payloads.
fn require_squares(output: &PageOutput, line: impl Fn(u64) -> String, times: usize) {
    for number in 100..=107 {
        let expected = line(number);
        let found = output.lines().filter(|line| **line == expected).count();
        assert_eq!(found, times, "`{expected}` is not printed {times} times");
    }
}

fn first_fork(cluster: &Cluster) {
    let second_socket = cluster.node(1).socket().to_string_lossy();
    let script = PageScript::new("first-fork.md").replace("/run/farfork/n2/node.sock", &second_socket);
    let output = PageCluster::new(cluster).run(script);
    require_squares(&output, |number| format!("{number} {}", number * number), 2);
    output.require("echo 5 |", &["5 25\n"]);
    output.require("farfork nodes", &["n1", "n2", "n3"]);
    output.require("echo 12 |", &["12 144\n"]);
    output.require("farfork inspect", &["pages_fetched"]);
}

fn python(cluster: &Cluster) {
    let is_at_checkpoint = "sleep() { wait_until farfork inspect warm; }";
    let output = PageCluster::new(cluster).run(PageScript::new("python.md").after(is_at_checkpoint));
    output.require("python3 squares.py", &["[0, 1, 4, 9, 16, 25, 36, 49, 64, 81]\n"]);
    require_squares(&output, |number| format!("{number} squared is {}", number * number), 1);
}

fn python_libraries(cluster: &Cluster) {
    let output = PageCluster::new(cluster).run(PageScript::new("python-libraries.md"));
    output.require("python3 powers.py", &["[0, 1, 4, 9, 16, 25, 36, 49, 64, 81]\n"]);
    output.require("python3 -m pytest", &["20 passed"]);
    output.require("python3 sums.py", &["499999500000\n", "94999950000\n"]);
}

fn c_program(cluster: &Cluster) {
    let script = PageScript::new("c.md");
    let prefix = script.directory().join("prefix");
    let (configuration, libraries) = (prefix.join("lib/pkgconfig"), prefix.join("lib"));
    let prologue = r#"
        make() { command make -C "$ROOT" "$@" PREFIX="$PREFIX" BUILD="$PREFIX/build"; }
        sleep() { wait_until test -s seed; }
    "#;
    let script = script.after(prologue).with("ROOT", root()).with("PREFIX", prefix);
    let script = script.with("PKG_CONFIG_PATH", configuration).with("LD_LIBRARY_PATH", libraries);
    let output = PageCluster::new(cluster).run(script);
    require_squares(&output, |number| (number * number).to_string(), 1);
}

fn independence(cluster: &Cluster) {
    let output = PageCluster::new(cluster).run(PageScript::new("independence.md").after("start_job 600"));
    output.require("farfork settle", &["settled: "]);
    output.require("farfork ps", &["running, settled"]);
    output.require("farfork seeds", &["sealed"]);
    output.require("farfork core", &["stopped for", "job.core"]);
    output.require("gdb", &["Thread 1"]);
}

fn lifetimes(cluster: &Cluster) {
    let output = PageCluster::new(cluster).run(PageScript::new("lifetimes.md").after("start_job 0"));
    let sum_of_child = "sum 499999500000\n";
    output.require("farfork fork $SEED --to n2 -n 8", &[&sum_of_child.repeat(8)]);
    output.require("farfork fork $SEED --to n2 --untrusted", &[sum_of_child]);
    output.require("farfork seeds --label team=blue", &["python3 job.py"]);
    output.require("farfork node", &["n1 "]);
}

fn networks(cluster: &Cluster) {
    let prologue = format!("start_job 0\nprintf '{{}}\\n{{}}\\n{{}}\\n{{}}\\n' > roles.jsonl\n{WEB_SERVER}");
    let script = PageScript::new("networks.md").after(&prologue).replace("8080:80", "8080:$(cat web.port)");
    let script = script.replace("10.156.67.2", &cluster.ip(1).to_string()).replace("ff-local-n1", &cluster.netns(0));
    let output = PageCluster::new(cluster).run(script);
    let sum_of_child = "sum 499999500000\n";
    output.require("farfork fork $SEED --to n2 --net shared", &[&sum_of_child.repeat(4)]);
    output.require("farfork fork $SEED --to n2 --net host", &[sum_of_child]);
    output.require("ip netns exec", &["web.py"]);
    output.require("farfork fork $SEED --to n2 --egress any", &[sum_of_child]);
    output.require("farfork fork $SEED --to n2 --untrusted --egress", &[sum_of_child]);
}

fn observing() {
    let cluster = Cluster::start_with(3, &["--metrics", "9470"]);
    let start_parent = r#"
        python3 parent.py &
        PID=$!
        SEED=$(farfork prepare $PID)
    "#;
    let script = PageScript::new("observing.md").after(start_parent).replace("ff-local-n1", &cluster.netns(0));
    for block in Page::read("first-fork.md").blocks {
        let Block::File { name, text } = block else { continue };
        std::fs::write(script.directory().join(name), text).expect("a small file");
    }
    let output = PageCluster::new(&cluster).run(script);
    output.require("farfork prepare $PID --profile", &["stopped for", "prepare.capture"]);
    output.require("echo 12 |", &["12 144\n", "the request, on n1", "child n2.", "faults ", "never fetched"]);
    require_squares(&output, |number| format!("{number} {}", number * number), 1);
    output.require("farfork fork $SEED --to n2,n3", &["8 children", "summed up over 8"]);
    output.require("farfork prepare $PID --profile --json", &[r#""duration_us""#]);
    output.require("farfork node --name a", &["a ", "this node"]);
    output.require("ip netns exec", &["farfork_prepare_seconds_count", "farfork_children{"]);
    require_nothing_left(cluster);
}

fn require_nothing_left(cluster: Cluster) {
    assert_eq!(cluster.stop(), Vec::<String>::new(), "the cluster of the page left something");
}

fn reuse(cluster: &Cluster) {
    let output = PageCluster::new(cluster).run(PageScript::new("reuse.md").after("start_job 0"));
    output.require("farfork fork", &["sum 499999500000\n"]);
    output.require("farfork inspect n2", &["cache.bytes", "cache.hits", "cache.seeds"]);
    output.require("farfork prewarm", &["n2 ", "n3 "]);
}

fn several_machines() {
    let output = PageScript::new("several-machines.md").alone().after(MACHINES).run();
    output.require("farfork nodes", &["a ", "b ", "c "]);
    output.require("xargs farfork wait --results", &[&"sum 499999500000\n".repeat(8)]);
    output.require("farfork --node 10.0.0.2:7400 --trust ci.trust ps", &["exit 0"]);
    output.require("farfork cluster show", &["farfork://blue/node/b", "farfork://blue/client/ci"]);
    output.require("farfork nodes --run-dir /run/farfork-a", &["127.0.0.1:7400", "127.0.0.1:7410"]);
}

/// The two mount points of the page about volumes. Dropping them unmounts them, even if the page fails.
struct MountPoints([PathBuf; 2]);

impl Drop for MountPoints {
    fn drop(&mut self) {
        for directory in &self.0 {
            // umount2(2) fails if nothing is mounted there.
            let _ = unmount(directory, UnmountFlags::DETACH);
        }
    }
}

fn volumes() {
    let cluster = Cluster::start(3);
    let script = PageScript::new("volumes.md").with("FARFORK_SOCKET", cluster.first().socket());
    let mount_points = MountPoints(["data", "data2"].map(|name| script.directory().join(name)));
    let script = script.replace("/mnt/data", &mount_points.0[0].to_string_lossy());
    let output = script.replace("/run/farfork/n2/node.sock", &cluster.node(1).socket().to_string_lossy()).run();
    output.require("cat ", &["hello\n"]);
    assert_eq!(cluster.first().json(&["volume", "ls"]), json!({ "volumes": [] }));
    drop(mount_points);
    require_nothing_left(cluster);
}

/// The pages `add-….md` have `cargo` commands within sentences. These commands run tests, including this one.
fn every_guide() {
    let pages = Page::all();
    exceptions::require_needed(&pages);
    // All commands of the page about coordinators need hosts with ssh, so other tests have them.
    for page in pages.iter().filter(|page| page.lines().any(|line| !exceptions::contain(page, line))) {
        let name = format!("in_the_{}_guide", page.name.trim_end_matches(".md").replace('-', "_"));
        let has_test = TESTS.iter().any(|test| test.full_name("") == format!("::{name}"));
        assert!(has_test, "no test `{name}` runs the commands of {}", page.name);
    }
}
