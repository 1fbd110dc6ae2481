//! What only the process itself can ask the kernel for: system calls injected inside the pause, each thread's at the
//! same time as the others'. Each costs the pause some 10 µs, so that there are as few as can be:
//!
//! ```text
//!  the leader     prctl(PR_GET_PDEATHSIG, buf)   getitimer(ITIMER_REAL, buf) and those whose signal has a handler
//!  the others     sigaltstack(NULL, buf)         (the leader's is inherited: its template is asked, at leisure)
//!  all            prctl(PR_GET_TID_ADDRESS, buf), where the thread is not glibc's
//! ```
//!
//! The answers go to some bytes of each thread's stack below the red zone, saved before and put back after.

use std::fs::File;
use std::os::unix::fs::FileExt;

use farfork_sys::process::MapEntry;
use farfork_wire::descriptor::AltStack;

use super::error::{CaptureError, Refusal};
use super::glibc;
use super::inject::{Call, Injector, Progress};
use super::state::Standing;
use super::stop::{Snapshot, StoppedThread};
use super::survey::Survey;

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

/// Interval timers, with the signal that each sends.
const TIMERS: [(&str, i32); 3] = [("ITIMER_REAL", SIGALRM), ("ITIMER_VIRTUAL", 26), ("ITIMER_PROF", 27)];
const SIGALRM: i32 = 14;

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

/// Asks every thread, and refuses a process with an armed timer. Memory is as before when this returns. The survey is
/// recent enough to find a place to write to; the answers stand in the order of the threads.
pub(super) fn ask(
    snapshot: &Snapshot,
    standing: &[Standing],
    survey: &Survey,
    mem: &File,
    injector: &mut Injector<'_>,
) -> Result<Vec<Answers>, CaptureError> {
    let mut scratches = Vec::with_capacity(snapshot.threads.len());
    let mut known = Vec::with_capacity(snapshot.threads.len());
    for (index, (thread, standing)) in snapshot.threads.iter().zip(standing).enumerate() {
        scratches.push(Scratch::of(thread, mem, &survey.maps, index as u64)?);
        let inner_id = survey.profiles.get(&thread.tid).map_or(0, |profile| profile.inner_id());
        known.push(glibc::tid_address(thread, inner_id, standing.robust_list_head()));
    }
    let asked = inject(snapshot, survey, injector, &scratches, &known);
    let answers = asked.and_then(|()| read(snapshot, survey, mem, &scratches, &known));
    scratches.iter().for_each(|scratch| scratch.put_back(mem));
    answers
}

/// Makes all calls, each thread its own.
fn inject(
    snapshot: &Snapshot,
    survey: &Survey,
    injector: &mut Injector<'_>,
    scratches: &[Scratch],
    known: &[Option<u64>],
) -> Result<(), CaptureError> {
    let mut under_way: Vec<Progress> = Vec::with_capacity(scratches.len());
    for ((thread, scratch), known) in snapshot.threads.iter().zip(scratches).zip(known) {
        let mut calls = if thread.tid == snapshot.pid {
            leader_calls(scratch.address, survey)
        } else {
            vec![alt_stack_call(scratch.address + ALT_STACK_AT)]
        };
        calls.extend(known.is_none().then(|| tid_address_call(scratch.address)));
        under_way.push(injector.start(thread.tid, &thread.registers, calls)?);
    }
    injector.finish(&mut under_way)
}

fn read(
    snapshot: &Snapshot,
    survey: &Survey,
    mem: &File,
    scratches: &[Scratch],
    known: &[Option<u64>],
) -> Result<Vec<Answers>, CaptureError> {
    let mut answers = Vec::with_capacity(scratches.len());
    for ((thread, scratch), known) in snapshot.threads.iter().zip(scratches).zip(known) {
        let mut bytes = [0; SCRATCH_BYTES as usize];
        mem.read_exact_at(&mut bytes, scratch.address).map_err(CaptureError::trace("read the stack of", thread.tid))?;
        let is_leader = thread.tid == snapshot.pid;
        if is_leader {
            refuse_timers(survey, &bytes)?;
        }
        answers.push(Answers::parse(&bytes, is_leader, *known));
    }
    Ok(answers)
}

/// The call that writes a thread's alternate stack (`stack_t`) to `address`.
pub(super) fn alt_stack_call(address: u64) -> Call {
    const SIGALTSTACK: u64 = 131;
    Call::new("sigaltstack", SIGALTSTACK, [0, address])
}

/// prctl(2).
pub(super) const PRCTL: u64 = 157;

fn tid_address_call(scratch: u64) -> Call {
    const PR_GET_TID_ADDRESS: u64 = 40;
    Call::new("prctl(PR_GET_TID_ADDRESS)", PRCTL, [PR_GET_TID_ADDRESS, scratch + TID_ADDRESS_AT])
}

fn leader_calls(scratch: u64, survey: &Survey) -> Vec<Call> {
    const PR_GET_PDEATHSIG: u64 = 2;
    const GETITIMER: u64 = 36;
    let mut calls = vec![Call::new("prctl(PR_GET_PDEATHSIG)", PRCTL, [PR_GET_PDEATHSIG, scratch + DEATH_SIGNAL_AT])];
    let ask = |which: usize| Call::new("getitimer", GETITIMER, [which as u64, scratch + timer_at(which)]);
    calls.extend(timers_that_matter(survey).map(ask));
    calls
}

/// Which of [`TIMERS`] to ask for. A CPU timer whose signal has no handler could only end the process.
fn timers_that_matter(survey: &Survey) -> impl Iterator<Item = usize> {
    let catches = |signal| survey.profiles.get(&survey.pid).is_none_or(|profile| profile.status.catches(signal));
    let matters = move |which: &usize| TIMERS[*which].1 == SIGALRM || catches(TIMERS[*which].1);
    (0..TIMERS.len()).filter(matters)
}

fn timer_at(which: usize) -> u64 {
    TIMERS_AT + which as u64 * TIMER_BYTES
}

/// An interval timer that runs has a non-zero value: the second half of `struct itimerval`.
fn refuse_timers(survey: &Survey, bytes: &[u8]) -> Result<(), CaptureError> {
    let is_armed = |which: &usize| {
        let at = timer_at(*which) as usize;
        bytes[at + TIMER_BYTES as usize / 2..at + TIMER_BYTES as usize].iter().any(|byte| *byte != 0)
    };
    let refuse = |which: usize| {
        let reason = "it is armed, and timers are not carried yet; disarm it (setitimer, alarm) first";
        Refusal::new(format!("pid {}, {}", survey.pid, TIMERS[which].0), reason)
    };
    let refusals: Vec<Refusal> = timers_that_matter(survey).filter(is_armed).map(refuse).collect();
    if refusals.is_empty() { Ok(()) } else { Err(CaptureError::refused(survey.pid, refusals)) }
}

impl Answers {
    fn parse(bytes: &[u8], is_leader: bool, tid_address: Option<u64>) -> Self {
        Self {
            alt_stack: if is_leader { AltStack::default() } else { parse_alt_stack(bytes) },
            clear_child_tid: tid_address.unwrap_or_else(|| word(bytes, TID_ADDRESS_AT as usize)),
            parent_death_signal: if is_leader { word(bytes, DEATH_SIGNAL_AT as usize) as u32 } else { 0 },
        }
    }
}

/// `stack_t`: pointer, flags (and padding), size. That the thread runs on it is no property of the stack.
pub(super) fn parse_alt_stack(bytes: &[u8]) -> AltStack {
    const SS_ONSTACK: u32 = 1;
    AltStack { base: word(bytes, 0), flags: word(bytes, 8) as u32 & !SS_ONSTACK, bytes: word(bytes, 16) }
}

/// The word at an offset.
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]))
}
