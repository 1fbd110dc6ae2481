//! Creates and removes the namespaces, bridge and links of a local cluster with `ip`.
//!
//! The first named network namespace of a machine makes `ip` mount `/run/netns` on itself permanently. `NETNS_MARK`
//! records that a cluster caused this. The last cluster that finds the directory empty unmounts it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use farfork_sys::mount::{self, table};
use rustix::fs::{FlockOperation, flock};

use super::address::PREFIX_BITS;
use super::error::LocalError;
use super::state::ClusterState;

/// The directory in which `ip` mounts named namespaces; see ip-netns(8).
const NETNS_DIR: &str = "/run/netns";
/// Exists while `NETNS_DIR` is mounted because of a cluster.
const NETNS_MARK: &str = "/run/farfork-netns";
/// The bridge, in a namespace of its own.
const BRIDGE: &str = "br0";
/// The link of a node to the bridge, in the node's namespace. The other end has the node's name.
const NODE_LINK: &str = "eth0";
/// Longest wait for another process that makes or removes namespaces, in milliseconds. Usually it takes tens of
/// milliseconds.
const LOCK_MS_MAX: u64 = 10_000;
/// Pause between two attempts to take the lock, in milliseconds.
const LOCK_RETRY_MS: u64 = 10;

/// The path of a named network namespace.
pub fn netns_path(netns: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(netns)
}

/// Held while namespaces are made or removed. It excludes the other clusters of this machine.
#[derive(Debug)]
pub(super) struct NetnsLock {
    _lock: File,
}

/// Takes the lock, and checks that none of these namespaces exists. The caller holds the lock until it has made them.
pub(super) fn lock_new_names(namespaces: &[String]) -> Result<NetnsLock, LocalError> {
    let names = lock_netns_dir()?;
    match namespaces.iter().find(|netns| netns_exists(netns)) {
        Some(netns) => Err(LocalError::NetnsTaken { netns: netns.clone() }),
        None => Ok(names),
    }
}

/// Makes all namespaces, the bridge, and a link from each node to it.
pub(super) fn create_network(state: &ClusterState, names: NetnsLock) -> Result<(), LocalError> {
    add_namespaces(state, &names)?;
    drop(names);
    let switch = &state.switch;
    let mut plan = format!("link set lo up\nlink add {BRIDGE} type bridge\nlink set {BRIDGE} up\n");
    for node in &state.nodes {
        let (port, netns) = (&node.name, &node.netns);
        plan += &format!("link add {port} type veth peer name {NODE_LINK} netns {netns}\n");
        plan += &format!("link set {port} master {BRIDGE} up\n");
    }
    run_ip_batch(switch, &plan)?;
    for node in &state.nodes {
        let address = node.address.ip();
        let plan =
            format!("link set lo up\naddress add {address}/{PREFIX_BITS} dev {NODE_LINK}\nlink set {NODE_LINK} up\n");
        run_ip_batch(&node.netns, &plan)?;
    }
    Ok(())
}

/// Removes all namespaces. Their contents are removed once their processes have ended.
pub(super) fn remove_network(state: &ClusterState) -> Result<(), LocalError> {
    let _lock = lock_netns_dir()?;
    // If one namespace cannot be deleted, the others are still deleted.
    let present = namespaces(state).filter(|netns| netns_exists(netns));
    let deleted: Vec<_> = present.map(|netns| run_ip(&["netns", "delete", netns], "")).collect();
    deleted.into_iter().collect::<Result<(), LocalError>>()?;
    unmount_netns_dir()
}

/// Sets the bridge's end of a node's link up or down.
pub(super) fn set_link(switch: &str, node: &str, up: bool) -> Result<(), LocalError> {
    run_ip(&["-netns", switch, "link", "set", node, if up { "up" } else { "down" }], "")
}

fn namespaces(state: &ClusterState) -> impl Iterator<Item = &str> {
    std::iter::once(state.switch.as_str()).chain(state.nodes.iter().map(|node| node.netns.as_str()))
}

fn netns_exists(netns: &str) -> bool {
    netns_path(netns).exists()
}

fn add_namespaces(state: &ClusterState, _held: &NetnsLock) -> Result<(), LocalError> {
    if !is_netns_dir_mounted()? {
        File::create(NETNS_MARK).map_err(netns_dir_error("create the cluster mark for"))?;
    }
    namespaces(state).try_for_each(|netns| run_ip(&["netns", "add", netns], ""))
}

/// Unmounts `NETNS_DIR` if a cluster caused the mount and no namespace is left.
fn unmount_netns_dir() -> Result<(), LocalError> {
    let names_dir = Path::new(NETNS_DIR);
    let empty = || fs::read_dir(names_dir).is_ok_and(|mut entries| entries.next().is_none());
    if !Path::new(NETNS_MARK).exists() || !empty() {
        return Ok(());
    }
    if is_netns_dir_mounted()? {
        mount::detach(names_dir).map_err(netns_dir_error("unmount"))?;
    }
    let _ = fs::remove_dir(names_dir);
    fs::remove_file(NETNS_MARK).map_err(netns_dir_error("remove the cluster mark for"))
}

fn is_netns_dir_mounted() -> Result<bool, LocalError> {
    let mounts = table::read_thread_mounts().map_err(netns_dir_error("look up the mount of"))?;
    Ok(table::visible_mounts(&mounts).iter().any(|mount| mount.point == Path::new(NETNS_DIR)))
}

/// Locks `/run` itself: a lock file would have to be removed.
fn lock_netns_dir() -> Result<NetnsLock, LocalError> {
    let directory = File::open("/run").map_err(netns_dir_error("lock"))?;
    let deadline = Instant::now() + Duration::from_millis(LOCK_MS_MAX);
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(NetnsLock { _lock: directory }),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(LOCK_RETRY_MS));
            }
            Err(errno) => return Err(netns_dir_error("lock")(errno.into())),
        }
    }
}

fn netns_dir_error(action: &'static str) -> impl Fn(io::Error) -> LocalError {
    move |cause| LocalError::NetnsDirectory { action, cause }
}

/// Runs several commands of `ip` in one namespace.
fn run_ip_batch(netns: &str, commands: &str) -> Result<(), LocalError> {
    run_ip(&["-netns", netns, "-batch", "-"], commands)
}

fn run_ip(arguments: &[&str], input: &str) -> Result<(), LocalError> {
    let failed = |cause: String| LocalError::Ip { arguments: arguments.join(" "), cause };
    let run = || {
        let mut child = Command::new("ip")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A process group of its own: Ctrl-C must reach only the calling command, which cleans up.
            .process_group(0)
            .spawn()?;
        child.stdin.take().expect("it is piped").write_all(input.as_bytes())?;
        child.wait_with_output()
    };
    let output = run().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(format!("{} ({})", String::from_utf8_lossy(&output.stderr).trim(), output.status))),
    }
}
