//! A script is a list of system calls in a thread's memory. `CODE` makes all of them in one run.
//!
//! `InjectionPages` holds the scripts and `Injector` runs them. The last call is tgkill(2) of the thread itself, which stops
//! at that signal. The entry after it, rt_sigreturn(2), runs only if the tracer has died.

use farfork_sys::process::ProcStatus;
use farfork_sys::ptrace::Registers;

use super::injector::InjectedCall;
use crate::capture::stop::stop_guard::ProcessSnapshot;

/// Bytes of one call of a script.
pub(in crate::capture) const ENTRY_BYTES: usize = 64;
/// Number of entries that each script has in addition to its own calls: tgkill(2), and the end.
pub(in crate::capture) const TRAILER_ENTRIES: usize = 2;
const RESULT_OFFSET: usize = 56;

/// The machine code. After each call, it reads the word at rsp. So a clone, whose stack pointer is unmapped, would die at
/// its first instructions if it ever ran.
pub(in crate::capture) const CODE: [u8; 56] = [
    0x49, 0x8b, 0x07, //             0: mov  (%r15), %rax
    0x48, 0x83, 0xf8, 0xff, //          cmp  $-1, %rax
    0x74, 0x28, //                      je   1f
    0x49, 0x8b, 0x7f, 0x08, //          mov  8(%r15), %rdi
    0x49, 0x8b, 0x77, 0x10, //          mov  16(%r15), %rsi
    0x49, 0x8b, 0x57, 0x18, //          mov  24(%r15), %rdx
    0x4d, 0x8b, 0x57, 0x20, //          mov  32(%r15), %r10
    0x4d, 0x8b, 0x47, 0x28, //          mov  40(%r15), %r8
    0x4d, 0x8b, 0x4f, 0x30, //          mov  48(%r15), %r9
    0x0f, 0x05, //                      syscall
    0x48, 0x8b, 0x0c, 0x24, //          mov  (%rsp), %rcx
    0x49, 0x89, 0x47, 0x38, //          mov  %rax, 56(%r15)
    0x49, 0x83, 0xc7, 0x40, //          add  $64, %r15
    0xeb, 0xcf, //                      jmp  0b
    0xb8, 0x0f, 0x00, 0x00, 0x00, // 1: mov  $15, %eax
    0x0f, 0x05, //                      syscall
];

/// Offset of the instruction after the calls' `syscall`.
const AFTER_SYSCALL_OFFSET: u64 = 0x23;

/// Offset of the code that calls rt_sigreturn(2).
const SIGRETURN_OFFSET: u64 = 0x31;

const TGKILL: u64 = 234;

/// The signal that ends a script. The thread stops before its delivery. It is delivered only if the tracer dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::capture) struct EndSignal(i32);

impl EndSignal {
    /// Chooses a signal that is ignored by default, has no handler and is not pending, if there is one.
    pub(in crate::capture) fn choose(status: &ProcStatus, snapshot: &ProcessSnapshot) -> Self {
        const SIGURG: i32 = 23;
        const SIGWINCH: i32 = 28;
        const SIGCHLD: i32 = 17;
        let is_free = |signal: &i32| !status.catches(*signal) && !snapshot.has_pending(*signal);
        Self([SIGURG, SIGWINCH, SIGCHLD].into_iter().find(is_free).unwrap_or(SIGURG))
    }

    /// Signal mask that blocks all signals but this one.
    pub(in crate::capture) fn blocked_mask(self) -> u64 {
        !(1 << (self.0 - 1))
    }
}

//  r15 ─▶ ┌────────┬─────────────┬────────┐
//         │ number │ 6 arguments │ result │  64 bytes per call
//         ├────────┼─────────────┼────────┤
//         │ tgkill │ the thread itself, with the signal at which it then stops
//         ├────────┼─────────────┼────────┤
//         │  −1    │ rt_sigreturn with the frame at rsp: only if no tracer holds the thread any more
//         └────────┴─────────────┴────────┘
/// Encodes a script for a thread with these ids in its pid namespace.
pub(in crate::capture) fn encode(calls: &[InjectedCall], (pid, tid): (u32, u32), end: EndSignal) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((calls.len() + TRAILER_ENTRIES) * ENTRY_BYTES);
    let stop = InjectedCall::new("tgkill", TGKILL, [u64::from(pid), u64::from(tid), end.0 as u64]);
    for call in calls.iter().chain([&stop]) {
        bytes.extend(call.number.to_ne_bytes());
        call.arguments.iter().for_each(|argument| bytes.extend(argument.to_ne_bytes()));
        bytes.extend([0; 8]);
    }
    bytes.extend(u64::MAX.to_ne_bytes());
    bytes.resize(bytes.len() + ENTRY_BYTES - 8, 0);
    bytes
}

/// The result of call `index` of a finished script.
pub(in crate::capture) fn result_of(script: &[u8], index: usize) -> u64 {
    read_word(script, index * ENTRY_BYTES + RESULT_OFFSET)
}

/// The word at an offset of a script, or of its answers.
pub(in crate::capture) fn read_word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// A script that runs in a thread.
#[derive(Debug, Clone, Copy)]
pub(in crate::capture) struct RunningScript {
    pub(super) tid: i32,
    /// Address of [`CODE`].
    pub(super) code: u64,
    /// Address of the first call.
    pub(super) script: u64,
    /// Address of the tgkill(2) entry, which ends the script.
    pub(super) end_call_address: u64,
    /// The stack pointer: address of the word that `CODE` reads after each call. It is in the thread's signal frame, if
    /// there is one.
    pub(super) rsp: u64,
    pub(super) end_signal: EndSignal,
}

impl RunningScript {
    pub(in crate::capture) fn tid(&self) -> i32 {
        self.tid
    }

    /// Registers that start the script.
    pub(in crate::capture) fn start_registers(&self, base: &Registers) -> Registers {
        Registers { rip: self.code, r15: self.script, rsp: self.rsp, orig_rax: u64::MAX, rax: 0, ..*base }
    }

    /// Registers that move the thread from an ended script to rt_sigreturn(2). Then the slot may be overwritten: if this
    /// process dies, the thread does not read its next call from the slot.
    pub(in crate::capture) fn sigreturn_registers(&self, ended: &Registers) -> Registers {
        Registers { rip: self.code + SIGRETURN_OFFSET, rsp: self.rsp, orig_rax: u64::MAX, ..*ended }
    }

    /// Whether a stop is the end of the script: at its own signal, sent by its last call.
    pub(in crate::capture) fn is_end_stop(&self, signal: i32, event: i32, registers: &Registers) -> bool {
        let position = (registers.rip, registers.r15);
        (signal, event) == (self.end_signal.0, 0)
            && position == (self.code + AFTER_SYSCALL_OFFSET, self.end_call_address)
    }

    /// Whether a stop shows that the thread cannot continue. All signals but a script's last are blocked, so the thread
    /// itself has caused this signal: for example, on offered pages with a protection key (pkeys(7)) that the thread may not
    /// use.
    pub(in crate::capture) fn is_fault_stop(signal: i32, event: i32) -> bool {
        const SIGILL: i32 = 4;
        const SIGBUS: i32 = 7;
        const SIGSEGV: i32 = 11;
        event == 0 && [SIGILL, SIGBUS, SIGSEGV].contains(&signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_of_the_injected_code_have_correct_targets() {
        let jump = |at: usize| (at + 2).wrapping_add_signed(isize::from(CODE[at + 1].cast_signed()));
        let syscall = CODE.windows(2).position(|window| window == [0x0f, 0x05]).unwrap();
        assert_eq!(syscall as u64 + 2, AFTER_SYSCALL_OFFSET);
        assert_eq!((CODE[7], jump(7)), (0x74, SIGRETURN_OFFSET as usize), "the end is the rt_sigreturn");
        assert_eq!((CODE[0x2f], jump(0x2f)), (0xeb, 0), "the loop jumps to the first instruction");
        assert_eq!(CODE[SIGRETURN_OFFSET as usize..], [0xb8, 15, 0, 0, 0, 0x0f, 0x05]);
    }

    #[test]
    fn a_script_ends_with_a_signal_to_its_thread() {
        let call = InjectedCall::new("brk", 12, [7]);
        let bytes = encode(&[call], (3, 4), EndSignal(23));
        let words: Vec<u64> = bytes.chunks(8).map(|word| super::read_word(word, 0)).collect();
        assert_eq!((words.len(), words[0], words[1]), (24, 12, 7));
        assert_eq!((words[8], &words[9..12]), (TGKILL, &[3, 4, 23][..]));
        assert_eq!(words[16], u64::MAX);
    }
}
