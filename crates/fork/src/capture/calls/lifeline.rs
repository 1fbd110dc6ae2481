//! Pages mapped in the parent for the pause: the program that makes its threads' system calls, what it reads and writes,
//! and what brings the threads back if we die while they stand with registers that are not their own.
//!
//! ```text
//!  ┌──────┬──────────────────────────┬─────────┬───────────┬─────────┬───
//!  │ code │ desk 0: script, answers  │ desk 1  │ …  frame 0 │ frame 1 │ …      whole pages
//!  └──────┴──────────────────────────┴─────────┴───────────┴─────────┴───
//! ```
//!
//! A thread's script ends in a stop. As long as we live, it gets its registers back there. If we die, the kernel lets it
//! go, and the next thing in its script is rt_sigreturn(2) with its signal frame, which loads all that it had: registers,
//! extended state, signal mask. Nothing is ever written to the parent's own memory.
//!
//! The two calls that map and unmap the pages have a [`Rescue`] of their own.

mod offer;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use farfork_sys::ptrace::Registers;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::AltStack;

pub use offer::Offer;

use super::inject::{Call, Injector};
use super::rescue::Rescue;
use super::script::{self, CODE, ENTRIES_ADDED, ENTRY_BYTES, EndSignal, Running};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::state::Standing;
use crate::capture::stop::stopped::{Snapshot, StoppedThread};
use crate::restore::frame::{FrameState, frame_bytes, lay_out};

/// Where the desks begin: behind the code.
const DESKS_AT: u64 = 64;

const _: () = assert!(CODE.len() <= DESKS_AT as usize);

/// Most calls of its own that a thread makes in the pause.
const CALLS_MAX: usize = 9;

/// Where the answers of a thread begin on its desk, and their size.
const DESK_ANSWERS_AT: u64 = ((CALLS_MAX + ENTRIES_ADDED) * ENTRY_BYTES) as u64;
pub(in crate::capture) const ANSWER_BYTES: u64 = 192;
const DESK_BYTES: u64 = DESK_ANSWERS_AT + ANSWER_BYTES;

/// Least room for desks: what [`crate::capture::state::inherited`] asks of the template.
pub(in crate::capture) const DESKS_BYTES_MIN: u64 = 12 << 10;

/// The pages, at the same place in the parent and in its template.
#[derive(Debug, Clone)]
pub(in crate::capture) struct Lifeline {
    code: u64,
    /// What desks and frames are counted from.
    start: u64,
    room: Room,
    /// What was mapped for the pause, to be unmapped; nothing where the process has offered its own.
    mapped: Range<u64>,
    end: EndSignal,
}

/// How much is needed, in bytes from the start.
#[derive(Debug, Clone, Copy)]
pub(in crate::capture) struct Room {
    /// Where the frames begin, and how large each is.
    frames: u64,
    frame_bytes: u64,
    bytes: u64,
}

impl Room {
    /// That of these threads.
    pub(in crate::capture) fn of(standing: &[Standing]) -> Self {
        let count = standing.len() as u64;
        let frames = (DESKS_AT + (count * DESK_BYTES).max(DESKS_BYTES_MIN)).next_multiple_of(PAGE_SIZE);
        let frame_bytes = frame_bytes(standing.iter().map(|one| one.xstate().len()).max().unwrap_or(0));
        Self { frames, frame_bytes, bytes: frames + count * frame_bytes }
    }
}

/// What a thread is to do, and which its ids are in its pid namespace.
#[derive(Debug)]
pub(in crate::capture) struct Task {
    pub(in crate::capture) calls: Vec<Call>,
    pub(in crate::capture) inner_id: u32,
}

impl Lifeline {
    /// Maps the pages, in the leader, whose signals are blocked.
    pub(in crate::capture) async fn map(
        snapshot: &Snapshot,
        room: Room,
        end: EndSignal,
        (rescue, mem): (Option<&Rescue>, &File),
        injector: &mut Injector<'_>,
    ) -> Result<Self, CaptureError> {
        const MMAP: u64 = 9;
        const READ_WRITE_EXECUTE: u64 = 7;
        const PRIVATE_ANONYMOUS: u64 = 0x22;
        let leader = snapshot.leader();
        let call = Call::new("mmap", MMAP, [0, room.bytes, READ_WRITE_EXECUTE, PRIVATE_ANONYMOUS, u64::MAX, 0]);
        let start = injector.call_safely((leader.tid, &leader.registers), call, rescue, mem).await;
        let start = start.map_err(|error| refused(snapshot.pid, error))?;
        Ok(Self { code: start, start, room, mapped: start..start + room.bytes, end })
    }

    /// Writes code, scripts and frames.
    pub(in crate::capture) fn fill(
        &self,
        snapshot: &Snapshot,
        standing: &[Standing],
        tasks: &[Task],
        mem: &File,
    ) -> Result<(), CaptureError> {
        let leader = tasks[0].inner_id;
        // Pages of which nothing is used are not there: neither are they copied by the clone.
        let (mut desks, mut frames) = (Vec::new(), Vec::new());
        for (index, task) in tasks.iter().enumerate() {
            debug_assert!(task.calls.len() <= CALLS_MAX);
            desks.resize((self.desk(index) - self.desk(0)) as usize, 0);
            desks.extend(script::encode(&task.calls, (leader, task.inner_id), self.end));
            frames.resize((self.frame(index) - self.frame(0)) as usize, 0);
            frames.extend(self.frame_of(index, &snapshot.threads[index], &standing[index]));
        }
        let code = if self.has_code(mem) { Ok(()) } else { mem.write_all_at(&CODE, self.code) };
        let written = code
            .and_then(|()| mem.write_all_at(&desks, self.desk(0)))
            .and_then(|()| mem.write_all_at(&frames, self.frame(0)));
        written.map_err(CaptureError::trace("write to memory mapped for", snapshot.pid))
    }

    fn frame_of(&self, index: usize, thread: &StoppedThread, standing: &Standing) -> Vec<u8> {
        // No mode of sigaltstack(2): that fails, which rt_sigreturn ignores, and the stack stays what it is.
        let alt_stack = AltStack { base: 0, bytes: 0, flags: 0x70 };
        let registers = thread.resumed_elsewhere().to_words();
        let (xstate, signal_mask) = (standing.xstate(), thread.signal_mask);
        let state = FrameState { registers: &registers, xstate, signal_mask, alt_stack };
        lay_out(&state, self.frame(index), self.room.frame_bytes, standing.xcr0())
    }

    /// Thread `index` with its script of `count` calls.
    pub(in crate::capture) fn running(&self, index: usize, tid: i32, count: usize) -> Running {
        // rt_sigreturn finds the frame behind the return address, which a handler's `ret` would have taken.
        const RETURN_ADDRESS_BYTES: u64 = 8;
        let rsp = self.frame(index) + RETURN_ADDRESS_BYTES;
        Running::new(tid, self.code, (self.desk(index), count), rsp, self.end)
    }

    /// The same where threads make their calls one after the other, so that each has the first desk.
    pub(in crate::capture) fn running_on_first_desk(&self, index: usize, tid: i32, count: usize) -> Running {
        const RETURN_ADDRESS_BYTES: u64 = 8;
        let rsp = self.frame(index) + RETURN_ADDRESS_BYTES;
        Running::new(tid, self.code, (self.desk(0), count), rsp, self.end)
    }

    /// Where thread `index` has its answers written.
    pub(in crate::capture) fn answers(&self, index: usize) -> u64 {
        self.desk(index) + DESK_ANSWERS_AT
    }

    /// Reads the scripts, with their results, and the answers of so many threads.
    pub(in crate::capture) fn read(&self, count: usize, mem: &File) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut desks = vec![0; count * DESK_BYTES as usize];
        mem.read_exact_at(&mut desks, self.desk(0))?;
        let parted = |desk: &[u8]| {
            let (script, answers) = desk.split_at(DESK_ANSWERS_AT as usize);
            (script.to_vec(), answers.to_vec())
        };
        Ok(desks.chunks_exact(DESK_BYTES as usize).map(parted).collect())
    }

    /// The addresses of pages that are no process's own; none where they are.
    pub(in crate::capture) fn mapped(&self) -> Range<u64> {
        self.mapped.clone()
    }

    /// Whether the pages were mapped for the pause, and must go.
    pub(in crate::capture) fn is_mapped(&self) -> bool {
        !self.mapped.is_empty()
    }

    /// The signal that scripts end with.
    pub(in crate::capture) fn end(&self) -> EndSignal {
        self.end
    }

    /// Where thread `index` has its script; that of the leader has all of the room when it is alone.
    pub(in crate::capture) fn desk(&self, index: usize) -> u64 {
        self.start + DESKS_AT + index as u64 * DESK_BYTES
    }

    fn frame(&self, index: usize) -> u64 {
        self.start + self.room.frames + index as u64 * self.room.frame_bytes
    }

    /// Unmaps the pages, in the parent or in its template, where they were mapped.
    pub(in crate::capture) async fn unmap(
        &self,
        thread: (i32, &Registers),
        (rescue, mem): (Option<&Rescue>, &File),
        injector: &mut Injector<'_>,
    ) -> Result<(), CaptureError> {
        const MUNMAP: u64 = 11;
        if !self.is_mapped() {
            return Ok(());
        }
        let call = Call::new("munmap", MUNMAP, [self.mapped.start, self.room.bytes]);
        injector.call_safely(thread, call, rescue, mem).await.map(drop)
    }
}

/// A process may be denied memory that is writable and executable.
fn refused(pid: i32, error: CaptureError) -> CaptureError {
    match error {
        CaptureError::Call { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            let reason = "it may not have memory that is writable and executable (PR_SET_MDWE, or SELinux's execmem), \
                          which a capture needs for a moment";
            CaptureError::refused(pid, vec![Refusal::new(format!("pid {pid}"), reason)])
        }
        other => other,
    }
}
