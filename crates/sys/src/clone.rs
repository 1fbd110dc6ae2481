//! Processes born into a new pid namespace, or the caller's, and a control group (clone3(2)), by the shortest way from `clone3` to `exec`.
//!
//! The calling process has many threads, so that its copy may do nothing but system calls until it is another program:
//! a lock that another thread held is held for ever in the copy. What the program needs is made ready before.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::pipe::{PipeFlags, pipe_with};

/// Descriptors that an init is given, from number 0 on.
pub const INIT_FDS: usize = 4;
/// Descriptors are first moved here and above, so that placing one cannot overwrite another.
const FDS_APART_MIN: RawFd = 16;
/// Longest wait for the exec of a process just born, in milliseconds: it takes well below one; a machine that swaps
/// may need longer, one that needs seconds is of no use.
const EXEC_MS_MAX: i64 = 5_000;
/// `linux/sched.h`; libc's constant is too narrow for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;
/// Signals are numbered from 1 to this.
const SIGNAL_MAX: libc::c_int = 64;

/// What the first process of a pid namespace shall be.
#[derive(Debug)]
pub struct Init<'a> {
    /// The program, by descriptor (an ELF file; a sealed memfd is well suited).
    pub image: BorrowedFd<'a>,
    /// The program's argument 0.
    pub name: &'a CStr,
    /// Its descriptors 0, 1, 2 and 3. It has no others.
    pub fds: [BorrowedFd<'a>; INIT_FDS],
    /// The control group (v2) to be born in; that of the caller otherwise.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// A process that was started, held by descriptor.
#[derive(Debug)]
pub struct Born {
    /// Its number in the caller's pid namespace.
    pub pid: i32,
    /// Its pidfd.
    pub pidfd: OwnedFd,
}

/// Starts `init` as process 1 of a new pid namespace, in the other namespaces of the calling thread, with a session of
/// its own, default signal dispositions, an empty signal mask, no arguments but its name, and no environment. It is a
/// child of the calling process (exit signal SIGCHLD), which has to [`reap`] it.
///
/// # Errors
/// As clone3(2), dup3(2), execveat(2); `TimedOut` where the exec does not come about. Nothing is left in these cases.
pub fn spawn_init(init: &Init<'_>) -> io::Result<Born> {
    spawn(init, libc::CLONE_NEWPID as u64)
}

/// The same in the pid namespace of the caller.
///
/// # Errors
/// As [`spawn_init`].
pub fn spawn_beside(init: &Init<'_>) -> io::Result<Born> {
    spawn(init, 0)
}

fn spawn(init: &Init<'_>, namespaces: u64) -> io::Result<Born> {
    let apart = |fd: BorrowedFd<'_>| fcntl_dupfd_cloexec(fd, FDS_APART_MIN);
    let image = apart(init.image)?;
    let fds = [apart(init.fds[0])?, apart(init.fds[1])?, apart(init.fds[2])?, apart(init.fds[3])?];
    let (report, low) = pipe_with(PipeFlags::CLOEXEC)?;
    let reporter = apart(low.as_fd())?;
    drop(low); // the pipe ends with its last writer
    let plan = Plan {
        image: image.as_raw_fd(),
        name: init.name,
        fds: [fds[0].as_raw_fd(), fds[1].as_raw_fd(), fds[2].as_raw_fd(), fds[3].as_raw_fd()],
        reporter: reporter.as_raw_fd(),
    };

    let every_signal = block_signals();
    // SAFETY: `become_init` only makes system calls, on memory of this frame, which the copy has for itself.
    let born = unsafe { clone_into(namespaces, init.cgroup, &plan) };
    restore_signals(&every_signal);
    let born = born?;

    drop(reporter);
    match exec_outcome(File::from(report)) {
        Ok(()) => Ok(born),
        Err(error) => {
            let _ = crate::pidfd::send_signal(&born.pidfd, libc::SIGKILL);
            let _ = reap(&born.pidfd, Duration::from_millis(EXEC_MS_MAX as u64));
            Err(error)
        }
    }
}

/// Waits for the end of a child process, at most `limit`, and takes its status, so that its number is free again; tells
/// whether it has ended. A process that is another's child, or was reaped before, is only waited for.
///
/// # Errors
/// As poll(2).
pub fn reap(pidfd: &OwnedFd, limit: Duration) -> io::Result<bool> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    if !crate::pidfd::wait_exit(pidfd, limit)? {
        return Ok(false);
    }
    // ECHILD: not ours to reap.
    let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    Ok(true)
}

/// All that the copy needs, as plain numbers and pointers.
struct Plan<'a> {
    image: RawFd,
    name: &'a CStr,
    fds: [RawFd; INIT_FDS],
    reporter: RawFd,
}

/// # Safety
/// See `become_init`, which the copy runs.
unsafe fn clone_into(namespaces: u64, cgroup: Option<BorrowedFd<'_>>, plan: &Plan<'_>) -> io::Result<Born> {
    let mut pidfd: RawFd = -1;
    // SAFETY: all-zero bytes are a valid clone_args: every field a number, zero for "not used".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = namespaces | libc::CLONE_PIDFD as u64;
    args.pidfd = ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM the copy goes on with this very stack, in memory of its own; `args` and `pidfd` outlive
    // the call. In the copy, the only thread, nothing of libc but raw system calls runs from here on.
    match unsafe { libc::syscall(libc::SYS_clone3, &args, size_of::<libc::clone_args>()) } {
        // SAFETY: this is the copy, with `plan` in its own memory.
        0 => unsafe { become_init(plan) },
        pid if pid > 0 => {
            // SAFETY: clone3 succeeded with CLONE_PIDFD: `pidfd` is a new descriptor that nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Born { pid: pid as i32, pidfd })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// The copy's whole life before it is another program.
///
/// # Safety
/// To be called only in a process just copied, with all signals blocked. It calls nothing that takes a lock, allocates
/// or unwinds: system calls by number, errno in thread-local memory of its own.
unsafe fn become_init(plan: &Plan<'_>) -> ! {
    let argv = [plan.name.as_ptr(), ptr::null()];
    let environment = [ptr::null::<libc::c_char>()];
    // SAFETY: all pointers are to this frame or to `plan`, alive until exec or exit; the descriptors are the copy's.
    unsafe {
        for (number, fd) in plan.fds.iter().enumerate() {
            step(libc::syscall(libc::SYS_dup3, *fd, number, 0), plan.reporter);
        }
        // All others go with the exec, also those that some library opened without close-on-exec.
        let last = libc::c_uint::MAX;
        step(libc::syscall(libc::SYS_close_range, INIT_FDS, last, libc::CLOSE_RANGE_CLOEXEC), plan.reporter);
        step(libc::syscall(libc::SYS_setsid), plan.reporter);
        reset_signals();
        let path = c"".as_ptr();
        let (argv, environment) = (argv.as_ptr(), environment.as_ptr());
        step(
            libc::syscall(libc::SYS_execveat, plan.image, path, argv, environment, libc::AT_EMPTY_PATH),
            plan.reporter,
        );
        libc::_exit(127)
    }
}

/// Ends the copy, with the error number told to the parent, when a system call has failed.
///
/// # Safety
/// As `become_init`.
unsafe fn step(result: libc::c_long, reporter: RawFd) {
    if result >= 0 {
        return;
    }
    // SAFETY: errno is this thread's; the pointer is to this frame; `_exit` runs no handlers.
    unsafe {
        let errno: i32 = *libc::__errno_location();
        libc::syscall(libc::SYS_write, reporter, &errno, size_of::<i32>());
        libc::_exit(127)
    }
}

/// Default dispositions (exec keeps the ignored ones, and Rust ignores SIGPIPE), then an empty mask.
///
/// # Safety
/// As `become_init`.
unsafe fn reset_signals() {
    // The kernel's sigaction: handler, flags, restorer, mask, each a word; zero is SIG_DFL and nothing else set.
    let default = [0_u64; 4];
    let none = 0_u64;
    // SAFETY: the kernel reads four words and one word of this frame; the numbers of signals are 1 to SIGNAL_MAX, and
    // the two that cannot be set give EINVAL.
    unsafe {
        for signal in 1..=SIGNAL_MAX {
            libc::syscall(libc::SYS_rt_sigaction, signal, &default, ptr::null::<u64>(), size_of::<u64>());
        }
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &none, ptr::null::<u64>(), size_of::<u64>());
    }
}

/// Blocks every signal for the calling thread, so that no handler of this process runs in the copy. Gives the old mask.
fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets live on this frame; sigfillset initialises one, pthread_sigmask the other.
    unsafe {
        let mut every: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut every);
        libc::pthread_sigmask(libc::SIG_SETMASK, &every, &mut before);
        before
    }
}

fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: the set was filled in by `block_signals`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

/// What the copy reports: nothing, by the close-on-exec of its end, or an error number.
fn exec_outcome(mut report: File) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec { tv_sec: EXEC_MS_MAX / 1000, tv_nsec: EXEC_MS_MAX % 1000 * 1_000_000 };
    let ready = rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&report, PollFlags::IN)], Some(&limit)))?;
    if ready == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut errno = [0; size_of::<i32>()];
    match report.read(&mut errno)? {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
    }
}
