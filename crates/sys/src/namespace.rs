//! Namespaces of the calling thread. What is changed here is the thread's own for the rest of its life: it belongs
//! into a thread made for it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{chdir, pivot_root};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces, unshare_unsafe};

/// Gives the calling thread mount, UTS, IPC and, where wanted, network namespaces of its own (and, with the first, its own root
/// and working directory). Processes that it starts are born there.
///
/// # Errors
/// As unshare(2): EPERM without CAP_SYS_ADMIN, ENOSPC at a limit on namespaces.
pub fn unshare_container(with_network: bool) -> io::Result<()> {
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    flags.set(UnshareFlags::NEWNET, with_network);
    // SAFETY: CLONE_FILES is not among the flags, so the thread goes on sharing its descriptors with the others.
    Ok(unsafe { unshare_unsafe(flags) }?)
}

/// The same with a mount namespace that there is already, whose root becomes the thread's.
///
/// # Errors
/// As [`unshare_container`], and setns(2).
pub fn unshare_around(mounts: BorrowedFd<'_>, with_network: bool) -> io::Result<()> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let mut flags = UnshareFlags::FS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    flags.set(UnshareFlags::NEWNET, with_network);
    // SAFETY: CLONE_FILES is not among the flags, so the thread goes on sharing its descriptors with the others.
    unsafe { unshare_unsafe(flags) }?;
    Ok(move_into_link_name_space(mounts, Some(LinkNameSpaceType::Mount))?)
}

/// The calling thread's mount namespace, which exists for as long as this is open. Needs a `/proc` in it.
///
/// # Errors
/// As open(2).
pub fn own_mounts() -> io::Result<OwnedFd> {
    Ok(std::fs::File::open("/proc/thread-self/ns/mnt")?.into())
}

/// Moves the calling thread into the mount namespace of a process, whose root becomes the thread's.
///
/// # Errors
/// As setns(2).
pub fn enter_mounts(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    // A thread that shares its root and working directory with others may not change its mount namespace.
    // SAFETY: CLONE_FILES is not among the flags, so the thread goes on sharing its descriptors with the others.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    Ok(move_into_thread_name_spaces(pidfd, ThreadNameSpaceType::MOUNT)?)
}

/// Moves the calling thread into the network namespace held open as `netns`.
///
/// # Errors
/// As setns(2).
pub fn enter_network(netns: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    Ok(move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?)
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

/// A new network namespace, with a loopback interface that is up; it ends with the last who holds it or is in it. The calling
/// thread is in it from now on.
///
/// # Errors
/// As unshare(2) and ioctl(SIOCSIFFLAGS).
pub fn unshare_network() -> io::Result<OwnedFd> {
    // SAFETY: CLONE_FILES is not among the flags, so the thread goes on sharing its descriptors with the others.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    raise_loopback()?;
    Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
}

/// Makes the mount at `new_root` the root of the calling thread's mount namespace and lets go of the old one. No mount
/// of that namespace may be shared with another.
///
/// # Errors
/// As pivot_root(2): EINVAL where the root is the initial ramfs.
pub fn pivot(new_root: &Path) -> io::Result<()> {
    chdir(new_root)?;
    // The old root is stacked upon the new one, at the same place, and taken off from there.
    pivot_root(".", ".")?;
    crate::mount::detach(Path::new("."))?;
    Ok(chdir("/")?)
}

/// Brings the loopback interface of the calling thread's network namespace up.
///
/// # Errors
/// As ioctl(SIOCSIFFLAGS).
pub fn raise_loopback() -> io::Result<()> {
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
