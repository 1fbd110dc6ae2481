//! What only the process itself can ask the kernel for: system calls that its threads make inside the pause, all at the
//! same time.
//!
//! ```text
//!  the leader     personality(-1)   prctl(PR_GET_TIMERSLACK)
//!                 prctl(PR_GET_PDEATHSIG, buf)   getitimer(each, buf)   prctl(PR_GET_CHILD_SUBREAPER, buf)
//!  the others     personality(-1)   prctl(PR_GET_SECUREBITS)
//!                 sigaltstack(NULL, buf)         prctl(PR_GET_TSC, buf)
//!                                                (the leader's are inherited: its template is asked, at leisure)
//!  all            prctl(PR_GET_TID_ADDRESS, buf), where the thread is not glibc's
//! ```

use farfork_wire::descriptor::{AltStack, IntervalTimer};

use super::inject::Call;
use super::lifeline::{ANSWER_BYTES, Lifeline, Task};
use super::script::{self, word};
use crate::capture::state::Standing;
use crate::capture::state::glibc;
use crate::capture::state::timers::{self, TIME_BYTES};
use crate::capture::stop::stopped::{Snapshot, StoppedThread};
use crate::capture::survey::{Profile, Survey};

/// What one thread answered.
#[derive(Debug, Clone, Default)]
pub(in crate::capture) struct Answers {
    pub(in crate::capture) alt_stack: AltStack,
    pub(in crate::capture) clear_child_tid: u64,
    /// Whether it is stopped at reading the processor's time stamps.
    pub(in crate::capture) forbids_time_stamps: bool,
    /// Asked of the leader only.
    pub(in crate::capture) parent_death_signal: u32,
    /// Asked of the leader only: those that are armed.
    pub(in crate::capture) interval_timers: Vec<IntervalTimer>,
    /// Asked of the leader only; a clone has it not.
    pub(in crate::capture) is_subreaper: bool,
    pub(in crate::capture) personality: u32,
    /// Not asked of the leader: its template has inherited them.
    pub(in crate::capture) securebits: Option<u32>,
    /// Asked of the leader only: a template's own is lost when it is scheduled before others.
    pub(in crate::capture) timer_slack_ns: u64,
}

/// Places of those among a thread's calls whose results are the answers.
const PERSONALITY_CALL: usize = 0;
/// Of the leader.
const TIMER_SLACK_CALL: usize = 1;
/// Of others.
const SECUREBITS_CALL: usize = 1;

/// Where the answers lie among those of a thread.
const ALT_STACK_AT: u64 = 0;
const TID_ADDRESS_AT: u64 = 24;
/// Of others than the leader.
const TIME_STAMPS_AT: u64 = 32;
/// Of the leader.
const DEATH_SIGNAL_AT: u64 = 32;
const TIMERS_AT: u64 = 40;

/// ITIMER_REAL, ITIMER_VIRTUAL and ITIMER_PROF.
const TIMERS_COUNT: usize = 3;

const SUBREAPER_AT: u64 = timer_at(TIMERS_COUNT);

const _: () = assert!(SUBREAPER_AT + 8 <= ANSWER_BYTES);

/// What the threads have to ask, the leader first, and what needs not be asked: addresses of thread ids.
pub(in crate::capture) fn tasks(
    snapshot: &Snapshot,
    standing: &[Standing],
    survey: &Survey,
    lifeline: &Lifeline,
) -> (Vec<Task>, Vec<Option<u64>>) {
    let inner_id = |thread: &StoppedThread| survey.profiles.get(&thread.tid).map_or(0, Profile::inner_id);
    let threads = snapshot.threads.iter();
    let known = threads.clone().zip(standing).map(|(one, standing)| (one, inner_id(one), standing.robust_list_head()));
    let tid_addresses = glibc::tid_addresses(snapshot.pid, known);
    let task = |(index, (thread, tid_address)): (usize, (&StoppedThread, &Option<u64>))| {
        let calls = calls(thread, survey, lifeline.answers(index), *tid_address);
        Task { calls, inner_id: inner_id(thread) }
    };
    (threads.zip(&tid_addresses).enumerate().map(task).collect(), tid_addresses)
}

fn calls(thread: &StoppedThread, survey: &Survey, answers: u64, tid_address: Option<u64>) -> Vec<Call> {
    let mut calls = if thread.tid == survey.pid {
        leader_calls(answers)
    } else {
        vec![
            personality_call(),
            securebits_call(),
            alt_stack_call(answers + ALT_STACK_AT),
            time_stamps_call(answers + TIME_STAMPS_AT),
        ]
    };
    calls.extend(tid_address.is_none().then(|| tid_address_call(answers)));
    calls
}

/// The call that writes a thread's alternate stack (`stack_t`) to `address`.
pub(in crate::capture) fn alt_stack_call(address: u64) -> Call {
    const SIGALTSTACK: u64 = 131;
    Call::new("sigaltstack", SIGALTSTACK, [0, address])
}

/// The call that writes to `address` whether a thread may read the processor's time stamps (`int`).
pub(in crate::capture) fn time_stamps_call(address: u64) -> Call {
    const PR_GET_TSC: u64 = 25;
    Call::new("prctl(PR_GET_TSC)", PRCTL, [PR_GET_TSC, address])
}

/// The call that gives what a thread has forbidden itself by [`capabilities(7)`]'s secure bits.
///
/// [`capabilities(7)`]: https://man7.org/linux/man-pages/man7/capabilities.7.html
pub(in crate::capture) fn securebits_call() -> Call {
    const PR_GET_SECUREBITS: u64 = 27;
    Call::new("prctl(PR_GET_SECUREBITS)", PRCTL, [PR_GET_SECUREBITS])
}

fn personality_call() -> Call {
    const PERSONALITY: u64 = 135;
    const NOT_SET: u64 = 0xffff_ffff;
    Call::new("personality", PERSONALITY, [NOT_SET])
}

/// prctl(2).
pub(in crate::capture) const PRCTL: u64 = 157;

fn tid_address_call(answers: u64) -> Call {
    const PR_GET_TID_ADDRESS: u64 = 40;
    Call::new("prctl(PR_GET_TID_ADDRESS)", PRCTL, [PR_GET_TID_ADDRESS, answers + TID_ADDRESS_AT])
}

fn leader_calls(answers: u64) -> Vec<Call> {
    const PR_GET_PDEATHSIG: u64 = 2;
    const PR_GET_CHILD_SUBREAPER: u64 = 37;
    const PR_GET_TIMERSLACK: u64 = 30;
    const GETITIMER: u64 = 36;
    let mut calls = vec![
        personality_call(),
        Call::new("prctl(PR_GET_TIMERSLACK)", PRCTL, [PR_GET_TIMERSLACK]).with_any_result(),
        Call::new("prctl(PR_GET_PDEATHSIG)", PRCTL, [PR_GET_PDEATHSIG, answers + DEATH_SIGNAL_AT]),
    ];
    let ask = |which: usize| Call::new("getitimer", GETITIMER, [which as u64, answers + timer_at(which)]);
    calls.extend((0..TIMERS_COUNT).map(ask));
    calls.push(Call::new("prctl(PR_GET_CHILD_SUBREAPER)", PRCTL, [PR_GET_CHILD_SUBREAPER, answers + SUBREAPER_AT]));
    calls
}

const fn timer_at(which: usize) -> u64 {
    TIMERS_AT + (which * TIME_BYTES) as u64
}

impl Answers {
    /// From a thread's script, which has ended, and answers; `tid_address` is what needed not be asked.
    pub(in crate::capture) fn parse(
        (script, bytes): (&[u8], &[u8]),
        is_leader: bool,
        tid_address: Option<u64>,
    ) -> Self {
        let of_leader = |call: usize| if is_leader { script::result(script, call) } else { 0 };
        Self {
            alt_stack: if is_leader { AltStack::default() } else { parse_alt_stack(bytes) },
            clear_child_tid: tid_address.unwrap_or_else(|| word(bytes, TID_ADDRESS_AT as usize)),
            forbids_time_stamps: !is_leader && forbids_time_stamps(bytes, TIME_STAMPS_AT as usize),
            interval_timers: if is_leader { interval_timers(bytes) } else { Vec::new() },
            parent_death_signal: if is_leader { word(bytes, DEATH_SIGNAL_AT as usize) as u32 } else { 0 },
            personality: script::result(script, PERSONALITY_CALL) as u32,
            securebits: (!is_leader).then(|| script::result(script, SECUREBITS_CALL) as u32),
            timer_slack_ns: of_leader(TIMER_SLACK_CALL),
            is_subreaper: is_leader && word(bytes, SUBREAPER_AT as usize) as u32 != 0,
        }
    }
}

fn interval_timers(bytes: &[u8]) -> Vec<IntervalTimer> {
    let timer = |which| timers::interval_timer(which, bytes, timer_at(which) as usize);
    (0..TIMERS_COUNT).filter_map(timer).collect()
}

/// `stack_t`: pointer, flags (and padding), size. That the thread runs on it is no property of the stack.
pub(in crate::capture) fn parse_alt_stack(bytes: &[u8]) -> AltStack {
    const SS_ONSTACK: u32 = 1;
    AltStack { base: word(bytes, 0), flags: word(bytes, 8) as u32 & !SS_ONSTACK, bytes: word(bytes, 16) }
}

/// What [`time_stamps_call`] wrote.
pub(in crate::capture) fn forbids_time_stamps(bytes: &[u8], at: usize) -> bool {
    const PR_TSC_SIGSEGV: u32 = 2;
    word(bytes, at) as u32 == PR_TSC_SIGSEGV
}
