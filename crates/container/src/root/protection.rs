//! Restricts an existing container's root: removes devices, set-user-id programs, and writable kernel settings. On request
//! it also makes the files read-only.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use farfork_sys::mount::table::{self, Attributes, Mount};
use farfork_sys::mount::{self, MountDepth};
use farfork_sys::namespace;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::mount_plan::is_kernel_view;
use super::{PRIVATE_DIR, mask_path};
use crate::config::RootSpec;

//  /dev       a directory with null, zero, full, random, urandom, tty, and the container's own pts, shm and mqueue
//  /sys ...   kernel file systems: read-only; those for debugging are masked
//  /proc      the child makes it read-only after its last write there
//  the rest   no devices, no set-user-id programs
//
// Root in a container needs no capability to write files that belong to root, or to read the node's disk through its
// device. These restrictions prevent both. Processes that may mount or unmount can undo them.

/// The restrictions for the processes of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RootProtection {
    /// Removes devices and set-user-id rights, masks kernel debugging file systems, and makes kernel file systems and
    /// volumes read-only.
    pub untrusted: bool,
    /// Makes files read-only, except shared memory, terminals and the private directory.
    pub read_only: bool,
}

/// The directory of devices.
const DEVICES: &str = "/dev";
/// Harmless devices.
const ALLOWED_DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Symbolic links in /dev that programs expect: name and target.
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Directories in /dev, with their modes. Each holds the container's mount of that name, or stays empty.
const DIRECTORIES: [(&str, u32); 3] = [("pts", 0o755), ("shm", 0o1777), ("mqueue", 0o1777)];
/// File systems that expose the kernel's internals, mostly for debugging.
const KERNEL_DEBUG_FILESYSTEMS: [&str; 5] = ["bpf", "debugfs", "efivarfs", "pstore", "tracefs"];

/// The child makes `proc` read-only itself. An access to an `autofs` mount point would mount a file system.
const SKIPPED_FILESYSTEMS: [&str; 2] = ["proc", "autofs"];

/// Protects the root of a container's init. A temporary thread enters the mount namespace of init.
pub(crate) fn protect_root(init_pid: i32, init: &OwnedFd, protection: RootProtection) -> io::Result<()> {
    // Read here: the container's own /proc does not show our threads.
    let mounts = table::read_mounts_of(init_pid)?;
    namespace::run_in_mounts_of(init.as_fd(), || protect_own_root(&mounts, protection))
}

fn protect_own_root(mounts: &[Mount], protection: RootProtection) -> io::Result<()> {
    let visible = table::visible_mounts(mounts);
    for mount in visible.iter().filter(|mount| !SKIPPED_FILESYSTEMS.contains(&mount.filesystem.as_str())) {
        let attributes = mount.attributes | restrictions_of(mount, protection);
        if attributes != mount.attributes {
            mount::restrict(&mount.point, attributes).map_err(path_error(&mount.point))?;
        }
    }
    if protection.untrusted {
        // Mask after restricting: mounts below a mask can no longer be reached.
        for point in debug_mounts(&visible) {
            mask_path(point, RootSpec::Shared).map_err(io::Error::other)?;
        }
        replace_devices(&visible, protection.read_only).map_err(path_error(Path::new(DEVICES)))?;
    }
    Ok(())
}

/// The attributes to add to a mount: nosuid, nodev, read-only.
fn restrictions_of(mount: &Mount, protection: RootProtection) -> Attributes {
    let is_device = mount.point.starts_with(DEVICES);
    let is_own = mount.point == Path::new(PRIVATE_DIR) || (is_device && mount.point != Path::new(DEVICES));
    let mut refused = Attributes::empty();
    if protection.untrusted {
        refused |= Attributes::MOUNT_ATTR_NOSUID;
        // /dev itself needs no nodev: `replace_devices` mounts a new directory over it.
        if !is_device {
            refused |= Attributes::MOUNT_ATTR_NODEV;
        }
        // A volume has no overlay layer: writes would change the volume itself.
        if (is_kernel_view(mount) && !is_device) || mount.is_volume() {
            refused |= Attributes::MOUNT_ATTR_RDONLY;
        }
    }
    if protection.read_only && !is_own {
        refused |= Attributes::MOUNT_ATTR_RDONLY;
    }
    refused
}

/// The outermost mount points of kernel debugging file systems.
fn debug_mounts<'a>(visible: &[&'a Mount]) -> Vec<&'a Path> {
    let all = visible.iter().filter(|mount| KERNEL_DEBUG_FILESYSTEMS.contains(&mount.filesystem.as_str()));
    let points: Vec<&Path> = all.map(|mount| mount.point.as_path()).collect();
    let is_below = |point: &Path| points.iter().any(|above| *above != point && point.starts_with(above));
    points.iter().copied().filter(|point| !is_below(point)).collect()
}

/// Mounts a tmpfs over /dev, with harmless devices, standard links and the container's own mounts.
fn replace_devices(visible: &[&Mount], read_only: bool) -> io::Result<()> {
    let devices = Path::new(DEVICES);
    let copy = |name: &'static str| Ok((name, mount::clone_mount(&devices.join(name), MountDepth::Single)?));
    let nodes = ALLOWED_DEVICES.into_iter().filter(|name| devices.join(name).exists());
    let nodes = nodes.map(copy).collect::<io::Result<Vec<_>>>()?;
    let names = DIRECTORIES.into_iter().map(|(name, _)| name);
    let is_mount = |name: &&str| visible.iter().any(|mount| mount.point == devices.join(name));
    let own = names.filter(is_mount).map(copy).collect::<io::Result<Vec<_>>>()?;

    let attributes = Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NODEV;
    let options = [("source", mount::SOURCE), ("size", "64k"), ("mode", "755")];
    mount::attach(mount::create_filesystem("tmpfs", &options, attributes)?.as_fd(), devices)?;
    for (name, mode) in DIRECTORIES {
        fs::create_dir(devices.join(name))?;
        fs::set_permissions(devices.join(name), fs::Permissions::from_mode(mode))?;
    }
    LINKS.into_iter().try_for_each(|(name, target)| symlink(target, devices.join(name)))?;
    for (name, node) in nodes {
        let point = devices.join(name);
        // mknodat(2), not open(2): a process that another thread forks at this moment would have the file open for writing,
        // and the mount could not become read-only.
        mknodat(CWD, &point, FileType::RegularFile, Mode::RUSR, 0)?;
        mount::attach(node.as_fd(), &point)?;
        // Replaces the attributes that the clone has from its source mount.
        mount::restrict(&point, Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NOEXEC)?;
    }
    own.iter().try_for_each(|(name, directory)| mount::attach(directory.as_fd(), &devices.join(name)))?;
    if read_only { mount::restrict(devices, attributes | Attributes::MOUNT_ATTR_RDONLY) } else { Ok(()) }
}

fn path_error(point: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |cause| io::Error::new(cause.kind(), format!("{}: {cause}", point.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTAINER: &str = "\
27 1 0:50 / / rw - overlay farfork rw
23 27 0:22 / /sys rw - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw
32 23 0:29 / /sys/kernel/debug rw - debugfs debugfs rw
33 32 0:30 / /sys/kernel/debug/tracing rw - tracefs tracefs rw
24 27 0:6 / /dev rw - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw - overlay farfork rw
41 27 0:38 / /run/farfork rw - tmpfs farfork rw
42 27 0:39 / /mnt/data rw - fuse.farfork farfork:data rw
";

    fn refused(point: &str, untrusted: bool, read_only: bool) -> Attributes {
        let mounts = table::parse(CONTAINER.as_bytes()).unwrap();
        let mount = mounts.iter().find(|mount| mount.point == Path::new(point)).unwrap();
        restrictions_of(mount, RootProtection { untrusted, read_only })
    }

    #[test]
    fn kernel_file_systems_are_read_only() {
        let all = Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NODEV | Attributes::MOUNT_ATTR_RDONLY;
        assert_eq!(refused("/sys", true, false), all);
        assert_eq!(refused("/sys/fs/cgroup", true, false), all);
        assert_eq!(refused("/", true, false), all - Attributes::MOUNT_ATTR_RDONLY);
        assert_eq!(refused("/dev", true, false), Attributes::MOUNT_ATTR_NOSUID);
    }

    #[test]
    fn only_trusted_children_write_to_volumes() {
        assert!(refused("/mnt/data", true, false).contains(Attributes::MOUNT_ATTR_RDONLY));
        assert!(refused("/mnt/data", false, true).contains(Attributes::MOUNT_ATTR_RDONLY));
        assert_eq!(refused("/mnt/data", false, false), Attributes::empty());
    }

    #[test]
    fn nested_debug_mounts_are_covered_once() {
        let mounts = table::parse(CONTAINER.as_bytes()).unwrap();
        assert_eq!(debug_mounts(&table::visible_mounts(&mounts)), [Path::new("/sys/kernel/debug")]);
    }

    #[test]
    fn a_read_only_root_keeps_private_directories_writable() {
        assert_eq!(refused("/", false, true), Attributes::MOUNT_ATTR_RDONLY);
        assert_eq!(refused("/dev", false, true), Attributes::MOUNT_ATTR_RDONLY);
        for own in ["/dev/shm", "/run/farfork"] {
            assert_eq!(refused(own, false, true), Attributes::empty(), "{own}");
        }
        assert_eq!(refused("/", false, false), Attributes::empty());
    }
}
