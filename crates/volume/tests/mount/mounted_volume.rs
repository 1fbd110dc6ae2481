//! A mounted volume of one node. Dropping the value ends its processes, also after a panic.

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use farfork_cluster::catalog::{Durability, VolumeName};
use farfork_volume::process::{ControlAnswer, ControlRequest, NewVolume, ProcessRole, send_control_request};
use farfork_wire::NodeName;
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use tempfile::TempDir;

use super::test_network::NodeNetwork;
use super::test_node::{NO_DETECTION_MS, TestNode, VOLUME};

/// Small, so that the log often continues at the start of its ring.
pub(crate) const LOG_BYTES: u64 = 8 << 20;

/// A file system that a test can fill to the last byte.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn mount(path: &Path) -> Self {
        Self::mount_with(path, c"size=96m,mode=700")
    }

    /// Mounts a small disk with options of tmpfs(5).
    pub(crate) fn mount_with(path: &Path, options: &CStr) -> Self {
        rustix::mount::mount("none", path, "tmpfs", MountFlags::empty(), options).unwrap();
        Self(path.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A volume and its processes.
pub(crate) struct MountedVolume {
    node: TestNode,
    /// Dropped after the node, so that it is unmounted after the processes have ended.
    _small_disk: Option<SmallDisk>,
    directory: TempDir,
}

impl MountedVolume {
    /// Creates and mounts a volume.
    pub(crate) fn create() -> Self {
        Self::create_with(LOG_BYTES, Durability::Memory)
    }

    /// Creates and mounts a volume with a log of this size.
    pub(crate) fn create_with(log_bytes: u64, durability: Durability) -> Self {
        Self::create_in(TempDir::new().unwrap(), None, log_bytes, durability)
    }

    /// Creates and mounts a volume on a small disk.
    pub(crate) fn create_on_small_disk() -> Self {
        let directory = TempDir::new().unwrap();
        let disk = SmallDisk::mount(directory.path());
        Self::create_in(directory, Some(disk), LOG_BYTES, Durability::Memory)
    }

    fn create_in(directory: TempDir, small_disk: Option<SmallDisk>, log_bytes: u64, durability: Durability) -> Self {
        let catalog = directory.path().join("catalog").into();
        let mut node =
            TestNode::start("n1", &directory.path().join("n1"), &catalog, NO_DETECTION_MS, NodeNetwork::loopback());
        create_volume(&node, &["n1"], log_bytes, durability);
        node.mount();
        Self { node, _small_disk: small_disk, directory }
    }

    /// Mounts the volume again.
    pub(crate) fn mount(&mut self) {
        self.node.mount();
    }

    /// Unmounts, and waits for the client to end.
    pub(crate) fn unmount(&mut self) {
        self.node.unmount();
    }

    /// Waits for a condition.
    pub(crate) fn wait_for(&self, what: &str, condition: impl FnMut() -> bool) {
        self.node.wait_for(what, condition);
    }

    /// The mount point.
    pub(crate) fn path(&self) -> PathBuf {
        self.node.path()
    }

    /// The directory with logs and shared tree.
    pub(crate) fn volume_path(&self) -> PathBuf {
        self.node.volume_path()
    }

    /// The store of the node.
    pub(crate) fn store(&self) -> PathBuf {
        self.node.store()
    }

    /// A directory next to the volume, on the local file system.
    pub(crate) fn local_path(&self) -> &Path {
        self.directory.path()
    }

    /// The process id of a role.
    pub(crate) fn process_id(&self, role: ProcessRole) -> u32 {
        self.node.process_id(role)
    }

    /// Kills processes in this order without waiting in between. Then waits until their successors have been started.
    pub(crate) fn kill(&self, roles: &[ProcessRole]) {
        self.node.kill(roles);
    }
}

impl Drop for MountedVolume {
    fn drop(&mut self) {
        self.node.stop_client();
        let _ = unmount(self.path(), UnmountFlags::DETACH);
        self.node.stop_processes();
    }
}

/// Creates the volume of a test.
pub(crate) fn create_volume(node: &TestNode, replicas: &[&str], log_bytes: u64, durability: Durability) {
    let replicas = replicas.iter().map(|name| NodeName::new(name).unwrap()).collect();
    let new = NewVolume { name: VolumeName::new(VOLUME).unwrap(), replicas, log_bytes, durability };
    assert_eq!(send_control_request(&node.store(), &ControlRequest::Create(new)).unwrap(), ControlAnswer::Done);
}
