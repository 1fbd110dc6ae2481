//! A mounted volume of a test. Its processes, its mount and its files end with it, also after a panic.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farfork_volume::process::{MountSupervisor, ProcessRole, VolumeDirectory};
use rustix::fs::statfs;
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use tempfile::TempDir;

/// Small, so that the log laps often.
pub(crate) const LOG_BYTES: u64 = 8 << 20;
/// `f_type` of every FUSE mount.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
/// A process is restarted, or a mount is usable again, within this.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);

/// A volume and its processes.
pub(crate) struct MountedVolume {
    directory: TempDir,
    supervisor: Option<SupervisorThread>,
    durability: &'static str,
}

/// The thread outlives the processes that it starts: they end with it.
struct SupervisorThread {
    thread: JoinHandle<()>,
    must_stop: Arc<AtomicBool>,
    process_ids: Arc<Mutex<Vec<u32>>>,
}

impl MountedVolume {
    /// A new volume.
    pub(crate) fn create() -> Self {
        Self::create_with(LOG_BYTES, "memory")
    }

    /// A new volume with a log of this size.
    pub(crate) fn create_with(log_bytes: u64, durability: &'static str) -> Self {
        Self::create_in(TempDir::new().unwrap(), log_bytes, durability)
    }

    /// A new volume on a tmpfs with these options.
    pub(crate) fn create_on_tmpfs(options: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("none", directory.path(), "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
        Self::create_in(directory, LOG_BYTES, "memory")
    }

    fn create_in(directory: TempDir, log_bytes: u64, durability: &'static str) -> Self {
        VolumeDirectory::create(&directory.path().join("volume"), 7, log_bytes).unwrap();
        std::fs::create_dir(directory.path().join("mount")).unwrap();
        let mut volume = Self { directory, supervisor: None, durability };
        volume.mount();
        volume
    }

    /// Mounts the volume again.
    pub(crate) fn mount(&mut self) {
        let (volume, mount_point) = (self.volume_path(), self.path());
        let durability = self.durability;
        let must_stop = Arc::new(AtomicBool::new(false));
        let process_ids = Arc::new(Mutex::new(Vec::new()));
        let (stop, ids) = (Arc::clone(&must_stop), Arc::clone(&process_ids));
        let (started, is_started) = mpsc::channel();
        let thread = thread::spawn(move || {
            let command = |role: ProcessRole| {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args([super::PROCESS, role.name()]).arg(&volume).arg(&mount_point).arg(durability);
                command.stdin(Stdio::null());
                command
            };
            let mut supervisor = MountSupervisor::start(&mount_point, command).unwrap();
            let mut is_reported = false;
            while !stop.load(Ordering::Relaxed) {
                *ids.lock().unwrap() = ProcessRole::ALL.map(|role| supervisor.process_id(role)).to_vec();
                if !std::mem::replace(&mut is_reported, true) {
                    started.send(()).unwrap();
                }
                if supervisor.check().unwrap().is_some() {
                    break;
                }
                thread::sleep(Duration::from_millis(2));
            }
        });
        is_started.recv().expect("the volume is mounted");
        self.supervisor = Some(SupervisorThread { thread, must_stop, process_ids });
    }

    /// Unmounts, and waits for the client to end.
    pub(crate) fn unmount(&mut self) {
        let supervisor = self.supervisor.take().expect("it is mounted");
        unmount(self.path(), UnmountFlags::empty()).unwrap();
        supervisor.thread.join().unwrap();
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    /// The directory with log and shared tree.
    pub(crate) fn volume_path(&self) -> PathBuf {
        self.directory.path().join("volume")
    }

    /// A directory next to the volume, on the local file system.
    pub(crate) fn local_path(&self) -> &Path {
        self.directory.path()
    }

    /// The process id of a role.
    pub(crate) fn process_id(&self, role: ProcessRole) -> u32 {
        let index = ProcessRole::ALL.iter().position(|other| *other == role).unwrap();
        self.supervisor.as_ref().unwrap().process_ids.lock().unwrap()[index]
    }

    /// Kills processes at once, in this order, and waits until the supervisor has started the next.
    pub(crate) fn kill(&self, roles: &[ProcessRole]) {
        let killed: Vec<u32> = roles.iter().map(|role| self.process_id(*role)).collect();
        let open = |id: &u32| farfork_sys::pidfd::open(*id as i32).unwrap();
        let pidfds: Vec<_> = killed.iter().map(open).collect();
        pidfds.iter().for_each(|pidfd| farfork_sys::pidfd::send_signal(pidfd, 9).unwrap());
        let deadline = Instant::now() + RESTART_TIMEOUT;
        for (role, killed) in roles.iter().zip(killed) {
            while self.process_id(*role) == killed {
                assert!(Instant::now() < deadline, "{role:?} is started again");
                thread::sleep(Duration::from_millis(2));
            }
        }
        if roles.contains(&ProcessRole::Client) {
            self.wait_until_mounted();
        }
    }

    /// After the death of a client: until the next one has mounted. statfs(2) asks the client, stat(2) a cache.
    fn wait_until_mounted(&self) {
        let deadline = Instant::now() + RESTART_TIMEOUT;
        while !statfs(self.path()).is_ok_and(|state| state.f_type == FUSE_SUPER_MAGIC) {
            assert!(Instant::now() < deadline, "the volume is mounted again");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for MountedVolume {
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.must_stop.store(true, Ordering::Relaxed);
            let _ = supervisor.thread.join();
        }
        // The supervisor detaches a dead mount. A live one would keep the directory from being removed.
        let _ = unmount(self.path(), UnmountFlags::DETACH);
        // Only of a volume on its own file system.
        let _ = unmount(self.directory.path(), UnmountFlags::DETACH);
    }
}
