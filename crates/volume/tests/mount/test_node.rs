//! A node of a test: its store, its offload process and worker, and the mount of the volume. Dropping the value ends all of
//! them.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farfork_cluster::catalog::CatalogLocation;
use farfork_sys::pidfd;
use farfork_sys::process::{ProcStat, thread_ids};
use farfork_volume::mount::MountOptions;
use farfork_volume::process::{
    ControlAnswer, ControlRequest, MountSupervisor, NodeSupervisor, ProcessRole, VolumeStatus, send_control_request,
};
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;

use super::test_network::NodeNetwork;

/// The volume of every test.
pub(crate) const VOLUME: &str = "data";
/// `f_type` of every FUSE mount.
pub(crate) const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
/// Detection time of tests that do not test failure detection.
pub(crate) const NO_DETECTION_MS: u64 = 60_000;
/// A process is restarted, or a mount is usable again, within this time.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A node.
pub(crate) struct TestNode {
    name: String,
    root: PathBuf,
    catalog: CatalogLocation,
    detection_ms: u64,
    network: NodeNetwork,
    processes: Option<SupervisorThread>,
    mount: Option<SupervisorThread>,
}

/// Sets a flag that ends threads when it is dropped, also if the test fails: a thread scope waits for its threads.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread that supervises processes. It outlives them, because they end with the thread that starts them.
struct SupervisorThread {
    thread: JoinHandle<()>,
    must_stop: Arc<AtomicBool>,
    /// Process ids in the order of `ProcessRole::OF_NODE`, or the id of the client of a mount.
    process_ids: Arc<Mutex<Vec<u32>>>,
}

impl SupervisorThread {
    /// Runs `supervise` in a thread. `supervise` gets a function that stores process ids and returns whether to stop.
    fn start(supervise: impl FnOnce(&dyn Fn(Vec<u32>) -> bool) + Send + 'static) -> Self {
        let must_stop = Arc::new(AtomicBool::new(false));
        let process_ids = Arc::new(Mutex::new(Vec::new()));
        let (stop, ids) = (Arc::clone(&must_stop), Arc::clone(&process_ids));
        let (started, is_started) = mpsc::channel();
        let thread = thread::spawn(move || {
            supervise(&|process_ids| {
                *ids.lock().unwrap() = process_ids;
                let _ = started.send(());
                stop.load(Ordering::Relaxed)
            });
        });
        is_started.recv().expect("the processes run");
        Self { thread, must_stop, process_ids }
    }

    fn stop(self) {
        self.must_stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

impl TestNode {
    /// Starts the processes of a node in its own directory.
    pub(crate) fn start(
        name: &str,
        root: &Path,
        catalog: &CatalogLocation,
        detection_ms: u64,
        network: NodeNetwork,
    ) -> Self {
        std::fs::create_dir_all(root.join("mount")).unwrap();
        std::fs::create_dir_all(root.join("store")).unwrap();
        let (name, root, catalog) = (name.to_owned(), root.to_owned(), catalog.clone());
        let mut node = Self { name, root, catalog, detection_ms, network, processes: None, mount: None };
        node.start_processes();
        node
    }

    /// Starts offload process and worker.
    pub(crate) fn start_processes(&mut self) {
        let (store, catalog, name) = (self.store(), self.catalog.to_string(), self.name.clone());
        let (detection_ms, network) = (self.detection_ms.to_string(), self.network.clone());
        self.processes = Some(SupervisorThread::start(move |report| {
            network.enter();
            let address = network.address.to_string();
            let command = |role: ProcessRole| {
                let mut command = process_command(role.name());
                command.arg(&store).arg(&catalog).args([&name, &detection_ms, &address]);
                command
            };
            let mut supervisor = NodeSupervisor::start(command).unwrap();
            while !report(ProcessRole::OF_NODE.map(|role| supervisor.process_id(role)).to_vec()) {
                supervisor.check();
                thread::sleep(POLL_INTERVAL);
            }
        }));
        self.wait_for("the offload process answers", || {
            send_control_request(&self.store(), &ControlRequest::List).is_ok()
        });
    }

    /// Makes the supervisors kill all processes, without waiting for their ends.
    pub(crate) fn begin_stop(&self) {
        let supervisors = self.processes.iter().chain(&self.mount);
        supervisors.for_each(|supervisor| supervisor.must_stop.store(true, Ordering::Relaxed));
    }

    /// Kills offload process and worker without restarting them.
    pub(crate) fn stop_processes(&mut self) {
        if let Some(processes) = self.processes.take() {
            processes.stop();
        }
    }

    /// Mounts the volume. All tests run with passthrough if FARFORK_VOLUME_READ_PASSTHROUGH is set.
    pub(crate) fn mount(&mut self) {
        let read_passthrough = std::env::var_os("FARFORK_VOLUME_READ_PASSTHROUGH").is_some();
        self.mount_with(MountOptions { read_passthrough, ..MountOptions::default() });
    }

    /// Mounts the volume with options.
    pub(crate) fn mount_with(&mut self, options: MountOptions) {
        let (store, mount_point) = (self.store(), self.path());
        self.mount = Some(SupervisorThread::start(move |report| {
            let command = |role: ProcessRole| {
                let mut command = process_command(role.name());
                command.arg(&store).arg(&mount_point);
                command.args(options.read_passthrough.then_some(super::READ_PASSTHROUGH));
                command.args(options.stale_reads.then_some(super::STALE_READS));
                command.args(options.catalog_wait.is_zero().then_some(super::SHORT_CATALOG_WAIT));
                command
            };
            let mut supervisor = MountSupervisor::start(&mount_point, command).unwrap();
            while !report(vec![supervisor.process_id()]) && supervisor.check().is_none() {
                thread::sleep(POLL_INTERVAL);
            }
        }));
    }

    /// Starts another supervisor for the path of the mount. Returns whether its client has mounted.
    pub(crate) fn mount_twice(&self) -> bool {
        let command = |role: ProcessRole| {
            let mut command = process_command(role.name());
            command.arg(self.store()).arg(self.path());
            command
        };
        MountSupervisor::start(&self.path(), command).is_ok()
    }

    /// Unmounts, and waits for the client to end.
    ///
    /// A process that another test starts has copies of this process's descriptors until it calls execve(2). Until then, a
    /// copy may keep the mount busy, even if the file was closed here.
    pub(crate) fn unmount(&mut self) {
        let mount = self.mount.take().expect("the volume is mounted");
        self.wait_for("the volume is unmounted", || match unmount(self.path(), UnmountFlags::empty()) {
            Err(Errno::BUSY) => false,
            result => result.map(|()| true).unwrap(),
        });
        mount.thread.join().unwrap();
    }

    /// Kills the client without restarting it.
    pub(crate) fn stop_client(&mut self) {
        if let Some(mount) = self.mount.take() {
            mount.stop();
        }
    }

    /// Where the volume is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.root.join("mount")
    }

    /// The store of the node.
    pub(crate) fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// The directory with the logs and the shared tree.
    pub(crate) fn volume_path(&self) -> PathBuf {
        self.store().join(VOLUME)
    }

    /// The status of the volume that this node reports.
    pub(crate) fn status(&self) -> VolumeStatus {
        self.try_status().unwrap()
    }

    /// As `status`. Fails while the offload process is being replaced.
    pub(crate) fn try_status(&self) -> io::Result<VolumeStatus> {
        let request = ControlRequest::Status(farfork_cluster::catalog::VolumeName::new(VOLUME).unwrap());
        match send_control_request(&self.store(), &request)? {
            ControlAnswer::Status(status) => Ok(*status),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    /// The process id of a role.
    pub(crate) fn process_id(&self, role: ProcessRole) -> u32 {
        let (thread, index) = match ProcessRole::OF_NODE.iter().position(|other| *other == role) {
            Some(index) => (&self.processes, index),
            None => (&self.mount, 0),
        };
        thread.as_ref().expect("the process runs").process_ids.lock().unwrap()[index]
    }

    /// The present processes of roles. An error means that one has just died.
    pub(crate) fn processes(&self, roles: &[ProcessRole]) -> io::Result<Vec<OwnedFd>> {
        roles.iter().map(|role| pidfd::open(self.process_id(*role).cast_signed())).collect()
    }

    /// Sends a signal to the processes of roles. After SIGSTOP, waits until all threads have stopped: kill(2) returns
    /// earlier, and a thread could serve requests until another thread has taken the signal.
    pub(crate) fn signal(&self, roles: &[ProcessRole], signal: Signal) {
        let processes = self.processes(roles).unwrap();
        processes.iter().for_each(|process| pidfd::send_signal(process, signal.as_raw()).unwrap());
        if signal == Signal::STOP {
            let ids: Vec<i32> = roles.iter().map(|role| self.process_id(*role).cast_signed()).collect();
            self.wait_for("the processes have stopped", || ids.iter().all(|id| is_stopped(*id)));
        }
    }

    /// Sends a signal to a process, if it runs: it may just have died.
    pub(crate) fn signal_if_alive(&self, role: ProcessRole, signal: Signal) {
        if let Ok(processes) = self.processes(&[role]) {
            let _ = pidfd::send_signal(&processes[0], signal.as_raw());
        }
    }

    /// Kills processes in this order without waiting in between. Then waits until their supervisors have started the next.
    pub(crate) fn kill(&self, roles: &[ProcessRole]) {
        let killed: Vec<u32> = roles.iter().map(|role| self.process_id(*role)).collect();
        self.signal(roles, Signal::KILL);
        for (role, killed) in roles.iter().zip(killed) {
            self.wait_for("a process is started again", || self.process_id(*role) != killed);
        }
        if roles.contains(&ProcessRole::Client) {
            self.wait_until_mounted();
        }
    }

    /// Waits until the next client has mounted the volume after the death of a client. Uses statfs(2), which the kernel does
    /// not answer from a cache.
    pub(crate) fn wait_until_mounted(&self) {
        let is_mounted = || statfs(self.path()).is_ok_and(|state| state.f_type == FUSE_SUPER_MAGIC);
        self.wait_for("the volume is mounted again", is_mounted);
    }

    /// Syncs the mount of this node, if it has one, so that all replicas have its records.
    pub(crate) fn sync(&self) {
        let sync = || File::open(self.path())?.sync_all();
        if self.mount.is_some() {
            // A client that has just been replaced may refuse the call.
            self.wait_for("the mount is synced", || sync().is_ok());
        }
    }

    /// Waits for a condition.
    pub(crate) fn wait_for(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + WAIT_LIMIT;
        while !condition() {
            assert!(Instant::now() < deadline, "node {}: {what}: not within {WAIT_LIMIT:?}", self.name);
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// A process of this program: a role, or a process of `real_programs`. It ends with the thread that starts it.
pub(crate) fn process_command(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([super::PROCESS, name]).stdin(Stdio::null());
    command
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.stop_client();
        // The supervisor detaches a dead mount. A live mount would prevent the removal of the directory.
        let _ = unmount(self.path(), UnmountFlags::DETACH);
        self.stop_processes();
    }
}

/// Whether all threads of a process are stopped by a signal.
fn is_stopped(pid: i32) -> bool {
    let threads = thread_ids(pid).unwrap();
    threads.into_iter().all(|thread| ProcStat::read(thread).is_ok_and(|stat| stat.state == 'T'))
}
