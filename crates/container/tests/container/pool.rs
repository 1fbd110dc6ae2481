//! Tests of the pool: containers are ready in advance, their number is limited, and failed builds are reported. Also tests
//! what remains when the pool's daemon dies.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use farfork_container::{
    ContainerError, ContainerPool, ContainerSpec, NetworkSpec, RootSpec, UsersSpec, clean_leftovers,
};
use farfork_sys::process_identity::ProcessIdentity;

use crate::probe::{Node, ask, take, try_ask, until};

#[test]
fn the_pool_refills() {
    let node = Node::new();
    let pool = node.pool(3);
    until("three are ready", || pool.ready_count(RootSpec::Overlay) == 3);
    let taken: Vec<_> = (0..5).map(|_| take(&pool, RootSpec::Overlay)).collect();
    until("three are ready again", || pool.ready_count(RootSpec::Overlay) == 3);
    let mut ids: Vec<_> = taken.iter().map(|container| container.id().to_owned()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 5);
}

/// The OOM killer may kill waiting containers: they have little memory and a high score.
#[test]
fn a_killed_container_is_never_taken() {
    let node = Node::new();
    let pool = node.pool(3);
    until("three are ready", || pool.ready_count(RootSpec::Overlay) == 3);
    let first = take(&pool, RootSpec::Overlay);
    until("three are ready again", || pool.ready_count(RootSpec::Overlay) == 3);
    let waiting: Vec<i32> = node.processes().into_iter().filter(|pid| *pid != first.init_pid()).collect();
    assert_eq!(waiting.len(), 3, "{waiting:?}");
    for pid in waiting {
        let process = farfork_sys::pidfd::open(pid).unwrap();
        farfork_sys::pidfd::send_signal(&process, 9).unwrap();
        assert!(farfork_sys::pidfd::wait_exit(&process, Duration::from_secs(60)).unwrap());
    }
    ask(&take(&pool, RootSpec::Overlay), "R/etc/passwd");
    drop(first);
    drop(pool);
    assert_eq!(node.cgroup_dirs(), [""; 0]);
}

#[test]
#[ignore = "long: a busy machine has no time for it"]
fn building_takes_milliseconds() {
    const CONTAINERS: u32 = 20;
    let node = Node::new();
    let pool = node.pool(1);
    drop(take(&pool, RootSpec::Overlay));
    let began = Instant::now();
    let taken: Vec<_> = (0..CONTAINERS).map(|_| take(&pool, RootSpec::Overlay)).collect();
    let each = began.elapsed() / CONTAINERS;
    let began = Instant::now();
    drop(taken);
    println!("a container is built in {each:?} and removed in {:?}", began.elapsed() / CONTAINERS);
    assert!(each < Duration::from_secs(1), "{each:?}");
}

#[test]
fn a_failed_build_is_reported_at_once() {
    let mut node = Node::new();
    node.config.init_image = b"this is no program";
    let pool = node.pool(1);
    // The error arrives long before the deadline.
    let (began, timeout) = (Instant::now(), Duration::from_secs(300));
    let error = pool.take(RootSpec::Overlay, began + timeout).unwrap_err();
    assert!(matches!(error, ContainerError::PoolBuild { .. }), "{error}");
    assert!(error.to_string().contains("init") && error.to_string().contains("n1"), "{error}");
    assert!(began.elapsed() < timeout / 5);
    drop(pool);
    assert_eq!(node.cgroup_dirs(), [""; 0]);
}

#[test]
fn a_missing_directory_is_named() {
    let mut node = Node::new();
    node.config.masked_paths.push("/nowhere/keys".into());
    let error = ContainerPool::start(node.config.clone(), 1).unwrap_err();
    assert!(error.to_string().contains("/nowhere/keys"), "{error}");
}

#[test]
fn an_empty_pool_reports_the_wait() {
    let node = Node::new();
    let pool = node.pool(1);
    // Containers are taken faster than they are built, unless this thread is not scheduled. Then another attempt empties the
    // pool.
    let deadline = Instant::now() + Duration::from_secs(60);
    let error = loop {
        let taken: Vec<_> = (0..100).map(|_| pool.take(RootSpec::Overlay, Instant::now())).collect();
        if let Some(error) = taken.into_iter().find_map(Result::err) {
            break error;
        }
        assert!(Instant::now() < deadline, "the pool was never empty");
    };
    assert!(matches!(error, ContainerError::PoolEmpty { size: 1, .. }), "{error}");
}

#[test]
fn containers_above_the_limit_are_refused() {
    let mut node = Node::new();
    node.config.containers_max = 2;
    let pool = node.pool(1);
    let _one = take(&pool, RootSpec::Overlay);
    let two = take(&pool, RootSpec::Overlay);
    let full = pool.take(RootSpec::Shared, Instant::now()).unwrap_err();
    assert!(matches!(full, ContainerError::TooManyContainers { containers_max: 2, .. }), "{full}");
    let full = pool.take(RootSpec::Overlay, Instant::now() + Duration::from_secs(60)).unwrap_err();
    assert!(full.to_string().contains("2 containers"), "{full}");
    drop(two);
    take(&pool, RootSpec::Overlay);
}

#[test]
fn a_file_system_that_was_mounted_later_is_visible() {
    let node = Node::with_changing_mounts();
    let point = node.path().join("new");
    fs::create_dir(&point).unwrap();
    let pool = node.pool(2);
    until("two are ready", || pool.ready_count(RootSpec::Overlay) == 2);
    let mount = |arguments: &[&str]| Command::new(arguments[0]).args(&arguments[1..]).arg(&point).status().unwrap();
    assert!(mount(&["mount", "-t", "tmpfs", "none"]).success());
    fs::write(point.join("file"), "contents").unwrap();
    let container = take(&pool, RootSpec::Overlay);
    let seen = ask(&container, &format!("R{}/file", point.display()));
    ask(&container, &format!("W{}/file changed", point.display()));
    let on_node = fs::read_to_string(point.join("file")).unwrap();
    assert!(mount(&["umount"]).success());
    assert_eq!((seen.as_str(), on_node.as_str()), ("contents", "contents"));
    assert!(try_ask(&take(&pool, RootSpec::Overlay), &format!("R{}/file", point.display())).is_err());
}

#[test]
fn a_running_container_outlives_the_pool() {
    let node = Node::new();
    let pool = node.pool(2);
    let (running, _control) = take(&pool, RootSpec::Overlay).into_running().unwrap();
    drop(pool);
    let init = ProcessIdentity::of(running.init_pid()).unwrap();
    // The next daemon finds the container.
    let found = clean_leftovers(&node.config).unwrap();
    assert_eq!(found.running.iter().map(|c| c.id()).collect::<Vec<_>>(), [running.id()]);
    assert!(init.open().unwrap().is_some());
    found.running[0].remove().unwrap();
    assert!(init.open().unwrap().is_none());
    clean_leftovers(&node.config).unwrap();
    node.pool(1);
    assert_eq!(node.cgroup_dirs(), [""; 0]);
}

#[test]
fn leftovers_of_a_crashed_daemon_are_removed() {
    let node = Node::new();
    let pool = node.pool(1);
    let container = take(&pool, RootSpec::Overlay);
    let group = container.cgroup().clone();
    let init = ProcessIdentity::of(container.init_pid()).unwrap();
    ask(&container, "S");
    until("one is ready", || pool.ready_count(RootSpec::Overlay) == 1);
    // As in a crash, nothing is dropped. In addition, there is a record whose init has ended and whose pid another process
    // has.
    std::mem::forget((container, pool));
    let me = ProcessIdentity::of(std::process::id().cast_signed()).unwrap();
    let stranger = ProcessIdentity { start_ticks: me.start_ticks + 1, ..me };
    fs::write(node.config.run_dir.join("containers/ff-1.in-use"), stranger.to_string()).unwrap();
    let found = clean_leftovers(&node.config).unwrap();
    assert!(found.running.is_empty());
    assert_eq!(found.removed, 3);
    assert!(init.open().unwrap().is_none());
    assert!(group.paths().all(|directory| !directory.exists()));
    leave_groups(&node);
    farfork_container::NodeCgroups::create(&node.config.cgroup_root_name).unwrap().remove_empty();
    assert_eq!(node.cgroup_dirs(), [""; 0]);
}

/// Moves threads of this process out of the groups of a node, because the threads of a crashed daemon would have ended.
fn leave_groups(node: &Node) {
    for directory in node.cgroup_dirs() {
        let tasks = fs::read_to_string(format!("{directory}/children/tasks")).unwrap_or_default();
        tasks.lines().for_each(|task| fs::write(format!("{directory}/../tasks"), task).unwrap());
    }
}

#[test]
fn private_and_host_network_containers_are_separate() {
    const NODES: ContainerSpec =
        ContainerSpec { root: RootSpec::Overlay, network: NetworkSpec::Host, users: UsersSpec::Host, limited: false };
    let node = Node::new();
    let pool = node.pool(2);
    let network_of = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    let nodes = network_of(std::process::id().cast_signed());
    for _ in 0..3 {
        let [own, in_nodes] = [ContainerSpec::default(), NODES]
            .map(|kind| pool.take(kind, Instant::now() + Duration::from_secs(60)).unwrap());
        assert_ne!(network_of(own.init_pid()), nodes);
        assert_eq!(network_of(in_nodes.init_pid()), nodes);
        assert_eq!((own.network(), in_nodes.network()), (NetworkSpec::Private, NetworkSpec::Host));
        until("two of each kind are ready", || {
            [ContainerSpec::default(), NODES].iter().all(|k| pool.ready_count(*k) == 2)
        });
    }
}

#[test]
fn shared_root_containers_are_prepared_after_the_first_request() {
    let node = Node::new();
    let pool = node.pool(2);
    until("overlays are ready", || pool.ready_count(RootSpec::Overlay) == 2);
    assert_eq!(pool.ready_count(RootSpec::Shared), 0);
    let first = take(&pool, RootSpec::Shared);
    until("shared roots are ready", || pool.ready_count(RootSpec::Shared) == 2);
    let second = take(&pool, RootSpec::Shared);
    assert_ne!(first.id(), second.id());
    assert_eq!(second.root(), RootSpec::Shared);
    until("shared roots are ready again", || pool.ready_count(RootSpec::Shared) == 2);
}
