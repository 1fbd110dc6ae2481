//! State that only the process itself can query: system calls that all of its threads make in the pause, in parallel.
//!
//! `pause` calls `build_scripts` and parses the results as `ThreadAnswers`. The leader skips calls about state that its
//! template inherits: `state::inherited_state` queries the template later.

use farfork_wire::descriptor::{AltStack, IntervalTimer, MemoryPolicy};

use super::injector::InjectedCall;
use super::pages::{ANSWER_BYTES, InjectionPages, ThreadScript};
use super::script::{self, read_word};
use crate::capture::pause::PreparedProcess;
use crate::capture::state::ThreadExtendedState;
use crate::capture::state::attributes;
use crate::capture::state::glibc;
use crate::capture::state::timers::{self, TIME_BYTES};
use crate::capture::stop::stop_guard::{ProcessSnapshot, StoppedThread};
use crate::capture::survey::{Survey, ThreadProfile};

/// The answers of one thread.
#[derive(Debug, Clone, Default)]
pub(in crate::capture) struct ThreadAnswers {
    pub(in crate::capture) alt_stack: AltStack,
    pub(in crate::capture) clear_child_tid: u64,
    /// Whether reading the time stamp counter raises SIGSEGV (PR_SET_TSC).
    pub(in crate::capture) is_tsc_forbidden: bool,
    /// Only set for the leader.
    pub(in crate::capture) parent_death_signal: u32,
    /// The armed timers. Only set for the leader.
    pub(in crate::capture) interval_timers: Vec<IntervalTimer>,
    /// Only set for the leader. A clone does not inherit it.
    pub(in crate::capture) is_subreaper: bool,
    pub(in crate::capture) personality: u32,
    /// Memory policy. `None` for the leader: its template inherits it.
    pub(in crate::capture) memory_policy: Option<MemoryPolicy>,
    /// `None` for the leader: its template inherits the bits, and is queried later.
    pub(in crate::capture) securebits: Option<u32>,
    /// Only set for the leader. The template's own value is lost when its priority is raised.
    pub(in crate::capture) timer_slack_ns: u64,
}

/// Indices of the calls that return an answer as their result.
const PERSONALITY_INDEX: usize = 0;
/// Index in the leader's script.
const TIMER_SLACK_INDEX: usize = 1;
/// Indices in the scripts of the other threads.
const SECUREBITS_INDEX: usize = 1;
const TSC_MODE_INDEX: usize = 3;
const MEMORY_POLICY_INDEX: usize = 4;

/// Offsets of answers in a thread's slot.
const ALT_STACK_OFFSET: u64 = 0;
const TID_ADDRESS_OFFSET: u64 = 24;
/// Only in slots of threads other than the leader.
const TSC_MODE_OFFSET: u64 = 32;
const MEMORY_POLICY_OFFSET: u64 = 40;
/// Only in the slot of the leader.
const DEATH_SIGNAL_OFFSET: u64 = 32;
const TIMERS_OFFSET: u64 = 40;

/// ITIMER_REAL, ITIMER_VIRTUAL and ITIMER_PROF.
const TIMERS_COUNT: usize = 3;

const SUBREAPER_OFFSET: u64 = interval_timer_offset(TIMERS_COUNT);

const _: () = assert!(SUBREAPER_OFFSET + 8 <= ANSWER_BYTES);
const _: () = assert!(MEMORY_POLICY_OFFSET + attributes::MEMORY_POLICY_BYTES <= ANSWER_BYTES);

//  the leader     │ personality(-1)   prctl(PR_GET_TIMERSLACK)
//                 │ prctl(PR_GET_PDEATHSIG, buf)   getitimer(each, buf)   prctl(PR_GET_CHILD_SUBREAPER, buf)
//  the others     │ personality(-1)   prctl(PR_GET_SECUREBITS)
//                 │ sigaltstack(NULL, buf)         prctl(PR_GET_TSC, buf)           get_mempolicy(buf)
//  all            │ prctl(PR_GET_TID_ADDRESS, buf), if the thread is not glibc's     kcmp, if Landlock is enabled
/// Builds the scripts of the threads, the leader first. Also returns the clear_child_tid addresses, each `None` if a call
/// must query it.
pub(in crate::capture) fn build_scripts(
    snapshot: &ProcessSnapshot,
    thread_extended_state: &[ThreadExtendedState],
    prepared: &PreparedProcess,
    injection_pages: &InjectionPages,
) -> (Vec<ThreadScript>, Vec<Option<u64>>) {
    let PreparedProcess { survey, domain_probes, .. } = prepared;
    let inner_id = |thread: &StoppedThread| survey.profiles.get(&thread.tid).map_or(0, ThreadProfile::inner_id);
    let threads = snapshot.threads.iter();
    let known = threads
        .clone()
        .zip(thread_extended_state)
        .map(|(one, thread_extended_state)| (one, inner_id(one), thread_extended_state.robust_list_head()));
    let tid_addresses = glibc::tid_addresses(snapshot.pid, known);
    let task = |(index, (thread, tid_address)): (usize, (&StoppedThread, &Option<u64>))| {
        let mut calls = thread_calls(thread, survey, injection_pages.answers_address(index), *tid_address);
        let profile = survey.profiles.get(&thread.tid);
        calls.extend(profile.and_then(|profile| domain_probes.call(profile)));
        ThreadScript { calls, inner_id: inner_id(thread) }
    };
    (threads.zip(&tid_addresses).enumerate().map(task).collect(), tid_addresses)
}

fn thread_calls(thread: &StoppedThread, survey: &Survey, answers: u64, tid_address: Option<u64>) -> Vec<InjectedCall> {
    let mut calls = if thread.tid == survey.pid {
        leader_calls(answers)
    } else {
        vec![
            personality_call(),
            securebits_call(),
            alt_stack_call(answers + ALT_STACK_OFFSET),
            tsc_mode_call(answers + TSC_MODE_OFFSET),
            attributes::memory_policy_call(answers + MEMORY_POLICY_OFFSET),
        ]
    };
    calls.extend(tid_address.is_none().then(|| tid_address_call(answers)));
    calls
}

/// The call that writes a thread's alternate stack (`stack_t`) to `address`.
pub(in crate::capture) fn alt_stack_call(address: u64) -> InjectedCall {
    const SIGALTSTACK: u64 = 131;
    InjectedCall::new("sigaltstack", SIGALTSTACK, [0, address])
}

/// The call that writes to `address` whether a thread may read the time stamp counter (`int`). It fails on a kernel that cannot
/// forbid it.
pub(in crate::capture) fn tsc_mode_call(address: u64) -> InjectedCall {
    const PR_GET_TSC: u64 = 25;
    InjectedCall::new("prctl(PR_GET_TSC)", PRCTL, [PR_GET_TSC, address]).never_failing()
}

/// The call that returns the secure bits of a thread ([`capabilities(7)`]).
///
/// [`capabilities(7)`]: https://man7.org/linux/man-pages/man7/capabilities.7.html
pub(in crate::capture) fn securebits_call() -> InjectedCall {
    const PR_GET_SECUREBITS: u64 = 27;
    InjectedCall::new("prctl(PR_GET_SECUREBITS)", PRCTL, [PR_GET_SECUREBITS])
}

fn personality_call() -> InjectedCall {
    const PERSONALITY: u64 = 135;
    const PERSONALITY_QUERY: u64 = 0xffff_ffff;
    InjectedCall::new("personality", PERSONALITY, [PERSONALITY_QUERY])
}

/// prctl(2).
pub(in crate::capture) const PRCTL: u64 = 157;

fn tid_address_call(answers: u64) -> InjectedCall {
    const PR_GET_TID_ADDRESS: u64 = 40;
    InjectedCall::new("prctl(PR_GET_TID_ADDRESS)", PRCTL, [PR_GET_TID_ADDRESS, answers + TID_ADDRESS_OFFSET])
}

fn leader_calls(answers: u64) -> Vec<InjectedCall> {
    const PR_GET_PDEATHSIG: u64 = 2;
    const PR_GET_CHILD_SUBREAPER: u64 = 37;
    const PR_GET_TIMERSLACK: u64 = 30;
    const GETITIMER: u64 = 36;
    let mut calls = vec![
        personality_call(),
        InjectedCall::new("prctl(PR_GET_TIMERSLACK)", PRCTL, [PR_GET_TIMERSLACK]).never_failing(),
        InjectedCall::new("prctl(PR_GET_PDEATHSIG)", PRCTL, [PR_GET_PDEATHSIG, answers + DEATH_SIGNAL_OFFSET]),
    ];
    let ask = |which: usize| {
        InjectedCall::new("getitimer", GETITIMER, [which as u64, answers + interval_timer_offset(which)])
    };
    calls.extend((0..TIMERS_COUNT).map(ask));
    calls.push(InjectedCall::new(
        "prctl(PR_GET_CHILD_SUBREAPER)",
        PRCTL,
        [PR_GET_CHILD_SUBREAPER, answers + SUBREAPER_OFFSET],
    ));
    calls
}

const fn interval_timer_offset(which: usize) -> u64 {
    TIMERS_OFFSET + (which * TIME_BYTES) as u64
}

impl ThreadAnswers {
    /// Parses a thread's finished script and its answers. `tid_address` is the clear_child_tid address, if it needed no
    /// call.
    pub(in crate::capture) fn parse(
        (script, bytes): (&[u8], &[u8]),
        is_leader: bool,
        tid_address: Option<u64>,
    ) -> Self {
        let of_leader = |call: usize| if is_leader { script::result_of(script, call) } else { 0 };
        Self {
            alt_stack: if is_leader { AltStack::default() } else { parse_alt_stack(bytes) },
            clear_child_tid: tid_address.unwrap_or_else(|| read_word(bytes, TID_ADDRESS_OFFSET as usize)),
            is_tsc_forbidden: !is_leader
                && script::result_of(script, TSC_MODE_INDEX) == 0
                && parse_tsc_forbidden(bytes, TSC_MODE_OFFSET as usize),
            interval_timers: if is_leader { parse_interval_timers(bytes) } else { Vec::new() },
            parent_death_signal: if is_leader { read_word(bytes, DEATH_SIGNAL_OFFSET as usize) as u32 } else { 0 },
            personality: script::result_of(script, PERSONALITY_INDEX) as u32,
            memory_policy: (!is_leader && script::result_of(script, MEMORY_POLICY_INDEX) == 0)
                .then(|| attributes::parse_memory_policy(bytes, MEMORY_POLICY_OFFSET as usize))
                .flatten(),
            securebits: (!is_leader).then(|| script::result_of(script, SECUREBITS_INDEX) as u32),
            timer_slack_ns: of_leader(TIMER_SLACK_INDEX),
            is_subreaper: is_leader && read_word(bytes, SUBREAPER_OFFSET as usize) as u32 != 0,
        }
    }
}

fn parse_interval_timers(bytes: &[u8]) -> Vec<IntervalTimer> {
    let timer = |which| timers::parse_interval_timer(which, bytes, interval_timer_offset(which) as usize);
    (0..TIMERS_COUNT).filter_map(timer).collect()
}

/// `stack_t`: pointer, flags (and padding), size. SS_ONSTACK is removed: it describes the thread, not the stack.
pub(in crate::capture) fn parse_alt_stack(bytes: &[u8]) -> AltStack {
    const SS_ONSTACK: u32 = 1;
    AltStack { base: read_word(bytes, 0), flags: read_word(bytes, 8) as u32 & !SS_ONSTACK, bytes: read_word(bytes, 16) }
}

/// Parses the answer of a [`tsc_mode_call`] that has succeeded.
pub(in crate::capture) fn parse_tsc_forbidden(bytes: &[u8], at: usize) -> bool {
    const PR_TSC_SIGSEGV: u32 = 2;
    read_word(bytes, at) as u32 == PR_TSC_SIGSEGV
}
