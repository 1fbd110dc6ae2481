//! `KeeperContext`: state that keeper and pager share. A process that replaces one of them takes the state over. It
//! consists of the run directory with its lock, the control socket, the role table, and the descriptors that were open
//! before the keeper started.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit};

use super::PagerConfig;
use super::fd_holder::ProcessTitle;
use super::registry::ChildRegistry;
use super::roles::{ProcessRole, RoleTable};
use super::trust_policy::TrustPolicy;
use crate::pager::cache;

/// Name of the control socket in the run directory.
pub const SOCKET_FILE: &str = "pager.sock";

/// Name of the lock in the run directory.
const LOCK_FILE: &str = "pager.lock";

/// Number of descriptors that userfaultfds of forked processes must leave free. They are for clients, for adoptions,
/// and for the next pager, which could not start without them.
const RESERVED_DESCRIPTORS: u64 = 64;

/// Backlog of the control socket. Connections also wait while no pager runs. The clients are threads of the daemon.
const BACKLOG: i32 = 64;

/// Why a pager cannot run.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// Another pager serves this run directory.
    #[error("a pager already runs in {}: stop it first", run_dir.display())]
    AlreadyRunning {
        /// The run directory.
        run_dir: PathBuf,
    },
    /// A file of the run directory cannot be created.
    #[error("{} cannot be created: {source}", path.display())]
    RunDir {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A system call failed unexpectedly.
    #[error("the pager cannot {action}: {source}")]
    System {
        /// The operation that failed.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// State that keeper and pager share.
#[derive(Debug)]
pub(in crate::pager) struct KeeperContext {
    registry: ChildRegistry,
    socket_path: PathBuf,
    listener: OwnedFd,
    lock: File,
    /// The pidfd of the keeper. Never closed on drop: in the holder's copy of this struct the number may be outdated,
    /// and refer to another descriptor. The next pager closes an old pidfd along with all unknown descriptors.
    keeper: ManuallyDrop<OwnedFd>,
    roles: RoleTable,
    /// Descriptors that were open before the keeper started.
    preexisting_fds: Vec<RawFd>,
    /// The trust policy with which the keeper was started.
    startup_trust_policy: TrustPolicy,
    /// The process title that the keeper had at its start.
    process_title: Option<ProcessTitle>,
}

impl KeeperContext {
    /// Locks the run directory, so that no other pager serves it, and creates the control socket.
    ///
    /// # Errors
    /// [`PagerError`].
    pub(in crate::pager) fn open(config: &PagerConfig) -> Result<Self, PagerError> {
        let PagerConfig { run_dir, credentials } = config;
        let preexisting_fds = list_open_fds().map_err(system_error("list its descriptors"))?;
        set_fd_limit(0);
        let lock = lock_run_dir(run_dir)?;
        let at = |path: PathBuf| move |source| PagerError::RunDir { path, source };
        let registry = ChildRegistry::open(run_dir).map_err(at(run_dir.to_owned()))?;
        let socket_path = run_dir.join(SOCKET_FILE);
        let listener = bind_control_socket(&socket_path).map_err(at(socket_path.clone()))?;
        let keeper = ManuallyDrop::new(open_own_pidfd()?);
        let roles = RoleTable::new().map_err(system_error("create the role table"))?;
        roles.assign(ProcessRole::Keeper, keeper.as_raw_fd());
        TrustPolicy::remove_file(run_dir);
        let startup_trust_policy = TrustPolicy::from_credentials(credentials.as_ref());
        let process_title = ProcessTitle::read().ok();
        Ok(Self {
            registry,
            socket_path,
            listener,
            lock,
            keeper,
            roles,
            preexisting_fds,
            startup_trust_policy,
            process_title,
        })
    }

    /// Returns the trust policy for a pager that starts now.
    ///
    /// # Errors
    /// The policy that the daemon has written cannot be read.
    pub(in crate::pager) fn load_trust_policy(&self) -> io::Result<TrustPolicy> {
        let written = TrustPolicy::read(self.socket_path.parent().unwrap_or(Path::new("/")))?;
        Ok(written.unwrap_or_else(|| self.startup_trust_policy.clone()))
    }

    /// Reads the size limit of the page cache, in bytes.
    pub(in crate::pager) fn cache_bytes_max(&self) -> u64 {
        cache::limit::read_cache_limit(self.socket_path.parent().unwrap_or(Path::new("/")))
    }

    /// Makes this process the keeper, because the previous keeper is gone.
    ///
    /// # Errors
    /// [`PagerError::System`].
    pub(in crate::pager) fn become_keeper(&mut self) -> Result<(), PagerError> {
        set_fd_limit(0);
        self.keeper = ManuallyDrop::new(open_own_pidfd()?);
        self.roles.assign(ProcessRole::Keeper, self.keeper.as_raw_fd());
        if self.roles.is_fd_holder() {
            self.roles.assign(ProcessRole::FdHolder, 0);
        }
        Ok(())
    }

    /// Marks this pager as ready: it has closed the unknown descriptors, so the keeper may clone processes again.
    pub(in crate::pager) fn set_pager_ready(&self) {
        self.roles.set_pager_ready();
    }

    /// The number of the holder's pidfd.
    pub(in crate::pager) fn fd_holder_pidfd(&self) -> RawFd {
        self.roles.pidfd_number(ProcessRole::FdHolder)
    }

    /// Closes pidfds of keepers, pagers and holders that are gone. Only the pager may call this: no other process opens
    /// or closes descriptors of the table.
    pub(in crate::pager) fn close_dead_pidfds(&self) -> io::Result<()> {
        let known = self.descriptors();
        let numbers = list_open_fds()?.into_iter().filter(|number| !known.contains(number));
        let reaped = numbers.filter(|number| farfork_sys::pidfd::has_exited_raw(*number));
        reaped.for_each(|number| drop(farfork_sys::fork::adopt_raw_fd(number)));
        Ok(())
    }

    /// The keeper's process title, if it could be read.
    pub(super) fn process_title(&self) -> Option<&ProcessTitle> {
        self.process_title.as_ref()
    }

    /// The table of keeper, pager and holder.
    pub(super) fn roles(&self) -> &RoleTable {
        &self.roles
    }

    /// Reserves some descriptors of the table: this process can use them only in [`Self::with_reserved_fds`].
    pub(in crate::pager) fn reserve_fds(&self) {
        set_fd_limit(RESERVED_DESCRIPTORS);
    }

    /// Calls a function that may use the reserved descriptors.
    pub(in crate::pager) fn with_reserved_fds<T>(&self, act: impl FnOnce(&Self) -> T) -> T {
        set_fd_limit(0);
        let done = act(self);
        set_fd_limit(RESERVED_DESCRIPTORS);
        done
    }

    /// Whether clients can still reach the control socket. The run directory may have been removed.
    pub(in crate::pager) fn is_reachable(&self) -> bool {
        self.socket_path.exists()
    }

    pub(in crate::pager) fn registry(&self) -> &ChildRegistry {
        &self.registry
    }

    pub(in crate::pager) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The keeper's pidfd, which is readable when the keeper is gone.
    pub(in crate::pager) fn keeper(&self) -> BorrowedFd<'_> {
        self.keeper.as_fd()
    }

    /// The descriptors that the next pager must not close.
    pub(in crate::pager) fn descriptors(&self) -> Vec<RawFd> {
        let own = [self.listener.as_raw_fd(), self.lock.as_raw_fd(), self.keeper.as_raw_fd()];
        self.preexisting_fds.iter().copied().chain(own).chain(self.roles.descriptors()).collect()
    }

    /// Removes the control socket when it is no longer served.
    pub(in crate::pager) fn remove_socket(self) {
        let _ = fs::remove_file(&self.socket_path);
    }
}

/// Makes an error that names the failed action.
fn system_error(action: &'static str) -> impl Fn(io::Error) -> PagerError {
    move |source| PagerError::System { action, source }
}

fn open_own_pidfd() -> Result<OwnedFd, PagerError> {
    farfork_sys::pidfd::open(std::process::id() as i32).map_err(system_error("open a pidfd of its own process"))
}

fn lock_run_dir(run_dir: &Path) -> Result<File, PagerError> {
    let path = run_dir.join(LOCK_FILE);
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = opened.map_err(|source| PagerError::RunDir { path: path.clone(), source })?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(PagerError::AlreadyRunning { run_dir: run_dir.to_owned() }),
        Err(errno) => Err(PagerError::RunDir { path, source: errno.into() }),
    }
}

fn bind_control_socket(path: &Path) -> io::Result<OwnedFd> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let bound = rustix::net::bind(&socket, &SocketAddrUnix::new(path)?);
    rustix::process::umask(before);
    bound?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn list_open_fds() -> io::Result<Vec<RawFd>> {
    let listed: Vec<RawFd> =
        fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // Drop the descriptor of the directory listing itself, which is already closed.
    Ok(listed.into_iter().filter(|number| fs::read_link(format!("/proc/self/fd/{number}")).is_ok()).collect())
}

/// Sets this process's limit on descriptors to the maximum minus `reserve`. The table has a descriptor for each process
/// of each child.
fn set_fd_limit(reserve: u64) {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let current = limit.maximum.map(|maximum| maximum.saturating_sub(reserve));
    if let Err(errno) = rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum }) {
        tracing::warn!("the limit on descriptors stays at {:?}: {errno}", limit.current);
    }
}
