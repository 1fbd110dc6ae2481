//! A child may be in the root of one of its seed that has ended and left nothing there; nobody else is, and no other root is used again.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, deadline};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("where_a_child_has_left_nothing", where_nothing_is_left),
    Test::alone("and_none_is_left_behind", none_is_left_behind),
];

/// For a root to have its next container.
const SOON: Duration = Duration::from_secs(60);

/// The mount namespace that a child was in. Held, so that no later one has its number.
struct Root {
    name: String,
    _held: File,
}

/// Starts a child, has `act` do something to it, and ends it.
fn root_of(cluster: &Cluster, seed: &Seed, options: &[&str], act: impl FnOnce(i32)) -> Root {
    let child = seed.fork_idle(1, options).remove(0);
    let path = format!("/proc/{}/ns/mnt", child.pid);
    let name = fs::read_link(&path).expect("it runs").to_string_lossy().into_owned();
    let root = Root { name, _held: File::open(&path).expect("it runs") };
    act(child.pid);
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    let directory = format!("/proc/{}", child.pid);
    deadline::until("the child has ended", SOON, || (!Path::new(&directory).exists()).then_some(()));
    root
}

/// Executes a command where the child is, with its view of files.
fn within(pid: i32, command: &str) {
    let target = ["--target".to_owned(), pid.to_string()];
    let status = Command::new("nsenter").args(target).args(["--mount", "sh", "-c", command]).status();
    assert!(status.expect("nsenter is needed").success(), "{command}");
}

fn where_nothing_is_left() {
    let cluster = Cluster::start(1);
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let (seed, other) = (Seed::of(cluster.first(), &parent), Seed::of(cluster.first(), &parent));
    let root = |seed: &Seed, options: &[&str], act: &dyn Fn(i32)| root_of(&cluster, seed, options, act);
    let again = |options: &[&str], former: &Root| {
        deadline::until("a child is in a root that another had", SOON, || {
            (root(&seed, options, &|_| ()).name == former.name).then_some(())
        });
    };
    let first = root(&seed, &[], &|_| ());
    assert_ne!(root(&other, &[], &|_| ()).name, first.name, "another seed's");
    again(&[], &first);

    let spoilt = root(&seed, &[], &|pid| within(pid, "echo secret > /tmp/left"));
    let captured = root(&seed, &[], &|pid| drop(Seed::of_process(cluster.first(), &pid.to_string(), &[])));
    let kinds: [&[&str]; 5] =
        [&["--untrusted"], &["--memory", "256MiB"], &["--bind", "/tmp:/mnt"], &["--net", "host"], &["--read-only"]];
    let mut former = vec![spoilt, captured];
    former.extend(kinds.map(|options| root(&seed, options, &|_| ())));
    // One fan-out each: another is in another network.
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

fn none_is_left_behind() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::of(cluster.first(), &parent);
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
