//! A built container: handed to the caller that restores a child in it, and removed if that fails.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use farfork_sys::clone::{self, SpawnedProcess};
use farfork_sys::mount::point::MountPoint;
use farfork_sys::pidfd;
use farfork_sys::user_namespace::{self, IdRange};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::Signal;

use crate::bind;
use crate::builder::ContainerBuilder;
use crate::cgroup::{ContainerCgroup, ContainerLimits};
use crate::config::{ContainerSpec, NetworkSpec, RootCacheKey, RootSpec};
use crate::error::ContainerError;
use crate::privileged_forker::PrivilegedForker;
use crate::record::{self, RecordState};
use crate::root::PRIVATE_DIR;
use crate::root::blueprint::RootBlueprint;
use crate::root::cached::CachedRoot;
use crate::root::directory;
use crate::root::protection::{self, RootProtection};
use crate::unmounted_volumes;

/// Longest wait for the end of a killed container, in milliseconds. The kernel kills its processes at once, but they may
/// have much memory to free.
const KILL_MS_MAX: u64 = 5_000;

/// Number of tasks of the privileged forker: itself, and the intermediate process that it forks.
const FORKER_TASKS: u64 = 2;

/// A container whose init waits for requests. Dropping it kills all its processes and removes it.
#[derive(Debug)]
pub struct Container {
    /// `None` after [`Container::into_running`].
    parts: Option<ContainerParts>,
    control: Option<OwnedFd>,
    /// The process at the other end of the control socket, if it is not init.
    privileged_forker: Option<PrivilegedForker>,
    spec: ContainerSpec,
    /// The blueprint from which the root was built.
    blueprint: RootBlueprint,
    root_recipient: Option<RootRecipient>,
}

/// Held by a container: a reference that counts it, and the mount point that a shared root needs.
pub(crate) type Keepalive = (Arc<()>, Option<Arc<MountPoint>>);

/// The channel to the process that forks the child.
#[derive(Debug)]
pub(crate) struct ControlChannel {
    /// Our end of the control socket.
    pub(crate) socket: OwnedFd,
    /// The process at the other end, if it is not init.
    pub(crate) privileged_forker: Option<PrivilegedForker>,
}

/// The parts of a container that this process holds.
#[derive(Debug)]
pub(crate) struct ContainerParts {
    pub(crate) id: String,
    pub(crate) init: SpawnedProcess,
    pub(crate) cgroup: ContainerCgroup,
    pub(crate) builder: Arc<ContainerBuilder>,
    pub(crate) keepalive: Keepalive,
    /// The ids on the node, if the container has its own users.
    pub(crate) id_range: Option<IdRange>,
    /// The root, if another container may reuse it.
    pub(crate) root: Option<CachedRoot>,
}

/// Receives the roots of ended containers.
pub(crate) trait RootSink: std::fmt::Debug + Send + Sync {
    /// Takes a root whose processes have all ended.
    fn return_root(&self, key: &RootCacheKey, root: CachedRoot);
}

/// The recipient of a root after its container has ended.
#[derive(Debug)]
pub(crate) struct RootRecipient {
    /// The key of the requests that may reuse the root.
    pub(crate) key: RootCacheKey,
    /// Keeps the root for these requests.
    pub(crate) sink: Weak<dyn RootSink>,
}

impl Container {
    pub(crate) fn new(
        parts: ContainerParts,
        channel: ControlChannel,
        spec: ContainerSpec,
        blueprint: RootBlueprint,
    ) -> Self {
        Self {
            parts: Some(parts),
            control: Some(channel.socket),
            privileged_forker: channel.privileged_forker,
            spec,
            blueprint,
            root_recipient: None,
        }
    }

    /// Sets the recipient of the root, for the time after all processes of the container have ended.
    pub(crate) fn set_root_recipient(&mut self, recipient: RootRecipient) {
        self.root_recipient = Some(recipient);
    }

    /// The container's id, unique on the node.
    pub fn id(&self) -> &str {
        &self.parts().id
    }

    /// The process id of its init, in the daemon's pid namespace.
    pub fn init_pid(&self) -> i32 {
        self.parts().init.pid
    }

    /// The pidfd of its init, which is a child of this process.
    pub fn init(&self) -> &OwnedFd {
        &self.parts().init.pidfd
    }

    /// The process that forks the child: its init, or the privileged forker if init lacks the rights.
    pub fn forker_pid(&self) -> i32 {
        self.privileged_forker.as_ref().map_or_else(|| self.init_pid(), PrivilegedForker::pid)
    }

    /// The daemon's end of init's socket, if a privileged forker forks the child.
    pub fn init_socket(&self) -> Option<BorrowedFd<'_>> {
        self.privileged_forker.as_ref().map(PrivilegedForker::init_socket)
    }

    /// The ids on the node of the container's users, if it has its own users.
    pub fn id_range(&self) -> Option<IdRange> {
        self.parts().id_range
    }

    /// The daemon's end of the socket (SOCK_SEQPACKET) whose other end is descriptor 3 of the process that forks the child.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_ref().expect("only a drop takes it").as_fd()
    }

    /// The container's control group.
    pub fn cgroup(&self) -> &ContainerCgroup {
        &self.parts().cgroup
    }

    /// Opens the control group, so that clone3(2) can create a process in it without init. Returns `None` without a
    /// unified hierarchy.
    ///
    /// # Errors
    /// [`ContainerError::Cgroup`].
    pub fn open_clone_target(&self) -> Result<Option<File>, ContainerError> {
        Ok(self.cgroup().open_clone_target()?)
    }

    /// Limits what the container's processes may use together. Until the privileged forker ends, its tasks are added to the
    /// limit.
    ///
    /// # Errors
    /// [`ContainerError::Cgroup`].
    pub fn set_limits(&self, limits: &ContainerLimits) -> Result<(), ContainerError> {
        let room = if self.privileged_forker.is_some() { FORKER_TASKS } else { 0 };
        let tasks_max = limits.tasks_max.map(|tasks| tasks.saturating_add(room));
        Ok(self.cgroup().set_limits(&ContainerLimits { tasks_max, ..*limits })?)
    }

    /// Waits for the end of the privileged forker, and reduces the task limit to the one in `limits`.
    ///
    /// # Errors
    /// [`ContainerError::Cgroup`].
    pub fn wait_privileged_forker(&mut self, limits: &ContainerLimits) -> Result<(), ContainerError> {
        let Some(privileged_forker) = self.privileged_forker.take() else { return Ok(()) };
        privileged_forker.wait_exit();
        drop(privileged_forker);
        self.set_limits(&ContainerLimits { tasks_max: limits.tasks_max, ..ContainerLimits::default() })
    }

    /// The kind of its root.
    pub fn root(&self) -> RootSpec {
        self.spec.root
    }

    /// The network that it was built with.
    pub fn network(&self) -> NetworkSpec {
        self.spec.network
    }

    /// Whether the container shows the node's current mounts and its init is alive. The OOM killer may kill the init of a
    /// waiting container.
    pub fn is_current(&self) -> bool {
        self.blueprint.version == self.parts().builder.mounts_version()
            && !pidfd::wait_exit(self.init(), Duration::ZERO).unwrap_or(false)
    }

    /// In the container, unmounts the volumes that the node has unmounted since the container was built.
    pub(crate) fn release_unmounted_volumes(&self) {
        let unmounted = self.parts().builder.volumes_unmounted_since(&self.blueprint);
        unmounted_volumes::release(self.init_pid(), self.init(), &unmounted);
    }

    /// Makes a directory of the node the container's root, with the kernel's file systems and the private directory in it.
    /// The path has no symbolic links. Missing mount points are created if the container has an overlay there. Call it
    /// before all binds, and after the container's init has mounted `/proc`.
    ///
    /// # Errors
    /// [`ContainerError::Root`]; the container is then unusable.
    pub fn change_root(&self, directory: &Path) -> Result<(), ContainerError> {
        directory::change_root(self.init(), directory, self.root()).map_err(|cause| ContainerError::Root {
            id: self.id().to_owned(),
            directory: directory.to_owned(),
            cause,
        })
    }

    /// Shows a directory or file of the node, with all mounts below it, at a path of the container. Masked paths stay
    /// hidden. The path is created if it is missing, except in a container with the node's own root.
    ///
    /// # Errors
    /// [`ContainerError::Bind`].
    pub fn bind(&self, host_path: &Path, inside_path: &Path) -> Result<(), ContainerError> {
        let masked = self.parts().builder.masked();
        let users = self.id_range().map(|_| user_namespace::open(self.init_pid())).transpose();
        let bound = users.and_then(|users| {
            let users = users.as_ref().map(AsFd::as_fd);
            bind::bind(self.init(), users, self.root(), host_path, inside_path, masked)
        });
        bound.map_err(|cause| ContainerError::Bind {
            id: self.id().to_owned(),
            host_path: host_path.to_owned(),
            inside_path: inside_path.to_owned(),
            cause,
        })
    }

    /// Restricts what the container's processes can do. Call it after all binds.
    ///
    /// # Errors
    /// [`ContainerError::Protect`]; the protection may then be incomplete.
    pub fn protect(&self, protection: RootProtection) -> Result<(), ContainerError> {
        let protected = protection::protect_root(self.init_pid(), self.init(), protection);
        protected.map_err(|cause| ContainerError::Protect { id: self.id().to_owned(), cause })
    }

    /// Writes a file into the container's [`PRIVATE_DIR`], and replaces any file of that name. Returns its path in the
    /// container.
    ///
    /// # Errors
    /// [`ContainerError::PutFile`]; ENOSPC if the file exceeds the size limit of the directory.
    pub fn put_file(&self, name: &str, contents: &[u8], mode: u32) -> Result<PathBuf, ContainerError> {
        let path = Path::new(PRIVATE_DIR).join(name);
        match self.write_via_init_root(&path, contents, mode) {
            Ok(()) => Ok(path),
            Err(cause) => Err(ContainerError::PutFile { id: self.id().to_owned(), path, cause }),
        }
    }

    /// Writes a file at a path below init's root.
    fn write_via_init_root(&self, path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = format!("/proc/{}/root", self.init_pid());
        let root = rustix::fs::openat(CWD, root, flags, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let mut file = File::from(directory::open_in_root(root.as_fd(), path, flags, mode)?);
        rustix::fs::fchmod(&file, mode)?; // without the umask
        file.write_all(contents)
    }

    /// Hands the container over: it then ends with its own processes, not with the daemon. Marks its record as in use. Also
    /// returns the daemon's end of the control socket.
    ///
    /// # Errors
    /// [`ContainerError::Record`]; the container is then removed.
    pub fn into_running(mut self) -> Result<(RunningContainer, OwnedFd), ContainerError> {
        let records = self.parts().builder.config().records_dir();
        record::mark_in_use(&records, self.id())?;
        // While the record was renamed, the pool may have missed the container.
        self.release_unmounted_volumes();
        let parts = self.parts.take().expect("only a drop takes it");
        let control = self.control.take().expect("only a drop takes it");
        let running = RunningContainer {
            reusable_root: Mutex::new(parts.root.zip(self.root_recipient.take())),
            id: parts.id,
            init_pid: parts.init.pid,
            init: parts.init.pidfd,
            cgroup: parts.cgroup,
            records_dir: records,
            _held: Some(parts.keepalive),
        };
        Ok((running, control))
    }

    fn parts(&self) -> &ContainerParts {
        self.parts.as_ref().expect("only a drop takes it")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        drop((self.control.take(), self.privileged_forker.take()));
        if let Err(error) = end_container(&parts.id, &parts.init.pidfd, parts.init.pid, &parts.cgroup) {
            // The record stays, so that the next daemon tries again.
            tracing::warn!(%error, "a container could not be removed");
            return;
        }
        parts.builder.remove_record(&parts.id);
    }
}

/// A container with a process that may outlive the daemon.
#[derive(Debug)]
pub struct RunningContainer {
    pub(crate) id: String,
    pub(crate) init_pid: i32,
    pub(crate) init: OwnedFd,
    pub(crate) cgroup: ContainerCgroup,
    pub(crate) records_dir: PathBuf,
    /// Set if this daemon built the container.
    pub(crate) _held: Option<Keepalive>,
    /// The root to return when the container ends, and the recipient of the root.
    pub(crate) reusable_root: Mutex<Option<(CachedRoot, RootRecipient)>>,
}

impl RunningContainer {
    /// The container's id, unique on the node.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The process id of its init, in the daemon's pid namespace.
    pub fn init_pid(&self) -> i32 {
        self.init_pid
    }

    /// The pidfd of its init.
    pub fn init(&self) -> &OwnedFd {
        &self.init
    }

    /// The container's control group.
    pub fn cgroup(&self) -> &ContainerCgroup {
        &self.cgroup
    }

    /// Kills init, with which the kernel kills all processes of its pid namespace. Thaws frozen processes. Does not wait
    /// until they have ended.
    pub fn kill(&self) {
        kill_container(&self.init, &self.cgroup);
    }

    /// Discards its root: no container reuses it.
    pub fn discard_root(&self) {
        drop(self.take_reusable_root());
    }

    /// Kills the remaining processes of the container, and removes its control group and record. Passes a reusable root to
    /// its recipient.
    ///
    /// # Errors
    /// [`ContainerError::KillTimeout`], [`ContainerError::Cgroup`]; the call can be repeated.
    pub fn remove(&self) -> Result<(), ContainerError> {
        end_container(&self.id, &self.init, self.init_pid, &self.cgroup)?;
        record::remove_record(&self.records_dir, &self.id, RecordState::InUse);
        if let Some((root, recipient)) = self.take_reusable_root()
            && let Some(sink) = recipient.sink.upgrade()
        {
            sink.return_root(&recipient.key, root);
        }
        Ok(())
    }

    fn take_reusable_root(&self) -> Option<(CachedRoot, RootRecipient)> {
        self.reusable_root.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Ends a container. When init ends, the kernel kills the other processes of its pid namespace. The other namespaces end
/// with the last process.
fn end_container(id: &str, init: &OwnedFd, init_pid: i32, cgroup: &ContainerCgroup) -> Result<(), ContainerError> {
    kill_container(init, cgroup);
    let ended = clone::reap_within(init, Duration::from_millis(KILL_MS_MAX)).unwrap_or(false);
    if !ended {
        return Err(ContainerError::KillTimeout { id: id.to_owned(), init_pid, waited_ms: KILL_MS_MAX });
    }
    Ok(cgroup.remove()?)
}

fn kill_container(init: &OwnedFd, cgroup: &ContainerCgroup) {
    // ESRCH: it has ended already.
    let _ = pidfd::send_signal(init, Signal::KILL.as_raw());
    cgroup.thaw_killed();
}
