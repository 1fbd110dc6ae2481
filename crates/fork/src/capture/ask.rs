//! What only the process itself can ask the kernel for: system calls injected inside the pause, each thread's at the
//! same time as the others'.
//!
//! ```text
//!  every thread   sigaltstack(NULL, buf)   prctl(PR_GET_TID_ADDRESS, buf)
//!  the leader     + prctl(PR_GET_PDEATHSIG, buf)   getitimer(ITIMER_*, buf)
//! ```
//!
//! The answers go to some bytes of each thread's stack below the red zone, saved before and put back after.

use std::fs::File;
use std::os::unix::fs::FileExt;

use farfork_sys::process::MapEntry;
use farfork_sys::ptrace::Registers;
use farfork_wire::descriptor::AltStack;

use super::error::{CaptureError, Refusal};
use super::inject::{Call, Injector};
use super::stop::{Snapshot, StoppedThread};

/// What one thread answered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Answers {
    pub(super) alt_stack: AltStack,
    pub(super) clear_child_tid: u64,
    /// Asked of the leader only.
    pub(super) parent_death_signal: u32,
}

/// Where the answers lie in a thread's scratch bytes.
const ALT_STACK_AT: u64 = 0;
const TID_ADDRESS_AT: u64 = 24;
const DEATH_SIGNAL_AT: u64 = 32;
const TIMERS_AT: u64 = 40;
const TIMER_BYTES: u64 = 32;
const SCRATCH_BYTES: u64 = 256;

/// ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF.
const TIMERS: [(&str, u64); 3] = [("ITIMER_REAL", 0), ("ITIMER_VIRTUAL", 1), ("ITIMER_PROF", 2)];

/// Bytes of a process's memory that hold answers for a moment.
#[derive(Debug)]
struct Scratch {
    address: u64,
    saved: [u8; SCRATCH_BYTES as usize],
}

impl Scratch {
    /// Below the red zone of a thread's stack or, where that is no writable memory, at the `index`th place from the
    /// end of `elsewhere`.
    fn of(thread: &StoppedThread, mem: &File, maps: &[MapEntry], index: u64) -> Result<Self, CaptureError> {
        let on_stack = thread.below_red_zone(SCRATCH_BYTES);
        let is_writable = |entry: &&MapEntry| entry.protection & 3 == 3 && !entry.is_shared;
        let holds = |entry: &MapEntry| entry.start <= on_stack && on_stack + SCRATCH_BYTES <= entry.end;
        let address = if maps.iter().filter(is_writable).any(holds) {
            on_stack
        } else {
            let room = (index + 1) * SCRATCH_BYTES;
            let elsewhere = maps.iter().filter(is_writable).find(|entry| entry.inode == 0 && entry.bytes() >= room);
            elsewhere.map_or(on_stack, |entry| entry.end - room)
        };
        let mut saved = [0; SCRATCH_BYTES as usize];
        mem.read_exact_at(&mut saved, address).map_err(CaptureError::trace("read the stack of", thread.tid))?;
        Ok(Self { address, saved })
    }

    fn put_back(&self, mem: &File) {
        // The process can only have been killed: nothing left to put back.
        let _ = mem.write_all_at(&self.saved, self.address);
    }
}

/// Asks every thread, and refuses a process with an armed timer. Memory is as before when this returns. `maps` are
/// recent enough to find a place to write to; the answers stand in the order of the threads. Also tells where in the
/// leader's memory the answers went.
pub(super) fn ask(
    snapshot: &Snapshot,
    injector: &mut Injector,
    mem: &File,
    maps: &[MapEntry],
) -> Result<(Vec<Answers>, u64), CaptureError> {
    let mut scratches = Vec::with_capacity(snapshot.threads.len());
    for (index, thread) in snapshot.threads.iter().enumerate() {
        scratches.push(Scratch::of(thread, mem, maps, index as u64)?);
    }
    let answers = ask_into(snapshot, injector, mem, &scratches);
    scratches.iter().for_each(|scratch| scratch.put_back(mem));
    Ok((answers?, scratches[0].address))
}

fn ask_into(
    snapshot: &Snapshot,
    injector: &mut Injector,
    mem: &File,
    scratches: &[Scratch],
) -> Result<Vec<Answers>, CaptureError> {
    for call in [alt_stack_call, tid_address_call] {
        let one = |(thread, scratch): (&StoppedThread, &Scratch)| (thread.tid, thread.registers, call(scratch));
        injector.call_all(snapshot.threads.iter().zip(scratches).map(one))?;
    }
    let (leader, scratch) = (snapshot.leader(), &scratches[0]);
    for call in leader_calls(scratch) {
        injector.call(leader.tid, &leader.registers, call)?;
    }
    let mut answers = Vec::with_capacity(scratches.len());
    for (thread, scratch) in snapshot.threads.iter().zip(scratches) {
        let mut bytes = [0; SCRATCH_BYTES as usize];
        mem.read_exact_at(&mut bytes, scratch.address).map_err(CaptureError::trace("read the stack of", thread.tid))?;
        if thread.tid == snapshot.pid {
            refuse_timers(snapshot.pid, &bytes)?;
        }
        answers.push(Answers::parse(&bytes, thread.tid == snapshot.pid));
    }
    Ok(answers)
}

fn alt_stack_call(scratch: &Scratch) -> Call {
    const SIGALTSTACK: u64 = 131;
    Call::new("sigaltstack", SIGALTSTACK, [0, scratch.address + ALT_STACK_AT])
}

const PRCTL: u64 = 157;

fn tid_address_call(scratch: &Scratch) -> Call {
    const PR_GET_TID_ADDRESS: u64 = 40;
    Call::new("prctl(PR_GET_TID_ADDRESS)", PRCTL, [PR_GET_TID_ADDRESS, scratch.address + TID_ADDRESS_AT])
}

fn leader_calls(scratch: &Scratch) -> impl Iterator<Item = Call> {
    const PR_GET_PDEATHSIG: u64 = 2;
    const GETITIMER: u64 = 36;
    let address = scratch.address;
    let death = Call::new("prctl(PR_GET_PDEATHSIG)", PRCTL, [PR_GET_PDEATHSIG, address + DEATH_SIGNAL_AT]);
    let timers = TIMERS
        .iter()
        .map(move |(_, which)| Call::new("getitimer", GETITIMER, [*which, address + TIMERS_AT + which * TIMER_BYTES]));
    std::iter::once(death).chain(timers)
}

/// An interval timer that runs has a non-zero value: the second half of `struct itimerval`.
fn refuse_timers(pid: i32, bytes: &[u8]) -> Result<(), CaptureError> {
    let is_armed = |which: u64| {
        let at = (TIMERS_AT + which * TIMER_BYTES + TIMER_BYTES / 2) as usize;
        bytes[at..at + TIMER_BYTES as usize / 2].iter().any(|byte| *byte != 0)
    };
    let refusals: Vec<Refusal> = TIMERS
        .iter()
        .filter(|(_, which)| is_armed(*which))
        .map(|(name, _)| {
            Refusal::new(
                format!("pid {pid}, {name}"),
                "it is armed, and timers are not carried yet; disarm it (setitimer, alarm) first",
            )
        })
        .collect();
    if refusals.is_empty() { Ok(()) } else { Err(CaptureError::refused(pid, refusals)) }
}

impl Answers {
    fn parse(bytes: &[u8], is_leader: bool) -> Self {
        let word = |at: u64| u64::from_ne_bytes(std::array::from_fn(|index| bytes[at as usize + index]));
        Self {
            // stack_t: pointer, flags (and padding), size.
            alt_stack: AltStack {
                base: word(ALT_STACK_AT),
                flags: word(ALT_STACK_AT + 8) as u32,
                bytes: word(ALT_STACK_AT + 16),
            },
            clear_child_tid: word(TID_ADDRESS_AT),
            parent_death_signal: if is_leader { word(DEATH_SIGNAL_AT) as u32 } else { 0 },
        }
    }
}

/// Asks one thread with a call that writes up to `N` bytes to the scratch address, and puts its memory back.
pub(super) fn ask_bytes<const N: usize>(
    injector: &mut Injector,
    (tid, base): (i32, &Registers),
    (mem, address): (&File, u64),
    call: Call,
) -> Result<[u8; N], CaptureError> {
    let mut saved = [0; N];
    mem.read_exact_at(&mut saved, address).map_err(CaptureError::trace("read the stack of", tid))?;
    let called = injector.call(tid, base, call);
    let mut answer = [0; N];
    let read = mem.read_exact_at(&mut answer, address);
    let written = mem.write_all_at(&saved, address);
    called?;
    read.and(written).map_err(CaptureError::trace("use the stack of", tid))?;
    Ok(answer)
}
