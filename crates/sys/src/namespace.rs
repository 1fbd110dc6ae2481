//! Namespaces of the calling thread. A change lasts for the rest of the thread's life. Call from a thread made for it, or
//! return with [`HomeNamespaces`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, stat, statat};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, chdir, chroot, fchdir, getpid, pidfd_open, pivot_root, umask};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces, unshare_unsafe};

/// Pause between two attempts to return to the home namespaces.
const RETURN_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Gives the calling thread its own mount, UTS and IPC namespaces, and with `with_network` a network namespace. With the
/// mount namespace, the thread gets its own root and working directory. Processes that the thread starts are in these
/// namespaces.
///
/// # Errors
/// As unshare(2): EPERM without CAP_SYS_ADMIN, ENOSPC at a limit on namespaces.
pub fn unshare_container(with_network: bool) -> io::Result<()> {
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    flags.set(UnshareFlags::NEWNET, with_network);
    // SAFETY: CLONE_FILES is not among the flags, so the thread still shares its descriptors with the others.
    Ok(unsafe { unshare_unsafe(flags) }?)
}

/// Gives the calling thread its own mount namespace, root and working directory.
///
/// # Errors
/// As unshare(2): EPERM without CAP_SYS_ADMIN, ENOSPC at a limit on namespaces.
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: CLONE_FILES is not among the flags, so the thread still shares its descriptors with the others.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?)
}

/// Like [`unshare_container`], but enters an existing mount namespace, whose root becomes the thread's root.
///
/// # Errors
/// As [`unshare_container`], and setns(2).
pub fn unshare_with_mounts(mounts: BorrowedFd<'_>, with_network: bool) -> io::Result<()> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let mut flags = UnshareFlags::FS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    flags.set(UnshareFlags::NEWNET, with_network);
    // SAFETY: CLONE_FILES is not among the flags, so the thread still shares its descriptors with the others.
    unsafe { unshare_unsafe(flags) }?;
    Ok(move_into_link_name_space(mounts, Some(LinkNameSpaceType::Mount))?)
}

/// The namespaces, root and working directory that a thread returns to after work in other namespaces.
#[derive(Debug)]
pub struct HomeNamespaces {
    process: OwnedFd,
    root: OwnedFd,
    current: OwnedFd,
}

impl HomeNamespaces {
    /// Opens the namespaces, root and working directory of the calling thread, which must be in the namespaces of the
    /// process's main thread. Unshares the thread's root and working directory.
    ///
    /// # Errors
    /// As unshare(2), pidfd_open(2), openat(2).
    pub fn of_this_thread() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &str| rustix::fs::open(path, flags, Mode::empty());
        // SAFETY: CLONE_FILES is not among the flags, so the thread still shares its descriptors with the others.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        let process = pidfd_open(getpid(), PidfdFlags::empty())?;
        Ok(Self { process, root: open("/")?, current: open(".")? })
    }

    /// Runs a function that may move the calling thread into other mount, UTS, IPC and network namespaces. The thread
    /// returns afterwards, even if the function panics. The calling thread must be the one that called
    /// [`Self::of_this_thread`].
    pub fn run_elsewhere<T>(&self, to_do: impl FnOnce() -> T) -> T {
        let _away = ReturnGuard(self);
        to_do()
    }

    fn return_home(&self) -> io::Result<()> {
        let kinds = ThreadNameSpaceType::MOUNT
            | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
            | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
            | ThreadNameSpaceType::NETWORK;
        move_into_thread_name_spaces(self.process.as_fd(), kinds)?;
        fchdir(&self.root)?;
        chroot(".")?;
        Ok(fchdir(&self.current)?)
    }
}

/// Returns the thread to its home namespaces when dropped.
struct ReturnGuard<'a>(&'a HomeNamespaces);

impl Drop for ReturnGuard<'_> {
    fn drop(&mut self) {
        // The only possible error is ENOMEM. Retry, because the thread must not do other work outside of its home
        // namespaces.
        while self.0.return_home().is_err() {
            thread::sleep(RETURN_RETRY_PAUSE);
        }
    }
}

/// Opens the calling thread's mount namespace. The namespace exists while the descriptor is open. Needs a `/proc` in that
/// namespace.
///
/// # Errors
/// As open(2).
pub fn open_mount_namespace() -> io::Result<OwnedFd> {
    Ok(std::fs::File::open("/proc/thread-self/ns/mnt")?.into())
}

/// Opens the calling thread's network namespace. The namespace exists while the descriptor is open. Needs a `/proc`.
///
/// # Errors
/// As open(2).
pub fn open_network_namespace() -> io::Result<OwnedFd> {
    Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
}

/// Moves this process into the namespaces, the root and the working directory of another one. Later children of this process
/// are in its pid namespace. This process must have one thread.
///
/// # Errors
/// As setns(2), openat(2), chroot(2). This process may then be in some of the namespaces.
pub fn enter_process(pid: i32, pidfd: BorrowedFd<'_>, directory: Option<&Path>) -> io::Result<()> {
    let open = |link: &str| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(format!("/proc/{pid}/{link}"), flags, Mode::empty())
    };
    let (root, current) = (open("root")?, open("cwd")?);
    let user = ThreadNameSpaceType::USER;
    let has_other_users = !is_main_thread_namespace(CWD, &format!("/proc/{pid}/ns/user"));
    let others = ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::CONTROL_GROUP
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::PROCESS_ID
        | ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::TIME;
    // The user namespace is last: in it, this process may lack the right to enter namespaces of the node.
    move_into_thread_name_spaces(pidfd, others)?;
    if has_other_users {
        move_into_thread_name_spaces(pidfd, user)?;
    }
    fchdir(&root)?;
    chroot(".")?;
    match directory {
        Some(path) => Ok(chdir(path)?),
        None => Ok(fchdir(&current)?),
    }
}

/// Whether a namespace link, such as `/proc/PID/ns/mnt`, refers to the namespace of this process's main thread.
pub fn is_main_thread_namespace(directory: BorrowedFd<'_>, link: &str) -> bool {
    let kind = link.rsplit('/').next().unwrap_or(link);
    let number = |found: Stat| (found.st_dev, found.st_ino);
    let theirs = statat(directory, link, AtFlags::empty()).map(number);
    let ours = stat(format!("/proc/self/ns/{kind}")).map(number);
    theirs.is_ok() && theirs == ours
}

/// Moves the calling thread into the mount namespace of a process. The root of that namespace becomes the thread's root.
///
/// # Errors
/// As setns(2).
pub fn enter_mounts(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    // A thread that shares its root and working directory with others may not change its mount namespace.
    // SAFETY: CLONE_FILES is not among the flags, so the thread still shares its descriptors with the others.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    Ok(move_into_thread_name_spaces(pidfd, ThreadNameSpaceType::MOUNT)?)
}

/// Runs a function in the mount namespace of a process, in a new thread. The root of that namespace is the thread's root. The
/// function has a [`SharedFilesUmask`].
///
/// # Errors
/// As clone(2) of a thread, setns(2), and the error of the function.
pub fn run_in_mounts_of<T: Send>(pidfd: BorrowedFd<'_>, to_do: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let body = || {
        let _umask = SharedFilesUmask::set();
        to_do()
    };
    run_in_thread(|| enter_mounts(pidfd), body)?
}

/// While this value exists, all users may read files that the calling thread creates, whatever the umask of the process is.
/// The thread must not share its root, working directory and umask with other threads (CLONE_FS).
///
/// Directories in the root of a container need it: root in a user namespace does not own them.
#[derive(Debug)]
pub struct SharedFilesUmask {
    before: Mode,
}

impl SharedFilesUmask {
    /// Sets the thread's umask to 022.
    pub fn set() -> Self {
        Self { before: umask(Mode::WGRP | Mode::WOTH) }
    }
}

impl Drop for SharedFilesUmask {
    fn drop(&mut self) {
        umask(self.before);
    }
}

/// Moves the calling thread into the network namespace that `netns` refers to.
///
/// # Errors
/// As setns(2).
pub fn enter_network(netns: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    Ok(move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?)
}

/// Moves the calling thread into a new IPC namespace. The System V objects and POSIX message queues of the namespace end with
/// the last thread in it.
///
/// # Errors
/// As unshare(2): EPERM without CAP_SYS_ADMIN, ENOSPC at a limit on namespaces.
pub fn unshare_ipc() -> io::Result<()> {
    // SAFETY: CLONE_FILES is not among the flags, so the thread still shares its descriptors with the others.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWIPC) }?)
}

/// Moves the calling thread into the IPC namespace of a process.
///
/// # Errors
/// As setns(2).
pub fn enter_ipc(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_thread_name_spaces(pidfd, ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION)?)
}

/// Moves the calling thread into the network namespace of a process.
///
/// # Errors
/// As setns(2).
pub fn enter_network_of(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_thread_name_spaces(pidfd, ThreadNameSpaceType::NETWORK)?)
}

/// Runs a function in the UTS and IPC namespaces of a process, in a new thread.
///
/// # Errors
/// As clone(2) of a thread, unshare(2), setns(2).
pub fn run_in_namespaces_of<T: Send>(process: BorrowedFd<'_>, to_do: impl FnOnce() -> T + Send) -> io::Result<T> {
    let kinds = ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    run_in_thread(move || Ok(move_into_thread_name_spaces(process, kinds)?), to_do)
}

/// Runs a function in new UTS and IPC namespaces, as a container has them, in a new thread.
///
/// # Errors
/// As clone(2) of a thread, unshare(2).
pub fn run_in_new_namespaces<T: Send>(to_do: impl FnOnce() -> T + Send) -> io::Result<T> {
    // SAFETY: CLONE_FILES is not among the flags, so the thread still shares its descriptors with the others.
    run_in_thread(|| Ok(unsafe { unshare_unsafe(UnshareFlags::NEWUTS | UnshareFlags::NEWIPC) }?), to_do)
}

fn run_in_thread<T: Send>(
    enter: impl FnOnce() -> io::Result<()> + Send,
    to_do: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || enter().map(|()| to_do()))?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the other namespaces panicked")))
    })
}

/// Moves the calling thread into a new network namespace, whose loopback interface is up. The namespace ends when no process
/// is in it and no descriptor refers to it.
///
/// # Errors
/// As unshare(2) and ioctl(SIOCSIFFLAGS).
pub fn unshare_network() -> io::Result<OwnedFd> {
    // SAFETY: CLONE_FILES is not among the flags, so the thread still shares its descriptors with the others.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    bring_up_loopback()?;
    open_network_namespace()
}

/// Makes the mount at `new_root` the root of the calling thread's mount namespace, and detaches the old root. No mount of
/// that namespace may have shared propagation.
///
/// # Errors
/// As pivot_root(2): EINVAL if the root is the initial ramfs. Refused in the mount namespace of the process's main thread,
/// because all processes in that namespace would lose their root and every mount.
pub fn pivot_to(new_root: &Path) -> io::Result<()> {
    if is_main_thread_namespace(CWD, "/proc/thread-self/ns/mnt") {
        return Err(io::Error::other("the calling thread has no mount namespace of its own"));
    }
    chdir(new_root)?;
    // pivot_root(2) mounts the old root over the new root. Then the old root is detached.
    pivot_root(".", ".")?;
    crate::mount::detach(Path::new("."))?;
    Ok(chdir("/")?)
}

/// Brings up the loopback interface of the calling thread's network namespace.
///
/// # Errors
/// As ioctl(SIOCSIFFLAGS).
pub fn bring_up_loopback() -> io::Result<()> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all-zero bytes are a valid ifreq, a plain C struct of bytes, numbers and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads one ifreq, which lives on this frame; its name is NUL-terminated by the zeroing.
    match unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{self, AssertUnwindSafe};
    use std::path::PathBuf;

    use super::*;

    /// The calling thread's namespaces, root and working directory.
    fn whereabouts() -> Vec<PathBuf> {
        let links = ["ns/mnt", "ns/uts", "ns/ipc", "ns/net", "root", "cwd"];
        links.map(|link| std::fs::read_link(format!("/proc/thread-self/{link}")).unwrap()).to_vec()
    }

    #[test]
    fn the_root_of_the_machine_is_never_replaced() {
        // Otherwise the call below would replace the machine's root.
        assert!(is_main_thread_namespace(CWD, "/proc/thread-self/ns/mnt"));
        let (before, directory) = (whereabouts(), tempfile::tempdir().unwrap());
        let refused = pivot_to(directory.path()).unwrap_err().to_string();
        assert!(refused.contains("no mount namespace of its own"), "{refused}");
        assert_eq!(whereabouts(), before);
        let unshared = thread::spawn(|| {
            unshare_container(false).unwrap();
            is_main_thread_namespace(CWD, "/proc/thread-self/ns/mnt")
        });
        assert!(!unshared.join().unwrap());
    }

    #[test]
    fn all_users_may_enter_a_directory_that_is_made_in_a_container() {
        let above = tempfile::tempdir().unwrap();
        let mode = |name: &str| {
            use std::os::unix::fs::PermissionsExt as _;
            let path = above.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path.metadata().unwrap().permissions().mode() & 0o777
        };
        let modes = || {
            unshare_mounts().unwrap();
            umask(Mode::RWXG | Mode::RWXO);
            let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
            [mode("before"), run_in_mounts_of(own.as_fd(), || Ok(mode("inside"))).unwrap(), mode("after")]
        };
        assert_eq!(thread::scope(|scope| scope.spawn(modes).join().unwrap()), [0o700, 0o755, 0o700]);
    }

    #[test]
    fn a_thread_returns_to_its_home_namespaces() {
        let elsewhere = tempfile::tempdir().unwrap();
        let thread = thread::spawn(move || {
            let home = HomeNamespaces::of_this_thread().unwrap();
            let at_home = whereabouts();
            let leave = || {
                unshare_container(true).unwrap();
                chroot(elsewhere.path()).unwrap();
                chdir("/").unwrap();
            };
            let left = home.run_elsewhere(|| {
                unshare_container(true).unwrap();
                chdir(elsewhere.path()).unwrap();
                whereabouts()
            });
            assert!(left.iter().zip(&at_home).filter(|(left, home)| left != home).count() == at_home.len() - 1);
            assert_eq!(whereabouts(), at_home);
            let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
                home.run_elsewhere(|| {
                    leave();
                    panic!("elsewhere");
                });
            }));
            assert!(panicked.is_err());
            assert_eq!(whereabouts(), at_home);
        });
        thread.join().unwrap();
    }
}
