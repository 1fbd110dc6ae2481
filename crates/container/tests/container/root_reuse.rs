//! Tests of reusing the root of an ended container: the next container gets the root only if nothing in it reveals the
//! previous container.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use farfork_container::{
    Container, ContainerLimits, ContainerPool, ContainerSpec, NetworkSpec, PRIVATE_DIR, RootReuseKey, RootSpec,
};
use farfork_sys::pidfd;

use crate::probe::{Node, ask, try_ask, until};

const WAIT: Duration = Duration::from_secs(60);

/// Commands that leave a trace in a root: in files, in mounts, or in attributes of either. Without `-n`, the first mount(8)
/// of a machine creates /run/mount, which is a trace of its own.
const LEAVES: [&str; 32] = [
    "echo secret > /tmp/left",
    "echo secret > /left",
    "echo secret > /tmp/gone; rm /tmp/gone",
    "echo secret > /left; rm /left",
    "chmod 700 /",
    "chmod 700 /; chmod 755 /",
    "chown 1:1 /",
    "touch /",
    "touch -d 2001-01-01 /",
    "python3 -c 'import os; os.setxattr(\"/\", \"trusted.left\", b\"secret\")'",
    "rm /etc/hostname",
    "touch /etc/hostname",
    "chmod 600 /etc/hostname",
    "mkdir /tmp/left",
    "mkfifo /tmp/left",
    "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/left\")'",
    "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/dev/shm/left\")'",
    "echo secret > /dev/shm/left",
    "echo secret > /dev/shm/gone; rm /dev/shm/gone",
    "mount -n -o remount,size=8M /run/farfork",
    "mkdir /run/left",
    "mount -n -t tmpfs none /mnt",
    "mount -n -t tmpfs none /run/farfork",
    "umount -n /dev/shm",
    "mount -n -o remount,ro /dev/shm",
    "mount -n --bind /etc /mnt",
    // poll(2) on the mount table does not report these two.
    "mount -n --make-shared /dev/shm",
    "python3 -c 'import ctypes; call = ctypes.CDLL(None).syscall; fd = call(433, -100, b\"/dev/pts\", 1); \
     assert call(431, fd, 1, b\"mode\", b\"600\", 0) == 0 and call(431, fd, 7, None, None, 0) == 0'",
    "chmod 600 /dev/pts/ptmx",
    "unshare -m sh -c 'umount -n /run/farfork && chmod 700 /run/farfork'",
    "unshare -m sh -c 'umount -n /run/farfork && echo secret > /run/farfork/left'",
    "unshare -m sh -c 'umount -n /run/farfork && touch /run/farfork/hidden'",
];

/// Pairs of commands: the effect of the first does not survive the reuse of its root. The second would show that effect.
const GOES: [(&str, &str); 13] = [
    ("echo secret > /run/farfork/payload", "ls -A /run/farfork; stat -c '%a %u %g %h %s' /run/farfork"),
    (
        "for i in 1 2 3 4 5 6 7 8 9; do echo > /run/farfork/$i; done; mkdir /run/farfork/left; echo",
        "ls -A /run/farfork; echo",
    ),
    ("chattr +A /run/farfork; echo", "lsattr -d /run/farfork"),
    (
        "python3 -c 'import os; os.setxattr(\"/run/farfork\", \"trusted.left\", b\"secret\")'",
        "python3 -c 'import os; print(os.listxattr(\"/run/farfork\"))'",
    ),
    ("echo secret > /run/farfork/left; chmod 700 /run/farfork", "ls -ld /run/farfork/* /run/farfork; echo"),
    ("ipcmk -M 4096 && ipcmk -Q && ipcmk -S 3", "cat /proc/sysvipc/shm /proc/sysvipc/msg /proc/sysvipc/sem"),
    ("hostname left; hostname", "hostname"),
    ("echo 123 > /proc/sys/kernel/shmmni", "cat /proc/sys/kernel/shmmni"),
    ("echo 17 > /proc/sys/net/ipv4/ip_default_ttl", "cat /proc/sys/net/ipv4/ip_default_ttl"),
    ("setsid sleep 1000 > /dev/null 2>&1 < /dev/null & echo", "cat /proc/[0-9]*/comm | grep -c sleep; echo"),
    ("for i in 1 2 3 4 5 6 7 8; do /bin/true; done", "cat /proc/sys/kernel/ns_last_pid"),
    ("mount -n -o remount,hidepid=2 /proc", "grep ' /proc ' /proc/mounts"),
    ("python3 -c 'import os; os.openpty()'", "ls /dev/pts"),
];

/// Namespaces that are new for each container.
const OWN: [&str; 4] = ["pid", "net", "uts", "ipc"];

fn heirs(line: &str) -> RootReuseKey {
    RootReuseKey { lineage: line.into(), fan_out: None }
}

fn take(pool: &ContainerPool, line: &str) -> Container {
    pool.take_with_reuse(&heirs(line), RootSpec::Overlay, Instant::now() + WAIT).unwrap()
}

fn root_of(container: &Container) -> String {
    ask(container, "L/proc/self/ns/mnt")
}

/// Ends a container as the end of a child does, and waits until its root is kept or discarded. Returns whether the pool has
/// a ready root.
fn end(pool: &ContainerPool, container: Container) -> bool {
    let (running, control) = container.into_running().unwrap();
    drop(control);
    pidfd::wait_exit(running.init(), WAIT).unwrap();
    running.remove().unwrap();
    until("the root is kept or discarded", || {
        let (cached, ready) = pool.root_counts();
        cached == ready
    });
    pool.root_counts().1 > 0
}

#[test]
fn an_unchanged_root_is_reused() {
    let node = Node::new();
    let pool = node.pool(1);
    let first = take(&pool, "s1");
    let (root, id) = (root_of(&first), first.id().to_owned());
    assert_eq!(ask(&first, "L/proc/self/cwd"), "/", "the thread that inspected the layers is still in their directory");
    // Held open, so that no later namespace gets the same number.
    let _held = OWN.map(|kind| fs::File::open(format!("/proc/{}/ns/{kind}", first.init_pid())).unwrap());
    let namespaces = |container: &Container| OWN.map(|kind| ask(container, &format!("L/proc/self/ns/{kind}")));
    let before = namespaces(&first);
    assert!(end(&pool, first), "an unused root was discarded");
    assert_ne!(root_of(&take(&pool, "s2")), root, "a root was reused for another lineage");
    let of_fan_out = RootReuseKey { fan_out: Some(1), ..heirs("s1") };
    let other = pool.take_with_reuse(&of_fan_out, RootSpec::Overlay, Instant::now() + WAIT).unwrap();
    assert_ne!(root_of(&other), root, "a root was reused for another network");
    let next = take(&pool, "s1");
    assert_eq!(root_of(&next), root);
    assert_ne!(next.id(), id);
    assert_eq!(ask(&next, "L/proc/self/cwd"), "/");
    assert!(namespaces(&next).iter().zip(&before).all(|(now, before)| now != before), "a namespace is not new");
    assert!(ask(&next, "R/proc/self/stat").starts_with("1 ("));
    assert_eq!(ask(&next, "T"), "", "a connection over 127.0.0.1 failed");
    assert!(end(&pool, next));
}

#[test]
fn unused_roots_are_removed() {
    let mut node = Node::new();
    node.config.cached_roots_unused_limit = Duration::from_millis(500);
    let pool = node.pool(1);
    end(&pool, take(&pool, "s1"));
    until("unused roots are removed", || pool.root_counts() == (0, 0));
}

/// By default, a node's run directory has the same path as the private directory, and containers mask it.
#[test]
fn hidden_files_below_the_private_directory_allow_reuse() {
    let node = with_hidden_below_private();
    let pool = node.pool(1);
    let container = take(&pool, "s1");
    let root = root_of(&container);
    assert!(end(&pool, container), "an unused root was discarded");
    assert_eq!(root_of(&take(&pool, "s1")), root);
}

fn with_hidden_below_private() -> Node {
    let mut node = Node::new();
    node.config.masked_future_paths.push(Path::new(PRIVATE_DIR).join("hidden"));
    node
}

#[test]
fn a_changed_root_is_not_reused() {
    let node = with_hidden_below_private();
    let pool = node.pool(1);
    for (number, left) in LEAVES.into_iter().enumerate() {
        let line = format!("s{number}");
        let container = take(&pool, &line);
        let root = root_of(&container);
        let _held = fs::File::open(format!("/proc/{}/ns/mnt", container.init_pid())).unwrap();
        ask(&container, &format!("E{left}"));
        assert!(!end(&pool, container), "the root was kept after `{left}`");
        let next = take(&pool, &line);
        assert_ne!(root_of(&next), root, "{left}");
        assert!(try_ask(&next, "D/tmp").unwrap().lines().all(|name| name != "left"));
    }
}

#[test]
fn a_reused_root_shows_no_process_state_of_its_predecessor() {
    let node = Node::new();
    let pool = node.pool(1);
    for (number, (does, looks)) in GOES.into_iter().enumerate() {
        let line = format!("s{number}");
        let fresh = take(&pool, "nobody's");
        let expected = try_ask(&fresh, &format!("E{looks}"));
        let container = take(&pool, &line);
        let root = root_of(&container);
        ask(&container, &format!("E{does}"));
        if !end(&pool, container) {
            panic!("the root was discarded after `{does}`");
        }
        let next = take(&pool, &line);
        assert_eq!(root_of(&next), root, "{does}");
        assert_eq!(try_ask(&next, &format!("E{looks}")), expected, "{does}");
    }
}

/// A container with its own network cannot have sent a descriptor of its private directory to another process. With the
/// node's network, the next container gets a new directory.
#[test]
fn a_private_directory_is_reused_only_with_a_private_network() {
    let node = Node::new();
    let pool = node.pool(1);
    let (first, second) = ("for the first", "for the next");
    for (network, seen) in [(NetworkSpec::Private, second), (NetworkSpec::Host, first)] {
        let spec = ContainerSpec { network, ..ContainerSpec::default() };
        let take = || pool.take_with_reuse(&heirs("s1"), spec, Instant::now() + WAIT).unwrap();
        let container = take();
        let root = root_of(&container);
        container.put_file("payload", first.as_bytes(), 0o444).unwrap();
        let whole = format!("/proc/{}/root", container.init_pid());
        let held = fs::File::open(Path::new(&whole).join("run/farfork")).unwrap();
        assert!(end(&pool, container), "the root was discarded because of a payload");
        let next = take();
        assert_eq!(root_of(&next), root);
        assert_eq!(try_ask(&next, "D/run/farfork").unwrap(), "");
        next.put_file("payload", second.as_bytes(), 0o444).unwrap();
        let payload = format!("/proc/self/fd/{}/payload", held.as_raw_fd());
        assert_eq!(fs::read_to_string(payload).unwrap(), seen, "{network:?}");
        end(&pool, next);
    }
}

/// An overlay caches lookups for as long as it exists, including those of missing files.
#[test]
fn a_reused_root_shows_the_current_files_of_the_node() {
    let node = Node::new();
    let pool = node.pool(1);
    let path = |name: &str| node.path().join(name).display().to_string();
    fs::write(path("changed"), "before").unwrap();
    fs::write(path("removed"), "before").unwrap();
    let first = take(&pool, "s1");
    let root = root_of(&first);
    assert!(try_ask(&first, &format!("R{}", path("new"))).is_err());
    assert_eq!(ask(&first, &format!("R{}", path("changed"))), "before");
    assert_eq!(ask(&first, &format!("R{}", path("removed"))), "before");
    assert!(end(&pool, first), "the root was discarded because files were read");
    fs::write(path("new"), "now").unwrap();
    fs::write(path("other"), "now").unwrap();
    fs::rename(path("other"), path("changed")).unwrap();
    fs::remove_file(path("removed")).unwrap();
    let next = take(&pool, "s1");
    assert_eq!(root_of(&next), root);
    assert_eq!(ask(&next, &format!("R{}", path("new"))), "now");
    assert_eq!(ask(&next, &format!("R{}", path("changed"))), "now");
    assert!(try_ask(&next, &format!("R{}", path("removed"))).is_err());
}

#[test]
fn only_default_containers_keep_their_root() {
    let node = Node::new();
    let pool = node.pool(1);
    let take = |spec: ContainerSpec| pool.take_with_reuse(&heirs("s1"), spec, Instant::now() + WAIT).unwrap();
    let plain = ContainerSpec::default();
    let shared = ContainerSpec { root: RootSpec::Shared, ..plain };
    let limited = ContainerSpec { limited: true, ..plain };
    for spec in [shared, limited] {
        let container = take(spec);
        container
            .set_limits(&ContainerLimits { tasks_max: spec.limited.then_some(9), ..ContainerLimits::default() })
            .unwrap();
        assert!(!end(&pool, container), "{spec:?}");
    }
    let (bound, discarded) = (take(plain), take(plain));
    bound.bind(node.path(), node.path()).unwrap();
    assert!(!end(&pool, bound));
    let (running, _control) = discarded.into_running().unwrap();
    running.discard_root();
    running.remove().unwrap();
    assert_eq!(pool.root_counts(), (0, 0));
    assert!(end(&pool, take(ContainerSpec { network: NetworkSpec::Host, ..plain })));
}

#[test]
fn the_least_recently_requested_root_is_evicted() {
    let mut node = Node::new();
    node.config.cached_roots_max = 1;
    let pool = node.pool(1);
    let [first, second] = ["s1", "s2"].map(|line| (line, take(&pool, line)));
    let held = fs::File::open(format!("/proc/{}/ns/mnt", second.1.init_pid())).unwrap();
    assert!(end(&pool, first.1));
    let root = root_of(&second.1);
    std::thread::sleep(Duration::from_millis(200));
    assert!(end(&pool, second.1));
    assert_eq!(pool.root_counts(), (1, 1), "the cache exceeds its limit");
    assert_eq!(root_of(&take(&pool, second.0)), root, "the cache did not keep the root of the last request");
    drop(held);
}

#[test]
fn the_pool_removes_cached_roots() {
    let node = Node::new();
    let pool = node.pool(1);
    assert!(end(&pool, take(&pool, "s1")));
    pool.evict_roots("s2");
    assert_eq!(pool.root_counts(), (1, 1));
    pool.evict_roots("s1");
    assert_eq!(pool.root_counts(), (0, 0));
    assert!(end(&pool, take(&pool, "s1")));
    let last = take(&pool, "s1");
    let (running, _control) = last.into_running().unwrap();
    drop(pool);
    running.remove().unwrap();
    node.pool(1);
    assert_eq!(node.cgroup_dirs(), [""; 0]);
}
