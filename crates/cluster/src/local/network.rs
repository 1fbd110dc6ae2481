//! Namespaces, bridge and links of a cluster, by `ip`.
//!
//! The first named network namespace of a machine makes `ip` mount `/run/netns` upon itself, for ever. A mark beside
//! that directory says that it was for a cluster of ours; the last one that finds the directory empty undoes it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use farfork_sys::mount::{self, table};
use rustix::fs::{FlockOperation, flock};

use super::address::PREFIX_BITS;
use super::error::LocalError;
use super::state::State;

/// Where `ip` keeps named namespaces.
const NAMES_DIR: &str = "/run/netns";
/// Exists while `NAMES_DIR` is mounted for the sake of clusters.
const NAMES_MARK: &str = "/run/farfork-netns";
/// The bridge, in a namespace of its own.
const BRIDGE: &str = "br0";
/// The link of a node to the bridge, in the node's namespace. The other end has the node's name.
const NODE_LINK: &str = "eth0";
/// Longest wait for another process that makes or removes namespaces, in milliseconds: it takes some tens.
const LOCK_MS_MAX: u64 = 10_000;
/// Pause between two attempts to take the lock, in milliseconds.
const LOCK_RETRY_MS: u64 = 10;

/// Held while namespaces come and go, so that no other cluster's do.
#[derive(Debug)]
pub(super) struct Names {
    _lock: File,
}

/// Makes sure that none of these namespaces exists; what is held has to be there until they do.
pub(super) fn reserve(namespaces: &[String]) -> Result<Names, LocalError> {
    let names = lock_names()?;
    match namespaces.iter().find(|netns| exists(netns)) {
        Some(netns) => Err(LocalError::Taken { netns: netns.clone() }),
        None => Ok(names),
    }
}

/// Makes all namespaces, the bridge, and a link from each node to it.
pub(super) fn create(state: &State, names: Names) -> Result<(), LocalError> {
    add_names(state, &names)?;
    drop(names);
    let switch = &state.switch;
    let mut plan = format!("link set lo up\nlink add {BRIDGE} type bridge\nlink set {BRIDGE} up\n");
    for node in &state.nodes {
        let (port, netns) = (&node.name, &node.netns);
        plan += &format!("link add {port} type veth peer name {NODE_LINK} netns {netns}\n");
        plan += &format!("link set {port} master {BRIDGE} up\n");
    }
    batch(switch, &plan)?;
    for node in &state.nodes {
        let address = node.address.ip();
        let plan =
            format!("link set lo up\naddress add {address}/{PREFIX_BITS} dev {NODE_LINK}\nlink set {NODE_LINK} up\n");
        batch(&node.netns, &plan)?;
    }
    Ok(())
}

/// Removes all namespaces, and with them what is in them once their processes have ended.
pub(super) fn remove(state: &State) -> Result<(), LocalError> {
    let _lock = lock_names()?;
    for netns in namespaces(state).filter(|netns| exists(netns)) {
        ip(&["netns", "delete", netns], "")?;
    }
    unmount_names()
}

/// Lets the bridge's end of a node's link carry packets, or not.
pub(super) fn set_link(switch: &str, node: &str, up: bool) -> Result<(), LocalError> {
    ip(&["-netns", switch, "link", "set", node, if up { "up" } else { "down" }], "")
}

fn namespaces(state: &State) -> impl Iterator<Item = &str> {
    std::iter::once(state.switch.as_str()).chain(state.nodes.iter().map(|node| node.netns.as_str()))
}

fn exists(netns: &str) -> bool {
    Path::new(NAMES_DIR).join(netns).exists()
}

fn add_names(state: &State, _held: &Names) -> Result<(), LocalError> {
    if !names_are_mounted()? {
        File::create(NAMES_MARK).map_err(names("mark"))?;
    }
    namespaces(state).try_for_each(|netns| ip(&["netns", "add", netns], ""))
}

/// Undoes what the first `ip netns add` did, when it was ours and nobody has a namespace any more.
fn unmount_names() -> Result<(), LocalError> {
    let names_dir = Path::new(NAMES_DIR);
    let empty = || fs::read_dir(names_dir).is_ok_and(|mut entries| entries.next().is_none());
    if !Path::new(NAMES_MARK).exists() || !empty() {
        return Ok(());
    }
    if names_are_mounted()? {
        mount::detach(names_dir).map_err(names("unmount"))?;
    }
    let _ = fs::remove_dir(names_dir);
    fs::remove_file(NAMES_MARK).map_err(names("unmark"))
}

fn names_are_mounted() -> Result<bool, LocalError> {
    let mounts = table::of_this_thread().map_err(names("look up"))?;
    Ok(table::visible(&mounts).iter().any(|mount| mount.point == Path::new(NAMES_DIR)))
}

/// The lock is on `/run` itself: a file for it would be one more thing to remove.
fn lock_names() -> Result<Names, LocalError> {
    let directory = File::open("/run").map_err(names("lock"))?;
    let deadline = Instant::now() + Duration::from_millis(LOCK_MS_MAX);
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Names { _lock: directory }),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(LOCK_RETRY_MS));
            }
            Err(errno) => return Err(names("lock")(errno.into())),
        }
    }
}

fn names(action: &'static str) -> impl Fn(io::Error) -> LocalError {
    move |cause| LocalError::Names { action, cause }
}

/// Several commands of `ip` in one namespace.
fn batch(netns: &str, commands: &str) -> Result<(), LocalError> {
    ip(&["-netns", netns, "-batch", "-"], commands)
}

fn ip(arguments: &[&str], input: &str) -> Result<(), LocalError> {
    let failed = |cause: String| LocalError::Ip { arguments: arguments.join(" "), cause };
    let run = || {
        let mut child = Command::new("ip")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        child.stdin.take().expect("it is piped").write_all(input.as_bytes())?;
        child.wait_with_output()
    };
    let output = run().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
