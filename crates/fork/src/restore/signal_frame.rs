//! Signal frames: a thread enters the child by rt_sigreturn(2), which loads registers, extended state, signal mask and
//! alternate stack at once, exactly as they were when the parent was stopped.
//! `plan` builds them for the restorer, and `capture` for code that it injects.
//! The layout is the kernel's, from `arch/x86/include/uapi/asm/{ucontext,sigcontext}.h`.

use farfork_wire::descriptor::{AltStack, Thread};

use super::RestoreError;

/// Offset of the extended state in a frame. The XSAVE area must be aligned to 64 bytes.
const XSTATE_OFFSET: usize = 0x400;
/// FP_XSTATE_MAGIC2, after the extended state.
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// FP_XSTATE_MAGIC1, in the software-reserved bytes of the extended state.
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const SW_RESERVED_RANGE: std::ops::Range<usize> = 464..512;
/// UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS.
const UC_FLAGS: u64 = 0b111;
/// SS_ONSTACK, which sigreturn rejects.
const SS_ONSTACK: u32 = 1;
const UCONTEXT_OFFSET: usize = 8;
const STACK_OFFSET: usize = UCONTEXT_OFFSET + 16;
const SIGCONTEXT_OFFSET: usize = UCONTEXT_OFFSET + 40;
const FPSTATE_OFFSET: usize = SIGCONTEXT_OFFSET + 184;
const SIGMASK_OFFSET: usize = SIGCONTEXT_OFFSET + 256;

/// Indexes in `user_regs_struct` of the registers in the signal context, in its order: r8–r15, rdi, rsi, rbp, rbx, rdx, rax,
/// rcx, rsp, rip, eflags.
const SIGCONTEXT_REGISTERS: [usize; 18] = [9, 8, 7, 6, 3, 2, 1, 0, 14, 13, 4, 5, 12, 10, 11, 19, 16, 18];
const CS_INDEX: usize = 17;
const SS_INDEX: usize = 20;
/// Indexes of RIP, FS base and GS base in `user_regs_struct`.
pub(super) const RIP_INDEX: usize = 16;
pub(super) const FS_BASE_INDEX: usize = 21;
pub(super) const GS_BASE_INDEX: usize = 22;

/// Returns the size of a frame with this much extended state, in whole pages.
pub(crate) fn frame_bytes(xstate_bytes: usize) -> u64 {
    (XSTATE_OFFSET + xstate_bytes + 4).next_multiple_of(4096) as u64
}

/// The state that a frame loads into a thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SignalFrameState<'a> {
    /// The registers, in the order of `user_regs_struct`.
    pub(crate) registers: &'a [u64],
    /// The extended state, in the format of PTRACE_GETREGSET (NT_X86_XSTATE).
    pub(crate) xstate: &'a [u8],
    /// Blocked signals.
    pub(crate) signal_mask: u64,
    /// Alternate stack. The kernel ignores invalid flags, and keeps the thread's own stack.
    pub(crate) alt_stack: AltStack,
}

/// Builds the frame of `thread` for `address`. `xcr0` has the state components that are enabled on this node.
pub(super) fn build_frame(thread: &Thread, address: u64, bytes: u64, xcr0: u64) -> Result<Vec<u8>, RestoreError> {
    check_selectors(thread)?;
    let Thread { registers, xstate, signal_mask, alt_stack, .. } = thread;
    let state = SignalFrameState { registers, xstate, signal_mask: *signal_mask, alt_stack: *alt_stack };
    Ok(encode_frame(&state, address, bytes, xcr0))
}

//  0       8                                      0x400                        0x400 + xstate + 4
//  ┌───────┬──────────────────────────────┬───────┬────────────────────────────┬─────┐
//  │ return│ ucontext: flags, stack,      │ unused│ extended state as ptrace   │ end │
//  │ addr. │ registers, mask              │       │ gave it, magic in 464..512 │ mark│
//  └───────┴──────────────────────────────┴───────┴────────────────────────────┴─────┘
/// Builds a frame of `bytes` bytes for `address`.
pub(crate) fn encode_frame(state: &SignalFrameState<'_>, address: u64, bytes: u64, xcr0: u64) -> Vec<u8> {
    let mut frame = vec![0; bytes as usize];
    let mut put = |at: usize, value: &[u8]| frame[at..at + value.len()].copy_from_slice(value);

    put(UCONTEXT_OFFSET, &UC_FLAGS.to_le_bytes());
    put(STACK_OFFSET, &state.alt_stack.base.to_le_bytes());
    put(STACK_OFFSET + 8, &(state.alt_stack.flags & !SS_ONSTACK).to_le_bytes());
    put(STACK_OFFSET + 16, &state.alt_stack.bytes.to_le_bytes());
    for (position, register) in SIGCONTEXT_REGISTERS.into_iter().enumerate() {
        put(SIGCONTEXT_OFFSET + 8 * position, &state.registers[register].to_le_bytes());
    }
    put(SIGCONTEXT_OFFSET + 144, &(state.registers[CS_INDEX] as u16).to_le_bytes());
    put(SIGCONTEXT_OFFSET + 150, &(state.registers[SS_INDEX] as u16).to_le_bytes());
    put(FPSTATE_OFFSET, &(address + XSTATE_OFFSET as u64).to_le_bytes());
    put(SIGMASK_OFFSET, &state.signal_mask.to_le_bytes());

    let xstate_bytes = state.xstate.len();
    put(XSTATE_OFFSET, state.xstate);
    let mut reserved = [0; 48];
    reserved[..4].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    reserved[4..8].copy_from_slice(&(xstate_bytes as u32 + 4).to_le_bytes());
    reserved[8..16].copy_from_slice(&xcr0.to_le_bytes());
    reserved[16..20].copy_from_slice(&(xstate_bytes as u32).to_le_bytes());
    put(XSTATE_OFFSET + SW_RESERVED_RANGE.start, &reserved);
    put(XSTATE_OFFSET + xstate_bytes, &FP_XSTATE_MAGIC2.to_le_bytes());
    frame
}

/// Fails unless the thread has the segment selectors of every 64-bit process. Others cannot be restored.
fn check_selectors(thread: &Thread) -> Result<(), RestoreError> {
    const USER_CS: u64 = 0x33;
    const USER_SS: u64 = 0x2b;
    if thread.registers[CS_INDEX] == USER_CS && thread.registers[SS_INDEX] == USER_SS {
        Ok(())
    } else {
        Err(RestoreError::SegmentSelectors {
            tid: thread.tid,
            cs: thread.registers[CS_INDEX],
            ss: thread.registers[SS_INDEX],
        })
    }
}
