//! A signal frame on a thread's own stack. It protects calls that map or unmap `InjectionPages`, or reap a template.
//!
//! While the tracer lives, it stops the thread after the call. If the tracer dies, the call returns into rt_sigreturn(2),
//! which loads the thread's whole state. So the frame stays until the thread's registers point to its script, or are
//! restored. If the program lacks the code or the stack for a frame, the call is made in the vdso, unprotected.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use farfork_sys::process::MapEntry;
use farfork_sys::process_memory::read_process;
use farfork_sys::ptrace::{self, Registers};
use farfork_wire::descriptor::AltStack;
use memchr::memmem;

use super::script::EndSignal;
use crate::capture::error::CaptureError;
use crate::capture::state::ThreadExtendedState;
use crate::capture::stop::stop_guard::StoppedThread;
use crate::restore::signal_frame::{SignalFrameState, encode_frame, frame_bytes};

/// Maximum size of a code mapping that is searched, in bytes: a libc has two mebibytes.
const CODE_BYTES_MAX: u64 = 8 << 20;

/// Maximum number of mappings that are searched. More would take longer than the capture.
const SEARCHES_MAX: usize = 4;

/// `syscall; ret`.
const SYSCALL_RETURN: &[u8] = &[0x0f, 0x05, 0xc3];
/// `mov $15, %rax; syscall`, and with `%eax`: the code to which a signal handler returns.
const SIGRETURN: [&[u8]; 2] = [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];

/// Addresses of `syscall; ret` and of the rt_sigreturn(2) code, or their offsets in a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::capture) struct Gadgets {
    syscall_return: u64,
    sigreturn: u64,
}

impl Gadgets {
    /// Finds both code sequences in a process's memory. Results are cached by file.
    pub(in crate::capture) fn find(pid: i32, maps: &[MapEntry]) -> Option<Self> {
        /// Offsets, by device, inode and file offset of a mapping.
        static GADGET_CACHE: Mutex<BTreeMap<(u64, u64, u64), Option<Gadgets>>> = Mutex::new(BTreeMap::new());
        const READ_EXECUTE: u8 = 5;
        let is_code = |entry: &&MapEntry| {
            entry.protection == READ_EXECUTE && entry.inode != 0 && !entry.is_shared && entry.bytes() <= CODE_BYTES_MAX
        };
        // A libc has both. A static program has them itself.
        let mut candidates: Vec<&MapEntry> = maps.iter().filter(is_code).collect();
        candidates.sort_by_key(|entry| memmem::find(&entry.path, b"/libc").is_none());
        candidates.truncate(SEARCHES_MAX);
        candidates.into_iter().find_map(|entry| {
            let key = (entry.device, entry.inode, entry.offset);
            let known = GADGET_CACHE.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
            let offsets = known.unwrap_or_else(|| {
                let offsets = Self::find_in_mapping(pid, entry);
                GADGET_CACHE.lock().unwrap_or_else(PoisonError::into_inner).insert(key, offsets);
                offsets
            })?;
            let gadgets = offsets.rebase(entry.start);
            // The cached offsets may belong to an earlier file with the same inode.
            gadgets.is_present(pid).then_some(gadgets)
        })
    }

    /// Searches one mapping. Returns offsets from its start.
    fn find_in_mapping(pid: i32, entry: &MapEntry) -> Option<Self> {
        let mut code = vec![0; entry.bytes() as usize];
        let read = read_process(pid, entry.start, &mut code).ok()?;
        let code = &code[..read];
        let offset = |pattern: &[u8]| memmem::find(code, pattern);
        let sigreturn = SIGRETURN.iter().find_map(|pattern| offset(pattern))?;
        Some(Self { syscall_return: offset(SYSCALL_RETURN)? as u64, sigreturn: sigreturn as u64 })
    }

    fn rebase(self, start: u64) -> Self {
        Self { syscall_return: start + self.syscall_return, sigreturn: start + self.sigreturn }
    }

    fn is_present(self, pid: i32) -> bool {
        let holds = |address: u64, pattern: &[u8]| {
            let mut bytes = vec![0; pattern.len()];
            read_process(pid, address, &mut bytes).is_ok() && bytes == pattern
        };
        holds(self.syscall_return, SYSCALL_RETURN) && SIGRETURN.iter().any(|pattern| holds(self.sigreturn, pattern))
    }
}

//  rip ─▶ syscall; ret                rsp ─▶ ┌───────────────────────┐  below the red zone of the thread's stack,
//         (libc's, as in getpid)             │ rt_sigreturn (libc's) │  saved before and restored after
//                                            │ signal frame          │
//                                            └───────────────────────┘
/// A thread's signal frame, ready to be written onto its stack.
#[derive(Debug)]
pub(in crate::capture) struct SigreturnFrame {
    gadgets: Gadgets,
    stack_address: u64,
    frame: Vec<u8>,
    /// The original contents of the stack.
    saved_stack: Vec<u8>,
    is_armed: Cell<bool>,
}

impl SigreturnFrame {
    /// Prepares the frame; `None` if the program lacks the code or the stack for it.
    pub(in crate::capture) fn prepare(
        thread: &StoppedThread,
        thread_extended_state: &ThreadExtendedState,
        gadgets: Option<Gadgets>,
        maps: &[MapEntry],
        mem: &File,
    ) -> Option<Self> {
        const RED_ZONE_BYTES: u64 = 128;
        const FRAME_ALIGNMENT: u64 = 64;
        const READ_WRITE: u8 = 3;
        let gadgets = gadgets?;
        let bytes = frame_bytes(thread_extended_state.xstate().len());
        let address = thread.registers.rsp.checked_sub(RED_ZONE_BYTES + bytes)? & !(FRAME_ALIGNMENT - 1);
        let is_stack = |entry: &MapEntry| {
            let holds = entry.start <= address && address + bytes <= entry.end;
            holds && entry.protection & READ_WRITE == READ_WRITE && !entry.is_shared
        };
        if !maps.iter().any(is_stack) {
            return None;
        }
        let mut saved = vec![0; bytes as usize];
        mem.read_exact_at(&mut saved, address).ok()?;
        let registers = thread.restart_registers().to_words();
        // These flags are invalid: sigaltstack(2) fails, rt_sigreturn(2) ignores that, and the alternate stack does not
        // change.
        let alt_stack = AltStack { base: 0, bytes: 0, flags: 0x70 };
        let (xstate, signal_mask) = (thread_extended_state.xstate(), thread.signal_mask);
        let state = SignalFrameState { registers: &registers, xstate, signal_mask, alt_stack };
        let mut frame = encode_frame(&state, address, bytes, thread_extended_state.xcr0());
        frame[..8].copy_from_slice(&gadgets.sigreturn.to_ne_bytes());
        Some(Self { gadgets, stack_address: address, frame, saved_stack: saved, is_armed: Cell::new(false) })
    }

    /// Writes the frame onto the stack. Must not be called while a clone is made, which would inherit the frame.
    fn arm(&self, mem: &File) -> bool {
        if !self.is_armed.get() {
            self.is_armed.set(mem.write_all_at(&self.frame, self.stack_address).is_ok());
        }
        self.is_armed.get()
    }

    /// Restores the contents of the stack. Must not be called while the thread's registers point to the frame.
    fn disarm(&self, mem: &File) {
        // The write fails only if the process was killed: nothing is left to restore.
        let _ = mem.write_all_at(&self.saved_stack, self.stack_address);
        self.is_armed.set(false);
    }

    /// Registers with which the thread loads its whole saved state.
    fn sigreturn_registers(&self, registers: &Registers) -> Registers {
        const RETURN_ADDRESS_BYTES: u64 = 8;
        let (rip, rsp) = (self.gadgets.sigreturn, self.stack_address + RETURN_ADDRESS_BYTES);
        Registers { rip, rsp, orig_rax: u64::MAX, ..*registers }
    }

    /// Changes the registers of a call, so that its code returns into the frame.
    pub(in crate::capture) fn redirect_call(&self, registers: Registers) -> Registers {
        Registers { rip: self.gadgets.syscall_return, rsp: self.stack_address, ..registers }
    }
}

/// The frame of a process's main thread, if it has one, with the memory that the frame is written to.
#[derive(Debug, Clone, Copy)]
pub(in crate::capture) struct RescueFrame<'a> {
    /// `None` if the program lacks the code or the stack for a frame.
    pub(in crate::capture) frame: Option<&'a SigreturnFrame>,
    /// The memory of the process.
    pub(in crate::capture) mem: &'a File,
}

impl<'a> RescueFrame<'a> {
    /// Returns a value without a frame: calls with it are not protected.
    pub(in crate::capture) fn without_frame(mem: &'a File) -> Self {
        Self { frame: None, mem }
    }

    /// Writes the frame onto the stack; `None` if there is no frame. Must not be called while a clone is made, which would
    /// inherit the frame.
    pub(in crate::capture) fn arm(self) -> Option<&'a SigreturnFrame> {
        self.frame.filter(|frame| frame.arm(self.mem))
    }

    /// Restores the contents of the stack. Must not be called while the thread's registers point to the frame.
    pub(in crate::capture) fn disarm(self) {
        if let Some(frame) = self.frame {
            frame.disarm(self.mem);
        }
    }

    /// Points the leader's registers to its frame, and then blocks its signals. If this process is killed in between, the
    /// frame still unblocks them. Must be followed by [`RescueFrame::disarm_leader`], even after an error.
    pub(in crate::capture) fn arm_leader(self, leader: &StoppedThread, end: EndSignal) -> Result<(), CaptureError> {
        if let Some(frame) = self.arm() {
            let home = frame.sigreturn_registers(&leader.registers);
            ptrace::write_registers(leader.tid, &home)
                .map_err(CaptureError::tracing("set the registers of", leader.tid))?;
        }
        leader.block_signals(end)
    }

    /// Restores the leader's registers, and then removes its frame from the stack.
    pub(in crate::capture) fn disarm_leader(self, leader: &StoppedThread) {
        leader.restore();
        self.disarm();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_sys::process;

    #[test]
    fn the_libc_of_this_process_has_both_gadgets() {
        let pid = std::process::id() as i32;
        let maps = process::read_maps(pid).unwrap();
        let gadgets = Gadgets::find(pid, &maps).expect("this program uses glibc");
        assert!(gadgets.is_present(pid));
        assert_eq!(Gadgets::find(pid, &maps), Some(gadgets));
    }
}
