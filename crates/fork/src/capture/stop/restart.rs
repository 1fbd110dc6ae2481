//! What becomes of a system call that the stop interrupted, and of a restartable sequence: pure rules on registers.

use farfork_sys::ptrace::Registers;

/// Bytes of the `syscall` instruction.
pub(in crate::capture) const SYSCALL_BYTES: u64 = 2;

const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;
const EINTR: i64 = -4;

/// System calls that end with EINTR at any stop, also one that no signal caused (signal(7)): semop, rt_sigtimedwait,
/// io_getevents, semtimedop, epoll_wait, epoll_pwait, io_pgetevents, epoll_pwait2.
const NEVER_RESTARTED: [u64; 8] = [65, 128, 208, 220, 232, 281, 333, 441];

/// restart_syscall(2), by which the kernel goes on with a call that was interrupted before. Only the thread that was
/// interrupted can make it, and only until its next rt_sigreturn(2): for anyone else it ends with EINTR.
const RESTART_SYSCALL: u64 = 219;

/// What it may stand for: poll, nanosleep, futex, clock_nanosleep.
const RESTARTED_BY_BLOCK: [u64; 4] = [7, 35, 202, 230];

/// Bytes of `mov $NUMBER, %eax; syscall`, as libc and Go's runtime make these calls.
pub(in crate::capture) const CALL_BYTES: usize = 7;
const NUMBER_BYTES: u64 = 5;

/// The registers, with the number of the call that restart_syscall(2) stands for in its place, as the program's own code
/// tells it (`code` reads from an address). Where that is made otherwise, a child's call will end with EINTR.
pub(in crate::capture) fn name_call(
    registers: &Registers,
    code: impl FnOnce(u64) -> Option<[u8; CALL_BYTES]>,
) -> Registers {
    if registers.orig_rax != RESTART_SYSCALL {
        return *registers;
    }
    let about_to = registers.rax == RESTART_SYSCALL;
    let syscall_at = registers.rip.wrapping_sub(if about_to { 0 } else { SYSCALL_BYTES });
    let number = match code(syscall_at.wrapping_sub(NUMBER_BYTES)) {
        Some([0xb8, a, b, c, d, 0x0f, 0x05]) => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => RESTART_SYSCALL,
    };
    let is_known = RESTARTED_BY_BLOCK.contains(&number);
    Registers { orig_rax: if is_known { number } else { RESTART_SYSCALL }, ..*registers }
}

/// Whether a thread that was stopped is in a system call, interrupted or not.
pub(in crate::capture) fn is_in_call(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0
}

/// Registers with which an interrupted call is made again; `None` if the thread was in no such call.
fn again(registers: &Registers, results: &[i64]) -> Option<Registers> {
    (is_in_call(registers) && results.contains(&(registers.rax as i64))).then(|| Registers {
        rax: registers.orig_rax,
        rip: registers.rip.wrapping_sub(SYSCALL_BYTES),
        orig_rax: u64::MAX,
        ..*registers
    })
}

/// The parent's registers: a call that the stop alone ended with EINTR is made again. All other restarts are left to
/// the kernel, which does them when the thread goes on, and knows about signals that came meanwhile.
///
/// `signal_waits`: a signal that the thread does not block is pending, so that EINTR is the right answer.
pub(in crate::capture) fn for_parent(registers: &Registers, signal_waits: bool) -> Registers {
    let never_restarted = NEVER_RESTARTED.contains(&registers.orig_rax);
    if never_restarted && !signal_waits {
        return again(registers, &[EINTR]).unwrap_or(*registers);
    }
    *registers
}

/// A child's registers: as the parent's, and calls that the kernel would have restarted are made again; a kernel that
/// did not see them begin has nothing to restart. Relative sleeps start anew with their full time.
pub(in crate::capture) fn for_child(parent: &Registers) -> Registers {
    const RESTARTED: [i64; 4] = [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK];
    // The kernel had prepared its restart already: only the number is not one for the child.
    let about_to = parent.rax == RESTART_SYSCALL && RESTARTED_BY_BLOCK.contains(&parent.orig_rax);
    if about_to {
        return Registers { rax: parent.orig_rax, orig_rax: u64::MAX, ..*parent };
    }
    let child = again(parent, &RESTARTED).unwrap_or(*parent);
    Registers { orig_rax: u64::MAX, ..child }
}

/// A restartable sequence under way, as `struct rseq_cs` describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::capture) struct Sequence {
    start: u64,
    bytes: u64,
    abort: u64,
}

/// Bytes of `struct rseq_cs`.
pub(in crate::capture) const SEQUENCE_BYTES: usize = 32;

impl Sequence {
    /// Reads `struct rseq_cs`.
    pub(in crate::capture) fn parse(bytes: &[u8; SEQUENCE_BYTES]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        Self { start: word(8), bytes: word(16), abort: word(24) }
    }

    /// A thread that was stopped inside the sequence goes on at its abort handler.
    pub(in crate::capture) fn abort(&self, registers: &Registers) -> Registers {
        let inside = registers.rip.wrapping_sub(self.start) < self.bytes;
        Registers { rip: if inside { self.abort } else { registers.rip }, ..*registers }
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
    fn an_epoll_wait_ended_by_the_stop_is_made_again() {
        let again = for_parent(&stopped(EPOLL_WAIT, EINTR), false);
        assert_eq!((again.rax, again.rip), (EPOLL_WAIT, 0x1000));
        assert_eq!(for_child(&again).rip, 0x1000);
    }

    #[test]
    fn an_epoll_wait_ended_by_a_signal_keeps_its_result() {
        let signalled = stopped(EPOLL_WAIT, EINTR);
        assert_eq!(for_parent(&signalled, true), signalled);
    }

    #[test]
    fn a_sleep_is_left_to_the_kernel_in_the_parent_and_made_again_in_a_child() {
        let asleep = stopped(NANOSLEEP, ERESTART_RESTARTBLOCK);
        assert_eq!(for_parent(&asleep, false), asleep);
        assert_eq!((for_child(&asleep).rax, for_child(&asleep).rip), (NANOSLEEP, 0x1000));
    }

    #[test]
    fn a_sleep_that_was_restarted_before_is_known_by_its_code() {
        let code = |number: u8| move |_| Some([0xb8, number, 0, 0, 0, 0x0f, 0x05]);
        let again = stopped(RESTART_SYSCALL, ERESTART_RESTARTBLOCK);
        let named = name_call(&again, code(NANOSLEEP as u8));
        assert_eq!((named.orig_rax, named.rax), (NANOSLEEP, again.rax), "the kernel restarts the parent's as before");
        assert_eq!((for_child(&named).rax, for_child(&named).rip), (NANOSLEEP, 0x1000));
        assert_eq!(name_call(&again, code(EPOLL_WAIT as u8)), again, "nothing that could have been restarted so");
        assert_eq!(name_call(&again, |_| None), again);
        let prepared = stopped(NANOSLEEP, RESTART_SYSCALL as i64);
        assert_eq!((for_child(&prepared).rax, for_child(&prepared).rip), (NANOSLEEP, 0x1002));
    }

    #[test]
    fn computing_threads_stay_where_they_are() {
        let computing = stopped(u64::MAX, EINTR);
        assert_eq!((for_parent(&computing, false), for_child(&computing)), (computing, computing));
    }

    #[test]
    fn only_inside_the_sequence_is_it_aborted() {
        let sequence = Sequence { start: 0x1000, bytes: 4, abort: 0x2000 };
        let at = |rip| sequence.abort(&Registers { rip, ..Registers::default() }).rip;
        assert_eq!((at(0xfff), at(0x1000), at(0x1003), at(0x1004)), (0xfff, 0x2000, 0x2000, 0x1004));
    }
}
