//! Compares the namespaces of a process with the node's. Refuses resources that its children would lack, and notes other
//! differences.
//!
//! A child runs in namespaces of its container, made from the node's. It does not see the mounts, host name, IPC limits,
//! control groups and network of the parent's own namespaces. Open files are carried nevertheless (`path_identity`). Two
//! kinds of processes have no differences: those in the node's namespaces, and children, because containers are alike.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

use farfork_container::resolve_on_node;
use farfork_sys::{namespace, pidfd};
use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, statx};

use crate::capture::error::{CaptureError, Refusal};
use crate::capture::files::{self, OpenFd};
use crate::capture::state::node_root::{self, ProcDirectory};

/// Policy for a process with its own namespaces, of which its children would lack resources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NamespacePolicy {
    /// Refuse the process, and name the resources.
    #[default]
    Refuse,
    /// Give children the node's namespaces, and note the resources that they lack.
    UseNode,
}

/// Results of the comparison.
#[derive(Debug, Default)]
pub(in crate::capture) struct NamespaceFindings {
    pub(in crate::capture) refusals: Vec<Refusal>,
    pub(in crate::capture) notes: Vec<String>,
}

/// Settings of an IPC namespace, below `/proc/sys` (ipc_namespaces(7)).
const IPC_LIMITS: [&str; 13] = [
    "kernel/shmmax",
    "kernel/shmall",
    "kernel/shmmni",
    "kernel/shm_rmid_forced",
    "kernel/msgmax",
    "kernel/msgmnb",
    "kernel/msgmni",
    "kernel/sem",
    "fs/mqueue/queues_max",
    "fs/mqueue/msg_max",
    "fs/mqueue/msgsize_max",
    "fs/mqueue/msg_default",
    "fs/mqueue/msgsize_default",
];

/// The end of a refusal that the user can avoid.
const REMEDY_HINT: &str = "; use --namespaces node to give children the node's instead";

/// Compares the namespaces of a process with this node's. `is_first`: whether it is the first process of its tree. Only this
/// process gets notes and is compared by host name and IPC limits: all processes of a tree have the same namespaces.
pub(in crate::capture) fn compare_namespaces(
    pid: i32,
    fds: &[OpenFd],
    is_first: bool,
    policy: NamespacePolicy,
) -> Result<NamespaceFindings, CaptureError> {
    let is_own = |kind: NamespaceKind| NamespaceId::read(pid, kind) != node_namespace(kind);
    let mut findings = NamespaceFindings::default();
    if is_own(NamespaceKind::Mounts) {
        let process = ProcDirectory { directory: CWD, prefix: &format!("/proc/{pid}") };
        let root = match policy {
            NamespacePolicy::Refuse => node_root::find_root_on_node(process).ok().flatten(),
            NamespacePolicy::UseNode => None,
        };
        findings.refusals.extend(refuse_missing_directories(pid, fds, root.as_deref().unwrap_or(Path::new("/"))));
        let note = match root {
            None => "its mounts are its own: files that its children open are their node's".to_owned(),
            Some(root) => {
                format!("its root is {}: its children have this directory of their node as root", root.display())
            }
        };
        findings.add_note(is_first, &note);
    }
    let (has_own_name, has_own_ipc) =
        (is_first && is_own(NamespaceKind::HostName), is_first && is_own(NamespaceKind::Ipc));
    if has_own_name || has_own_ipc {
        let unread = || CaptureError::reading(pid, "its namespaces");
        let process = pidfd::open(pid).map_err(unread())?;
        let theirs = namespace::run_in_namespaces_of(process.as_fd(), UtsIpcSettings::read).map_err(unread())?;
        let children = namespace::run_in_new_namespaces(UtsIpcSettings::read).map_err(unread())?;
        let (theirs, children) = (theirs.map_err(unread())?, children.map_err(unread())?);
        findings.refusals.extend(
            theirs.differences_from(&children).map(|lost| Refusal::new(format!("pid {pid}, {}", lost.0), lost.1)),
        );
        findings.add_note(has_own_name, "it has its own UTS namespace: its children have their node's host name");
        findings.add_note(
            has_own_ipc,
            "it has its own IPC namespace: its children get a new one with the objects that are carried",
        );
    }
    let has_own_groups = is_first && is_own(NamespaceKind::ControlGroups);
    findings.add_note(has_own_groups, "its control groups have a root of their own: its children see their node's");
    // Several nodes on one machine each have their own network, but parents may be in the machine's network.
    if is_own(NamespaceKind::Network) && !is_in_host_network(pid) {
        findings.refusals.extend(refuse_interface_sockets(pid, fds)?);
        findings.add_note(is_first, "its network is its own: its children are in networks of their node's");
    }
    if policy == NamespacePolicy::UseNode {
        let taken = std::mem::take(&mut findings.refusals).into_iter();
        findings.notes.extend(
            taken.map(|Refusal { object, reason }| format!("{object}: {}", reason.trim_end_matches(REMEDY_HINT))),
        );
    }
    Ok(findings)
}

impl NamespaceFindings {
    fn add_note(&mut self, applies: bool, note: &str) {
        self.notes.extend(applies.then(|| note.to_owned()));
    }
}

/// Kinds of namespaces that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamespaceKind {
    Mounts,
    HostName,
    Ipc,
    ControlGroups,
    Network,
}

impl NamespaceKind {
    const ALL: [Self; 5] = [Self::Mounts, Self::HostName, Self::Ipc, Self::ControlGroups, Self::Network];

    /// Name of the namespace's link in `/proc/PID/ns`.
    fn name(self) -> &'static str {
        match self {
            Self::Mounts => "mnt",
            Self::HostName => "uts",
            Self::Ipc => "ipc",
            Self::ControlGroups => "cgroup",
            Self::Network => "net",
        }
    }
}

/// A namespace; `None` if it cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NamespaceId(Option<(u64, u64)>);

impl NamespaceId {
    fn read(process: impl Display, kind: NamespaceKind) -> Self {
        let found = rustix::fs::stat(format!("/proc/{process}/ns/{}", kind.name()));
        Self(found.ok().map(|found| (found.st_dev, found.st_ino)))
    }
}

/// Inode of the kernel's initial network namespace, since Linux 6.18 (linux/nsfs.h, NET_NS_INIT_INO).
const FIRST_NETWORK_INODE: u64 = 0xEFFF_FFF9;

/// Whether a process is in the network namespace of pid 1. If this node may not inspect pid 1, uses the kernel's initial
/// network namespace instead.
fn is_in_host_network(pid: i32) -> bool {
    static HOST_NETWORK: OnceLock<NamespaceId> = OnceLock::new();
    let machine = *HOST_NETWORK.get_or_init(|| {
        let first = || node_namespace(NamespaceKind::Network).0.map(|(device, _)| (device, FIRST_NETWORK_INODE));
        NamespaceId(NamespaceId::read(1, NamespaceKind::Network).0.or_else(first))
    });
    machine.0.is_some() && NamespaceId::read(pid, NamespaceKind::Network) == machine
}

/// A namespace of the node. The daemon's main thread never leaves it.
fn node_namespace(kind: NamespaceKind) -> NamespaceId {
    static NODE_NAMESPACES: OnceLock<[NamespaceId; NamespaceKind::ALL.len()]> = OnceLock::new();
    NODE_NAMESPACES.get_or_init(|| NamespaceKind::ALL.map(|kind| NamespaceId::read("self", kind)))[kind as usize]
}

/// Refuses directories of a process with its own mounts (root, current, open) that the node does not have at the same path
/// below `node_root`, the root of the process's children. If the root differs, returns only that refusal, because it
/// explains all others.
fn refuse_missing_directories(pid: i32, fds: &[OpenFd], node_root: &Path) -> Vec<Refusal> {
    let refusal = |object: &str, path: &[u8]| {
        let path = String::from_utf8_lossy(path);
        Refusal::new(
            format!("pid {pid}, {object}"),
            format!(
                "{path} is on a mount that only its own mount namespace has; use --namespaces node to give children the node's instead"
            ),
        )
    };
    let link_of = |name: &str| {
        let link_path = format!("/proc/{pid}/{name}");
        let path = fs::read_link(&link_path).ok()?;
        let found = statx(CWD, &link_path, AtFlags::empty(), StatxFlags::BASIC_STATS).ok()?;
        // A removed directory is carried.
        let is_there = resolve_on_node(node_root, &path, OFlags::empty())
            .is_ok_and(|on_node| node_root::is_same_on_node(&on_node, &found));
        (found.stx_nlink > 0 && !is_there).then(|| path.as_os_str().as_bytes().to_vec())
    };
    if let Some(root) = link_of("root") {
        return vec![refusal("root directory", &root)];
    }
    let mut missing: Vec<Refusal> =
        link_of("cwd").map(|path| refusal("current directory", &path)).into_iter().collect();
    let open = fds.iter().filter(|fd| fd.is_directory_with_path());
    let lost = open.filter_map(|fd| {
        link_of(&format!("fd/{}", fd.number)).map(|path| refusal(&format!("fd {}", fd.number), &path))
    });
    missing.extend(lost);
    missing
}

/// Refuses sockets with an interface address in a network that is not the node's.
fn refuse_interface_sockets(pid: i32, fds: &[OpenFd]) -> Result<Vec<Refusal>, CaptureError> {
    let lost = files::list_interface_sockets(pid, fds)?.into_iter();
    let refusal = |number: u32| {
        let reason = "it is a socket with an address of another network than the node's; use --namespaces node to give children the node's instead";
        Refusal::new(format!("pid {pid}, fd {number}"), reason)
    };
    Ok(lost.map(refusal).collect())
}

/// Settings of the calling thread's UTS and IPC namespaces.
#[derive(Debug, PartialEq, Eq)]
struct UtsIpcSettings {
    host_name: String,
    domain_name: String,
    ipc_limits: BTreeMap<&'static str, String>,
}

impl UtsIpcSettings {
    fn read() -> io::Result<Self> {
        let names = rustix::system::uname();
        let mut ipc_limits = BTreeMap::new();
        for name in IPC_LIMITS {
            match fs::read_to_string(format!("/proc/sys/{name}")) {
                Ok(value) => drop(ipc_limits.insert(name, value.split_whitespace().collect::<Vec<_>>().join(" "))),
                // A kernel without message queues does not have this setting.
                Err(absent) if absent.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self {
            host_name: names.nodename().to_string_lossy().into_owned(),
            domain_name: names.domainname().to_string_lossy().into_owned(),
            ipc_limits,
        })
    }

    /// Returns the settings that differ in children: the object, and the reason for the refusal.
    fn differences_from<'a>(&'a self, children: &'a Self) -> impl Iterator<Item = (String, String)> + 'a {
        let names = [
            ("host name", &self.host_name, &children.host_name),
            ("domain name", &self.domain_name, &children.domain_name),
        ];
        let names = names.into_iter().map(|(what, own, theirs)| (what.to_owned(), own, theirs));
        let limits = self
            .ipc_limits
            .iter()
            .filter_map(|(name, own)| Some((format!("/proc/sys/{name}"), own, children.ipc_limits.get(name)?)));
        names.chain(limits).filter(|(_, own, theirs)| own != theirs).map(|(what, own, theirs)| {
            let reason = format!("it is {own} in its own namespace, and {theirs} for its children; use --namespaces node to give children the node's instead");
            (what, reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(host_name: &str, shmmax: &str) -> UtsIpcSettings {
        let ipc_limits = BTreeMap::from([("kernel/shmmax", shmmax.to_owned())]);
        UtsIpcSettings { host_name: host_name.to_owned(), domain_name: "(none)".to_owned(), ipc_limits }
    }

    #[test]
    fn only_differing_namespace_state_is_listed() {
        assert_eq!(names("a", "1").differences_from(&names("a", "1")).count(), 0);
        let lost: Vec<String> = names("a", "1").differences_from(&names("b", "2")).map(|(what, _)| what).collect();
        assert_eq!(lost, ["host name", "/proc/sys/kernel/shmmax"]);
    }

    #[test]
    fn a_process_in_the_same_namespaces_has_no_findings() {
        let pid = std::process::id().cast_signed();
        let findings = compare_namespaces(pid, &[], true, NamespacePolicy::Refuse).unwrap();
        assert!(findings.refusals.is_empty() && findings.notes.is_empty(), "{findings:?}");
    }
}
