//! The measured systems: a volume with a replica in memory on each node, and the file systems that it is compared with.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use farfork_sys::affinity::restrict_to_cpus;
use farfork_sys::mount;
use rustix::mount::MountAttrFlags;

use super::BenchVolume;
use super::case::{OffloadVariant, StorageSystem, VolumeCase, VolumeExperiment};
use crate::baseline::glusterfs::{self, GlusterVolume};
use crate::error::BenchError;
use crate::experiment::local_cluster::BenchCluster;
use crate::experiment::nodes::ClusterNode;
use crate::machine::Machine;
use crate::machine::description::CpuDivision;
use crate::scratch::{MOUNT_DIRECTORY, SCRATCH_PARENT, ScratchDirectory};
use crate::workload::file_tree::{FileCount, FileTree};

/// Number of nodes that have a replica.
pub(crate) const REPLICAS: usize = 3;
/// The copy method that shares blocks by reflinks, and the program that makes a file system with reflinks.
const SHARING_METHOD: &str = "none";
const MAKE_XFS: &str = "mkfs.xfs";
/// Space that an XFS needs in addition to the data.
const XFS_SPARE_MIB: u64 = 512;
/// The name of the volume.
const VOLUME: &str = "bench";
/// Time limit to drop a volume after umount(2). The volume's client may still run for some time.
const DROP_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for a replica that has returned to have everything.
const CHECK_LIMIT: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Three nodes with their files in memory, and directories on other file systems.
pub(crate) struct StorageTestbed {
    // Dropped first, because its processes run on the nodes.
    gluster: Option<GlusterVolume>,
    cluster: BenchCluster,
    /// Nodes whose daemons replicate, for `StorageSystem::Inline`.
    inline: Option<BenchCluster>,
    /// Nodes whose host workers use the copy method of the last case that needed one.
    copying: Option<CopyTestbed>,
    disk: ScratchDirectory,
    /// Sizes of the log and of all written files, in MiB, and whether CPUs are divided.
    log_mib: u64,
    mib: u64,
    pins_cpus: bool,
    // Dropped last, because the files of the nodes are in this directory.
    memory: MemoryDirectory,
}

/// Nodes whose host workers use one copy method.
struct CopyTestbed {
    method: &'static str,
    cluster: BenchCluster,
    /// The file system with reflinks, for the copy method that shares blocks.
    _reflinks: Option<MemoryDirectory>,
}

/// A directory on the measured system. `StorageTestbed::remove` removes it and everything in it.
pub(crate) struct MountedStorage {
    pub(crate) directory: PathBuf,
    /// The nodes of the volume, whose first one has mounted it; `None` without a volume.
    nodes: Option<VolumeNodes>,
}

/// The nodes of a volume.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VolumeNodes {
    Offload,
    Inline,
    Copying,
}

impl StorageTestbed {
    /// Starts the nodes.
    pub(crate) async fn start(plan: &BenchVolume, farfork: &Path) -> Result<Self, BenchError> {
        let memory = MemoryDirectory::mount(farfork)?;
        let disk = ScratchDirectory::create(&plan.disk, farfork)?;
        // Daemons that replicate have as many CPUs in all as the daemons and offload processes of the other variant.
        let inline = if plan.offload().contains(&OffloadVariant::Inline) {
            let arguments = ["--volume-offload", "inline"].map(str::to_owned);
            Some(start_nodes(memory.path(), farfork, &arguments).await?)
        } else {
            None
        };
        if let Some(cpus) = CpuDivision::detect().filter(|_| plan.pin) {
            let failed = |cause| BenchError::Program { program: "sched_setaffinity", cause };
            // This thread starts every other process of the run, and they inherit its affinity.
            restrict_to_cpus(&cpus.others).map_err(failed)?;
        }
        let cluster = start_nodes(memory.path(), farfork, &offload_arguments(plan.pin)).await?;
        Ok(Self {
            gluster: None,
            cluster,
            inline,
            copying: None,
            disk,
            log_mib: plan.log_mib,
            mib: plan.mib(),
            pins_cpus: plan.pin,
            memory,
        })
    }

    /// Starts GlusterFS on the nodes. Returns its version and settings in lines, or the reason why it cannot be measured.
    ///
    /// # Errors
    /// The error of `check_interrupt`.
    pub(crate) fn start_gluster(
        &mut self,
        check_interrupt: &mut dyn FnMut() -> Result<(), BenchError>,
    ) -> Result<Result<Vec<String>, String>, BenchError> {
        let Some(version) = glusterfs::installed_version(self.machine()) else {
            return Ok(Err(format!("not installed, see Debian's package {}", glusterfs::PACKAGE)));
        };
        match GlusterVolume::start(self.cluster.nodes(), self.memory.path(), check_interrupt) {
            Ok(volume) => {
                let settings = [&[version], volume.settings()].concat();
                self.gluster = Some(volume);
                Ok(Ok(settings))
            }
            Err(BenchError::Interrupted) => Err(BenchError::Interrupted),
            Err(error) => Ok(Err(format!("{version} does not work here: {error}"))),
        }
    }

    /// Starts the nodes that a case needs.
    pub(crate) async fn prepare(&mut self, case: &VolumeCase) -> Result<(), BenchError> {
        let is_ready = self.copying.as_ref().is_some_and(|copying| copying.method == case.copy_method);
        if case.experiment != VolumeExperiment::CopyMethods || is_ready {
            return Ok(());
        }
        if let Some(previous) = self.copying.take() {
            previous.cluster.stop()?;
        }
        let method = case.copy_method;
        let mut arguments = offload_arguments(self.pins_cpus);
        arguments.extend(["--volume-copy", method].map(str::to_owned));
        let reflinks = if method == SHARING_METHOD {
            let mib = REPLICAS as u64 * (self.mib + 2 * self.log_mib) + XFS_SPARE_MIB;
            Some(MemoryDirectory::mount_xfs(self.memory.path(), mib, self.machine().farfork())?)
        } else {
            None
        };
        let parent = reflinks.as_ref().map_or(self.memory.path(), MemoryDirectory::path);
        let cluster = start_nodes(parent, self.machine().farfork(), &arguments).await?;
        self.copying = Some(CopyTestbed { method, cluster, _reflinks: reflinks });
        Ok(())
    }

    /// The nodes, in the order of the chain.
    pub(crate) fn cluster(&self) -> &BenchCluster {
        &self.cluster
    }

    /// The machine of the first node, on which the programs work that are measured.
    pub(crate) fn machine(&self) -> &dyn Machine {
        self.cluster.machine()
    }

    /// The nodes, for the injection of faults.
    pub(crate) fn cluster_mut(&mut self) -> &mut BenchCluster {
        &mut self.cluster
    }

    /// Makes an empty directory on the system to measure. If the system is a volume, creates and mounts it.
    pub(crate) fn mount(&self, case: &VolumeCase, system: StorageSystem) -> Result<MountedStorage, BenchError> {
        match system {
            StorageSystem::Volume if case.experiment == VolumeExperiment::CopyMethods => {
                self.mount_volume(VolumeNodes::Copying)
            }
            StorageSystem::Volume => self.mount_volume(VolumeNodes::Offload),
            StorageSystem::Inline => self.mount_volume(VolumeNodes::Inline),
            StorageSystem::Disk => self.make_directory(self.disk.path()),
            StorageSystem::Gluster => {
                self.make_directory(self.gluster.as_ref().expect("only a running GlusterFS is measured").directory())
            }
            StorageSystem::SocketChain | StorageSystem::Tmpfs => self.make_directory(self.memory.path()),
        }
    }

    fn nodes(&self, nodes: VolumeNodes) -> &[ClusterNode] {
        match nodes {
            VolumeNodes::Offload => self.cluster.nodes(),
            VolumeNodes::Inline => self.inline.as_ref().expect("`start` has started the nodes of the plan").nodes(),
            VolumeNodes::Copying => self.copying.as_ref().expect("`prepare` has started the nodes").cluster.nodes(),
        }
    }

    /// Creates a volume on the nodes, and mounts it on the first one.
    pub(crate) fn mount_volume(&self, nodes: VolumeNodes) -> Result<MountedStorage, BenchError> {
        let mut storage = self.make_directory(self.memory.path())?;
        let names: Vec<&str> = self.nodes(nodes).iter().map(|node| node.name.as_str()).collect();
        let (replicas, log) = (names.join(","), format!("{}MiB", self.log_mib));
        let first = &self.nodes(nodes)[0];
        run_farfork(first, &["create", VOLUME, "--replicas", &replicas, "--log-size", &log])?;
        run_farfork(first, &["mount", VOLUME, &storage.directory.to_string_lossy()])?;
        storage.nodes = Some(nodes);
        Ok(storage)
    }

    /// Reads all files of a volume on its first and its last node, and requires that they are equal. Then compares the
    /// replicas. A program that has closed its files must have ended. Returns the files; none without a volume.
    ///
    /// # Errors
    /// [`BenchError::DifferentFiles`], or the replicas differ.
    pub(crate) fn verify(&self, storage: &MountedStorage) -> Result<FileCount, BenchError> {
        let Some(nodes) = storage.nodes else { return Ok(FileCount::default()) };
        let [first, .., last] = self.nodes(nodes) else { unreachable!("a volume has {REPLICAS} nodes") };
        let written = FileTree::read(first.machine(), &storage.directory)?;
        let directory = self.memory.path().join("verified");
        self.machine().run("mkdir", Command::new("mkdir").arg(&directory), &[])?;
        run_farfork(last, &["mount", VOLUME, &directory.to_string_lossy()])?;
        let replicated = FileTree::read(last.machine(), &directory);
        self.unmount(&directory)?;
        if let Some(file) = written.first_difference(&replicated?) {
            let (nodes, file) = ([first, last].map(|node| node.name.clone()), file.to_owned());
            return Err(BenchError::DifferentFiles { nodes, file });
        }
        // A replica that has just returned cannot be compared yet.
        retry(CHECK_LIMIT, || run_farfork(first, &["check", VOLUME]))?;
        Ok(written.count())
    }

    fn unmount(&self, directory: &Path) -> Result<(), BenchError> {
        let run = |program| self.machine().run(program, Command::new(program).arg(directory), &[]).map(drop);
        run("umount")?;
        run("rmdir")
    }

    /// Removes the volume or the files.
    pub(crate) fn remove(&self, storage: MountedStorage) -> Result<(), BenchError> {
        let MountedStorage { directory, nodes } = storage;
        let Some(nodes) = nodes else {
            return self.machine().run("rm", Command::new("rm").arg("-rf").arg(&directory), &[]).map(drop);
        };
        self.unmount(&directory)?;
        // The client of the mount ends after umount(8) has returned.
        retry(DROP_LIMIT, || run_farfork(&self.nodes(nodes)[0], &["drop", VOLUME]))
    }

    /// Removes the nodes and all files.
    pub(crate) fn stop(mut self) -> Result<(), BenchError> {
        drop(self.gluster.take());
        if let Some(copying) = self.copying {
            copying.cluster.stop()?;
        }
        self.inline.map(BenchCluster::stop).transpose()?;
        self.cluster.stop().map(drop)
    }

    /// Makes an empty directory for the measured files.
    fn make_directory(&self, parent: &Path) -> Result<MountedStorage, BenchError> {
        let directory = parent.join("measured");
        self.machine().run("mkdir", Command::new("mkdir").arg(&directory), &[])?;
        Ok(MountedStorage { directory, nodes: None })
    }
}

async fn start_nodes(parent: &Path, farfork: &Path, arguments: &[String]) -> Result<BenchCluster, BenchError> {
    BenchCluster::start_nodes_in(parent, farfork, REPLICAS, true, arguments).await
}

/// Runs `farfork volume` on a node.
fn run_farfork(node: &ClusterNode, arguments: &[&str]) -> Result<(), BenchError> {
    let mut command = Command::new(node.machine().farfork());
    command.arg("volume").args(arguments).arg("--socket").arg(&node.socket);
    node.machine().run("farfork volume", &command, &[]).map(drop)
}

/// Repeats an action until it succeeds. Returns its last error when the time is over.
fn retry(limit: Duration, action: impl Fn() -> Result<(), BenchError>) -> Result<(), BenchError> {
    let deadline = Instant::now() + limit;
    loop {
        match action() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
            result => return result,
        }
    }
}

/// Arguments of nodes with offload processes.
fn offload_arguments(pins_cpus: bool) -> Vec<String> {
    let cpus = CpuDivision::detect().filter(|_| pins_cpus);
    cpus.map_or_else(Vec::new, |cpus| vec!["--offload-cpus".to_owned(), cpus.offload])
}

fn run_command(program: &'static str, command: &mut Command) -> Result<(), BenchError> {
    let failed = |cause| BenchError::Program { program, cause };
    let output = command.output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())))
}

/// A file system in memory. It is unmounted when this value is dropped.
struct MemoryDirectory {
    scratch: ScratchDirectory,
    point: PathBuf,
}

impl MemoryDirectory {
    fn mount(farfork: &Path) -> Result<Self, BenchError> {
        let failed = |cause| BenchError::File { path: SCRATCH_PARENT.into(), cause };
        let directory = Self::create(SCRATCH_PARENT.as_ref(), farfork)?;
        let tmpfs = mount::create_filesystem("tmpfs", &[("size", "80%")], MountAttrFlags::empty()).map_err(failed)?;
        mount::attach(tmpfs.as_fd(), directory.path()).map_err(failed)?;
        Ok(directory)
    }

    /// Makes an XFS in a file in the directory `parent`, and mounts it.
    fn mount_xfs(parent: &Path, mib: u64, farfork: &Path) -> Result<Self, BenchError> {
        let failed = |cause| BenchError::File { path: parent.to_owned(), cause };
        // Not in `parent`: the paths of the nodes' sockets would be too long.
        let directory = Self::create(SCRATCH_PARENT.as_ref(), farfork)?;
        let image = tempfile::NamedTempFile::new_in(parent).map_err(failed)?;
        image.as_file().set_len(mib << 20).map_err(failed)?;
        run_command(MAKE_XFS, Command::new(MAKE_XFS).arg("-q").arg(image.path()))?;
        // The loop device keeps the deleted file in use, and is removed with the mount.
        let mut mount = Command::new("mount");
        run_command("mount", mount.args(["-t", "xfs", "-o", "loop"]).arg(image.path()).arg(directory.path()))?;
        Ok(directory)
    }

    /// Makes the mount point.
    fn create(parent: &Path, farfork: &Path) -> Result<Self, BenchError> {
        let scratch = ScratchDirectory::create(parent, farfork)?;
        let point = scratch.path().join(MOUNT_DIRECTORY);
        fs::create_dir(&point).map_err(|cause| BenchError::File { path: point.clone(), cause })?;
        Ok(Self { scratch, point })
    }

    fn path(&self) -> &Path {
        &self.point
    }
}

impl Drop for MemoryDirectory {
    fn drop(&mut self) {
        // The kernel reports EINVAL if nothing is mounted there.
        if let Err(error) = mount::detach(&self.point)
            && error.kind() != io::ErrorKind::InvalidInput
        {
            self.scratch.keep();
            eprintln!("farfork: {} is still mounted: {error}", self.point.display());
        }
    }
}
