//! Pages mapped in the parent for the pause: code, scripts with their answers, and a signal frame for each thread.
//!
//! A thread's script ends in a stop, at which its registers are restored. If the tracer dies, the kernel releases the
//! thread, and the next call of its script is rt_sigreturn(2) with its frame: it loads registers, extended state and signal
//! mask. Nothing is written to the parent's own memory. `SigreturnFrame` protects the calls that map and unmap the pages.

mod offered;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use farfork_sys::ptrace::Registers;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::AltStack;

pub use offered::OfferedPages;

use super::injector::{InjectedCall, Injector};
use super::script::{self, CODE, ENTRY_BYTES, EndSignal, RunningScript, TRAILER_ENTRIES};
use super::sigreturn_frame::RescueFrame;
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::state::ThreadExtendedState;
use crate::capture::stop::stop_guard::{ProcessSnapshot, StoppedThread};
use crate::restore::signal_frame::{SignalFrameState, encode_frame, frame_bytes};

/// Offset of the slots, after the code.
const SLOTS_OFFSET: u64 = 64;

const _: () = assert!(CODE.len() <= SLOTS_OFFSET as usize);

/// Maximum number of calls of one thread in the pause, without the trailer.
const CALLS_MAX: usize = 10;

/// Offset and size of a thread's answers in its slot.
const SLOT_ANSWERS_OFFSET: u64 = ((CALLS_MAX + TRAILER_ENTRIES) * ENTRY_BYTES) as u64;
pub(in crate::capture) const ANSWER_BYTES: u64 = 192;
const SLOT_BYTES: u64 = SLOT_ANSWERS_OFFSET + ANSWER_BYTES;

/// Minimum size of all slots together, in bytes: `capture::state::inherited_state` needs this much in the template.
pub(in crate::capture) const SLOTS_BYTES_MIN: u64 = 12 << 10;

//  ┌──────┬──────────────────────────┬─────────┬───┬─────────┬─────────┬───
//  │ code │ slot 0: script, answers  │ slot 1  │ … │ frame 0 │ frame 1 │ …      whole pages
//  └──────┴──────────────────────────┴─────────┴───┴─────────┴─────────┴───
/// The pages, at the same addresses in the parent and in its template.
#[derive(Debug, Clone)]
pub(in crate::capture) struct InjectionPages {
    code: u64,
    /// The address from which slots and frames are counted.
    base: u64,
    layout: InjectionLayout,
    /// The range that was mapped for the pause and must be unmapped. Empty if the process has offered its own pages.
    mapped_range: Range<u64>,
    end_signal: EndSignal,
}

/// Offsets in the pages and their total size, in bytes.
#[derive(Debug, Clone, Copy)]
pub(in crate::capture) struct InjectionLayout {
    /// Offset of the frames, and size of one.
    frames_offset: u64,
    frame_bytes: u64,
    total_bytes: u64,
}

impl InjectionLayout {
    /// The layout for these threads.
    pub(in crate::capture) fn for_threads(extended_states: &[ThreadExtendedState]) -> Self {
        let count = extended_states.len() as u64;
        let frames = (SLOTS_OFFSET + (count * SLOT_BYTES).max(SLOTS_BYTES_MIN)).next_multiple_of(PAGE_SIZE);
        let frame_bytes = frame_bytes(extended_states.iter().map(|one| one.xstate().len()).max().unwrap_or(0));
        Self { frames_offset: frames, frame_bytes, total_bytes: frames + count * frame_bytes }
    }
}

/// The calls of a thread, and its id in its pid namespace.
#[derive(Debug)]
pub(in crate::capture) struct ThreadScript {
    pub(in crate::capture) calls: Vec<InjectedCall>,
    pub(in crate::capture) inner_id: u32,
}

impl InjectionPages {
    /// Maps the pages, by a call of the leader, whose signals are blocked.
    pub(in crate::capture) async fn map(
        snapshot: &ProcessSnapshot,
        layout: InjectionLayout,
        end: EndSignal,
        rescue: RescueFrame<'_>,
        injector: &mut Injector<'_>,
    ) -> Result<Self, CaptureError> {
        const MMAP: u64 = 9;
        const READ_WRITE_EXECUTE: u64 = 7;
        const PRIVATE_ANONYMOUS: u64 = 0x22;
        let leader = snapshot.leader();
        let call = InjectedCall::new(
            "mmap",
            MMAP,
            [0, layout.total_bytes, READ_WRITE_EXECUTE, PRIVATE_ANONYMOUS, u64::MAX, 0],
        );
        let start = injector.call_with_frame(leader.tid, &leader.registers, call, rescue).await;
        let start = start.map_err(|error| explain_denied_mmap(snapshot.pid, error))?;
        Ok(Self { code: start, base: start, layout, mapped_range: start..start + layout.total_bytes, end_signal: end })
    }

    /// Writes code, scripts and frames.
    pub(in crate::capture) fn write(
        &self,
        snapshot: &ProcessSnapshot,
        extended_states: &[ThreadExtendedState],
        scripts: &[ThreadScript],
        mem: &File,
    ) -> Result<(), CaptureError> {
        let leader = scripts[0].inner_id;
        // Pages without contents are not touched, so that the clone does not copy them.
        let (mut slots, mut frames) = (Vec::new(), Vec::new());
        for (index, thread_script) in scripts.iter().enumerate() {
            debug_assert!(thread_script.calls.len() <= CALLS_MAX);
            slots.resize((self.slot_address(index) - self.slot_address(0)) as usize, 0);
            slots.extend(script::encode(&thread_script.calls, (leader, thread_script.inner_id), self.end_signal));
            frames.resize((self.frame_address(index) - self.frame_address(0)) as usize, 0);
            frames.extend(self.encode_frame(index, &snapshot.threads[index], &extended_states[index]));
        }
        let code = if self.has_code(mem) { Ok(()) } else { mem.write_all_at(&CODE, self.code) };
        let written = code
            .and_then(|()| mem.write_all_at(&slots, self.slot_address(0)))
            .and_then(|()| mem.write_all_at(&frames, self.frame_address(0)));
        written.map_err(CaptureError::tracing("write to memory mapped for", snapshot.pid))
    }

    fn encode_frame(
        &self,
        index: usize,
        thread: &StoppedThread,
        thread_extended_state: &ThreadExtendedState,
    ) -> Vec<u8> {
        // These flags are invalid: sigaltstack(2) fails, rt_sigreturn(2) ignores that, and the alternate stack does not
        // change.
        let alt_stack = AltStack { base: 0, bytes: 0, flags: 0x70 };
        let registers = thread.restart_registers().to_words();
        let (xstate, signal_mask) = (thread_extended_state.xstate(), thread.signal_mask);
        let state = SignalFrameState { registers: &registers, xstate, signal_mask, alt_stack };
        encode_frame(&state, self.frame_address(index), self.layout.frame_bytes, thread_extended_state.xcr0())
    }

    /// Returns the script of thread `index`, with `count` calls, in the thread's own slot.
    pub(in crate::capture) fn script_of(&self, index: usize, tid: i32, count: usize) -> RunningScript {
        self.script_at(self.slot_address(index), index, tid, count)
    }

    /// Returns a script of thread `index`, with `count` calls, in the first slot. For threads that run their scripts one
    /// after the other.
    pub(in crate::capture) fn script_in_first_slot(&self, index: usize, tid: i32, count: usize) -> RunningScript {
        self.script_at(self.slot_address(0), index, tid, count)
    }

    fn script_at(&self, script: u64, index: usize, tid: i32, count: usize) -> RunningScript {
        // rt_sigreturn(2) expects the frame after the return address, which a handler's `ret` would have popped.
        const RETURN_ADDRESS_BYTES: u64 = 8;
        RunningScript {
            tid,
            code: self.code,
            script,
            end_call_address: script + (count * ENTRY_BYTES) as u64,
            rsp: self.frame_address(index) + RETURN_ADDRESS_BYTES,
            end_signal: self.end_signal,
        }
    }

    /// Address of the answers of thread `index`.
    pub(in crate::capture) fn answers_address(&self, index: usize) -> u64 {
        self.slot_address(index) + SLOT_ANSWERS_OFFSET
    }

    /// Reads the slots of `count` threads: scripts with their results, and answers.
    pub(in crate::capture) fn read_slots(&self, count: usize, mem: &File) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut slots = vec![0; count * SLOT_BYTES as usize];
        mem.read_exact_at(&mut slots, self.slot_address(0))?;
        let parted = |slot: &[u8]| {
            let (script, answers) = slot.split_at(SLOT_ANSWERS_OFFSET as usize);
            (script.to_vec(), answers.to_vec())
        };
        Ok(slots.chunks_exact(SLOT_BYTES as usize).map(parted).collect())
    }

    /// The addresses of pages that were mapped for the pause; empty if the process has offered its own.
    pub(in crate::capture) fn mapped_range(&self) -> Range<u64> {
        self.mapped_range.clone()
    }

    /// Whether the pages were mapped for the pause, and must be unmapped.
    pub(in crate::capture) fn is_mapped(&self) -> bool {
        !self.mapped_range.is_empty()
    }

    /// The signal that ends scripts.
    pub(in crate::capture) fn end_signal(&self) -> EndSignal {
        self.end_signal
    }

    /// Address of the script of thread `index`. If only the leader runs a script, that script may use the space of all
    /// slots.
    pub(in crate::capture) fn slot_address(&self, index: usize) -> u64 {
        self.base + SLOTS_OFFSET + index as u64 * SLOT_BYTES
    }

    fn frame_address(&self, index: usize) -> u64 {
        self.base + self.layout.frames_offset + index as u64 * self.layout.frame_bytes
    }

    /// Unmaps the pages, in the parent or in its template, if they were mapped.
    pub(in crate::capture) async fn unmap(
        &self,
        tid: i32,
        registers: &Registers,
        rescue: RescueFrame<'_>,
        injector: &mut Injector<'_>,
    ) -> Result<(), CaptureError> {
        const MUNMAP: u64 = 11;
        if !self.is_mapped() {
            return Ok(());
        }
        let call = InjectedCall::new("munmap", MUNMAP, [self.mapped_range.start, self.layout.total_bytes]);
        injector.call_with_frame(tid, registers, call, rescue).await.map(drop)
    }
}

/// Explains a failed mmap(2): a process may be denied memory that is writable and executable.
fn explain_denied_mmap(pid: i32, error: CaptureError) -> CaptureError {
    match error {
        CaptureError::InjectedCall { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            let reason = "it may not have memory that is writable and executable (PR_SET_MDWE, or SELinux's execmem), \
                          which a capture needs for a moment";
            CaptureError::refused(pid, vec![Refusal::new(format!("pid {pid}"), reason)])
        }
        other => other,
    }
}
