//! A container that was built: handed to whoever restores a child in it, and removed when that comes to nothing.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use farfork_sys::clone::{self, Born};
use farfork_sys::mount::point::MountPoint;
use farfork_sys::pidfd;
use farfork_sys::user_namespace::{self, Numbers};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::bearer::Bearer;
use crate::bind;
use crate::builder::Builder;
use crate::cgroup::{ContainerCgroup, Limits};
use crate::config::{ContainerSpec, Heirs, NetworkSpec, RootSpec};
use crate::error::ContainerError;
use crate::record::{self, Use};
use crate::root::PRIVATE_DIR;
use crate::root::kept::KeptRoot;
use crate::root::protection::{self, Protection};

/// How often a path is looked up anew that contains `..`: openat2(2) gives up with EAGAIN when anything was mounted or
/// renamed anywhere meanwhile.
const RESOLVE_TRIES_MAX: usize = 100;
/// Longest wait for a killed container's end, in milliseconds: its processes are killed by the kernel at once, but may
/// have much memory to give back.
const KILL_MS_MAX: u64 = 5_000;

/// The bearer, and the midwife that it forks.
const BEARER_TASKS: u64 = 2;

/// A container with an init that waits for what to do. Dropping it kills all that is in it and removes it.
#[derive(Debug)]
pub struct Container {
    /// `None` once it was handed over.
    parts: Option<Parts>,
    control: Option<OwnedFd>,
    /// Whom the socket leads to, if not to init.
    bearer: Option<Bearer>,
    spec: ContainerSpec,
    /// Of the node's mounts, when it was built.
    layout: u64,
    will: Option<Will>,
}

/// What a container keeps from ending: the count of the node's containers, and the mount point that a shared root needs.
pub(crate) type Held = (Arc<()>, Option<Arc<MountPoint>>);

/// Whom a container is asked by: our end of a socket, and the process at the other end if that is not init.
pub(crate) type Asked = (OwnedFd, Option<Bearer>);

/// What a container consists of, in this process.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) id: String,
    pub(crate) init: Born,
    pub(crate) cgroup: ContainerCgroup,
    pub(crate) builder: Arc<Builder>,
    pub(crate) held: Held,
    /// Of users of its own.
    pub(crate) numbers: Option<Numbers>,
    /// If another container may have it.
    pub(crate) root: Option<KeptRoot>,
}

/// To whom the root of a container goes that has ended.
pub(crate) trait Inherit: std::fmt::Debug + Send + Sync {
    /// Takes the root; nothing is in it any more.
    fn inherit(&self, kind: ContainerSpec, heirs: &Heirs, root: KeptRoot);
}

/// A will: who is to have the root, and who keeps it for them.
pub(crate) type Will = (Heirs, Weak<dyn Inherit>);

impl Container {
    pub(crate) fn new(parts: Parts, (control, bearer): Asked, spec: ContainerSpec, layout: u64) -> Self {
        Self { parts: Some(parts), control: Some(control), bearer, spec, layout, will: None }
    }

    /// Says who is to have its root when all in it has ended.
    pub(crate) fn bequeath(&mut self, will: Will) {
        self.will = Some(will);
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
    pub fn asked_pid(&self) -> i32 {
        self.bearer.as_ref().map_or_else(|| self.init_pid(), Bearer::pid)
    }

    /// Our end of the socket of init, where another is asked for the child.
    pub fn waiter(&self) -> Option<BorrowedFd<'_>> {
        self.bearer.as_ref().map(Bearer::waiter)
    }

    /// What its users are outside, if they are its own.
    pub fn users(&self) -> Option<Numbers> {
        self.parts().numbers
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
    pub fn birthplace(&self) -> Result<Option<File>, ContainerError> {
        Ok(self.cgroup().open_birthplace()?)
    }

    /// Limits what those in it may use together; who bears the child has room besides, until it is dismissed.
    ///
    /// # Errors
    /// [`ContainerError::Cgroup`].
    pub fn limit(&self, limits: &Limits) -> Result<(), ContainerError> {
        let room = if self.bearer.is_some() { BEARER_TASKS } else { 0 };
        let tasks_max = limits.tasks_max.map(|tasks| tasks.saturating_add(room));
        Ok(self.cgroup().limit(&Limits { tasks_max, ..*limits })?)
    }

    /// Waits for the end of who has borne the child, and takes the room away that it had under `limits`.
    ///
    /// # Errors
    /// [`ContainerError::Cgroup`].
    pub fn dismiss_bearer(&mut self, limits: &Limits) -> Result<(), ContainerError> {
        let Some(bearer) = self.bearer.take() else { return Ok(()) };
        bearer.await_end();
        drop(bearer);
        self.limit(&Limits { tasks_max: limits.tasks_max, ..Limits::default() })
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
        self.layout == self.parts().builder.layout() && !pidfd::wait_exit(self.init(), Duration::ZERO).unwrap_or(false)
    }

    /// Shows a directory or file of the node, with all that is mounted below, at a path of the container; what
    /// the configuration masks stays hidden. The path is made where it is missing, except in a container that has
    /// the node's own root.
    ///
    /// # Errors
    /// [`ContainerError::Bind`].
    pub fn bind(&self, host_path: &Path, inside_path: &Path) -> Result<(), ContainerError> {
        let masked = self.parts().builder.masked();
        let users = self.users().map(|_| user_namespace::open(self.init_pid())).transpose();
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
    pub fn protect(&self, protection: Protection) -> Result<(), ContainerError> {
        let protected = protection::protect((self.init_pid(), self.init()), protection);
        protected.map_err(|cause| ContainerError::Protect { id: self.id().to_owned(), cause })
    }

    /// Writes a file into the container's [`PRIVATE_DIR`], over one of that name; gives the path that it has inside.
    ///
    /// # Errors
    /// [`ContainerError::PutFile`]; ENOSPC where it is larger than the directory may become.
    pub fn put_file(&self, name: &str, contents: &[u8], mode: u32) -> Result<PathBuf, ContainerError> {
        let path = Path::new(PRIVATE_DIR).join(name);
        match self.put(&path, contents, mode) {
            Ok(()) => Ok(path),
            Err(cause) => Err(ContainerError::PutFile { id: self.id().to_owned(), path, cause }),
        }
    }

    /// By way of init's root, which no path of the container's leads out of.
    fn put(&self, path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
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
        record::hand_over(&records, self.id())?;
        let parts = self.parts.take().expect("only a drop takes it");
        let control = self.control.take().expect("only a drop takes it");
        let root = parts.root.zip(self.will.take()).map(|(root, will)| (self.spec, root, will));
        let running = RunningContainer {
            legacy: Mutex::new(root),
            id: parts.id,
            init_pid: parts.init.pid,
            init: parts.init.pidfd,
            cgroup: parts.cgroup,
            records,
            _held: Some(parts.held),
        };
        Ok((running, control))
    }

    fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("only a drop takes it")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        drop((self.control.take(), self.bearer.take()));
        if let Err(error) = end(&parts.id, &parts.init.pidfd, parts.init.pid, &parts.cgroup) {
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
    pub(crate) records: PathBuf,
    /// Where this daemon built it.
    pub(crate) _held: Option<Held>,
    /// What it leaves, and to whom.
    pub(crate) legacy: Mutex<Option<(ContainerSpec, KeptRoot, Will)>>,
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
        kill(&self.init, &self.cgroup);
    }

    /// Has nobody have its root.
    pub fn disinherit(&self) {
        drop(self.take_legacy());
    }

    /// Kills what still runs in the container and removes what it has outside of itself: control group and record. Its root goes to its
    /// heirs, if it has any.
    ///
    /// # Errors
    /// [`ContainerError::Stuck`], [`ContainerError::Cgroup`]; it can be tried again.
    pub fn remove(&self) -> Result<(), ContainerError> {
        end(&self.id, &self.init, self.init_pid, &self.cgroup)?;
        record::remove(&self.records, &self.id, Use::InUse);
        if let Some((kind, root, (heirs, keeper))) = self.take_legacy()
            && let Some(keeper) = keeper.upgrade()
        {
            keeper.inherit(kind, &heirs, root);
        }
        Ok(())
    }

    fn take_legacy(&self) -> Option<(ContainerSpec, KeptRoot, Will)> {
        self.legacy.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The end of a container: with process 1 of its pid namespace the kernel kills the others, and mounts, network and
/// the rest go with the last of them.
fn end(id: &str, init: &OwnedFd, init_pid: i32, cgroup: &ContainerCgroup) -> Result<(), ContainerError> {
    kill(init, cgroup);
    let ended = clone::reap(init, Duration::from_millis(KILL_MS_MAX)).unwrap_or(false);
    if !ended {
        return Err(ContainerError::Stuck { id: id.to_owned(), init_pid, waited_ms: KILL_MS_MAX });
    }
    Ok(cgroup.remove()?)
}

fn kill(init: &OwnedFd, cgroup: &ContainerCgroup) {
    // ESRCH: it has ended already.
    let _ = pidfd::send_signal(init, Signal::KILL.as_raw());
    cgroup.let_end();
}
