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
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::bind;
use crate::builder::ContainerBuilder;
use crate::cgroup::{ContainerCgroup, ContainerLimits};
use crate::config::{ContainerSpec, NetworkSpec, RootReuseKey, RootSpec};
use crate::error::ContainerError;
use crate::privileged_forker::PrivilegedForker;
use crate::record::{self, RecordState};
use crate::root::PRIVATE_DIR;
use crate::root::blueprint::RootBlueprint;
use crate::root::cached::CachedRoot;
use crate::root::protection::{self, RootProtection};
use crate::unmounted_volumes;

/// How often a path is looked up anew that contains `..`: openat2(2) gives up with EAGAIN when anything was mounted or
/// renamed anywhere meanwhile.
const RESOLVE_TRIES_MAX: usize = 100;
/// Longest wait for a killed container's end, in milliseconds: its processes are killed by the kernel at once, but may
/// have much memory to give back.
const KILL_MS_MAX: u64 = 5_000;

/// The bearer, and the midwife that it forks.
const FORKER_TASKS: u64 = 2;

/// A container with an init that waits for what to do. Dropping it kills all that is in it and removes it.
#[derive(Debug)]
pub struct Container {
    /// `None` once it was handed over.
    parts: Option<ContainerParts>,
    control: Option<OwnedFd>,
    /// Whom the socket leads to, if not to init.
    privileged_forker: Option<PrivilegedForker>,
    spec: ContainerSpec,
    /// The node's mounts when it was built.
    blueprint: RootBlueprint,
    root_recipient: Option<RootRecipient>,
}

/// What a container keeps from ending: the count of the node's containers, and the mount point that a shared root needs.
pub(crate) type Keepalive = (Arc<()>, Option<Arc<MountPoint>>);

/// Whom a container is asked by: our end of a socket, and the process at the other end if that is not init.
pub(crate) type ControlChannel = (OwnedFd, Option<PrivilegedForker>);

/// What a container consists of, in this process.
#[derive(Debug)]
pub(crate) struct ContainerParts {
    pub(crate) id: String,
    pub(crate) init: SpawnedProcess,
    pub(crate) cgroup: ContainerCgroup,
    pub(crate) builder: Arc<ContainerBuilder>,
    pub(crate) keepalive: Keepalive,
    /// Of users of its own.
    pub(crate) id_range: Option<IdRange>,
    /// If another container may have it.
    pub(crate) root: Option<CachedRoot>,
}

/// To whom the root of a container goes that has ended.
pub(crate) trait RootSink: std::fmt::Debug + Send + Sync {
    /// Takes the root; nothing is in it any more.
    fn return_root(&self, kind: ContainerSpec, root_reuse_key: &RootReuseKey, root: CachedRoot);
}

/// A will: who is to have the root, and who keeps it for them.
pub(crate) type RootRecipient = (RootReuseKey, Weak<dyn RootSink>);

impl Container {
    pub(crate) fn new(
        parts: ContainerParts,
        (control, bearer): ControlChannel,
        spec: ContainerSpec,
        blueprint: RootBlueprint,
    ) -> Self {
        Self {
            parts: Some(parts),
            control: Some(control),
            privileged_forker: bearer,
            spec,
            blueprint,
            root_recipient: None,
        }
    }

    /// Says who is to have its root when all in it has ended.
    pub(crate) fn set_root_recipient(&mut self, recipient: RootRecipient) {
        self.root_recipient = Some(recipient);
    }

    /// Its id, unique on the node.
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

    /// Who is asked for the child: its init, or one beside it with the node's rights where init has none.
    pub fn forker_pid(&self) -> i32 {
        self.privileged_forker.as_ref().map_or_else(|| self.init_pid(), PrivilegedForker::pid)
    }

    /// Our end of the socket of init, where another is asked for the child.
    pub fn init_socket(&self) -> Option<BorrowedFd<'_>> {
        self.privileged_forker.as_ref().map(PrivilegedForker::init_socket)
    }

    /// What its users are outside, if they are its own.
    pub fn id_range(&self) -> Option<IdRange> {
        self.parts().id_range
    }

    /// Our end of the socket (SOCK_SEQPACKET) whose other end is descriptor 3 of who is asked for the child.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_ref().expect("only a drop takes it").as_fd()
    }

    /// Its control group.
    pub fn cgroup(&self) -> &ContainerCgroup {
        &self.parts().cgroup
    }

    /// The control group to be born in, for whom init does not fork; `None` without a unified hierarchy.
    ///
    /// # Errors
    /// [`ContainerError::Cgroup`].
    pub fn open_clone_target(&self) -> Result<Option<File>, ContainerError> {
        Ok(self.cgroup().open_clone_target()?)
    }

    /// Limits what those in it may use together; who bears the child has room besides, until it is dismissed.
    ///
    /// # Errors
    /// [`ContainerError::Cgroup`].
    pub fn set_limits(&self, limits: &ContainerLimits) -> Result<(), ContainerError> {
        let room = if self.privileged_forker.is_some() { FORKER_TASKS } else { 0 };
        let tasks_max = limits.tasks_max.map(|tasks| tasks.saturating_add(room));
        Ok(self.cgroup().set_limits(&ContainerLimits { tasks_max, ..*limits })?)
    }

    /// Waits for the end of who has borne the child, and takes the room away that it had under `limits`.
    ///
    /// # Errors
    /// [`ContainerError::Cgroup`].
    pub fn wait_privileged_forker(&mut self, limits: &ContainerLimits) -> Result<(), ContainerError> {
        let Some(privileged_forker) = self.privileged_forker.take() else { return Ok(()) };
        privileged_forker.wait_exit();
        drop(privileged_forker);
        self.set_limits(&ContainerLimits { tasks_max: limits.tasks_max, ..ContainerLimits::default() })
    }

    /// Which root it has.
    pub fn root(&self) -> RootSpec {
        self.spec.root
    }

    /// Which network it was built with.
    pub fn network(&self) -> NetworkSpec {
        self.spec.network
    }

    /// Whether it shows the node's mounts as they are now, and its init lives: where memory runs out the kernel may end those that wait, too.
    pub fn is_current(&self) -> bool {
        self.blueprint.version == self.parts().builder.mounts_version()
            && !pidfd::wait_exit(self.init(), Duration::ZERO).unwrap_or(false)
    }

    /// Unmounts the volumes that the node has unmounted since it was built.
    pub(crate) fn release_unmounted_volumes(&self) {
        let unmounted = self.parts().builder.volumes_unmounted_since(&self.blueprint);
        unmounted_volumes::release(self.init_pid(), self.init(), &unmounted);
    }

    /// Shows a directory or file of the node, with all that is mounted below, at a path of the container; what
    /// the configuration masks stays hidden. The path is made where it is missing, except in a container that has
    /// the node's own root.
    ///
    /// # Errors
    /// [`ContainerError::Bind`].
    pub fn bind(&self, host_path: &Path, inside_path: &Path) -> Result<(), ContainerError> {
        let masked = self.parts().builder.masked();
        let users = self.id_range().map(|_| user_namespace::open(self.init_pid())).transpose();
        let bound = users.and_then(|users| {
            let into = (self.init(), users.as_ref().map(AsFd::as_fd));
            bind::bind(into, self.root(), host_path, inside_path, masked)
        });
        bound.map_err(|cause| ContainerError::Bind {
            id: self.id().to_owned(),
            host_path: host_path.to_owned(),
            inside_path: inside_path.to_owned(),
            cause,
        })
    }

    /// Takes away from the container what those in it are not trusted with. All that it is to show must have been bound.
    ///
    /// # Errors
    /// [`ContainerError::Protect`]; it may have been done in part.
    pub fn protect(&self, protection: RootProtection) -> Result<(), ContainerError> {
        let protected = protection::protect_root((self.init_pid(), self.init()), protection);
        protected.map_err(|cause| ContainerError::Protect { id: self.id().to_owned(), cause })
    }

    /// Writes a file into the container's [`PRIVATE_DIR`], over one of that name; gives the path that it has inside.
    ///
    /// # Errors
    /// [`ContainerError::PutFile`]; ENOSPC where it is larger than the directory may become.
    pub fn put_file(&self, name: &str, contents: &[u8], mode: u32) -> Result<PathBuf, ContainerError> {
        let path = Path::new(PRIVATE_DIR).join(name);
        match self.write_via_init_root(&path, contents, mode) {
            Ok(()) => Ok(path),
            Err(cause) => Err(ContainerError::PutFile { id: self.id().to_owned(), path, cause }),
        }
    }

    /// By way of init's root, which no path of the container's leads out of.
    fn write_via_init_root(&self, path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = format!("/proc/{}/root", self.init_pid());
        let root = rustix::fs::openat(CWD, root, flags, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let mode = Mode::from_raw_mode(mode);
        let mut tries = (0..RESOLVE_TRIES_MAX).map(|_| rustix::fs::openat2(&root, path, flags, mode, resolve));
        let settled = tries.find(|opened| !matches!(opened, Err(Errno::AGAIN)));
        let mut file = File::from(settled.unwrap_or(Err(Errno::AGAIN))?);
        rustix::fs::fchmod(&file, mode)?; // not as the umask has it
        file.write_all(contents)
    }

    /// Hands the container over: from now on it ends with what runs in it, not with this process, and its record says
    /// so. Gives our end of the control socket too.
    ///
    /// # Errors
    /// [`ContainerError::Record`], and the container is removed.
    pub fn into_running(mut self) -> Result<(RunningContainer, OwnedFd), ContainerError> {
        let records = self.parts().builder.config().records_dir();
        record::mark_in_use(&records, self.id())?;
        // While the record is renamed, the pool may not find the container.
        self.release_unmounted_volumes();
        let parts = self.parts.take().expect("only a drop takes it");
        let control = self.control.take().expect("only a drop takes it");
        let root = parts.root.zip(self.root_recipient.take()).map(|(root, recipient)| (self.spec, root, recipient));
        let running = RunningContainer {
            reusable_root: Mutex::new(root),
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
            // The record stays, for the next start of the daemon to try again.
            tracing::warn!(%error, "a container is not removed");
            return;
        }
        parts.builder.remove_record(&parts.id);
    }
}

/// A container in which something runs that may outlive the daemon.
#[derive(Debug)]
pub struct RunningContainer {
    pub(crate) id: String,
    pub(crate) init_pid: i32,
    pub(crate) init: OwnedFd,
    pub(crate) cgroup: ContainerCgroup,
    pub(crate) records_dir: PathBuf,
    /// Where this daemon built it.
    pub(crate) _held: Option<Keepalive>,
    /// What it leaves, and to whom.
    pub(crate) reusable_root: Mutex<Option<(ContainerSpec, CachedRoot, RootRecipient)>>,
}

impl RunningContainer {
    /// Its id, unique on the node.
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

    /// Its control group.
    pub fn cgroup(&self) -> &ContainerCgroup {
        &self.cgroup
    }

    /// Kills all that is in the container, whatever it is doing: by its init, with which the kernel kills its pid namespace, and by its
    /// control group. Does not wait for their end.
    pub fn kill(&self) {
        kill_container(&self.init, &self.cgroup);
    }

    /// Has nobody have its root.
    pub fn discard_root(&self) {
        drop(self.take_reusable_root());
    }

    /// Kills what still runs in the container and removes what it has outside of itself: control group and record. Its root goes to its
    /// heirs, if it has any.
    ///
    /// # Errors
    /// [`ContainerError::KillTimeout`], [`ContainerError::Cgroup`]; it can be tried again.
    pub fn remove(&self) -> Result<(), ContainerError> {
        end_container(&self.id, &self.init, self.init_pid, &self.cgroup)?;
        record::remove_record(&self.records_dir, &self.id, RecordState::InUse);
        if let Some((kind, root, (heirs, keeper))) = self.take_reusable_root()
            && let Some(keeper) = keeper.upgrade()
        {
            keeper.return_root(kind, &heirs, root);
        }
        Ok(())
    }

    fn take_reusable_root(&self) -> Option<(ContainerSpec, CachedRoot, RootRecipient)> {
        self.reusable_root.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The end of a container: with process 1 of its pid namespace the kernel kills the others, and mounts, network and
/// the rest go with the last of them.
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
