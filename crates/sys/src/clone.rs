//! Starts a process in a new pid namespace, or the caller's, and a control group (clone3(2)).
//!
//! Takes the shortest way from `clone3` to `exec`: the new process shares the caller's memory until it runs its
//! program. Until then it may only make system calls. See [`spawn_init`].

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::{DupFlags, dup3, fcntl_dupfd_cloexec};

/// Descriptors that an init is given, from number 0 on.
pub const INIT_FDS: usize = 4;
/// Descriptors are first moved here and above, so that placing one cannot overwrite another.
const STAGING_FD_MIN: RawFd = 16;
/// As many are used of a berth: the image, and the process's own.
const RESERVED_FDS: usize = 1 + INIT_FDS;
/// The process's stack until its exec, in bytes: some frames that make system calls, unoptimised.
const STACK_BYTES: usize = 32 << 10;
/// Longest wait for a process whose exec failed to be gone, in milliseconds: it ends at once.
const END_MS_MAX: u64 = 5_000;
/// `linux/sched.h`; libc's constant is too narrow for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
/// Signals are numbered from 1 to this.
const SIGNAL_MAX: libc::c_int = 64;

/// What the first process of a pid namespace shall be.
#[derive(Debug)]
pub struct InitProgram<'a> {
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
pub struct SpawnedProcess {
    /// Its number in the caller's pid namespace.
    pub pid: i32,
    /// Its pidfd.
    pub pidfd: OwnedFd,
}

/// Starts `init` as process 1 of a new pid namespace, in the other namespaces of the calling thread, with a session of
/// its own, default signal dispositions, an empty signal mask, no arguments but its name, and no environment. It is a
/// child of the calling process (exit signal SIGCHLD), which has to [`reap_within`] it.
///
/// # Errors
/// As clone3(2), dup3(2), execveat(2). Nothing is left in these cases.
pub fn spawn_init(init: &InitProgram<'_>) -> io::Result<SpawnedProcess> {
    spawn(init, libc::CLONE_NEWPID as u64)
}

/// The same in a user namespace of its own besides, which owns the pid namespace, and has no numbers yet: the program has no
/// rights in it.
///
/// # Errors
/// As [`spawn_init`].
pub fn spawn_init_in_user_namespace(init: &InitProgram<'_>) -> io::Result<SpawnedProcess> {
    spawn(init, (libc::CLONE_NEWPID | libc::CLONE_NEWUSER) as u64)
}

/// The same in the pid namespace of the caller.
///
/// # Errors
/// As [`spawn_init`].
pub fn spawn_in_current_namespace(init: &InitProgram<'_>) -> io::Result<SpawnedProcess> {
    spawn(init, 0)
}

// Until its exec, the process uses the caller's memory on a stack of its own, while the calling thread waits
// (CLONE_VM, CLONE_VFORK). To copy a daemon's memory would take longer than everything else, and each later write
// to it would cost a fault too. The process may only make system calls: another thread may hold any lock for long.
// So everything that the program needs is prepared before.
fn spawn(init: &InitProgram<'_>, namespaces: u64) -> io::Result<SpawnedProcess> {
    let fd_reservation = FdReservation::fill(init)?;
    let [image, fds @ ..] = fd_reservation.numbers();
    let plan = SpawnPlan {
        image,
        name: init.name,
        fds,
        fds_end: fd_reservation.end_fd(),
        ignored: *IGNORED_SIGNALS.get_or_init(ignored_signals),
        failure: UnsafeCell::new(0),
    };

    let every_signal = block_signals();
    // SAFETY: every signal is blocked, and `become_init` only makes system calls, on what this frame holds until it has
    // another program's memory, or has ended.
    let spawned = unsafe { clone_into(namespaces, init.cgroup, &plan) };
    restore_signals(&every_signal);
    fd_reservation.release();
    let spawned = spawned?;

    // SAFETY: the process that wrote there runs another program now, or none.
    match unsafe { plan.failure.get().read_volatile() } {
        0 => Ok(spawned),
        errno => {
            let _ = reap_within(&spawned.pidfd, Duration::from_millis(END_MS_MAX));
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// Waits for the end of a child process, at most `limit`, and takes its status, so that its number is free again; tells
/// whether it has ended. A process that is another's child, or was reaped before, is only waited for.
///
/// # Errors
/// As poll(2).
pub fn reap_within(pidfd: &OwnedFd, limit: Duration) -> io::Result<bool> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let take = || waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    // Most that are reaped have ended already.
    if matches!(take(), Ok(Some(_))) {
        return Ok(true);
    }
    if !crate::pidfd::wait_exit(pidfd, limit)? {
        return Ok(false);
    }
    // ECHILD: not ours to reap.
    let _ = take();
    Ok(true)
}

/// Numbers of descriptors, kept from the first process on that is started: whoever is born copies only these of all that its maker has
/// open, and what is below them.
#[derive(Debug)]
struct FdReservation([OwnedFd; RESERVED_FDS]);

/// Those that nobody is in.
static FREE_RESERVATIONS: Mutex<Vec<FdReservation>> = Mutex::new(Vec::new());

impl FdReservation {
    /// One with the descriptors of `init`.
    fn fill(init: &InitProgram<'_>) -> io::Result<Self> {
        let free = FREE_RESERVATIONS.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut fd_reservation = free.map_or_else(|| Self::new(init.image), Ok)?;
        dup3(init.image, &mut fd_reservation.0[0], DupFlags::CLOEXEC)?;
        for (reserved, fd) in fd_reservation.0[1..].iter_mut().zip(init.fds) {
            dup3(fd, reserved, DupFlags::CLOEXEC)?;
        }
        Ok(fd_reservation)
    }

    fn new(source: BorrowedFd<'_>) -> io::Result<Self> {
        let new = || fcntl_dupfd_cloexec(source, STAGING_FD_MIN);
        Ok(Self([new()?, new()?, new()?, new()?, new()?]))
    }

    fn numbers(&self) -> [RawFd; RESERVED_FDS] {
        self.0.each_ref().map(AsRawFd::as_raw_fd)
    }

    /// The number after its last.
    fn end_fd(&self) -> RawFd {
        self.numbers().into_iter().max().map_or(RawFd::MAX, |last| last + 1)
    }

    /// Lets go of what is in it, and keeps its numbers.
    fn release(mut self) {
        let [image, fds @ ..] = &mut self.0;
        if fds.iter_mut().all(|fd| dup3(&*image, fd, DupFlags::CLOEXEC).is_ok()) {
            FREE_RESERVATIONS.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
    }
}

/// Signals that this process ignores, as it did when it first started another.
static IGNORED_SIGNALS: OnceLock<u64> = OnceLock::new();

fn ignored_signals() -> u64 {
    let is_ignored = |signal: &libc::c_int| {
        let mut action = [0_u64; 4];
        // By number: the C library hides the two that are its own, which may be ignored as well.
        // SAFETY: the kernel writes its sigaction, four words, of which the first is the handler, to this frame; nothing is set.
        let result = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, *signal, ptr::null::<u64>(), action.as_mut_ptr(), size_of::<u64>())
        };
        result == 0 && action[0] == libc::SIG_IGN as u64
    };
    (1..=SIGNAL_MAX).filter(is_ignored).fold(0, |signals, signal| signals | signal_bit(signal))
}

fn signal_bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// All that the process needs, as plain numbers and pointers.
struct SpawnPlan<'a> {
    image: RawFd,
    name: &'a CStr,
    fds: [RawFd; INIT_FDS],
    /// None that it needs is here or above.
    fds_end: RawFd,
    /// Signals that are ignored where it is made.
    ignored: u64,
    /// The error number of what failed before the exec; 0 for nothing.
    failure: UnsafeCell<i32>,
}

/// # Safety
/// See `become_init`, which the process runs.
unsafe fn clone_into(
    namespaces: u64,
    cgroup: Option<BorrowedFd<'_>>,
    plan: &SpawnPlan<'_>,
) -> io::Result<SpawnedProcess> {
    let mut pidfd: RawFd = -1;
    let mut stack = [const { MaybeUninit::<u128>::uninit() }; STACK_BYTES / size_of::<u128>()];
    // SAFETY: all-zero bytes are a valid clone_args: every field a number, zero for "not used".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    // The table of descriptors is shared until the process has its own, with what it needs.
    args.flags = namespaces | (libc::CLONE_PIDFD | libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES) as u64;
    args.flags |= CLONE_CLEAR_SIGHAND;
    args.pidfd = ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.stack = stack.as_mut_ptr() as u64;
    args.stack_size = STACK_BYTES as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: `args`, `pidfd`, `plan` and `stack` outlive the call, which returns here when the process has given this
    // memory up. The process begins on the stack's aligned end, and never leaves `become_init`.
    let pid = unsafe { clone3_on_stack(&args, plan) };
    match pid {
        pid if pid > 0 => {
            // SAFETY: clone3 succeeded with CLONE_PIDFD: `pidfd` is a new descriptor that nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(SpawnedProcess { pid: pid as i32, pidfd })
        }
        errno => Err(io::Error::from_raw_os_error(-errno as i32)),
    }
}

/// clone3(2) of a process that runs `become_init` on the stack that `args` names. Gives its number, or a negative error number.
///
/// # Safety
/// `args` must ask for a stack, and share or copy memory such that `plan` is there.
unsafe fn clone3_on_stack(args: &libc::clone_args, plan: &SpawnPlan<'_>) -> i64 {
    let mut result = libc::SYS_clone3;
    // SAFETY: the caller goes on behind the call as after any system call, all of its registers and its stack as they were. The
    // process has the same registers but for the stack: it calls a function that does not return.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {plan}",
            "call {become_init}",
            "ud2",
            "2:",
            plan = in(reg) ptr::from_ref(plan),
            become_init = sym become_init,
            inlateout("rax") result,
            in("rdi") ptr::from_ref(args),
            in("rsi") size_of::<libc::clone_args>(),
            // Not late: the kernel spoils them before what is passed to the process is used there.
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

/// The process's whole life before it is another program.
///
/// # Safety
/// To be called only in a process just made, with all signals blocked. It calls nothing that takes a lock, allocates
/// or unwinds: system calls by number, errno in memory of a thread that waits.
unsafe extern "C" fn become_init(plan: *const SpawnPlan<'_>) -> ! {
    // SAFETY: whoever made the process waits with it in hand.
    let plan = unsafe { &*plan };
    let argv = [plan.name.as_ptr(), ptr::null()];
    let environment = [ptr::null::<libc::c_char>()];
    // SAFETY: all pointers are to this frame or to `plan`, alive until exec or exit; the table of descriptors is the process's, once it has
    // one of its own.
    unsafe {
        let last = libc::c_uint::MAX;
        exit_on_error(libc::syscall(libc::SYS_close_range, plan.fds_end, last, libc::CLOSE_RANGE_UNSHARE), plan);
        for (number, fd) in plan.fds.iter().enumerate() {
            exit_on_error(libc::syscall(libc::SYS_dup3, *fd, number, 0), plan);
        }
        // All others go with the exec, also those that some library opened without close-on-exec.
        exit_on_error(libc::syscall(libc::SYS_close_range, INIT_FDS, last, libc::CLOSE_RANGE_CLOEXEC), plan);
        exit_on_error(libc::syscall(libc::SYS_setsid), plan);
        reset_signals(plan.ignored);
        let path = c"".as_ptr();
        let (argv, environment) = (argv.as_ptr(), environment.as_ptr());
        exit_on_error(
            libc::syscall(libc::SYS_execveat, plan.image, path, argv, environment, libc::AT_EMPTY_PATH),
            plan,
        );
        libc::_exit(127)
    }
}

/// Ends the process, with the error number left for whoever made it, when a system call has failed.
///
/// # Safety
/// As `become_init`.
unsafe fn exit_on_error(result: libc::c_long, plan: &SpawnPlan<'_>) {
    if result >= 0 {
        return;
    }
    // SAFETY: errno is the waiting thread's, which does not read `failure` before this process has ended; `_exit` runs no
    // handlers.
    unsafe {
        plan.failure.get().write_volatile(*libc::__errno_location());
        libc::_exit(127)
    }
}

/// Default dispositions of the `ignored` ones (CLONE_CLEAR_SIGHAND and exec leave these, and Rust ignores SIGPIPE), then an empty mask.
///
/// # Safety
/// As `become_init`.
unsafe fn reset_signals(ignored: u64) {
    // The kernel's sigaction: handler, flags, restorer, mask, each a word; zero is SIG_DFL and nothing else set.
    let default = [0_u64; 4];
    let none = 0_u64;
    // SAFETY: the kernel reads four words and one word of this frame; the numbers of signals are 1 to SIGNAL_MAX.
    unsafe {
        for signal in (1..=SIGNAL_MAX).filter(|signal| ignored & signal_bit(*signal) != 0) {
            libc::syscall(libc::SYS_rt_sigaction, signal, &default, ptr::null::<u64>(), size_of::<u64>());
        }
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &none, ptr::null::<u64>(), size_of::<u64>());
    }
}

/// Blocks every signal for the calling thread, so that no handler of this process runs in the new one. Gives the old mask.
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
