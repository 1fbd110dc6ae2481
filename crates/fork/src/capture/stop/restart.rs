//! Rules for a system call or restartable sequence that the stop interrupted. Pure: they map registers to registers.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use farfork_sys::clock;
use farfork_sys::ptrace::{REGISTER_WORDS, Registers};

/// Bytes of the `syscall` instruction.
const SYSCALL_BYTES: u64 = 2;

const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;
const EINTR: i64 = -4;

/// System calls that the kernel ends with EINTR at a stop that no signal caused (signal(7)). In that case they have had no
/// effect.
const NEVER_RESTARTED: [u64; 23] = [
    0, 1, 19, 20, // read, write, readv, writev: of a socket with a time limit
    40, 42, 43, 44, 45, 46, 47, // sendfile, connect, accept, sendto, recvfrom, sendmsg, recvmsg: the same
    275, 276, 288, 299, 307, // splice, tee, accept4, recvmmsg, sendmmsg: the same
    23, 270, 271, // select, pselect6, ppoll: if the remaining time cannot be written
    65, 128, 208, 220, // semop, rt_sigtimedwait, io_getevents, semtimedop
];

/// In addition: epoll_wait, epoll_pwait, io_pgetevents and epoll_pwait2.
const NEVER_RESTARTED_POLLS: [u64; 4] = [232, 281, 333, 441];

/// restart_syscall(2), by which the kernel continues a call that was interrupted before. Only the interrupted thread can
/// make it, and only until its next rt_sigreturn(2). In any other thread it ends with EINTR.
const RESTART_SYSCALL: u64 = 219;

/// The calls that restart_syscall(2) may continue: poll, nanosleep, futex, clock_nanosleep.
const RESTART_BLOCK_CALLS: [u64; 4] = [7, 35, 202, 230];

/// Bytes of `mov $NUMBER, %eax; syscall`, as libc and Go's runtime make these calls.
pub(in crate::capture) const CALL_BYTES: usize = 7;
const NUMBER_BYTES: u64 = 5;

/// Replaces restart_syscall(2) in the registers by the call that it continues, which the program's own code shows (`code`
/// reads from an address). If the code has another form, a child's call ends with EINTR.
pub(in crate::capture) fn resolve_restart(
    registers: &Registers,
    code: impl FnOnce(u64) -> Option<[u8; CALL_BYTES]>,
) -> Registers {
    if call_number(registers) != RESTART_SYSCALL {
        return *registers;
    }
    let about_to = registers.rax == RESTART_SYSCALL;
    let syscall_at = registers.rip.wrapping_sub(if about_to { 0 } else { SYSCALL_BYTES });
    let number = match code(syscall_at.wrapping_sub(NUMBER_BYTES)) {
        Some([0xb8, a, b, c, d, 0x0f, 0x05]) => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => RESTART_SYSCALL,
    };
    let is_known = RESTART_BLOCK_CALLS.contains(&number);
    Registers { orig_rax: if is_known { number } else { RESTART_SYSCALL }, ..*registers }
}

/// A mark in the upper half of the number of a restarted call. The kernel uses the lower half alone, and keeps both halves
/// while the call lasts, even if it is interrupted. So the mark shows whether a thread is still in that call. A mark is
/// never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallMark(u32);

const MARK_SHIFT: u32 = 32;
const NUMBER_MASK: u64 = u32::MAX as u64;

impl CallMark {
    /// Returns a new mark, which no other call has. It has 31 bits, because a negative number means no call. The first mark
    /// differs from process to process.
    pub(crate) fn new() -> Self {
        static NEXT_MARK: OnceLock<AtomicU32> = OnceLock::new();
        let next = NEXT_MARK.get_or_init(|| AtomicU32::new((clock::monotonic_ns() as u32) ^ std::process::id() << 8));
        Self((next.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1)).max(1))
    }

    /// Returns the mark of a thread's call, if it has one.
    pub(crate) fn from_registers(registers: &Registers) -> Option<Self> {
        let mark = (registers.orig_rax >> MARK_SHIFT) as u32;
        (is_in_call(registers) && mark != 0).then_some(Self(mark))
    }

    /// The mark as a number.
    pub(crate) fn to_number(self) -> u32 {
        self.0
    }

    /// Converts a number from [`Self::to_number`] to a mark; `None` if it is not a valid mark.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        (number != 0 && number <= u32::MAX >> 1).then_some(Self(number))
    }

    /// Returns a call number with this mark.
    pub(crate) fn apply_to(self, number: u64) -> u64 {
        number & NUMBER_MASK | u64::from(self.0) << MARK_SHIFT
    }
}

/// Returns the number of the call that a thread is in, without its mark. Outside of calls, returns a number that no call
/// has.
pub(crate) fn call_number(registers: &Registers) -> u64 {
    registers.orig_rax & NUMBER_MASK
}

/// Whether a stopped thread is in a system call, interrupted or not.
pub(crate) fn is_in_call(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0
}

/// Returns registers that repeat an interrupted call; `None` if the thread was not in such a call.
fn restart_registers(registers: &Registers, results: &[i64]) -> Option<Registers> {
    (is_in_call(registers) && results.contains(&(registers.rax as i64))).then(|| Registers {
        rax: call_number(registers),
        rip: registers.rip.wrapping_sub(SYSCALL_BYTES),
        orig_rax: u64::MAX,
        ..*registers
    })
}

/// Whether the stop made a call return EINTR because the kernel never restarts this call.
fn is_cut_short(registers: &Registers) -> bool {
    let number = call_number(registers);
    let is_never_restarted = NEVER_RESTARTED.contains(&number) || NEVER_RESTARTED_POLLS.contains(&number);
    is_in_call(registers) && is_never_restarted && registers.rax as i64 == EINTR
}

/// Whether a thread was stopped in a call that has no result yet: the kernel restarts it, or would end it with EINTR.
pub(crate) fn is_interrupted(registers: &Registers) -> bool {
    const INTERRUPTED_RESULTS: [i64; 5] = [EINTR, ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK];
    is_in_call(registers) && INTERRUPTED_RESULTS.contains(&(registers.rax as i64))
}

/// Whether a call restarts with its whole time limit: [`parent_registers`] makes it restart, or has done so at an earlier
/// stop. If so, farfork must measure the remaining time.
pub(crate) fn restarts_full_timeout(registers: &Registers) -> bool {
    is_cut_short(registers) || CallMark::from_registers(registers).is_some() && is_interrupted(registers)
}

/// Whether the kernel restarts a call with the remaining time, which it does not show.
pub(crate) fn uses_restart_block(registers: &Registers) -> bool {
    is_in_call(registers)
        && CallMark::from_registers(registers).is_none()
        && registers.rax as i64 == ERESTART_RESTARTBLOCK
}

/// Returns the registers with which a thread of the parent resumes. A call that the stop has ended with EINTR gets the
/// result ERESTARTNOHAND, as if the kernel restarted it, and a mark. When the thread resumes, the kernel decides: it repeats
/// the call, or it runs the handler of a signal that arrived after the stop and returns EINTR. All other restarts are left
/// to the kernel, except those of marked calls: a restart by restart_syscall(2) would remove the mark.
pub(crate) fn parent_registers(registers: &Registers) -> Registers {
    if !restarts_full_timeout(registers) {
        return *registers;
    }
    let mark = CallMark::from_registers(registers).unwrap_or_else(CallMark::new);
    Registers { rax: ERESTARTNOHAND as u64, orig_rax: mark.apply_to(registers.orig_rax), ..*registers }
}

/// Converts the parent's registers to a child's. Calls that the kernel would have restarted are repeated, because the
/// child's kernel did not see them begin and cannot restart them. Relative sleeps start again with their full time; with a
/// mark (`StoppedThread::child_state`), the call timer ends them earlier.
///
/// `signal_waits`: a signal is pending that the thread does not block. If so, a call that the kernel restarts only without a
/// signal handler (ERESTARTNOHAND) returns EINTR.
pub(in crate::capture) fn child_registers(parent: &Registers, signal_waits: bool) -> Registers {
    const RESTARTED_RESULTS: [i64; 4] = [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK];
    // The kernel has already prepared the restart: only the call number is wrong for the child.
    let about_to = parent.rax == RESTART_SYSCALL && RESTART_BLOCK_CALLS.contains(&call_number(parent));
    if about_to {
        return Registers { rax: call_number(parent), orig_rax: u64::MAX, ..*parent };
    }
    if is_in_call(parent) && signal_waits && parent.rax as i64 == ERESTARTNOHAND {
        return Registers { rax: EINTR as u64, orig_rax: u64::MAX, ..*parent };
    }
    let child = restart_registers(parent, &RESTARTED_RESULTS).unwrap_or(*parent);
    Registers { orig_rax: u64::MAX, ..child }
}

/// Whether a child's registers repeat the call that the parent's are in.
pub(in crate::capture) fn restarts_call(parent: &Registers, child: &Registers) -> bool {
    is_in_call(parent) && child.rip == parent.rip.wrapping_sub(SYSCALL_BYTES) && child.rax == call_number(parent)
}

/// Returns the site of the marked call that registers are about to make: number, mark, stack pointer and return address.
pub(crate) fn call_site(words: &[u64]) -> Option<(u64, CallMark, u64, u64)> {
    let words: &[u64; REGISTER_WORDS] = words.try_into().ok()?;
    let [rax, rip, rsp] = [10, 16, 19].map(|index: usize| words[index]);
    let mark = CallMark::from_number((rax >> MARK_SHIFT) as u32)?;
    Some((rax & NUMBER_MASK, mark, rsp, rip.wrapping_add(SYSCALL_BYTES)))
}

/// A restartable sequence in progress (`struct rseq_cs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::capture) struct RseqCriticalSection {
    start: u64,
    bytes: u64,
    abort_address: u64,
}

/// Bytes of `struct rseq_cs`.
pub(in crate::capture) const SEQUENCE_BYTES: usize = 32;

impl RseqCriticalSection {
    /// Parses `struct rseq_cs`.
    pub(in crate::capture) fn parse(bytes: &[u8; SEQUENCE_BYTES]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        Self { start: word(8), bytes: word(16), abort_address: word(24) }
    }

    /// Moves a thread that was stopped inside the sequence to its abort handler.
    pub(in crate::capture) fn abort_registers(&self, registers: &Registers) -> Registers {
        let inside = registers.rip.wrapping_sub(self.start) < self.bytes;
        Registers { rip: if inside { self.abort_address } else { registers.rip }, ..*registers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOLL_WAIT: u64 = 232;
    const NANOSLEEP: u64 = 35;

    fn stopped(orig_rax: u64, rax: i64) -> Registers {
        Registers { orig_rax, rax: rax as u64, rip: 0x1002, ..Registers::default() }
    }

    #[test]
    fn an_epoll_wait_ended_by_the_stop_is_restarted() {
        let again = parent_registers(&stopped(EPOLL_WAIT, EINTR));
        assert_eq!((again.rax as i64, call_number(&again), again.rip), (ERESTARTNOHAND, EPOLL_WAIT, 0x1002));
        assert_eq!(parent_registers(&again), again, "the mark stays as long as the call lasts");
        assert_ne!(
            CallMark::from_registers(&parent_registers(&stopped(EPOLL_WAIT, EINTR))),
            CallMark::from_registers(&again)
        );
        let child = child_registers(&again, false);
        assert_eq!((child.rax, child.orig_rax, child.rip), (EPOLL_WAIT, u64::MAX, 0x1000));
    }

    #[test]
    fn an_epoll_wait_ended_by_a_signal_gives_eintr_in_a_child() {
        let child = child_registers(&parent_registers(&stopped(EPOLL_WAIT, EINTR)), true);
        assert_eq!((child.rax as i64, child.rip), (EINTR, 0x1002));
    }

    #[test]
    fn only_calls_without_effect_are_restarted() {
        const CLOSE: u64 = 3;
        let closing = stopped(CLOSE, EINTR);
        assert_eq!(parent_registers(&closing), closing);
        let received = stopped(45, 7);
        assert_eq!(parent_registers(&received), received);
        assert_eq!(parent_registers(&stopped(45, EINTR)).rax as i64, ERESTARTNOHAND);
    }

    #[test]
    fn a_sleep_is_restarted_by_the_kernel_in_the_parent_and_repeated_in_a_child() {
        let asleep = stopped(NANOSLEEP, ERESTART_RESTARTBLOCK);
        assert_eq!(parent_registers(&asleep), asleep);
        assert_eq!((child_registers(&asleep, false).rax, child_registers(&asleep, false).rip), (NANOSLEEP, 0x1000));
    }

    #[test]
    fn a_restarted_sleep_is_recognized_by_its_error_code() {
        let code = |number: u8| move |_| Some([0xb8, number, 0, 0, 0, 0x0f, 0x05]);
        let again = stopped(RESTART_SYSCALL, ERESTART_RESTARTBLOCK);
        let named = resolve_restart(&again, code(NANOSLEEP as u8));
        assert_eq!((named.orig_rax, named.rax), (NANOSLEEP, again.rax), "the parent's call restarts as before");
        assert_eq!((child_registers(&named, false).rax, child_registers(&named, false).rip), (NANOSLEEP, 0x1000));
        assert_eq!(resolve_restart(&again, code(EPOLL_WAIT as u8)), again, "restart_syscall(2) cannot continue it");
        assert_eq!(resolve_restart(&again, |_| None), again);
        let prepared = stopped(NANOSLEEP, RESTART_SYSCALL as i64);
        assert_eq!((child_registers(&prepared, false).rax, child_registers(&prepared, false).rip), (NANOSLEEP, 0x1002));
    }

    #[test]
    fn computing_threads_keep_their_registers() {
        let computing = stopped(u64::MAX, EINTR);
        assert_eq!((parent_registers(&computing), child_registers(&computing, false)), (computing, computing));
    }

    #[test]
    fn an_rseq_section_is_aborted_only_inside_it() {
        let sequence = RseqCriticalSection { start: 0x1000, bytes: 4, abort_address: 0x2000 };
        let at = |rip| sequence.abort_registers(&Registers { rip, ..Registers::default() }).rip;
        assert_eq!((at(0xfff), at(0x1000), at(0x1003), at(0x1004)), (0xfff, 0x2000, 0x2000, 0x1004));
    }
}
