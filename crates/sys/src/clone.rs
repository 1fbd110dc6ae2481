//! Starts a process in a control group, and in a new pid namespace or the caller's (clone3(2)).
//!
//! The new process shares the caller's memory until its exec. Until then it may only make system calls.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::{DupFlags, dup3, fcntl_dupfd_cloexec};

/// Number of descriptors that a new process gets. They have the numbers 0 to 3.
pub const INIT_FDS: usize = 4;
/// Descriptors are first duplicated to this number or above, so that dup3(2) to a final number cannot overwrite a descriptor
/// that is still needed.
const STAGING_FD_MIN: RawFd = 16;
/// Number of descriptors of an [`FdReservation`]: one for the image, and those of the process.
const RESERVED_FDS: usize = 1 + INIT_FDS;
/// Size of the process's stack until its exec, in bytes. It holds a few frames that make system calls, even without
/// optimisation.
const STACK_BYTES: usize = 32 << 10;
/// Longest wait for the end of a process whose exec failed, in milliseconds. The process exits at once.
const END_MS_MAX: u64 = 5_000;
/// From `linux/sched.h`; libc's constant is too narrow for this value.
const CLONE_INTO_CGROUP: u64 = 1 << 33;
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
/// Signals are numbered from 1 to this number.
const SIGNAL_MAX: libc::c_int = 64;

/// The program of a new process, its descriptors and its control group.
#[derive(Debug)]
pub struct InitProgram<'a> {
    /// The program's file (an ELF file; a sealed memfd is well suited).
    pub image: BorrowedFd<'a>,
    /// The program's argument 0.
    pub name: &'a CStr,
    /// The process's descriptors 0, 1, 2 and 3. The process gets no others.
    pub fds: [BorrowedFd<'a>; INIT_FDS],
    /// The control group (v2) to start in; by default the caller's.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// A process that was started.
#[derive(Debug)]
pub struct SpawnedProcess {
    /// Its process id in the caller's pid namespace.
    pub pid: i32,
    /// Its pidfd.
    pub pidfd: OwnedFd,
}

/// Starts `init` as process 1 of a new pid namespace, in the other namespaces of the calling thread.
///
/// The process has its own session, default signal dispositions, an empty signal mask, no arguments except its name, and no
/// environment. It is a child of the calling process (exit signal SIGCHLD), which must call [`reap_within`].
///
/// # Errors
/// As clone3(2), dup3(2), execveat(2). In these cases no process is left.
pub fn spawn_init(init: &InitProgram<'_>) -> io::Result<SpawnedProcess> {
    spawn(init, libc::CLONE_NEWPID as u64)
}

/// Like [`spawn_init`], but also in a new user namespace, which owns the pid namespace. The user namespace has no id
/// mappings yet, so the program has no privileges in it.
///
/// # Errors
/// As [`spawn_init`].
pub fn spawn_init_in_user_namespace(init: &InitProgram<'_>) -> io::Result<SpawnedProcess> {
    spawn(init, (libc::CLONE_NEWPID | libc::CLONE_NEWUSER) as u64)
}

/// Like [`spawn_init`], but in the pid namespace of the caller.
///
/// # Errors
/// As [`spawn_init`].
pub fn spawn_in_current_namespace(init: &InitProgram<'_>) -> io::Result<SpawnedProcess> {
    spawn(init, 0)
}

// Until its exec, the process uses the caller's memory on its own stack, while the calling thread waits (CLONE_VM,
// CLONE_VFORK). Copying a daemon's page tables would take longer than the rest of the start, and each later write of the
// daemon would cost a page fault. The process may only make system calls, because another thread may hold a lock. So
// `SpawnPlan` holds all data that it needs.
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
    // SAFETY: every signal is blocked. `become_init` only makes system calls, on data that this frame holds until the
    // process has its own memory (exec) or has ended.
    let spawned = unsafe { clone_into(namespaces, init.cgroup, &plan) };
    restore_signals(&every_signal);
    fd_reservation.release();
    let spawned = spawned?;

    // SAFETY: the process that writes `failure` has executed another program or has ended.
    match unsafe { plan.failure.get().read_volatile() } {
        0 => Ok(spawned),
        errno => {
            let _ = reap_within(&spawned.pidfd, Duration::from_millis(END_MS_MAX));
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// Waits at most `limit` for the end of a child process, and reaps it, so that its process id is free again. Returns whether
/// the process has ended. If it is another process's child, or was already reaped, this only waits.
///
/// # Errors
/// As poll(2).
pub fn reap_within(pidfd: &OwnedFd, limit: Duration) -> io::Result<bool> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let take = || waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    // Most processes have already ended.
    if matches!(take(), Ok(Some(_))) {
        return Ok(true);
    }
    if !crate::pidfd::wait_exit(pidfd, limit)? {
        return Ok(false);
    }
    // ECHILD: not our child.
    let _ = take();
    Ok(true)
}

/// Reserved descriptor numbers, which are reused for later processes. Numbers that are reserved early are low, and keep
/// `fds_end` low: a new process copies only the caller's descriptors below `fds_end`.
#[derive(Debug)]
struct FdReservation([OwnedFd; RESERVED_FDS]);

/// Reservations that are not in use.
static FREE_RESERVATIONS: Mutex<Vec<FdReservation>> = Mutex::new(Vec::new());

impl FdReservation {
    /// Takes a free reservation, or makes one, and duplicates the descriptors of `init` to its numbers.
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

    /// One more than the highest reserved number.
    fn end_fd(&self) -> RawFd {
        self.numbers().into_iter().max().map_or(RawFd::MAX, |last| last + 1)
    }

    /// Closes the files of the process by duplicating the image over them, which keeps the numbers reserved.
    fn release(mut self) {
        let [image, fds @ ..] = &mut self.0;
        if fds.iter_mut().all(|fd| dup3(&*image, fd, DupFlags::CLOEXEC).is_ok()) {
            FREE_RESERVATIONS.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
    }
}

/// The signals that this process ignored when it first started another process.
static IGNORED_SIGNALS: OnceLock<u64> = OnceLock::new();

fn ignored_signals() -> u64 {
    let is_ignored = |signal: &libc::c_int| {
        let mut action = [0_u64; 4];
        // A raw system call, because sigaction(3) refuses the C library's two internal signals, which may be ignored as well.
        // SAFETY: the kernel writes its sigaction to this frame: four words, of which the first is the handler. No
        // disposition changes.
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

/// All data that the new process needs until its exec, as plain numbers and pointers.
struct SpawnPlan<'a> {
    image: RawFd,
    name: &'a CStr,
    fds: [RawFd; INIT_FDS],
    /// All needed descriptors are below this number.
    fds_end: RawFd,
    /// Signals that the caller ignores, as a mask.
    ignored: u64,
    /// The error number of the call that failed before the exec; 0 if none did.
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
    // The process shares the caller's descriptor table until close_range(2) gives the process its own table.
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
    // SAFETY: `args`, `pidfd`, `plan` and `stack` outlive the call, which returns here when the process no longer uses this
    // memory. The process begins on the stack's aligned end, and never leaves `become_init`.
    let pid = unsafe { clone3_on_stack(&args, plan) };
    match pid {
        pid if pid > 0 => {
            // SAFETY: clone3 succeeded with CLONE_PIDFD, so `pidfd` is a new descriptor that has no other owner.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(SpawnedProcess { pid: pid as i32, pidfd })
        }
        errno => Err(io::Error::from_raw_os_error(-errno as i32)),
    }
}

/// Calls clone3(2). The new process runs `become_init` on the stack that `args` names. Returns its pid, or a negative error
/// number.
///
/// # Safety
/// `args` must name a stack, and share or copy memory so that `plan` exists in the process.
unsafe fn clone3_on_stack(args: &libc::clone_args, plan: &SpawnPlan<'_>) -> i64 {
    let mut result = libc::SYS_clone3;
    // SAFETY: the caller continues after the call as after any system call; all its registers and its stack are unchanged.
    // The process has the same registers except the stack pointer. It calls a function that does not return.
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
            // `out`, not `lateout`: the kernel overwrites rcx and r11 before `plan` is passed to `become_init`, so `plan`
            // must not be in them.
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

/// The code that the process runs between clone3(2) and its exec.
///
/// # Safety
/// Must be called only in a process just made, with all signals blocked. It calls nothing that takes a lock, allocates or
/// unwinds. Its raw system calls may set errno, which belongs to the waiting thread.
unsafe extern "C" fn become_init(plan: *const SpawnPlan<'_>) -> ! {
    // SAFETY: the thread that made the process waits, so its plan exists.
    let plan = unsafe { &*plan };
    let argv = [plan.name.as_ptr(), ptr::null()];
    let environment = [ptr::null::<libc::c_char>()];
    // SAFETY: all pointers are to this frame or to `plan`, which live until exec or exit. The first call gives the process
    // its own descriptor table.
    unsafe {
        let last = libc::c_uint::MAX;
        exit_on_error(libc::syscall(libc::SYS_close_range, plan.fds_end, last, libc::CLOSE_RANGE_UNSHARE), plan);
        for (number, fd) in plan.fds.iter().enumerate() {
            exit_on_error(libc::syscall(libc::SYS_dup3, *fd, number, 0), plan);
        }
        // Mark all other descriptors close-on-exec, including those that a library opened without this flag.
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

/// If a system call has failed, stores errno in the plan for the waiting thread, and ends the process.
///
/// # Safety
/// As `become_init`.
unsafe fn exit_on_error(result: libc::c_long, plan: &SpawnPlan<'_>) {
    if result >= 0 {
        return;
    }
    // SAFETY: errno belongs to the waiting thread, which does not read `failure` before this process has ended. `_exit` runs
    // no handlers.
    unsafe {
        plan.failure.get().write_volatile(*libc::__errno_location());
        libc::_exit(127)
    }
}

/// Sets default dispositions for the `ignored` signals, then an empty mask. CLONE_CLEAR_SIGHAND and exec leave ignored
/// signals ignored, and Rust ignores SIGPIPE.
///
/// # Safety
/// As `become_init`.
unsafe fn reset_signals(ignored: u64) {
    // The kernel's sigaction: handler, flags, restorer and mask, each a word. All zero is SIG_DFL without flags.
    let default = [0_u64; 4];
    let none = 0_u64;
    // SAFETY: the kernel reads four words and one word of this frame; signal numbers are 1 to SIGNAL_MAX.
    unsafe {
        for signal in (1..=SIGNAL_MAX).filter(|signal| ignored & signal_bit(*signal) != 0) {
            libc::syscall(libc::SYS_rt_sigaction, signal, &default, ptr::null::<u64>(), size_of::<u64>());
        }
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &none, ptr::null::<u64>(), size_of::<u64>());
    }
}

/// Blocks every signal for the calling thread, so that no handler of this process runs in the new process. Returns the old
/// mask.
pub(crate) fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets live on this frame; sigfillset initialises one, pthread_sigmask the other.
    unsafe {
        let mut every: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut every);
        libc::pthread_sigmask(libc::SIG_SETMASK, &every, &mut before);
        before
    }
}

pub(crate) fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: the set was filled in by `block_signals`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}
