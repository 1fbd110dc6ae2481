//! What brings a parent's threads back if we die while they stand with registers that are not their own.
//!
//! For the pause, some pages are mapped in the parent:
//!
//! ```text
//!  ┌───────────────────────────────────────┬──────────────────┬─────────┬─────────┬───
//!  │ syscall; mov eax, rt_sigreturn; syscall │ answers          │ frame 0 │ frame 1 │ …   whole pages
//!  └───────────────────────────────────────┴──────────────────┴─────────┴─────────┴───
//! ```
//!
//! Each thread makes its injected calls at that first `syscall`, with its stack pointer at its signal frame. As long as we
//! live it is stopped behind the call, and gets its registers back from us. If we die, the kernel lets it go: it falls
//! into rt_sigreturn(2), which loads everything that it had: registers, extended state, signal mask. The answers of the
//! calls go there too, so that nothing is ever written to the parent's own memory.
//!
//! Where a process may not have memory that is writable and executable (PR_SET_MDWE, SELinux) there are only answers.
//! Not covered are the two calls that map and unmap the pages, some 10 µs each.

use std::fs::File;
use std::os::unix::fs::FileExt;

use farfork_sys::ptrace::Registers;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::AltStack;

use super::error::CaptureError;
use super::inject::{Call, Injector};
use super::restart;
use super::state::Standing;
use super::stop::Snapshot;
use crate::restore::frame::{FrameState, frame_bytes, lay_out};

/// `syscall; mov $15, %eax; syscall`.
const CODE: [u8; 9] = [0x0f, 0x05, 0xb8, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05];

/// Where the answers begin: behind the code.
const ANSWERS_AT: u64 = 64;

/// Bytes for one thread's answers.
pub(super) const ANSWER_BYTES: u64 = 192;

/// Least room for answers: what [`super::inherited`] asks of the template.
pub(super) const ANSWERS_BYTES_MIN: u64 = 2560;

const PROT_READ_WRITE: u64 = 3;
const PROT_EXECUTE: u64 = 4;

/// The pages, as they are mapped in the parent, and in its template.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lifeline {
    start: u64,
    bytes: u64,
    /// Where the frames begin and how large each is; `None` where there is no code.
    frames: Option<(u64, u64)>,
}

impl Lifeline {
    /// Maps and fills the pages; every call of `injector` is made there from now on. The leader's signals are blocked.
    pub(super) fn throw(
        snapshot: &Snapshot,
        standing: &[Standing],
        mem: &File,
        injector: &mut Injector<'_>,
    ) -> Result<Self, CaptureError> {
        let count = snapshot.threads.len() as u64;
        let answers = (ANSWERS_AT + (count * ANSWER_BYTES).max(ANSWERS_BYTES_MIN)).next_multiple_of(PAGE_SIZE);
        let frame = frame_bytes(standing.iter().map(|one| one.xstate().len()).max().unwrap_or(0));
        let bytes = answers + count * frame;
        let leader = snapshot.leader();
        let map = |protection| {
            const MMAP: u64 = 9;
            const PRIVATE_ANONYMOUS: u64 = 0x22;
            Call::new("mmap", MMAP, [0, bytes, protection, PRIVATE_ANONYMOUS, u64::MAX, 0])
        };
        let mapped = injector.call(leader.tid, &leader.registers, map(PROT_READ_WRITE | PROT_EXECUTE));
        let Err(CaptureError::Call { source, .. }) = &mapped else {
            let start = mapped?;
            let lifeline = Self { start, bytes, frames: Some((start + answers, frame)) };
            if let Err(error) = lifeline.fill(snapshot, standing, mem) {
                lifeline.haul_in(leader.tid, &leader.registers, injector)?;
                return Err(error);
            }
            injector.call_at(start);
            return Ok(lifeline);
        };
        if source.kind() != std::io::ErrorKind::PermissionDenied {
            return mapped.map(|_| unreachable!("it is an error"));
        }
        let start = injector.call(leader.tid, &leader.registers, map(PROT_READ_WRITE))?;
        Ok(Self { start, bytes, frames: None })
    }

    fn fill(&self, snapshot: &Snapshot, standing: &[Standing], mem: &File) -> Result<(), CaptureError> {
        let failed = CaptureError::trace("write to memory mapped for", snapshot.pid);
        let Some((first, frame_bytes)) = self.frames else { return Ok(()) };
        let mut frames = Vec::with_capacity((snapshot.threads.len() as u64 * frame_bytes) as usize);
        for (thread, standing) in snapshot.threads.iter().zip(standing) {
            let address = first + frames.len() as u64;
            // No mode of sigaltstack(2): the call fails, which sigreturn ignores, and the stack stays what it is.
            let alt_stack = AltStack { base: 0, bytes: 0, flags: 0x70 };
            let registers = restart::for_child(&thread.registers).to_words();
            let (xstate, signal_mask) = (standing.xstate(), thread.signal_mask);
            let state = FrameState { registers: &registers, xstate, signal_mask, alt_stack };
            frames.extend(lay_out(&state, address, frame_bytes, standing.xcr0()));
        }
        let code = mem.write_all_at(&CODE, self.start);
        code.and_then(|()| mem.write_all_at(&frames, first)).map_err(failed)
    }

    /// Registers with which thread `index` makes calls.
    pub(super) fn base(&self, index: usize, registers: &Registers) -> Registers {
        // rt_sigreturn finds the frame behind the return address, which a handler's `ret` would have taken.
        const RETURN_ADDRESS_BYTES: u64 = 8;
        let rsp = match self.frames {
            Some((first, bytes)) => first + index as u64 * bytes + RETURN_ADDRESS_BYTES,
            None => registers.rsp,
        };
        Registers { rsp, ..*registers }
    }

    /// Where thread `index` has its answers written.
    pub(super) fn answers(&self, index: usize) -> u64 {
        self.start + ANSWERS_AT + index as u64 * ANSWER_BYTES
    }

    /// Unmaps the pages; calls are made in the vdso again. `base` are the registers of the thread that does it.
    pub(super) fn haul_in(&self, tid: i32, base: &Registers, injector: &mut Injector<'_>) -> Result<(), CaptureError> {
        const MUNMAP: u64 = 11;
        injector.call_in_vdso();
        injector.call(tid, base, Call::new("munmap", MUNMAP, [self.start, self.bytes])).map(drop)
    }
}
