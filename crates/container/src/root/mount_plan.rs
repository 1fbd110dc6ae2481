//! Plans the mounts of a container's root from the node's mount table: which ones get an overlay, which are bind-mounted,
//! and which are left out. Pure.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use farfork_sys::mount::MountDepth;
use farfork_sys::mount::probe::{self, ProbedMount, VOLUME_FILESYSTEM};
use farfork_sys::mount::table::{self, Attributes, Mount};

/// File systems without data: views of the kernel or of devices, which a container shares with the node.
const KERNEL_VIEWS: [&str; 16] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "tracefs",
];

/// One mount of the container's root.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MountStep {
    /// The node's mount under an overlay.
    Overlay { point: PathBuf, attributes: Attributes },
    /// The node's mount, bind-mounted.
    Bind { point: PathBuf, depth: MountDepth },
    /// POSIX message queues of the container's own IPC namespace.
    MessageQueues { point: PathBuf, attributes: Attributes },
    /// Pseudo-terminals of the container.
    Terminals { point: PathBuf, attributes: Attributes },
}

impl MountStep {
    /// The mount point, on the node and in the container.
    pub(super) fn point(&self) -> &Path {
        match self {
            Self::Overlay { point, .. }
            | Self::Bind { point, .. }
            | Self::MessageQueues { point, .. }
            | Self::Terminals { point, .. } => point,
        }
    }
}

/// The mounts of a container's root in the order in which they must be made, the root first. Mounts below a `masked` path
/// are left out. So is each mount in `unresponsive`, with all mounts below it, because calls to it do not return.
pub(super) fn plan_steps(mounts: &[Mount], masked: &[PathBuf], unresponsive: &BTreeSet<u32>) -> Vec<MountStep> {
    let mut visible = table::visible_mounts(mounts);
    // The mount table has the order of mounting. A mount must be made after the mounts above it.
    visible.sort_by_key(|mount| mount.point.components().count());
    let subtrees: Vec<&Path> = visible.iter().filter(|m| takes_subtree(m)).map(|m| m.point.as_path()).collect();
    let silent: Vec<&Path> =
        visible.iter().filter(|m| unresponsive.contains(&m.id)).map(|m| m.point.as_path()).collect();
    let left_out = |mount: &Mount| {
        silent.iter().any(|point| mount.point.starts_with(point))
            || subtrees.iter().any(|subtree| mount.point != *subtree && mount.point.starts_with(subtree))
            || masked.iter().any(|path| mount.point.starts_with(path))
    };
    visible.iter().filter(|mount| !left_out(mount)).filter_map(|mount| plan_step(mount, &visible)).collect()
}

/// The mounts whose servers must answer while the root is built: overlayfs calls statfs(2) for its lower layers. A volume is
/// bind-mounted, which does not involve its server.
pub(super) fn mounts_to_probe(mounts: &[Mount], masked: &[PathBuf]) -> Vec<ProbedMount> {
    let is_probed = |mount: &&&Mount| {
        probe::is_served(&mount.filesystem)
            && !mount.is_volume()
            && !masked.iter().any(|path| mount.point.starts_with(path))
    };
    let visible = table::visible_mounts(mounts);
    visible.iter().filter(is_probed).map(|mount| ProbedMount { id: mount.id, point: mount.point.clone() }).collect()
}

/// The paths that the upper layer of an overlay over `point` must hide, so that no masked path is visible. If another mount
/// is between `point` and a masked path, the mount point of that mount is hidden instead. Then nothing below it is visible
/// even if that mount is removed.
pub(super) fn paths_to_mask<'a>(point: &Path, steps: &'a [MountStep], masked: &'a [PathBuf]) -> Vec<&'a Path> {
    let below = masked.iter().map(PathBuf::as_path).filter(|path| path.starts_with(point));
    let mut hidden: Vec<&Path> = below.map(|path| intermediate_mount(point, path, steps).unwrap_or(path)).collect();
    hidden.sort();
    hidden.dedup();
    hidden
}

/// The outermost mount between the one at `point` and a path below.
fn intermediate_mount<'a>(point: &Path, path: &Path, steps: &'a [MountStep]) -> Option<&'a Path> {
    let points = steps.iter().map(MountStep::point);
    let between = points.filter(|other| *other != point && other.starts_with(point) && path.starts_with(other));
    between.min_by_key(|other| other.components().count())
}

/// Whether a mount shows the kernel or devices, not data.
pub(super) fn is_kernel_view(mount: &Mount) -> bool {
    takes_subtree(mount) || KERNEL_VIEWS.contains(&mount.filesystem.as_str())
}

/// Whether the mounts below this one are bound or left out together with it.
fn takes_subtree(mount: &Mount) -> bool {
    matches!(mount.filesystem.as_str(), "proc" | "sysfs")
}

fn plan_step(mount: &Mount, visible: &[&Mount]) -> Option<MountStep> {
    let (point, attributes) = (mount.point.clone(), mount.attributes);
    match mount.filesystem.as_str() {
        // The node's `/proc` shows another pid namespace than the container's. Init mounts `/proc`.
        "proc" => None,
        // Such a mount refers to a namespace. A copy would keep that namespace alive as long as the container.
        "nsfs" => None,
        "sysfs" => Some(MountStep::Bind { point, depth: MountDepth::Recursive }),
        "mqueue" => Some(MountStep::MessageQueues { point, attributes }),
        "devpts" => Some(MountStep::Terminals { point, attributes }),
        // A child must write to the volume itself. An overlay would take the writes, and lose them with the child.
        name if KERNEL_VIEWS.contains(&name) || name == VOLUME_FILESYSTEM || point == *"/dev" => {
            Some(MountStep::Bind { point, depth: MountDepth::Single })
        }
        _ if is_bound_on_itself(mount, visible) => None,
        // A read-only mount needs no overlay.
        _ if attributes.contains(Attributes::MOUNT_ATTR_RDONLY) && point != *"/" => {
            Some(MountStep::Bind { point, depth: MountDepth::Single })
        }
        _ => Some(MountStep::Overlay { point, attributes }),
    }
}

/// Whether a directory is mounted on itself, as `ip netns` does with `/run/netns`: the mount below it shows the same files.
fn is_bound_on_itself(mount: &Mount, visible: &[&Mount]) -> bool {
    visible.iter().filter(|m| m.id == mount.parent && m.id != mount.id).any(|parent| {
        let below = mount.point.strip_prefix(&parent.point);
        parent.device == mount.device
            && parent.attributes == mount.attributes
            && below.is_ok_and(|below| mount.root == parent.root.join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "\
22 27 0:21 / /proc rw - proc proc rw
51 22 0:40 / /proc/sys/fs/binfmt_misc rw - binfmt_misc b rw
23 27 0:22 / /sys rw - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
24 27 0:6 / /dev rw,nosuid - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw
26 24 0:24 / /dev/pts rw - devpts devpts rw
28 24 0:25 / /dev/mqueue rw - mqueue mqueue rw
27 1 254:0 / / rw - ext4 /dev/vda rw
41 27 0:38 / /opt/tools ro,nosuid - squashfs x ro
42 27 254:0 /run/netns /run/netns rw shared:1 - ext4 /dev/vda rw
43 42 0:4 net:[4026532281] /run/netns/n1 rw - nsfs nsfs rw
44 27 254:0 /srv/elsewhere /data rw - ext4 /dev/vda rw
45 27 0:50 / /run/far/n1/mnt rw - tmpfs t rw
46 27 0:51 / /mnt/volume rw - fuse.farfork farfork:data rw
47 27 0:52 / /mnt/remote rw - fuse.sshfs host: rw
48 47 0:53 / /mnt/remote/below rw - tmpfs t rw
";

    #[test]
    fn each_kind_of_mount_has_its_step() {
        let mounts = table::parse(NODE.as_bytes()).unwrap();
        let masked = [PathBuf::from("/run/far")];
        let steps = plan_steps(&mounts, &masked, &BTreeSet::new());
        assert_eq!(
            steps.iter().map(describe_step).collect::<Vec<_>>(),
            [
                "overlay /",
                "Recursive /sys",
                "Single /dev",
                "overlay /data",
                "overlay /dev/shm",
                "terminals /dev/pts",
                "queues /dev/mqueue",
                "Single /opt/tools",
                "Single /mnt/volume",
                "overlay /mnt/remote",
                "overlay /mnt/remote/below",
            ]
        );
    }

    #[test]
    fn a_mount_that_does_not_answer_is_skipped_with_all_below_it() {
        let mounts = table::parse(NODE.as_bytes()).unwrap();
        let probed = mounts_to_probe(&mounts, &[]);
        assert_eq!(probed, [ProbedMount { id: 47, point: "/mnt/remote".into() }]);
        assert!(mounts_to_probe(&mounts, &["/mnt/remote".into()]).is_empty());
        let steps = plan_steps(&mounts, &[], &BTreeSet::from([47]));
        assert!(steps.iter().all(|step| !step.point().starts_with("/mnt/remote")));
        assert!(steps.iter().any(|step| step.point() == Path::new("/mnt/volume")));
    }

    fn describe_step(step: &MountStep) -> String {
        match step {
            MountStep::Overlay { point, .. } => format!("overlay {}", point.display()),
            MountStep::Bind { point, depth } => format!("{depth:?} {}", point.display()),
            MountStep::MessageQueues { point, .. } => format!("queues {}", point.display()),
            MountStep::Terminals { point, .. } => format!("terminals {}", point.display()),
        }
    }

    #[test]
    fn a_mount_above_a_masked_path_is_masked_as_a_whole() {
        let overlay = |point: &str| MountStep::Overlay { point: point.into(), attributes: Attributes::empty() };
        let steps = ["/", "/run", "/run/far", "/data"].map(overlay);
        let masked = ["/run/far/n1/keys", "/run/far/n2", "/run/x", "/etc/far"].map(PathBuf::from);
        let hidden = |point: &str| paths_to_mask(Path::new(point), &steps, &masked);
        assert_eq!(hidden("/"), ["/etc/far", "/run"].map(Path::new));
        assert_eq!(hidden("/run"), ["/run/far", "/run/x"].map(Path::new));
        assert_eq!(hidden("/run/far"), ["/run/far/n1/keys", "/run/far/n2"].map(Path::new));
        assert!(hidden("/data").is_empty());
    }

    #[test]
    fn an_overlay_keeps_the_restrictions_of_its_mount() {
        let mounts = table::parse(NODE.as_bytes()).unwrap();
        let steps = plan_steps(&mounts, &[], &BTreeSet::new());
        let attributes = Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NODEV;
        assert!(steps.contains(&MountStep::Overlay { point: "/dev/shm".into(), attributes }));
    }
}
