//! The futex words of system calls in flight. A child has their pages before it runs: the capture adds them to the descriptor
//! (`capture/memory/eager.rs`), and the restorer fetches those that it cannot add, as in shared memory (`threads.c`).
//!
//! The kernel reads and writes some words with page faults disabled: those of FUTEX_LOCK_PI, FUTEX_WAIT_REQUEUE_PI,
//! FUTEX_CMP_REQUEUE_PI and FUTEX_WAKE_OP. It does not wait there for a page of the pager: the call fails with EFAULT.

const RSI_INDEX: usize = 13;
const RDI_INDEX: usize = 14;
const RAX_INDEX: usize = 10;
const R8_INDEX: usize = 9;

const FUTEX: u32 = 202;
const FUTEX_WAITV: u32 = 449;
const FUTEX_WAKE: u32 = 454;
const FUTEX_WAIT: u32 = 455;
const FUTEX_REQUEUE: u32 = 456;

/// The part of futex(2)'s operation without the flags FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME.
const COMMAND_MASK: u64 = 127;

/// Operations with a second word: FUTEX_REQUEUE, FUTEX_CMP_REQUEUE, FUTEX_WAKE_OP, FUTEX_WAIT_REQUEUE_PI,
/// FUTEX_CMP_REQUEUE_PI.
const TWO_WORD_COMMANDS: [u64; 5] = [3, 4, 5, 11, 12];

/// Number of words of futex_requeue(2).
const REQUEUE_WORDS: u64 = 2;

/// FUTEX_WAITV_MAX: the kernel accepts no longer vector.
const VECTOR_ENTRIES_MAX: u64 = 128;

/// The futex words of the system call that a thread repeats; all 0 if it repeats another call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FutexWords {
    /// Addresses of words; 0 for none.
    pub(crate) words: [u64; 2],
    /// Address and number of entries of a vector of `struct futex_waitv`.
    pub(crate) vector: u64,
    pub(crate) vector_entries: u64,
}

impl FutexWords {
    /// Returns the words of the call in the registers of a thread (`user_regs_struct`). A thread that computes may have the same registers: then its addresses need not
    /// be mapped, and installing their pages has no effect that it could see.
    pub(crate) fn of_registers(registers: &[u64]) -> Self {
        let [rax, rdi, rsi, r8] = [RAX_INDEX, RDI_INDEX, RSI_INDEX, R8_INDEX].map(|index| registers[index]);
        // The upper half of the number may be a call mark.
        match rax as u32 {
            FUTEX if TWO_WORD_COMMANDS.contains(&(rsi & COMMAND_MASK)) => Self { words: [rdi, r8], ..Self::default() },
            FUTEX | FUTEX_WAIT | FUTEX_WAKE => Self { words: [rdi, 0], ..Self::default() },
            FUTEX_WAITV if rsi <= VECTOR_ENTRIES_MAX => Self { vector: rdi, vector_entries: rsi, ..Self::default() },
            FUTEX_REQUEUE => Self { vector: rdi, vector_entries: REQUEUE_WORDS, ..Self::default() },
            _ => Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of a call with this number, operation or count, and address of a second word.
    fn words_of_call(number: u64, rsi: u64, r8: u64) -> FutexWords {
        let mut registers = [0; 27];
        for (index, value) in [(RAX_INDEX, number), (RDI_INDEX, 0x1000), (RSI_INDEX, rsi), (R8_INDEX, r8)] {
            registers[index] = value;
        }
        FutexWords::of_registers(&registers)
    }

    #[test]
    fn each_call_names_the_words_that_it_reads() {
        const LOCK_PI: u64 = 6;
        const WAIT_REQUEUE_PI: u64 = 11;
        const PRIVATE_REALTIME: u64 = 128 | 256;
        let one = FutexWords { words: [0x1000, 0], ..FutexWords::default() };
        let two = FutexWords { words: [0x1000, 0x2000], ..FutexWords::default() };
        assert_eq!(words_of_call(202, LOCK_PI | PRIVATE_REALTIME, 0x2000), one);
        assert_eq!(words_of_call(202, WAIT_REQUEUE_PI | PRIVATE_REALTIME, 0x2000), two);
        assert_eq!(words_of_call(202 | 7 << 32, LOCK_PI, 0), one, "with a call mark");
        assert_eq!(words_of_call(455, 0, 0x2000), one);
        assert_eq!(words_of_call(449, 3, 0), FutexWords { vector: 0x1000, vector_entries: 3, ..FutexWords::default() });
        assert_eq!(words_of_call(449, 129, 0), FutexWords::default(), "too many for the kernel");
        assert_eq!(words_of_call(0, 0, 0), FutexWords::default(), "read(2)");
    }
}
