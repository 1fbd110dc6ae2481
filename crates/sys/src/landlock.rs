//! Landlock (landlock(7)): whether the kernel enforces it, and processes with which a thread can find out whether a domain
//! confines it.
//!
//! The kernel does not report domains. A confined thread may not inspect a process outside of its domain: kcmp(2) of such a
//! process fails with EPERM. Other rights must not fail first, so the process has the thread's user and no capabilities.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

use crate::clone::{block_signals, restore_signals};

/// Whether the kernel enforces Landlock. Without it, no thread is confined.
pub fn is_enabled() -> bool {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;
    static IS_ENABLED: OnceLock<bool> = OnceLock::new();
    // SAFETY: with this flag, the call takes no pointer and only returns a version.
    *IS_ENABLED.get_or_init(|| unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::null::<c_void>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        ) > 0
    })
}

/// Size of each of the two stacks on which a reference process runs, in bytes. It only makes system calls.
const STACK_BYTES: usize = 32 << 10;

type Stack = [MaybeUninit<u128>; STACK_BYTES / size_of::<u128>()];

/// An ended process (a zombie) with a given user and group, without supplementary groups and capabilities, and without a
/// Landlock domain unless the calling process has one. Drop reaps it; until then its pid is not reused.
#[derive(Debug)]
pub struct ReferenceProcess {
    pid: i32,
    /// The thread that made the process, and reaps it when this channel is closed. Other threads may wait for any child of
    /// their own.
    holder: Option<(Sender<()>, JoinHandle<()>)>,
}

/// User and group of a [`ReferenceProcess`], as seen in its user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReferenceIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// All data that the new processes need, as plain numbers and pointers.
struct ReferencePlan {
    pidfd: RawFd,
    /// CLONE_NEW* flags of the namespaces to enter.
    namespaces: libc::c_int,
    ids: ReferenceIds,
    stack: *mut Stack,
    /// Pid of the process, or a negative error number.
    pid: i32,
    /// Error number of the reference process; 0 for none.
    failure: i32,
}

impl ReferenceProcess {
    /// Starts a process in the pid namespace of `target`, and in its user namespace if `enters_users`. Waits until it has
    /// ended.
    ///
    /// # Errors
    /// As setns(2), clone(2), setresuid(2), capset(2).
    pub fn start(target: OwnedFd, enters_users: bool, ids: ReferenceIds) -> io::Result<Self> {
        let (pid_sender, pid_receiver) = mpsc::channel();
        let (holder_sender, holder_receiver) = mpsc::channel();
        let hold = move || {
            let started = start_zombie(target.as_fd(), enters_users, ids);
            let pid = started.as_ref().ok().copied();
            // The receiver waits for this message, and closes the other channel at the end.
            let _ = pid_sender.send(started);
            let _ = holder_receiver.recv();
            pid.map(reap);
        };
        let holder = thread::Builder::new().name("landlock-probe".to_owned()).spawn(hold)?;
        let pid = pid_receiver.recv().map_err(|_| io::ErrorKind::BrokenPipe)??;
        Ok(Self { pid, holder: Some((holder_sender, holder)) })
    }

    /// Its pid in the pid namespace of the caller.
    pub fn pid(&self) -> i32 {
        self.pid
    }
}

impl Drop for ReferenceProcess {
    fn drop(&mut self) {
        if let Some((sender, holder)) = self.holder.take() {
            drop(sender);
            let _ = holder.join();
        }
    }
}

/// Makes the zombie, a child of the calling thread. Returns its pid.
fn start_zombie(target: BorrowedFd<'_>, enters_users: bool, ids: ReferenceIds) -> io::Result<i32> {
    /// A new process shares this memory, and makes it undumpable for a moment by its change of credentials. The kernel would
    /// then forbid threads without privileges to inspect another process that ends at this time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the call takes numbers only.
    let dumpable = unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) };
    let namespaces = libc::CLONE_NEWPID | if enters_users { libc::CLONE_NEWUSER } else { 0 };
    let mut inner: Box<Stack> = Box::new([const { MaybeUninit::uninit() }; STACK_BYTES / size_of::<u128>()]);
    let mut outer: Box<Stack> = Box::new([const { MaybeUninit::uninit() }; STACK_BYTES / size_of::<u128>()]);
    let stack = ptr::from_mut(inner.as_mut());
    let mut plan = ReferencePlan { pidfd: target.as_raw_fd(), namespaces, ids, stack, pid: 0, failure: 0 };
    let every_signal = block_signals();
    // SAFETY: all signals are blocked. Both functions only make system calls, on `plan` and the two stacks, which live until
    // the processes have ended: CLONE_VFORK delays this thread until then, and each stack has one user.
    let intermediate = unsafe {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::SIGCHLD;
        let stack = stack_end(ptr::from_mut(outer.as_mut()));
        libc::clone(enter_namespaces, stack, flags, ptr::from_mut(&mut plan).cast())
    };
    let cloned = if intermediate < 0 { Err(io::Error::last_os_error()) } else { Ok(intermediate) };
    restore_signals(&every_signal);
    cloned.and_then(reap)?;
    if plan.pid < 0 {
        return Err(io::Error::from_raw_os_error(-plan.pid));
    }
    // When clone(2) returns, the process may still have this memory. A zombie has none.
    let ended = wait_end(plan.pid, WaitIdOptions::NOWAIT);
    // SAFETY: the call takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, dumpable, 0, 0, 0) };
    let failed = (plan.failure != 0).then(|| io::Error::from_raw_os_error(plan.failure));
    ended.and(failed.map_or(Ok(()), Err)).inspect_err(|_| drop(reap(plan.pid)))?;
    Ok(plan.pid)
}

/// Opens a pidfd of a process.
///
/// # Errors
/// ESRCH: it has ended.
pub fn open_target(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn reap(pid: i32) -> io::Result<()> {
    wait_end(pid, WaitIdOptions::empty())
}

fn wait_end(pid: i32, options: WaitIdOptions) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | options) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(drop).map_err(io::Error::from),
        }
    }
}

fn stack_end(stack: *mut Stack) -> *mut c_void {
    stack.wrapping_add(1).cast()
}

/// The intermediate: enters the namespaces and starts the reference process as a child of its own parent.
///
/// # Safety
/// Runs only in a process just made, with all signals blocked, while the thread that made it waits. Allocates nothing and
/// takes no lock.
extern "C" fn enter_namespaces(plan: *mut c_void) -> libc::c_int {
    // SAFETY: the waiting thread passed a `ReferencePlan` that it does not use now. The stack has no other user. errno
    // belongs to the waiting thread.
    unsafe {
        let plan = plan.cast::<ReferencePlan>();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT | libc::SIGCHLD;
        let entered = libc::syscall(libc::SYS_setns, (*plan).pidfd, (*plan).namespaces);
        let cloned =
            if entered < 0 { -1 } else { libc::clone(take_identity, stack_end((*plan).stack), flags, plan.cast()) };
        (*plan).pid = if cloned < 0 { -*libc::__errno_location() } else { cloned };
    }
    0
}

/// The reference process: takes the ids, drops all capabilities and ends.
///
/// # Safety
/// As [`enter_namespaces`].
extern "C" fn take_identity(plan: *mut c_void) -> libc::c_int {
    const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    // SAFETY: as in `enter_namespaces`. The calls change this process only: they are raw, so the C library does not repeat
    // them in other threads.
    unsafe {
        let plan = plan.cast::<ReferencePlan>();
        let ReferenceIds { uid, gid } = (*plan).ids;
        let (header, no_capabilities) = ([CAPABILITY_VERSION_3, 0], [0_u32; 6]);
        let is_done = libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
            && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
            && libc::syscall(libc::SYS_capset, header.as_ptr(), no_capabilities.as_ptr()) == 0
            // A change of credentials makes a process undumpable.
            && libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
        (*plan).failure = if is_done { 0 } else { *libc::__errno_location() };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_process_has_the_ids_and_no_capability() {
        let own = open_target(std::process::id().cast_signed()).unwrap();
        let ids = ReferenceIds { uid: 1234, gid: 5678 };
        let reference = ReferenceProcess::start(own, false, ids).unwrap();
        let status = crate::process::ProcStatus::read(reference.pid()).unwrap();
        assert_eq!((status.uids, status.gids), ([1234; 4], [5678; 4]));
        assert_eq!(status.capabilities[..3], [0; 3]);
        assert!(status.state.starts_with('Z'), "{}", status.state);
        // SAFETY: the call takes numbers only.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) }, 1, "this process stays dumpable");
        let pid = reference.pid();
        drop(reference);
        assert!(crate::process::ProcStatus::read(pid).is_err(), "it is reaped");
    }
}
