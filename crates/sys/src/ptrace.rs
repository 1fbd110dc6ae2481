//! ptrace(2): stops threads, and reads and sets state that only a tracer can.
//!
//! Each function is one system call; `farfork-fork` decides what to do with a stopped thread. Call all of them from the
//! thread that seized the tracee: the kernel ties a tracee to one tracer thread.

use std::io;
use std::mem::{offset_of, size_of};
use std::ptr;

/// Number of words in the kernel's `user_regs_struct`.
pub const REGISTER_WORDS: usize = 27;

/// `PTRACE_O_TRACESYSGOOD`: distinguishes a system call stop from a SIGTRAP.
pub const OPTION_TRACE_SYSCALL_GOOD: usize = 1;
/// `PTRACE_O_EXITKILL`: the tracee is killed when its tracer ends.
pub const OPTION_EXIT_KILL: usize = 1 << 20;

/// `PTRACE_O_SUSPEND_SECCOMP`: seccomp filters do not apply to the tracee while it is traced; needs CAP_SYS_ADMIN.
pub const OPTION_SUSPEND_SECCOMP: usize = 1 << 21;

/// `PTRACE_EVENT_STOP`: a stop that `interrupt` requested, a group stop, or the first stop of a new thread.
pub const EVENT_STOP: i32 = 128;

/// Size of the kernel's `siginfo_t`, in bytes.
pub const SIGINFO_BYTES: usize = 128;

const NT_PRSTATUS: usize = 1;
const NT_X86_XSTATE: usize = 0x202;
const PTRACE_PEEKSIGINFO: u32 = 0x4209;
const PTRACE_GETSIGMASK: u32 = 0x420a;
const PTRACE_SETSIGMASK: u32 = 0x420b;
const PTRACE_SECCOMP_GET_FILTER: u32 = 0x420c;
const PTRACE_SECCOMP_GET_METADATA: u32 = 0x420d;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: u32 = 0x4211;
/// Size of the largest register set other than the extended state (the bitmap of I/O ports), in bytes.
const REGISTER_SET_BYTES_MAX: usize = 8192;
const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;
const PEEKSIGINFO_SHARED: u32 = 1;

/// Size of the kernel's signal set, in bytes.
const SIGNAL_SET_BYTES: usize = 8;

/// Size of the largest extended state, in bytes: with AMX it has 11 KiB.
const XSTATE_BYTES_MAX: usize = 16 << 10;

/// Number of pending signals requested per call.
const SIGNALS_PER_CALL: usize = 32;

/// General registers, in the layout of the kernel's `user_regs_struct`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as the processor's manual names them")]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// The number of the current system call; −1 for none.
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

impl Registers {
    /// The registers as words, in the kernel's order.
    pub fn to_words(self) -> [u64; REGISTER_WORDS] {
        [
            self.r15,
            self.r14,
            self.r13,
            self.r12,
            self.rbp,
            self.rbx,
            self.r11,
            self.r10,
            self.r9,
            self.r8,
            self.rax,
            self.rcx,
            self.rdx,
            self.rsi,
            self.rdi,
            self.orig_rax,
            self.rip,
            self.cs,
            self.eflags,
            self.rsp,
            self.ss,
            self.fs_base,
            self.gs_base,
            self.ds,
            self.es,
            self.fs,
            self.gs,
        ]
    }
}

/// A thread's registration for restartable sequences, as the kernel stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RseqConfiguration {
    /// Address of the registered area.
    pub address: u64,
    /// Its size, in bytes.
    pub bytes: u32,
    /// Signature before abort handlers.
    pub signature: u32,
}

/// An event that a wait reported for a tracee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceeEvent {
    /// It is in a ptrace stop.
    Stopped {
        /// The signal that the kernel reports for the stop.
        signal: i32,
        /// PTRACE_EVENT_*, or 0.
        event: i32,
    },
    /// It has ended and can no longer be traced.
    Ended,
}

/// Makes a ptrace(2) call. `address` and `data` are numbers, or point to memory that the caller guarantees.
///
/// # Safety
/// `data` (and `address`, for requests that take a pointer there) must be valid for the use that `request` makes of them.
unsafe fn ptrace(request: u32, tid: i32, address: usize, data: usize) -> io::Result<usize> {
    // SAFETY: the caller guarantees both pointers; ptrace itself accesses no other memory of this process.
    let result = unsafe { libc::ptrace(request, tid, ptr::without_provenance_mut::<u8>(address), data) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as usize)
}

/// Makes a ptrace(2) request that takes no pointers.
fn request(request: u32, tid: i32, address: usize, data: usize) -> io::Result<()> {
    debug_assert!(matches!(
        request,
        libc::PTRACE_SEIZE
            | libc::PTRACE_INTERRUPT
            | libc::PTRACE_DETACH
            | libc::PTRACE_CONT
            | libc::PTRACE_SINGLESTEP
            | libc::PTRACE_SYSCALL
            | libc::PTRACE_SETOPTIONS
    ));
    // SAFETY: these requests take numbers only (a signal, options), as asserted above.
    unsafe { ptrace(request, tid, address, data) }.map(drop)
}

/// Becomes the tracer of `tid` without stopping it. `options` are `OPTION_*`.
///
/// # Errors
/// EPERM: it is traced already, or must not be traced; ESRCH: there is no such thread.
pub fn seize(tid: i32, options: usize) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, options)
}

/// Sets the options of a stopped tracee.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee.
pub fn set_options(tid: i32, options: usize) -> io::Result<()> {
    request(libc::PTRACE_SETOPTIONS, tid, 0, options)
}

/// Requests a seized thread to stop. [`wait_any`] reports the stop.
///
/// # Errors
/// ESRCH: it has ended, or is not our tracee.
pub fn interrupt(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Resumes a stopped tracee, with a signal to deliver or 0.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee.
pub fn resume(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as usize)
}

/// Resumes a stopped tracee until it next enters or leaves a system call.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee.
pub fn resume_to_syscall(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, 0)
}

/// Detaches from a stopped tracee.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee.
pub fn detach(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, 0)
}

/// Reads the general registers of a stopped tracee; `None` if it runs 32-bit code.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee.
pub fn read_registers(tid: i32) -> io::Result<Option<Registers>> {
    let mut registers = Registers::default();
    let mut vector = libc::iovec { iov_base: ptr::from_mut(&mut registers).cast(), iov_len: size_of::<Registers>() };
    // SAFETY: `vector` describes `registers`, which consists of words in the kernel's layout and outlives the call.
    unsafe { ptrace(libc::PTRACE_GETREGSET, tid, NT_PRSTATUS, ptr::from_mut(&mut vector).expose_provenance()) }?;
    Ok((vector.iov_len == size_of::<Registers>()).then_some(registers))
}

/// Sets the general registers of a stopped tracee.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee; EIO: a value that user mode must not have.
pub fn write_registers(tid: i32, registers: &Registers) -> io::Result<()> {
    let mut vector =
        libc::iovec { iov_base: ptr::from_ref(registers).cast_mut().cast(), iov_len: size_of::<Registers>() };
    // SAFETY: `vector` describes `registers`, which the kernel only reads.
    unsafe { ptrace(libc::PTRACE_SETREGSET, tid, NT_PRSTATUS, ptr::from_mut(&mut vector).expose_provenance()) }
        .map(drop)
}

/// Reads the extended state (XSAVE format, not compacted) of a stopped tracee.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee.
pub fn read_extended_state(tid: i32) -> io::Result<Vec<u8>> {
    // A buffer on the stack: the heap would grow by this size for each thread.
    let mut state = [0_u8; XSTATE_BYTES_MAX];
    let mut vector = libc::iovec { iov_base: state.as_mut_ptr().cast(), iov_len: state.len() };
    // SAFETY: `vector` describes `state`, which outlives the call.
    unsafe { ptrace(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, ptr::from_mut(&mut vector).expose_provenance()) }?;
    Ok(state[..vector.iov_len].to_vec())
}

/// Reads the mask of blocked signals (bit N−1 is signal N): the mask that applies outside of sigsuspend(2) and similar
/// calls.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee.
pub fn read_signal_mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes SIGNAL_SET_BYTES, the size of `mask`.
    unsafe { ptrace(PTRACE_GETSIGMASK, tid, SIGNAL_SET_BYTES, ptr::from_mut(&mut mask).expose_provenance()) }?;
    Ok(mask)
}

/// Sets the mask of blocked signals.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee.
pub fn write_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads SIGNAL_SET_BYTES, the size of `mask`.
    unsafe { ptrace(PTRACE_SETSIGMASK, tid, SIGNAL_SET_BYTES, ptr::from_ref(&mask).expose_provenance()) }.map(drop)
}

/// Reads the registration for restartable sequences; `None` if there is none, or the kernel has no restartable sequences.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee.
pub fn read_rseq(tid: i32) -> io::Result<Option<RseqConfiguration>> {
    #[repr(C)]
    #[derive(Default)]
    struct RawRseqConfiguration {
        address: u64,
        bytes: u32,
        signature: u32,
        flags: u32,
        pad: u32,
    }
    let mut raw = RawRseqConfiguration::default();
    // SAFETY: the kernel writes at most the given size, which is the size of `raw`.
    let read = unsafe {
        ptrace(
            PTRACE_GET_RSEQ_CONFIGURATION,
            tid,
            size_of::<RawRseqConfiguration>(),
            ptr::from_mut(&mut raw).expose_provenance(),
        )
    };
    match read {
        // The kernel does not know the request (it was built without CONFIG_RSEQ).
        Err(error) if error.raw_os_error() == Some(libc::EIO) => return Ok(None),
        read => read?,
    };
    let registered = raw.address != 0;
    Ok(registered.then_some(RseqConfiguration { address: raw.address, bytes: raw.bytes, signature: raw.signature }))
}

/// Reads the seccomp filter number `index` of a stopped tracee, counted from the oldest (0): its SECCOMP_FILTER_FLAG_*, and
/// its instructions of 8 bytes each. `None` if the tracee has no filter with that number.
///
/// # Errors
/// EACCES without CAP_SYS_ADMIN, or if the caller itself has a filter. EIO if the kernel cannot report filters (it was built
/// without CONFIG_CHECKPOINT_RESTORE).
pub fn read_seccomp_filter(tid: i32, index: usize) -> io::Result<Option<(u32, Vec<u8>)>> {
    const INSTRUCTION_BYTES: usize = 8;
    // SAFETY: without a buffer the kernel returns the number of instructions, and writes nothing.
    let count = match unsafe { ptrace(PTRACE_SECCOMP_GET_FILTER, tid, index, 0) } {
        Ok(count) => count,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut instructions = vec![0_u8; count * INSTRUCTION_BYTES];
    let buffer = instructions.as_mut_ptr().expose_provenance();
    // SAFETY: the tracee is stopped, so the filter still has `count` instructions, and the buffer has room for them.
    unsafe { ptrace(PTRACE_SECCOMP_GET_FILTER, tid, index, buffer) }?;
    let mut metadata = [index as u64, 0];
    let buffer = metadata.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel reads and writes a struct seccomp_metadata of the given size: filter and flags, a word each.
    unsafe { ptrace(PTRACE_SECCOMP_GET_METADATA, tid, size_of_val(&metadata), buffer) }?;
    Ok(Some((metadata[1] as u32, instructions)))
}

/// Reads a register set of a stopped tracee. `note` is the type that the set has in core files (`NT_*`). Empty if the tracee
/// does not use the set.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee; EINVAL or ENODEV: the processor has no such set.
pub fn read_register_set(tid: i32, note: usize) -> io::Result<Vec<u8>> {
    let mut set = vec![0_u8; REGISTER_SET_BYTES_MAX];
    let mut vector = libc::iovec { iov_base: set.as_mut_ptr().cast(), iov_len: set.len() };
    // SAFETY: `vector` describes `set`, which outlives the call.
    unsafe { ptrace(libc::PTRACE_GETREGSET, tid, note, ptr::from_mut(&mut vector).expose_provenance()) }?;
    set.truncate(vector.iov_len);
    Ok(set)
}

/// Reads the syscall user dispatch of a stopped tracee (prctl(2), PR_SET_SYSCALL_USER_DISPATCH): mode, address of the
/// selector, and offset and length of the exempt range.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee; EIO: the kernel does not report it (before Linux 6.4).
pub fn read_user_dispatch(tid: i32) -> io::Result<[u64; 4]> {
    let mut words = [0_u64; 4];
    let buffer = ptr::from_mut(&mut words).expose_provenance();
    // SAFETY: the kernel writes the given size, which is the size of `words`.
    unsafe { ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, size_of_val(&words), buffer) }?;
    Ok(words)
}

/// A queue of pending signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalQueue {
    /// Signals that were sent to the thread.
    Thread,
    /// Signals that were sent to the process.
    Process,
}

/// Reads pending signals in order of arrival, and leaves them pending.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee.
pub fn read_pending_signals(tid: i32, queue: SignalQueue) -> io::Result<Vec<[u8; SIGINFO_BYTES]>> {
    #[repr(C)]
    struct PeekSiginfoArguments {
        offset: u64,
        flags: u32,
        count: i32,
    }
    let flags = if queue == SignalQueue::Process { PEEKSIGINFO_SHARED } else { 0 };
    let mut signals = Vec::new();
    loop {
        let mut batch = [[0_u8; SIGINFO_BYTES]; SIGNALS_PER_CALL];
        let arguments = PeekSiginfoArguments { offset: signals.len() as u64, flags, count: SIGNALS_PER_CALL as i32 };
        // SAFETY: the kernel reads `arguments` and writes at most `count` siginfo_t, for which `batch` has room.
        let read = unsafe {
            ptrace(
                PTRACE_PEEKSIGINFO,
                tid,
                ptr::from_ref(&arguments).expose_provenance(),
                batch.as_mut_ptr().expose_provenance(),
            )
        }?;
        signals.extend_from_slice(&batch[..read]);
        if read < SIGNALS_PER_CALL {
            return Ok(signals);
        }
    }
}

/// Whether a task in an [`EVENT_STOP`] was also stopped by a signal. Such a task stays stopped when the tracer detaches.
///
/// # Errors
/// ESRCH: it is not stopped, or not our tracee.
pub fn is_stopped_by_signal(tid: i32) -> io::Result<bool> {
    const PTRACE_GETSIGINFO: u32 = 0x4202;
    const STOPS: std::ops::RangeInclusive<i32> = libc::SIGSTOP..=libc::SIGTTOU;
    let mut info = [0_u8; SIGINFO_BYTES];
    // SAFETY: the kernel writes one siginfo_t, for which `info` has room.
    unsafe { ptrace(PTRACE_GETSIGINFO, tid, 0, info.as_mut_ptr().expose_provenance()) }?;
    Ok(STOPS.contains(&i32::from_ne_bytes([info[0], info[1], info[2], info[3]])))
}

/// Whether a wait sleeps until there is an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitMode {
    /// Returns at once.
    NoWait,
    /// Sleeps until an event or a signal: see [`crate::syscall_alarm`].
    Block,
}

/// Returns the next event of any tracee of the calling thread; `None` if there is no event now, or if a signal interrupted
/// the wait. The end of a tracee is reported until [`reap`] collects it. The end is not collected here, because the tracee
/// may be a child of this process. Then the code that waits for children needs the status.
///
/// # Errors
/// ECHILD: the calling thread has no tracee.
pub fn wait_any(wait_mode: WaitMode) -> io::Result<Option<(i32, TraceeEvent)>> {
    let seen = match wait_mode {
        WaitMode::NoWait => wait_id(libc::P_ALL, 0, libc::WSTOPPED | libc::WNOHANG),
        WaitMode::Block => wait_id(libc::P_ALL, 0, libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT),
    };
    match (seen, wait_mode) {
        (Ok(Some((tid, TraceeEvent::Stopped { .. }))), WaitMode::Block) => {
            // Collect the stop. If the tracee has been killed since, the next call reports its end.
            Ok(wait_id(libc::P_PID, tid, libc::WSTOPPED | libc::WNOHANG).unwrap_or(None))
        }
        (Ok(Some(report)), _) => Ok(Some(report)),
        (Err(signal), _) if signal.kind() == io::ErrorKind::Interrupted => Ok(None),
        (Err(none), WaitMode::Block) => Err(none),
        // The kernel also returns ECHILD if the only remaining events are ends.
        (_, WaitMode::NoWait) => {
            let seen = wait_id(libc::P_ALL, 0, libc::WEXITED | libc::WNOWAIT | libc::WNOHANG)?;
            // The next call reports a stop that occurred between the two calls.
            Ok(seen.filter(|(_, report)| *report == TraceeEvent::Ended))
        }
        (Ok(None), WaitMode::Block) => Ok(None),
    }
}

/// Returns a stop of any tracee of the calling thread, without waiting. Makes one system call; [`wait_any`] may make two.
pub fn poll_stop() -> Option<(i32, TraceeEvent)> {
    wait_id(libc::P_ALL, 0, libc::WSTOPPED | libc::WNOHANG).ok().flatten()
}

/// Collects the end of a tracee of the calling thread; returns whether the tracee has ended. Never waits.
///
/// # Errors
/// ECHILD: it is not (or no longer) a tracee of the calling thread.
pub fn reap(tid: i32) -> io::Result<bool> {
    Ok(matches!(wait_id(libc::P_PID, tid, libc::WEXITED | libc::WNOHANG)?, Some((_, TraceeEvent::Ended))))
}

/// Calls waitid(2) for tracees of the calling thread. The kernel reports stops to a tracer even without WSTOPPED.
fn wait_id(which: libc::idtype_t, id: i32, flags: i32) -> io::Result<Option<(i32, TraceeEvent)>> {
    let options = flags | libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: all zeroes is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one siginfo_t.
    if unsafe { libc::waitid(which, id.cast_unsigned(), &mut info, options) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid fills the fields of SIGCHLD, or leaves the zeroes if there was nothing to report.
    let (tid, status) = unsafe { (info.si_pid(), info.si_status()) };
    let report = match info.si_code {
        libc::CLD_TRAPPED | libc::CLD_STOPPED => TraceeEvent::Stopped { signal: status & 0xff, event: status >> 8 },
        _ => TraceeEvent::Ended,
    };
    Ok((tid != 0).then_some((tid, report)))
}

const _: () = assert!(size_of::<Registers>() == REGISTER_WORDS * 8);
const _: () = assert!(offset_of!(Registers, rip) == 16 * 8 && offset_of!(Registers, fs_base) == 21 * 8);
