//! The root of an ended child is reused only for a child of the same parent, and only if the ended child left it
//! unchanged.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("only_when_the_previous_child_left_no_files", left_clean),
    Test::alone("only_by_children_of_the_same_parent", same_parent),
    Test::alone("only_while_the_parent_keeps_its_credentials", same_credentials),
    Test::alone("no_root_is_leaked", no_leak),
];

/// Longest wait until the next container uses a root.
const SOON: Duration = Duration::from_secs(60);

/// The mount namespace of a child. It is kept open, so that no later namespace gets its inode number.
struct Root {
    name: String,
    _held: File,
}

/// Starts a child, calls `act` with its process id, and ends the child. Returns the child's root.
fn root_of(cluster: &Cluster, seed: &Seed, options: &[&str], act: impl FnOnce(i32)) -> Root {
    let child = seed.fork_idle(1, options).remove(0);
    let path = format!("/proc/{}/ns/mnt", child.pid);
    let name = fs::read_link(&path).expect("it runs").to_string_lossy().into_owned();
    let root = Root { name, _held: File::open(&path).expect("it runs") };
    act(child.pid);
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    let directory = format!("/proc/{}", child.pid);
    wait::wait_until("the child has ended", SOON, || (!Path::new(&directory).exists()).then_some(()));
    root
}

/// Executes a command in the child's mount namespace.
fn within(pid: i32, command: &str) {
    let target = ["--target".to_owned(), pid.to_string()];
    let status = Command::new("nsenter").args(target).args(["--mount", "sh", "-c", command]).status();
    assert!(status.expect("nsenter(1) is installed").success(), "{command}");
}

fn left_clean() {
    let cluster = Cluster::start(1);
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let root = |seed: &Seed, options: &[&str], act: &dyn Fn(i32)| root_of(&cluster, seed, options, act);
    let first = root(&seed, &[], &|_| ());
    wait::wait_until("a child gets the root of an ended child", SOON, || {
        (root(&seed, &[], &|_| ()).name == first.name).then_some(())
    });

    let spoilt = root(&seed, &[], &|pid| within(pid, "echo secret > /tmp/left"));
    let captured = root(&seed, &[], &|pid| drop(Seed::prepare_process(cluster.first(), &pid.to_string(), &[])));
    let kinds: [&[&str]; 5] =
        [&["--untrusted"], &["--memory", "256MiB"], &["--bind", "/tmp:/mnt"], &["--net", "host"], &["--read-only"]];
    let mut former = vec![spoilt, captured];
    former.extend(kinds.map(|options| root(&seed, options, &|_| ())));
    // Each of these forks has a new shared network.
    former.push(root(&seed, &["--net", "shared"], &|_| ()));
    for options in [&[][..], &["--net", "shared"], &["--untrusted"], &["--net", "host"]] {
        for _ in 0..3 {
            let next = root(&seed, options, &|pid| within(pid, "test ! -e /tmp/left"));
            assert!(former.iter().all(|former| former.name != next.name), "{options:?}");
        }
    }
    seed.fork_and_check(&parent, 1, &[]);
    parent.require_unharmed();
}

/// Makes seeds of a process until a child of one seed has the root of a child of another seed. Returns all roots.
fn reuse_across_seeds(cluster: &Cluster, parent: &Parent, options: &[&str]) -> Vec<Root> {
    let next = Seed::prepare(cluster.first(), parent);
    let (mut of_others, mut of_next) = (Vec::<Root>::new(), Vec::new());
    wait::wait_until("a child gets the root of a child of another seed", SOON, || {
        let other = Seed::prepare(cluster.first(), parent);
        of_others.push(root_of(cluster, &other, options, |_| ()));
        drop(other);
        let found = root_of(cluster, &next, options, |_| ());
        let is_handed_on = of_others.iter().any(|former| former.name == found.name);
        of_next.push(found);
        is_handed_on.then_some(())
    });
    of_others.extend(of_next);
    of_others
}

fn same_parent() {
    let cluster = Cluster::start(2);
    let [mut parent, mut other] = [(); 2].map(|()| Parent::start(Program::Waits, &["4"]));
    for to in [&[][..], &["--to", cluster.name(1)]] {
        let shared = [to, &["--net", "shared"]].concat();
        let root = |seed: &Seed, options: &[&str]| root_of(&cluster, seed, options, |_| ());
        let [its, not_its] = [&parent, &other].map(|parent| Seed::prepare(cluster.first(), parent));
        let mut former = reuse_across_seeds(&cluster, &parent, to);
        former.push(root(&its, &shared));
        for (seed, options) in [(&not_its, to), (&not_its, &shared), (&its, &shared)] {
            for _ in 0..3 {
                let found = root(seed, options);
                assert!(former.iter().all(|former| former.name != found.name), "{options:?}");
            }
        }
    }
    parent.require_unharmed();
    other.require_unharmed();
}

fn same_credentials() {
    let cluster = Cluster::start(1);
    let mut parent = Parent::start(Program::Situation("changing_credentials"), &[]);
    let mut former: Vec<Root> = Vec::new();
    let ways = ["itself", "in other groups", "not dumpable", "with fewer capabilities", "another user"];
    for (number, way) in ways.into_iter().enumerate() {
        if number > 0 {
            kill_process(Pid::from_raw(parent.pid()).expect("a process id"), Signal::USR1).expect("the parent runs");
            parent.wait_for_ticks(3);
        }
        let found = reuse_across_seeds(&cluster, &parent, &[]);
        let is_strange = |root: &Root| former.iter().all(|former| former.name != root.name);
        assert!(found.iter().all(is_strange), "{way}");
        former.extend(found);
    }
    parent.require_unharmed();
}

fn no_leak() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let to = ["--to", cluster.name(1)];
    let numbers: Vec<u64> = (0..20).collect();
    let payloads: Vec<String> = numbers.iter().map(u64::to_string).collect();
    for _ in 0..3 {
        let children = seed.fork_detached(&payloads, &to);
        seed.check_answers(&parent, &children, &numbers);
    }
    cluster.kill_daemon(1);
    cluster.restart_daemon(1);
    seed.fork_and_check(&parent, 1, &to);
    parent.require_unharmed();
    drop((seed, parent));
    assert_eq!(cluster.stop(), Vec::<String>::new());
}
