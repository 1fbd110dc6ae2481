//! `farfork down` leaves nothing of a cluster, even if children run. After a crash, it removes the remains. Ended
//! children leave no memory in the control groups of their node.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use farfork_sys::mount::point::MountPoint;

use crate::harness::{BINARY, Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("by_down_with_children_in_every_state", with_children),
    Test::alone("after_a_crash", after_a_crash),
    Test::alone("by_down_with_a_daemon_that_was_started_by_hand", started_by_hand),
    Test::alone("by_down_while_the_run_directory_is_a_mount_point", mounted_run_dir),
    Test::alone("in_the_memory_control_groups_of_ended_children", memory_is_uncharged),
];

/// Memory limit of an empty node's control groups. The kernel needs 200 KiB for each ready container. A child that was
/// not ended has hundreds of pages.
const GROUP_KB_MAX: u64 = 2048;
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

fn require_nothing_left(cluster: Cluster) {
    let remains = cluster.stop();
    assert!(remains.is_empty(), "left on the machine: {remains:#?}");
}

/// The cluster has running, paused and ended children, and a seed that is never dropped.
fn with_children() {
    let cluster = Cluster::start(3);
    let mut parent = Parent::start(Program::Arrays, &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_idle(4, &["--to", &cluster.names(&[1, 2])]);
    seed.fork_idle(2, &["--to", &cluster.names(&[0, 1]), "--paused"]);
    seed.fork_and_check(&parent, 1, &["--to", cluster.name(2)]);
    std::mem::forget(seed);
    parent.require_unharmed();
    // While the seed exists, the parent has a template. Both must have ended before leftovers are counted.
    let pid = parent.pid();
    drop(parent);
    assert!(!std::fs::exists(format!("/proc/{pid}/maps")).unwrap_or(true));
    require_nothing_left(cluster);
}

/// Kills all daemons of the cluster. `down` then removes everything that they left.
fn after_a_crash() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Waits, &["16"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_idle(3, &["--to", &cluster.names(&[0, 1])]);
    cluster.kill_daemon(0);
    cluster.kill_daemon(1);
    std::mem::forget(seed);
    parent.require_unharmed();
    drop(parent);
    require_nothing_left(cluster);
}

/// A daemon was started by hand. `farfork down` finds it by the socket at which it listens, and ends it.
fn started_by_hand() {
    let cluster = Cluster::start(2);
    cluster.kill_daemon(1);
    let run_dir = cluster.run_dir(1);
    let listen = cluster.address(1).to_string();
    let mut command = Command::new(BINARY);
    command.args(["node", "--name", cluster.name(1), "--listen", &listen]);
    command.arg("--run-dir").arg(&run_dir).arg("--trust").arg(run_dir.join("trust"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = cluster.in_network_of(1, || command.spawn()).expect("it starts");
    // A child process of the killed daemon may still have the old socket open, so a successful connection does not
    // prove that the new daemon listens.
    wait::wait_until("the daemon listens", SETTLE_LIMIT, || cluster.has_live_daemon(1).then_some(()));
    require_nothing_left(cluster);
    let _ = daemon.wait();
}

/// The cluster's directory is a mount point in use, as the default `/run/farfork` may be by another cluster's containers.
/// `farfork down` still takes the cluster down.
fn mounted_run_dir() {
    let cluster = Cluster::start(1);
    let run_dir =
        cluster.node(0).socket().ancestors().nth(2).expect("the socket is below the cluster's directory").to_owned();
    let needed = MountPoint::acquire(&run_dir).expect("the directory exists");
    let other = thread::spawn(move || {
        let is_down = || (!run_dir.join("cluster.json").exists()).then_some(());
        wait::wait_until("the cluster is taken down while the directory is in use", SETTLE_LIMIT, is_down);
        needed.release();
    });
    require_nothing_left(cluster);
    other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn memory_is_uncharged() {
    // The zygote's memory counts too, so the zygote must end: after one second without a fork.
    let cluster = Cluster::start_with(2, &["--pool", "1", "--zygote-idle", "1"]);
    let mut parent = Parent::start(Program::Waits, &["64"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let numbers: Vec<u64> = (0..10).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let children = seed.fork_detached(&payloads, &["--to", cluster.name(1)]);
    seed.check_answers(&parent, &children, &numbers);
    drop(seed);
    thread::sleep(Duration::from_millis(200));
    wait::wait_until("the children's memory is no longer charged", SETTLE_LIMIT, || {
        (cluster.children_memory_kb(1) <= GROUP_KB_MAX).then_some(())
    });
    parent.require_unharmed();
    drop(parent);
    require_nothing_left(cluster);
}
