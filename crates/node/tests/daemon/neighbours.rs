//! Tests how nodes discover, lose and rediscover each other.

use std::fs;
use std::io;
use std::net::TcpStream;

use farfork_fork::pager::{PagerClient, TrustPolicy};
use farfork_trust::TrustDirectory;
use rustix::process::Signal;

use crate::harness::{TestDaemon, run_dirs, trust_dir, until};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_leaving_node_is_removed_at_once_and_leaves_nothing", leaving_node),
    ("a_daemon_that_stops_refuses_connections_at_once", refuses),
    ("a_restarted_daemon_rejoins_its_cluster", killed),
    ("a_node_rejoins_its_cluster_after_a_reboot", rebooted),
    ("a_run_directory_has_one_daemon", one_daemon),
    ("a_name_belongs_to_one_node", one_name),
    ("a_request_is_forwarded_to_the_node_of_its_object", passed_on),
];

/// Attempts of a test whose daemons may be too slow on a busy machine.
const DAEMONS_MAX: usize = 5;

/// A daemon on a busy machine may exceed the time limits of the messages by which it joins and leaves, so the test tries
/// several daemons.
fn leaving_node() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let a = TestDaemon::start("a", &dir_a, None);
    let is_removed_at_once = |_| {
        let mut b = TestDaemon::start("b", &dir_b, Some(a.address()));
        let knew_its_cluster = b.alive() == ["a", "b"];
        b.signal(Signal::TERM);
        assert!(b.wait().success());
        for left in [b.run_dir.socket(), b.run_dir.fabric_socket(), b.run_dir.member_file(), dir_b.join("pager.sock")] {
            assert!(!left.exists(), "{} still exists", left.display());
        }
        knew_its_cluster && a.alive() == ["a"]
    };
    assert!(
        (0..DAEMONS_MAX).any(is_removed_at_once),
        "a node that answers does not know its cluster, or a node that has left is still a member"
    );
}

/// A stopping daemon waits for its stopped peer, and must already refuse connections. On a busy machine, the daemon may
/// end before the test connects, so the test tries several daemons.
fn refuses() {
    let has_refused = (0..DAEMONS_MAX).any(|_| {
        let (_parent, dir_a, dir_b) = run_dirs();
        let mut a = TestDaemon::start("a", &dir_a, None);
        let b = TestDaemon::start("b", &dir_b, Some(a.address()));
        let address = a.address();
        b.signal(Signal::STOP);
        a.signal(Signal::TERM);
        let is_refused =
            || TcpStream::connect(address).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        until("its port is closed", || is_refused().then_some(()));
        let still_runs = a.is_running();
        b.signal(Signal::CONT);
        assert!(a.wait().success());
        still_runs
    });
    assert!(has_refused, "a stopping daemon accepts connections that get no reply");
}

fn killed() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let mut a = TestDaemon::start("a", &dir_a, None);
    let _b = TestDaemon::start("b", &dir_b, Some(a.address()));
    until("a has written members.json", || fs::exists(a.run_dir.member_file()).unwrap_or(false).then_some(()));
    a.signal(Signal::KILL);
    a.wait();
    // Start under another name: the port differs too, and `a` counts as alive for some seconds.
    let again = TestDaemon::start("a2", &dir_a, None);
    until("it finds its cluster without --join", || again.alive().contains(&"b".to_owned()).then_some(()));
    // The pager outlived the daemon. No child needed it, so it was replaced by one with the new trust policy.
    let trusting = PagerClient::new(&dir_a).hello().expect("a pager answers").trust_policy;
    assert_eq!(trusting, TrustPolicy::ClusterMembers { directory: trust_dir(&dir_a, "a2"), is_encrypted: true });
}

/// A reboot stops the daemon, and empties the run directory.
fn rebooted() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let a = TestDaemon::start("a", &dir_a, None);
    let mut b = TestDaemon::start("b", &dir_b, Some(a.address()));
    let members = TrustDirectory::new(trust_dir(&dir_b, "b")).members_path();
    until("b has written members.json", || fs::exists(&members).unwrap_or(false).then_some(()));
    b.signal(Signal::TERM);
    assert!(b.wait().success());
    fs::remove_dir_all(&dir_b).expect("the daemon has ended");
    a.wait_alive(&["a"]);
    let again = TestDaemon::start("b", &dir_b, None);
    again.wait_alive(&["a", "b"]);
}

fn one_daemon() {
    let (_parent, dir_a, _) = run_dirs();
    let a = TestDaemon::start("a", &dir_a, None);
    let mut second = TestDaemon::spawn("b", &dir_a, None);
    assert!(!second.wait().success());
    let said = second.said();
    assert!(said.contains(&*dir_a.to_string_lossy()) && said.contains("another daemon uses it"), "{said}");
    assert_eq!(a.alive(), ["a"], "the first daemon continues");
}

fn one_name() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let a = TestDaemon::start("a", &dir_a, None);
    let mut second = TestDaemon::spawn("a", &dir_b, Some(a.address()));
    assert!(!second.wait().success());
    let said = second.said();
    assert!(said.contains(&a.address().to_string()) && said.contains("the name is taken"), "{said}");
}

fn passed_on() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let a = TestDaemon::start("a", &dir_a, None);
    let _b = TestDaemon::start("b", &dir_b, Some(a.address()));
    a.wait_alive(&["a", "b"]);
    let failure = a.inspect("b.c0123456789abcdef");
    assert_eq!((failure.object(), failure.cause()), ("child b.c0123456789abcdef", "its node has no such child"));
    let failure = a.inspect("b.s0123456789abcdef");
    assert_eq!((failure.object(), failure.cause()), ("seed b.s0123456789abcdef", "its node has no such seed"));
    let failure = a.inspect("elsewhere.c0123456789abcdef");
    assert_eq!(failure.next_step(), "this cluster has: a, b");
}
