//! A node keeps serving after malformed input on any of its ports. The tests of the fabric cover damaged frames and
//! wrong tokens.

use std::process::Command;
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[Test::shared("on_every_port", on_every_port)];

/// Malformed input: a name, and a shell command that writes the input.
const WRITERS: [(&str, &str); 6] = [
    ("nothing", "true"),
    ("noise", "head -c 300000 /dev/urandom"),
    ("zeroes", "head -c 300000 /dev/zero"),
    ("ones", "head -c 300000 /dev/zero | tr '\\0' '\\377'"),
    ("another protocol", "printf 'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'"),
    ("half a greeting", "printf 'PRI * HTTP/2.0\\r\\n\\r\\nSM'"),
];
const WRITER_LIMIT: Duration = Duration::from_secs(60);

fn on_every_port(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["8"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let said = cluster.first().json(&["nodes"]);
    let node = said["nodes"].as_array().expect("nodes").iter().find(|node| node["name"] == cluster.name(0));
    let node = node.unwrap_or_else(|| panic!("{said}"));
    let pids = [cluster.daemon_pid(0), cluster.daemon_pid(1)];
    for port in ["address", "fabric_address"] {
        let address = node[port].as_str().unwrap_or_else(|| panic!("{port} in {node}"));
        for (what, writer) in WRITERS {
            write(cluster, address, writer);
            seed.fork_and_check(&parent, 1, &["--to", cluster.name(1)]);
            assert_eq!(pids, [cluster.daemon_pid(0), cluster.daemon_pid(1)], "{what} to {port}");
        }
    }
    assert!(pids.iter().all(|pid| std::fs::exists(format!("/proc/{pid}/exe")).unwrap_or(false)));
    parent.require_unharmed();
}

/// Sends malformed input from the second node's network. The node may close the connection at any point.
fn write(cluster: &Cluster, address: &str, writer: &str) {
    let (host, port) = address.rsplit_once(':').expect("an address has a port");
    let script = format!("({writer}) > /dev/tcp/{host}/{port}");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &cluster.netns(1), "bash", "-c", &script]);
    let child = command.stderr(std::process::Stdio::null()).spawn().expect("ip(8) can be started");
    wait::wait_with_output(child, &script, WRITER_LIMIT);
}
