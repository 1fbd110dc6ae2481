//! Runs a seccomp(2) filter on one system call as the kernel does, and returns whether the filter allows the call. A filter
//! that reaches an invalid instruction, a division by 0 or a shift by 32 or more counts as forbidding the call. Pure;
//! `capture/state/seccomp.rs` and `restore/seccomp_filters.rs` call it.

/// Size of `struct seccomp_data` in 32-bit words: number, architecture, instruction pointer, six arguments.
const DATA_WORDS: usize = 16;

/// SECCOMP_RET_ALLOW and SECCOMP_RET_LOG, without their data bits.
const SECCOMP_RET_ALLOW: u32 = 0x7fff_0000;
const SECCOMP_RET_LOG: u32 = 0x7ffc_0000;
const SECCOMP_RET_ACTION_MASK: u32 = 0xffff_0000;

/// AUDIT_ARCH_X86_64.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// A system call that is about to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedSyscall {
    pub(crate) number: u32,
    /// Address after the instruction that makes the call.
    pub(crate) instruction_pointer: u64,
    pub(crate) arguments: [u64; 6],
}

impl PlannedSyscall {
    fn seccomp_data(self) -> [u32; DATA_WORDS] {
        let mut data = [0; DATA_WORDS];
        data[..2].copy_from_slice(&[self.number, AUDIT_ARCH_X86_64]);
        for (words, long) in
            data[2..].chunks_exact_mut(2).zip([self.instruction_pointer].into_iter().chain(self.arguments))
        {
            words.copy_from_slice(&[long as u32, (long >> 32) as u32]);
        }
        data
    }

    /// Whether a filter of these instructions (`struct sock_filter`s, 8 bytes each) allows the call.
    pub(crate) fn is_allowed_by(self, instructions: &[u8]) -> bool {
        run_program(instructions, &self.seccomp_data())
            .is_some_and(|answer| [SECCOMP_RET_ALLOW, SECCOMP_RET_LOG].contains(&(answer & SECCOMP_RET_ACTION_MASK)))
    }
}

/// Runs the instructions, and returns the filter's result; `None` for an invalid program. The machine has an
/// accumulator, an index register and 16 words of scratch memory. All jumps are forward, so each program ends.
fn run_program(instructions: &[u8], data: &[u32; DATA_WORDS]) -> Option<u32> {
    const BPF_RET_K: u16 = 0x06;
    const BPF_RET_A: u16 = 0x16;
    const BPF_CLASS_MASK: u16 = 0x07;
    const BPF_JMP: u16 = 0x05;
    let (mut accumulator, mut index, mut memory) = (0_u32, 0_u32, [0_u32; 16]);
    let mut at = 0_usize;
    loop {
        let bytes: &[u8; 8] = instructions.get(at * 8..at * 8 + 8)?.first_chunk()?;
        let code = u16::from_ne_bytes([bytes[0], bytes[1]]);
        let constant = u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        at += 1;
        match code {
            BPF_RET_K => return Some(constant),
            BPF_RET_A => return Some(accumulator),
            // Loads and stores.
            0x20 => accumulator = *data.get(constant as usize / 4).filter(|_| constant.is_multiple_of(4))?,
            0x80 => accumulator = size_of_val(data) as u32,
            0x81 => index = size_of_val(data) as u32,
            0x00 => accumulator = constant,
            0x01 => index = constant,
            0x60 => accumulator = *memory.get(constant as usize)?,
            0x61 => index = *memory.get(constant as usize)?,
            0x02 => *memory.get_mut(constant as usize)? = accumulator,
            0x03 => *memory.get_mut(constant as usize)? = index,
            0x07 => index = accumulator,
            0x87 => accumulator = index,
            _ if code & BPF_CLASS_MASK == BPF_JMP => {
                at +=
                    jump_offset(code, (accumulator, if code & 0x08 == 0 { constant } else { index }), bytes, constant)?;
            }
            _ => accumulator = compute_alu(code, accumulator, if code & 0x08 == 0 { constant } else { index })?,
        }
    }
}

/// Returns the number of instructions that the jump skips.
fn jump_offset(code: u16, (accumulator, operand): (u32, u32), bytes: &[u8; 8], constant: u32) -> Option<usize> {
    let holds = match code & 0xf0 {
        0x00 => return Some(constant as usize),
        0x10 => accumulator == operand,
        0x20 => accumulator > operand,
        0x30 => accumulator >= operand,
        0x40 => accumulator & operand != 0,
        _ => return None,
    };
    Some(usize::from(if holds { bytes[2] } else { bytes[3] }))
}

fn compute_alu(code: u16, accumulator: u32, operand: u32) -> Option<u32> {
    const BPF_CLASS_MASK: u16 = 0x07;
    const BPF_ALU: u16 = 0x04;
    if code & BPF_CLASS_MASK != BPF_ALU {
        return None;
    }
    Some(match code & 0xf0 {
        0x00 => accumulator.wrapping_add(operand),
        0x10 => accumulator.wrapping_sub(operand),
        0x20 => accumulator.wrapping_mul(operand),
        0x30 => accumulator.checked_div(operand)?,
        0x40 => accumulator | operand,
        0x50 => accumulator & operand,
        0x60 => accumulator.checked_shl(operand)?,
        0x70 => accumulator.checked_shr(operand)?,
        0x80 => accumulator.wrapping_neg(),
        0x90 => accumulator.checked_rem(operand)?,
        0xa0 => accumulator ^ operand,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(instructions: &[(u16, u8, u8, u32)]) -> Vec<u8> {
        let bytes = |(code, then, otherwise, constant): &(u16, u8, u8, u32)| {
            [&code.to_ne_bytes()[..], &[*then, *otherwise], &constant.to_ne_bytes()].concat()
        };
        instructions.iter().flat_map(bytes).collect()
    }

    const CALL: PlannedSyscall = PlannedSyscall {
        number: 202,
        instruction_pointer: 0x2000_0000_1000,
        arguments: [1 << 32 | 5, 129, 7, 0, 0, 0],
    };

    #[test]
    fn filters_distinguish_calls_by_number_and_arguments() {
        let denies = |number| {
            program(&[
                (0x20, 0, 0, 0),
                (0x15, 0, 1, number),
                (0x06, 0, 0, 0x0005_0001),
                (0x06, 0, 0, SECCOMP_RET_ALLOW),
            ])
        };
        assert!(CALL.is_allowed_by(&denies(11)) && !CALL.is_allowed_by(&denies(202)));
        // Offset 20 is the upper half of the first argument, after the lower half.
        let upper = program(&[(0x20, 0, 0, 20), (0x15, 1, 0, 1), (0x06, 0, 0, 0), (0x06, 0, 0, SECCOMP_RET_LOG)]);
        assert!(CALL.is_allowed_by(&upper));
        let masked = program(&[
            (0x20, 0, 0, 24),
            (0x54, 0, 0, 0x7f),
            (0x15, 0, 1, 1),
            (0x06, 0, 0, SECCOMP_RET_ALLOW),
            (0x06, 0, 0, 0),
        ]);
        assert!(CALL.is_allowed_by(&masked));
    }

    #[test]
    fn registers_and_memory_are_kept() {
        let swapped = [
            (0x00, 0, 0, SECCOMP_RET_ALLOW),
            (0x02, 0, 0, 3),
            (0x07, 0, 0, 0),
            (0x00, 0, 0, 0),
            (0x61, 0, 0, 3),
            (0x87, 0, 0, 0),
            (0x16, 0, 0, 0),
        ];
        assert!(CALL.is_allowed_by(&program(&swapped)));
    }

    #[test]
    fn an_empty_filter_allows_nothing() {
        for broken in [
            vec![],
            program(&[(0x20, 0, 0, 64), (0x06, 0, 0, SECCOMP_RET_ALLOW)]),
            program(&[(0x05, 0, 0, 9)]),
            program(&[(0xff, 0, 0, 0)]),
        ] {
            assert!(!CALL.is_allowed_by(&broken));
        }
    }
}
