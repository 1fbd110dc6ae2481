//! A client with a certificate uses a node over the network. A read-only client can only read, and all others are
//! refused. Keys change while nodes run, and revoked members are refused. All tests use the real binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::scratch::TestDirectory;
use crate::harness::wait::CommandOutput;
use crate::harness::{BINARY, Cluster, Parent, Program, Seed, WAIT_TIMEOUT, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("by_certificate_and_role", roles),
    Test::alone("a_revoked_member_is_refused", revoked),
    Test::alone("keys_are_rotated_while_children_fetch_pages", rotated),
];

const LIMIT: Duration = Duration::from_secs(60);

/// Longest wait until nodes have learned of a change.
const SOON: Duration = Duration::from_secs(60);

/// Runs the binary in a node's network, where the addresses of all nodes are reachable.
fn farfork(cluster: &Cluster, index: usize, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &cluster.netns(index), BINARY]).args(arguments);
    command.env_remove("FARFORK_SOCKET").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait::wait_with_output(command.spawn().expect("ip(8) can be started"), &arguments.join(" "), LIMIT)
}

/// Runs the binary in the network of the first or second node, with a request to another node.
pub(crate) fn remote(cluster: &Cluster, node: usize, trust: &Path, arguments: &[&str]) -> CommandOutput {
    let (address, trust) = (cluster.address(node).to_string(), trust.to_str().expect("text"));
    farfork(cluster, usize::from(node == 0), &[&["--node", &address, "--trust", trust], arguments].concat())
}

/// The trust directory of a node.
fn trust(cluster: &Cluster, index: usize) -> PathBuf {
    cluster.node(index).socket().with_file_name("trust")
}

/// Runs `farfork cluster …` with a node's trust directory.
fn manage(cluster: &Cluster, index: usize, arguments: &[&str]) -> Value {
    let directory = trust(cluster, index);
    cluster.node(index).json(&[&["cluster"], arguments, &["--trust", directory.to_str().expect("text")]].concat())
}

/// Issues a certificate of a role. Returns its trust directory.
pub(crate) fn issue(cluster: &Cluster, scratch: &TestDirectory, role: &str) -> PathBuf {
    let into = scratch.path().join(role);
    manage(cluster, 0, &["issue", "somebody", "--role", role, "--out", into.to_str().expect("text")]);
    into
}

fn roles() {
    let (cluster, scratch) = (Cluster::start(2), scratch::directory());
    let parent = Parent::start(Program::Waits, &["8"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let (client, reader) = (issue(&cluster, &scratch, "client"), issue(&cluster, &scratch, "read-only"));
    for trust in [&client, &reader] {
        let listed = remote(&cluster, 0, trust, &["seeds"]);
        assert!(listed.status.success() && listed.stdout.contains(seed.id()), "{}{}", listed.stdout, listed.stderr);
    }
    let refused = remote(&cluster, 0, &reader, &["drop", seed.id()]);
    assert!(!refused.status.success() && refused.stderr.contains("client is required"), "{}", refused.stderr);
    // A member of another cluster is not a member of this cluster.
    let other = Cluster::start(1);
    let refused = remote(&cluster, 0, &trust(&other, 0), &["seeds"]);
    assert!(!refused.status.success() && refused.stderr.contains("not signed by an authority"), "{}", refused.stderr);
    let nobody = remote(&cluster, 0, &scratch.path().join("nothing"), &["seeds"]);
    let names_option = nobody.stderr.contains("no identity at") && nobody.stderr.contains("with --trust");
    assert!(names_option, "{}", nobody.stderr);
    let dropped = remote(&cluster, 0, &client, &["drop", seed.id()]);
    dropped.require_success();
    assert_eq!(other.stop(), Vec::<String>::new());
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

fn revoked() {
    let (cluster, scratch) = (Cluster::start(2), scratch::directory());
    let client = issue(&cluster, &scratch, "client");
    assert!(remote(&cluster, 0, &client, &["nodes"]).status.success());
    manage(&cluster, 0, &["revoke", "somebody", "--role", "client"]);
    let give_up = Instant::now() + SOON;
    let refused = loop {
        let ended = remote(&cluster, 0, &client, &["nodes"]);
        if !ended.status.success() {
            break ended;
        }
        assert!(Instant::now() < give_up, "the revoked client is still accepted");
    };
    let names_step = refused.stderr.contains("revoked") && refused.stderr.contains("farfork cluster issue");
    assert!(names_step, "{}", refused.stderr);
    let shown = manage(&cluster, 0, &["show"]);
    assert_eq!(shown["revoked"][0].as_str().map(|bearer| bearer.ends_with("/client/somebody")), Some(true), "{shown}");
    // The second node learns of the revocation too.
    while manage(&cluster, 1, &["show"])["roster"] != shown["roster"] {
        assert!(Instant::now() < give_up + SOON, "the second node does not learn of the revocation");
    }
    assert_eq!(cluster.stop(), Vec::<String>::new());
}

/// Replaces the keys of all nodes and the authority. A child that fetches pages at that time is not affected.
fn rotated() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Situation("paging"), &["256"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let children = seed.fork_detached(&["41 4000".to_owned()], &["--to", cluster.name(1)]);
    let before = manage(&cluster, 1, &["show"]);
    let rotated = cluster.first().json(&["cluster", "rotate", "--all"]);
    assert_eq!(rotated["nodes"].as_array().map(Vec::len), Some(2), "{rotated}");
    let after = manage(&cluster, 1, &["show"]);
    assert!(after["issued_unix_ms"].as_u64() > before["issued_unix_ms"].as_u64(), "{before} {after}");
    let renewed = cluster.first().run(&["cluster", "rotate"]);
    assert_eq!(renewed.stdout, format!("renewed the key of node {}\n", cluster.name(0)), "{}", renewed.stderr);
    let refused = cluster.first().run_failing(&["cluster", "rotate", "--node", "192.0.2.1:7400"]);
    refused.require_mentions(&["192.0.2.1:7400", "this machine", "--node"]);
    manage(&cluster, 0, &["rotate", "--authority"]);
    let give_up = Instant::now() + SOON;
    while (0..2).any(|index| manage(&cluster, index, &["show"])["is_of_current_authority"] != true) {
        assert!(Instant::now() < give_up, "not all nodes have new certificates");
    }
    manage(&cluster, 0, &["rotate", "--finish"]);
    // Connections with old certificates are now closed. A `wait` over such a connection fails, and is repeated.
    wait::wait_until("the child is waited for", SOON, || {
        let said = cluster.first().json_ignoring_status(&["wait", "--timeout", WAIT_TIMEOUT, &children[0].id]);
        said["children"][0]["error"].is_null().then_some(())
    });
    seed.check_answers(&parent, &children, &[41]);
    // New connections use only the new certificates.
    let children = seed.fork_detached(&["42 100".to_owned()], &["--to", cluster.name(1)]);
    seed.check_answers(&parent, &children, &[42]);
    parent.require_unharmed();
    drop(seed);
    assert_eq!(cluster.stop(), Vec::<String>::new());
}
