//! A FUSE file system of the machine does not answer, like one whose server is stopped. Nodes still start, fork
//! children and stop.

use crate::harness::{Cluster, Parent, Program, Seed, UnresponsiveMount, run_in_own_mounts};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("while_nodes_start_fork_and_stop", || run_in_own_mounts(from_the_beginning)),
    Test::alone("after_nodes_have_started", || run_in_own_mounts(later)),
    Test::alone("although_their_servers_take_requests", || run_in_own_mounts(taken)),
];

/// Types of the file systems. If they answered, containers would overlay the first one, and bind mount the second one,
/// which is a volume.
const UNRESPONSIVE: [&str; 2] = ["fuse", "fuse.farfork"];

fn from_the_beginning() {
    let mut mounts = UNRESPONSIVE.map(UnresponsiveMount::new);
    let cluster = Cluster::start(2);
    require_forks(&cluster);
    assert_eq!(cluster.stop(), [""; 0]);
    mounts.iter_mut().for_each(UnresponsiveMount::require_hanging);
}

/// Containers that were built before the mounts include the file systems. Later containers do not.
fn later() {
    let cluster = Cluster::start(2);
    require_forks(&cluster);
    let mut mounts = UNRESPONSIVE.map(UnresponsiveMount::new);
    require_forks(&cluster);
    mounts.iter_mut().for_each(UnresponsiveMount::require_hanging);
    drop(mounts);
    require_forks(&cluster);
    let mut mounts = UNRESPONSIVE.map(UnresponsiveMount::new);
    assert_eq!(cluster.stop(), [""; 0]);
    mounts.iter_mut().for_each(UnresponsiveMount::require_hanging);
}

/// The server has read the requests and does not answer them, as if its machine were unreachable. Processes that wait for
/// such an answer cannot be killed.
fn taken() {
    let mut mounts = UNRESPONSIVE.map(UnresponsiveMount::new);
    mounts.iter().for_each(UnresponsiveMount::take_requests);
    let cluster = Cluster::start(2);
    require_forks(&cluster);
    assert_eq!(cluster.stop(), [""; 0]);
    mounts.iter_mut().for_each(UnresponsiveMount::require_hanging);
}

/// Forks children in all kinds of containers, on both nodes.
fn require_forks(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    cluster.first().json(&["check", &parent.pid_text()]);
    let seed = Seed::prepare(cluster.first(), &parent);
    for (number, node) in (1..).zip([0, 1, 0, 1]) {
        seed.fork_and_check(&parent, number, &["--to", cluster.name(node)]);
    }
    seed.fork_and_check(&parent, 5, &["--to", cluster.name(1), "--untrusted"]);
    seed.fork_and_check(&parent, 6, &["--to", cluster.name(1), "--untrusted", "--user-namespace"]);
    parent.require_unharmed();
}
