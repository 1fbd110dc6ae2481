//! The measured systems: a volume with a replica in memory on each node, and the file systems that it is compared with.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use farfork_sys::mount;
use rustix::mount::{MountAttrFlags, UnmountFlags, unmount};
use tempfile::TempDir;

use crate::error::BenchError;
use crate::experiment::local_cluster::{BenchCluster, SCRATCH_PARENT};
use crate::parameters::volume::{StorageSystem, VolumeParameters};

/// Number of nodes that have a replica.
pub(crate) const REPLICAS: usize = 3;
/// The name of the volume.
const VOLUME: &str = "bench";
/// Time limit for an unmounted volume to be dropped: it may still be mounted, or have a client, for a while.
const DROP_LIMIT: Duration = Duration::from_secs(20);
const DROP_RETRY: Duration = Duration::from_millis(50);

/// Three nodes with their files in memory, and directories on other file systems.
pub(crate) struct StorageTestbed {
    cluster: BenchCluster,
    disk: TempDir,
    farfork: PathBuf,
    log_mib: u64,
    // Dropped last: the nodes have their files here.
    memory: MemoryDirectory,
}

/// A directory on the measured system. `StorageTestbed::remove` removes it and everything in it.
pub(crate) struct MountedStorage {
    system: StorageSystem,
    pub(crate) directory: PathBuf,
}

impl StorageTestbed {
    /// Starts the nodes.
    pub(crate) async fn start(plan: &VolumeParameters, farfork: PathBuf) -> Result<Self, BenchError> {
        let memory = MemoryDirectory::mount()?;
        let disk = tempfile::Builder::new().prefix("farfork-bench-").tempdir_in(&plan.disk);
        // Only the kind: the full error names the path of the new directory.
        let failed = |cause: io::Error| BenchError::File { path: plan.disk.clone(), cause: cause.kind().into() };
        let disk = disk.map_err(failed)?;
        let cluster = BenchCluster::start_nodes_in(memory.path(), farfork.clone(), REPLICAS, true, &[]).await?;
        Ok(Self { cluster, disk, farfork, log_mib: plan.log_mib, memory })
    }

    /// The nodes, in the order of the chain.
    pub(crate) fn cluster(&self) -> &BenchCluster {
        &self.cluster
    }

    /// A directory in memory. It is removed with the nodes.
    pub(crate) fn memory(&self) -> &Path {
        self.memory.path()
    }

    /// The nodes, for the injection of faults.
    pub(crate) fn cluster_mut(&mut self) -> &mut BenchCluster {
        &mut self.cluster
    }

    /// An empty directory on the system to measure. Creates a volume if that is the system.
    pub(crate) fn mount(&self, system: StorageSystem) -> Result<MountedStorage, BenchError> {
        let parent = if system == StorageSystem::Disk { self.disk.path() } else { self.memory.path() };
        let directory = parent.join("measured");
        fs::create_dir(&directory).map_err(|cause| BenchError::File { path: directory.clone(), cause })?;
        let storage = MountedStorage { system, directory };
        if system == StorageSystem::Volume {
            let nodes: Vec<&str> = self.cluster.nodes().iter().map(|node| node.name.as_str()).collect();
            let (replicas, log) = (nodes.join(","), format!("{}MiB", self.log_mib));
            self.run_farfork(&["create", VOLUME, "--replicas", &replicas, "--log-size", &log])?;
            self.run_farfork(&["mount", VOLUME, &storage.directory.to_string_lossy()])?;
        }
        Ok(storage)
    }

    /// Removes the volume or the files.
    pub(crate) fn remove(&self, storage: MountedStorage) -> Result<(), BenchError> {
        let MountedStorage { system, directory } = storage;
        let failed = |cause| BenchError::File { path: directory.clone(), cause };
        if system != StorageSystem::Volume {
            return fs::remove_dir_all(&directory).map_err(failed);
        }
        unmount(&directory, UnmountFlags::empty()).map_err(|errno| failed(errno.into()))?;
        fs::remove_dir(&directory).map_err(failed)?;
        // The client of the mount ends after umount(2) has returned.
        let deadline = Instant::now() + DROP_LIMIT;
        loop {
            match self.run_farfork(&["drop", VOLUME]) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(DROP_RETRY),
                result => return result,
            }
        }
    }

    /// Removes the nodes and all files.
    pub(crate) fn stop(self) -> Result<(), BenchError> {
        self.cluster.stop()
    }

    fn run_farfork(&self, arguments: &[&str]) -> Result<(), BenchError> {
        let failed = |cause| BenchError::Program { program: "farfork volume", cause };
        let mut command = Command::new(&self.farfork);
        command.arg("volume").args(arguments).arg("--socket").arg(&self.cluster.nodes()[0].socket);
        let output = command.output().map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())))
    }
}

/// A tmpfs. It is unmounted when this value is dropped.
struct MemoryDirectory(TempDir);

impl MemoryDirectory {
    fn mount() -> Result<Self, BenchError> {
        let failed = |cause| BenchError::File { path: SCRATCH_PARENT.into(), cause };
        let directory = tempfile::Builder::new().prefix("farfork-bench-").tempdir_in(SCRATCH_PARENT).map_err(failed)?;
        let tmpfs = mount::create_filesystem("tmpfs", &[("size", "80%")], MountAttrFlags::empty()).map_err(failed)?;
        mount::attach(tmpfs.as_fd(), directory.path()).map_err(failed)?;
        Ok(Self(directory))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for MemoryDirectory {
    fn drop(&mut self) {
        if let Err(error) = mount::detach(self.0.path()) {
            eprintln!("farfork: {} is still mounted: {error}", self.0.path().display());
        }
    }
}
