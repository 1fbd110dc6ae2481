//! Untrusted children with a user namespace: root in the child has no privileges on the node. The child still owns the
//! files of its parent, and changes no file of the node.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_sys::user_namespace::try_lock_byte;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{BINARY, Cluster, Parent, Program, Seed, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("root_in_the_child_is_unprivileged_on_the_node", unprivileged_root),
    Test::shared("each_child_has_its_own_id_range", own_ranges),
    Test::shared("a_child_with_a_user_namespace_cannot_escape", no_escape),
    Test::shared("a_python_program_with_threads_runs", python),
    Test::shared("a_child_owns_the_files_of_a_shared_path", shared_files),
    Test::shared("conflicting_options_are_refused", refused),
    Test::alone("an_id_range_survives_a_killed_daemon", daemon_killed),
    Test::alone("an_id_range_is_freed_when_its_processes_are_killed", processes_killed),
    Test::alone("the_umask_of_the_daemon_has_no_effect", strict_umask),
];

const OPTIONS: [&str; 2] = ["--untrusted", "--user-namespace"];
/// First user id of all containers' ranges. `COUNT` is the number of ids in each range.
const FIRST: u32 = 1_879_048_192;
const COUNT: u32 = 65_536;

/// Longest wait until killed children have ended and their user ids are free.
const GIVEN_BACK_LIMIT: Duration = Duration::from_secs(60);

/// Maximum number of forks: more than the containers in a pool.
const FORKS_MAX: usize = 20;

/// Returns whether a container uses the range of user ids that begins with `first`.
fn is_taken(cluster: &Cluster, first: u32) -> bool {
    let locks = File::options().write(true).open(cluster.user_ranges()).expect("there were containers with users");
    !try_lock_byte(&locks, (first - FIRST) / COUNT).expect("bytes of files can be locked")
}

/// Returns the first id of a process's range, as seen on the node.
fn first_of(pid: i32) -> u32 {
    let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).expect("the child lives");
    let numbers: Vec<u32> = map.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    assert_eq!((numbers[0], numbers[2]), (0, COUNT), "{map}");
    assert!(numbers[1] >= FIRST && (numbers[1] - FIRST).is_multiple_of(COUNT), "{map}");
    numbers[1]
}

fn unprivileged_root(cluster: &Cluster) {
    let directory = scratch::directory();
    let secret = directory.path().join("secret");
    fs::write(&secret, "secret").expect("a small file can be written");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let mut parent = Parent::start(Program::Situation("file_ownership"), &[&directory.path().to_string_lossy()]);
    let seed = Seed::prepare(cluster.first(), &parent);
    for network in ["private", "shared"] {
        let options = [&OPTIONS[..], &["--to", cluster.name(1), "--net", network]].concat();
        let ended = seed.fork_attached("7", &options);
        assert_eq!(ended.status.code(), Some(42), "{network}: {}{}", ended.stdout, ended.stderr);
        let numbers = format!("numbers 0 0 {}", u32::MAX);
        assert!(!ended.stdout.contains(&numbers), "{}", ended.stdout);
    }
    assert_eq!(fs::read_to_string(&secret).expect("it is there"), "secret");
    assert_eq!(fs::read_dir(directory.path()).expect("it is there").count(), 1, "something was made on the node");

    let child = &seed.fork_idle(1, &OPTIONS)[0];
    let first = first_of(child.pid);
    for task in fs::read_dir(format!("/proc/{}/task", child.pid)).expect("the child lives") {
        let status = fs::read_to_string(task.expect("a thread").path().join("status")).expect("it lives");
        for (what, line) in [
            ("Uid", status.lines().find(|line| line.starts_with("Uid:"))),
            ("Gid", status.lines().find(|line| line.starts_with("Gid:"))),
        ] {
            assert_eq!(line, Some(&*format!("{what}:\t{first}\t{first}\t{first}\t{first}")), "{status}");
        }
    }
    let root = format!("/proc/{}/root", child.pid);
    let shown = fs::metadata(format!("{root}{}", secret.display())).expect("the child sees it");
    assert_eq!((shown.uid(), fs::metadata(&secret).expect("it is there").uid()), (first, 0));
    let said = cluster.first().json(&["inspect", &child.id]);
    assert_eq!((&said["untrusted"], &said["user_namespace"]), (&true.into(), &true.into()), "{said}");
    let refused = cluster.first().run_failing(&["prepare", &child.pid.to_string()]);
    refused.require_mentions(&["own user namespace", "--user-namespace"]);
    parent.require_unharmed();
}

fn own_ranges(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let nodes = format!("{},{}", cluster.name(0), cluster.name(1));
    let children = seed.fork_idle(6, &[&OPTIONS[..], &["--to", &nodes]].concat());
    let firsts: BTreeSet<u32> = children.iter().map(|child| first_of(child.pid)).collect();
    assert_eq!(firsts.len(), children.len(), "{firsts:?}");
    assert!(firsts.iter().all(|first| is_taken(cluster, *first)), "{firsts:?}");
    for child in &children {
        cluster.first().json(&["kill", "-s", "KILL", &child.id]);
    }
    wait::wait_until("the user ids of ended children are free", GIVEN_BACK_LIMIT, || {
        firsts.iter().all(|first| !is_taken(cluster, *first)).then_some(())
    });
    // The limit equals the child's number of tasks. The privileged forker of its container must not count.
    let tasks = fs::read_dir(format!("/proc/{}/task", parent.pid())).expect("the parent lives").count().to_string();
    seed.fork_idle(1, &[&OPTIONS[..], &["--processes", &tasks]].concat());
    seed.fork_and_check(&parent, 5, &OPTIONS);
    parent.require_unharmed();
}

fn no_escape(cluster: &Cluster) {
    let socket = cluster.node(1).socket().to_string_lossy().into_owned();
    let mut parent = Parent::start(Program::Situation("escaping"), &[&socket]);
    let seed = Seed::prepare(cluster.first(), &parent);
    for network in ["private", "shared"] {
        let options = [&OPTIONS[..], &["--to", cluster.name(1), "--net", network, "--read-only"]].concat();
        let ended = seed.fork_attached("7", &options);
        assert_eq!(ended.status.code(), Some(42), "{}{}", ended.stdout, ended.stderr);
        let open: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with("open ")).collect();
        assert!(open.is_empty(), "{network}: {}", open.join("\n"));
    }
    parent.require_unharmed();
}

fn python(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Arrays, &[]);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 11, &[&OPTIONS[..], &["--to", cluster.name(1)]].concat());
    parent.require_unharmed();
}

fn shared_files(cluster: &Cluster) {
    let directory = scratch::directory();
    let path = directory.path().to_string_lossy().into_owned();
    let secret = directory.path().join("secret");
    fs::write(&secret, "secret").expect("a small file can be written");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let mut parent = Parent::start(Program::Situation("file_ownership"), &[&path]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let options = [&OPTIONS[..], &["--to", cluster.name(1), "--shared", &path]].concat();
    let ended = seed.fork_attached("7", &options);
    assert_eq!(ended.status.code(), Some(42), "{}{}", ended.stdout, ended.stderr);
    // The child's writes are in the node's files. On the node, these files are owned by root.
    assert_eq!(fs::read_to_string(&secret).expect("it is there"), "public");
    let made = fs::metadata(directory.path().join("made")).expect("the child has made it");
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (0, 0, 0o600));
    parent.require_unharmed();
}

fn refused(cluster: &Cluster) {
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let ended = seed.fork_attached("7", &["--user-namespace"]);
    assert_eq!(ended.status.code(), Some(2), "{}{}", ended.stdout, ended.stderr);
    let refused = cluster.first().run_failing(&[&["fork", seed.id()], &OPTIONS[..], &["--shared", "/"]].concat());
    refused.require_mentions(&["the node's own root", "directories below it"]);
    parent.require_unharmed();
}

fn daemon_killed() {
    let cluster = Cluster::start(2);
    let mut parent = Parent::start(Program::Waits, &["4"]);
    // The second node gets all requests: the first node's connections to it end when the second node's daemon is
    // killed.
    let said = cluster.first().json(&["prepare", &parent.pid().to_string()]);
    let seed = Seed::from_json(cluster.node(1), &said.to_string());
    let child = &seed.fork_idle(1, &OPTIONS)[0];
    let first = first_of(child.pid);
    cluster.kill_daemon(1);
    cluster.restart_daemon(1);
    // The user ids of pooled containers are free again, but not those of the child.
    for other in seed.fork_idle(4, &OPTIONS) {
        assert_ne!(first_of(other.pid), first);
        cluster.node(1).json(&["kill", "-s", "KILL", &other.id]);
    }
    assert!(is_taken(&cluster, first) && first_of(child.pid) == first, "the child has lost its user ids");
    cluster.node(1).json(&["kill", "-s", "KILL", &child.id]);
    await_free(&cluster, first);
    parent.require_unharmed();
    require_nothing_left(cluster, seed);
}

fn processes_killed() {
    let cluster = Cluster::start(1);
    let mut parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let child = &seed.fork_idle(1, &OPTIONS)[0];
    let first = first_of(child.pid);
    let status = fs::read_to_string(format!("/proc/{}/status", child.pid)).expect("the child lives");
    let init = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    kill(init.expect("its first process"));
    await_free(&cluster, first);

    wait::wait_until("containers wait", GIVEN_BACK_LIMIT, || {
        let bearers = bearers(&cluster);
        bearers.iter().for_each(|pid| kill(*pid));
        (!bearers.is_empty()).then_some(())
    });
    // A fork that gets a container whose privileged forker was killed fails with the reason. Later forks get new
    // containers.
    let good = (0..FORKS_MAX).map(|_| seed.fork_attached("7", &OPTIONS)).find(|ended| {
        let is_told =
            ended.stderr.contains("container's stub ended") || ended.stderr.contains("container's stub failed");
        assert!(ended.status.code() == Some(42) || is_told, "{}", ended.stderr);
        ended.status.code() == Some(42)
    });
    assert!(good.is_some(), "no child after {FORKS_MAX} forks");
    parent.require_unharmed();
    require_nothing_left(cluster, seed);
}

fn await_free(cluster: &Cluster, first: u32) {
    wait::wait_until("the child's user ids are free", GIVEN_BACK_LIMIT, || (!is_taken(cluster, first)).then_some(()));
}

/// Returns the privileged forkers of containers with user namespaces. Of all `farfork-init` processes, only they are in
/// the node's pid namespace.
fn bearers(cluster: &Cluster) -> Vec<i32> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let of_node = |pid: &i32| namespace(&pid.to_string()) == namespace("self");
    cluster.processes("farfork-init").into_iter().filter(of_node).collect()
}

fn kill(pid: i32) {
    // ESRCH: the process has ended by itself.
    let _ = kill_process(Pid::from_raw(pid).expect("a process"), Signal::KILL);
}

fn require_nothing_left(cluster: Cluster, seed: Seed) {
    drop(seed);
    let remains = cluster.stop();
    assert!(remains.is_empty(), "{remains:#?}");
}

/// The daemon makes directories in the child's root: mount points for the private directory and for a bound path. Their
/// owner is not root in the child.
fn strict_umask() {
    let directory = scratch::directory();
    let wrapper = directory.path().join("farfork-wrapper");
    fs::write(&wrapper, format!("#!/bin/sh\numask 077\nexec {BINARY} \"$@\"\n")).expect("a small file can be written");
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let cluster = Cluster::start_wrapped(&wrapper, 1);
    let mut parent = Parent::start_command(Program::Waits.command().arg("4").current_dir("/"));
    let seed = Seed::prepare(cluster.first(), &parent);

    let root = directory.path().join("root");
    for point in ["proc", "sys", "dev", "data"] {
        fs::create_dir_all(root.join(point)).expect("an empty directory");
    }
    for path in [directory.path(), &root] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    let bind = format!("{}:{}", root.join("data").display(), directory.path().join("bound/data").display());
    for place in [["--root", &root.to_string_lossy()], ["--bind", &bind]] {
        let options = [&OPTIONS[..], &place].concat();
        seed.fork_and_check(&parent, 8, &options);
        let child = seed.fork_idle(1, &options).remove(0);
        let inside = Path::new("/proc").join(child.pid.to_string()).join("root");
        let made: PathBuf = if place[0] == "--root" { "run".into() } else { directory.path().join("bound") };
        let made = inside.join(made.strip_prefix("/").unwrap_or(&made));
        let mode = fs::metadata(&made).expect("the node has made it").mode();
        assert_eq!(mode & 0o777, 0o755, "{}", made.display());
        cluster.first().json(&["kill", "-s", "KILL", &child.id]);
    }
    parent.require_unharmed();
}
