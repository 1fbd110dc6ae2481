//! Tests of a container: isolated where required, equal to the node elsewhere, and removed completely afterwards.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use farfork_container::{ContainerError, ContainerLimits, ContainerSpec, RootProtection, RootSpec};
use farfork_sys::mount::{self, table};
use farfork_sys::namespace;

use crate::probe::{Node, ask, take, try_ask, until};

fn own_namespace(kind: &str) -> String {
    fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_container_has_its_own_namespaces() {
    let node = Node::new();
    let pool = node.pool(1);
    let container = take(&pool, RootSpec::Overlay);
    for kind in ["pid", "net", "uts", "ipc", "mnt"] {
        assert_ne!(ask(&container, &format!("L/proc/self/ns/{kind}")), own_namespace(kind), "{kind}");
    }
    assert!(ask(&container, "R/proc/self/stat").starts_with("1 ("));
    assert_eq!(ask(&container, "H"), rustix::system::uname().nodename().to_str().unwrap());
    assert_eq!(ask(&container, "T"), "", "a connection over 127.0.0.1 failed");
}

#[test]
fn init_has_no_descriptors_but_its_own() {
    let node = Node::new();
    let inheritable = rustix::io::dup(fs::File::open("/etc/passwd").unwrap()).unwrap();
    let pool = node.pool(1);
    let container = take(&pool, RootSpec::Overlay);
    // Standard input, output and error; the control socket; and the directory that init lists.
    assert_eq!(ask(&container, "D/proc/self/fd").lines().count(), 5);
    assert_eq!(ask(&container, "L/proc/self/fd/0"), "/dev/null");
    let status = ask(&container, "R/proc/self/status");
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap().trim().to_owned();
    for signals in ["SigBlk:", "SigIgn:", "SigCgt:"] {
        assert_eq!(field(signals), "0".repeat(16), "{signals}");
    }
    assert!(rustix::io::fcntl_getfd(&inheritable).unwrap().is_empty(), "the parent keeps its descriptors");
}

/// Not even the socket from which init receives requests is visible in /proc/net/unix.
#[test]
fn no_socket_of_the_node_is_in_its_network() {
    let node = Node::new();
    let pool = node.pool(1);
    let container = take(&pool, RootSpec::Overlay);
    let sockets = ask(&container, "R/proc/net/unix");
    assert_eq!(sockets.lines().skip(1).count(), 0, "{sockets}");
}

#[test]
fn writes_stay_in_the_container() {
    let node = Node::new();
    let pool = node.pool(2);
    let file = node.path().join("data");
    fs::write(&file, "node").unwrap();
    let (one, two) = (take(&pool, RootSpec::Overlay), take(&pool, RootSpec::Overlay));
    assert_eq!(ask(&one, &format!("R{}", file.display())), "node");
    ask(&one, &format!("W{} child", file.display()));
    ask(&one, "W/dev/shm/farfork-container-test child");
    assert_eq!(ask(&one, &format!("R{}", file.display())), "child");
    assert_eq!(ask(&two, &format!("R{}", file.display())), "node");
    assert_eq!(fs::read_to_string(&file).unwrap(), "node");
    assert!(!Path::new("/dev/shm/farfork-container-test").exists());
}

#[test]
fn files_of_the_daemon_are_hidden() {
    let mut node = Node::new();
    let keys = node.path().join("keys");
    fs::write(&keys, "private").unwrap();
    node.config.masked_paths.push(keys.clone());
    let pool = node.pool(1);
    let token = node.config.run_dir.join("token");
    for spec in [RootSpec::Overlay, RootSpec::Shared] {
        let container = take(&pool, spec);
        assert_eq!(ask(&container, &format!("D{}", node.config.run_dir.display())), "");
        assert!(try_ask(&container, &format!("R{}", token.display())).is_err());
        assert_eq!(ask(&container, &format!("R{}", keys.display())), "");
        // A second mount of the same directory does not reveal it either.
        container.bind(node.path(), Path::new(&node.path())).unwrap();
        assert!(try_ask(&container, &format!("R{}", token.display())).is_err());
        assert_eq!(ask(&container, &format!("R{}", keys.display())), "");
        let refused = container.bind(&token, Path::new("/tmp/token")).unwrap_err();
        assert!(refused.to_string().contains("belongs to the daemon"), "{refused}");
    }
}

#[test]
fn hidden_files_of_the_daemon_cannot_be_uncovered() {
    let mut node = Node::new();
    let (keys, later) = (node.path().join("some/keys"), node.path().join("later/trust"));
    let far = node.path().join("not/even/a/place");
    fs::create_dir(keys.parent().unwrap()).unwrap();
    fs::create_dir(later.parent().unwrap()).unwrap();
    fs::write(&keys, "private").unwrap();
    fs::write(keys.with_file_name("beside"), "seen").unwrap();
    node.config.masked_paths.push(keys.clone());
    node.config.masked_future_paths.extend([later.clone(), far.clone()]);
    let pool = node.pool(1);
    let token = node.config.run_dir.join("token");
    let container = take(&pool, RootSpec::Overlay);
    // Created after the container.
    for made in [&later, &far] {
        fs::create_dir_all(made).unwrap();
        fs::write(made.join("authority"), "private").unwrap();
    }
    // The container's upper layer hides each path. There is no mount over it that root could unmount.
    for path in [&node.config.run_dir, &keys, &later, &far] {
        assert!(try_ask(&container, &format!("U{}", path.display())).is_err(), "{} is a mount", path.display());
    }
    assert_eq!(ask(&container, &format!("D{}", node.config.run_dir.display())), "");
    assert!(try_ask(&container, &format!("R{}", token.display())).is_err());
    for made in [&later, &far] {
        assert_eq!(ask(&container, &format!("D{}", made.display())), "");
        assert!(try_ask(&container, &format!("R{}", made.join("authority").display())).is_err());
    }
    assert_eq!(ask(&container, &format!("R{}", keys.display())), "");
    // Siblings of a masked path are visible and unchanged.
    assert_eq!(ask(&container, &format!("R{}", keys.with_file_name("beside").display())), "seen");
    assert_eq!(ask(&container, &format!("D{}", keys.parent().unwrap().display())).lines().count(), 2);
}

#[test]
fn a_bound_path_shows_the_file_of_the_node() {
    let node = Node::new();
    let pool = node.pool(1);
    let directory = node.path().join("shared");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), "node").unwrap();
    let container = take(&pool, RootSpec::Overlay);
    container.bind(&directory, Path::new("/new/place")).unwrap();
    container.bind(&directory.join("file"), Path::new("/new/alone")).unwrap();
    assert_eq!(ask(&container, "R/new/place/file"), "node");
    ask(&container, "W/new/place/file child");
    assert_eq!(fs::read_to_string(directory.join("file")).unwrap(), "child");
    assert_eq!(ask(&container, "R/new/alone"), "child");
    assert!(!Path::new("/new").exists());
    for (host, inside) in [("/nowhere", "/tmp/x"), ("/etc", "relative"), ("/etc", "/a/../b"), ("/etc", "/")] {
        let error = container.bind(Path::new(host), Path::new(inside)).unwrap_err();
        assert!(matches!(error, ContainerError::Bind { .. }), "{error}");
    }
}

#[test]
fn a_shared_root_shows_the_root_of_the_node() {
    let node = Node::new();
    let pool = node.pool(1);
    let file = node.path().join("data");
    let container = take(&pool, RootSpec::Shared);
    ask(&container, &format!("W{} child", file.display()));
    assert_eq!(fs::read_to_string(&file).unwrap(), "child");
    let path = container.put_file("payload", b"for the child", 0o400).unwrap();
    assert_eq!(ask(&container, &format!("R{}", path.display())), "for the child");
    assert!(!path.exists(), "the node sees the container's payload");
    assert!(path.parent().unwrap().exists(), "the mount point is missing on the node while the container exists");
    assert!(container.bind(Path::new("/etc"), Path::new("/not-there")).is_err());
}

#[test]
fn an_untrusted_container_has_few_devices_and_writes_nothing() {
    let node = Node::new();
    let pool = node.pool(1);
    for root in [RootSpec::Overlay, RootSpec::Shared] {
        let container = take(&pool, root);
        let file = node.path().join("data");
        fs::write(&file, "node").unwrap();
        container.protect(RootProtection { untrusted: true, read_only: true }).unwrap();
        let devices = ask(&container, "D/dev");
        let mut names: Vec<&str> = devices.lines().collect();
        names.sort_unstable();
        let wanted = "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero";
        assert_eq!(names.join(" "), wanted, "{root:?}");
        ask(&container, "W/dev/null anything");
        for path in ["/sys/kernel/mm/transparent_hugepage/enabled", "/dev/more", "/tmp/more", file.to_str().unwrap()] {
            let refused = try_ask(&container, &format!("W{path} more")).unwrap_err();
            assert!(refused.contains("Read-only"), "{root:?}, {path}: {refused}");
        }
        assert_eq!(ask(&container, &format!("R{}", file.display())), "node");
    }
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.lines().any(|line| line.contains(" /sys ro")), "the node's own mount of /sys became read-only");
}

#[test]
fn a_payload_is_visible_only_in_its_container() {
    let node = Node::new();
    let pool = node.pool(2);
    let (one, two) = (take(&pool, RootSpec::Overlay), take(&pool, RootSpec::Overlay));
    for (container, text) in [(&one, "first"), (&two, "second")] {
        container.put_file("payload", text.as_bytes(), 0o444).unwrap();
    }
    assert_eq!(ask(&one, "R/run/farfork/payload"), "first");
    assert_eq!(ask(&two, "R/run/farfork/payload"), "second");
    // A symbolic link in the container leads nowhere on the node.
    let escape = two.put_file("../../../../etc/farfork-container-test", b"", 0o444);
    assert!(escape.is_ok() && !Path::new("/etc/farfork-container-test").exists());
}

#[test]
fn init_is_in_the_containers_control_group() {
    let node = Node::new();
    let pool = node.pool(1);
    let container = take(&pool, RootSpec::Overlay);
    let membership = ask(&container, "R/proc/self/cgroup");
    let name = format!("{}/pool-{}", node.config.cgroup_root_name, container.id());
    assert!(container.cgroup().paths().count() > 0);
    for directory in container.cgroup().paths() {
        let processes = fs::read_to_string(directory.join("cgroup.procs")).unwrap();
        assert_eq!(processes.trim(), container.init_pid().to_string(), "{}", directory.display());
    }
    let own = membership.lines().filter(|line| line.ends_with(&name)).count();
    assert_eq!(own, container.cgroup().paths().count(), "{membership}");
    // Processes that init starts are created in init's group.
    ask(&container, "S");
    assert_eq!(container.cgroup().processes().len(), 2);
    // Without limits, the container has no group of its own in a version 1 hierarchy. Its processes are in the common group.
    let is_unified = Path::new("/sys/fs/cgroup").join("cgroup.controllers").exists();
    let all = membership.lines().filter(|line| line.contains(&node.config.cgroup_root_name));
    assert!(is_unified || all.clone().all(|line| line.ends_with(&name) || line.ends_with("/children")), "{membership}");
    assert!(all.count() > own || is_unified, "{membership}");
}

#[test]
fn a_limited_container_has_control_groups_for_its_limits() {
    let node = Node::new();
    let pool = node.pool(1);
    let kind = ContainerSpec { limited: true, ..ContainerSpec::default() };
    let container = pool.take(kind, Instant::now() + Duration::from_secs(60)).unwrap();
    until("another is ready", || pool.ready_count(kind) == 1);
    let limits =
        ContainerLimits { memory_bytes_max: Some(64 << 20), cpu_millicores_max: Some(500), tasks_max: Some(9) };
    container.cgroup().set_limits(&limits).unwrap();
    ask(&container, "S");
    for directory in container.cgroup().paths() {
        let processes = fs::read_to_string(directory.join("cgroup.procs")).unwrap();
        assert_eq!(processes.lines().count(), 2, "{}", directory.display());
    }
    container.cgroup().set_tasks_max(10).unwrap();
    assert!(container.cgroup().memory_bytes().unwrap() > 0);
    let directories: Vec<_> = container.cgroup().paths().map(Path::to_owned).collect();
    let limit = |file: &str| directories.iter().find_map(|path| fs::read_to_string(path.join(file)).ok());
    let memory = limit("memory.max").or_else(|| limit("memory.limit_in_bytes")).unwrap();
    assert_eq!(memory.trim(), (64 << 20).to_string());
    drop(container);
    assert!(directories.iter().all(|directory| !directory.exists()));
}

#[test]
fn a_removed_container_leaves_nothing() {
    // A thread with its own mount table: programs that run next to this test mount file systems, too.
    let remove = || {
        namespace::unshare_mounts().unwrap();
        mount::make_private(Path::new("/")).unwrap();
        remove_container();
    };
    thread::scope(|scope| scope.spawn(remove).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Removes a container, and requires that its mounts were never in the calling thread's namespace.
fn remove_container() {
    let node = Node::new();
    let before = table::read_thread_mounts().unwrap();
    // The kernel detaches a mount of any program here, too, when its directory is removed.
    let require_no_new_mount = || {
        let mounts = table::read_thread_mounts().unwrap();
        assert!(mounts.iter().all(|mount| before.contains(mount)), "{mounts:?}");
    };
    let pool = node.pool(2);
    let container = take(&pool, RootSpec::Overlay);
    ask(&container, "S");
    let processes = container.cgroup().processes();
    let directories: Vec<_> = container.cgroup().paths().map(Path::to_owned).collect();
    require_no_new_mount();
    drop(container);
    assert!(directories.iter().all(|directory| !directory.exists()));
    assert!(processes.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()), "{processes:?}");
    drop(pool);
    assert_eq!(node.cgroup_dirs(), [""; 0]);
    assert_eq!(fs::read_dir(node.config.run_dir.join("containers")).unwrap().count(), 0);
    require_no_new_mount();
}
