//! State that fork(2) copies and only system calls show. None of it is refused, so it is queried after the reply.
//!
//! Before the reply, `SessionDetach` gives the template its own session, out of reach of kill(0) and terminals. The
//! same script probes for sealed mappings (`memory::seals`). After the reply, the template first leaves the descriptor table
//! that it shares with the parent.

use farfork_wire::descriptor::{AltStack, MemoryPolicy, SignalAction};

use crate::capture::error::CaptureError;
use crate::capture::injection::injector::InjectedCall;
use crate::capture::injection::pages::SLOTS_BYTES_MIN;
use crate::capture::injection::script::{self, ENTRY_BYTES, RunningScript, TRAILER_ENTRIES, read_word};
use crate::capture::injection::script_runner::{InjectionTarget, ScriptRunner};
use crate::capture::injection::thread_queries::{
    PRCTL, alt_stack_call, parse_alt_stack, parse_tsc_forbidden, securebits_call, tsc_mode_call,
};
use crate::capture::state::{attributes, local_descriptors};

/// Number of calls other than those for signals.
const FIXED_CALLS: usize = 10;

/// Indices of calls whose results are used.
const BRK_INDEX: usize = 1;
const DUMPABLE_INDEX: usize = 2;
const INHERITED_SECUREBITS_INDEX: usize = 3;
const MEMBARRIER_INDEX: usize = 5;
const TSC_MODE_INDEX: usize = 6;
const LOCAL_DESCRIPTORS_INDEX: usize = 7;
const MEMORY_MERGE_INDEX: usize = 8;
const MEMORY_POLICY_INDEX: usize = 9;

/// Number of bytes of one local descriptor.
const LOCAL_DESCRIPTOR_BYTES: u64 = 8;

/// Maximum number of calls of [`crate::capture::memory::seals`] in one script: as many as fit into a slot next to setsid.
pub(in crate::capture) const PROBES_MAX: usize = SLOTS_BYTES_MIN as usize / ENTRY_BYTES - TRAILER_ENTRIES - 1;

/// Offset of the answers in the slot.
const ANSWERS_OFFSET: u64 = ((FIXED_CALLS + SIGNALS as usize + TRAILER_ENTRIES) * ENTRY_BYTES) as u64;

/// Offset of the answer to `tsc_mode_call`, from the first answer.
const TSC_MODE_OFFSET: u64 = 24;

/// Offset of the signal dispositions from the first answer, and size of one disposition.
const ACTIONS_OFFSET: u64 = 64;
const ACTION_BYTES: u64 = 32;
const SIGNALS: u64 = 64;

/// Offset of the first local descriptor, and of the memory policy, from the first answer.
const LOCAL_DESCRIPTOR_OFFSET: u64 = 32;
const MEMORY_POLICY_OFFSET: u64 = ACTIONS_OFFSET + SIGNALS * ACTION_BYTES;

const _: () = assert!(ANSWERS_OFFSET + MEMORY_POLICY_OFFSET + attributes::MEMORY_POLICY_BYTES <= SLOTS_BYTES_MIN);

/// Answers to the calls that are injected into the target.
#[derive(Debug, Default)]
pub(in crate::capture) struct InheritedState {
    pub(in crate::capture) brk: u64,
    pub(in crate::capture) securebits: u32,
    /// Registrations for membarrier(2).
    pub(in crate::capture) memory_barriers: u32,
    pub(in crate::capture) dumpable: u32,
    /// Alternate stack of the leader.
    pub(in crate::capture) alt_stack: AltStack,
    /// Whether reading the CPU's time stamp counter raises a signal in the leader (PR_SET_TSC).
    pub(in crate::capture) is_tsc_forbidden: bool,
    /// Whether the process has a local descriptor table (modify_ldt(2)).
    pub(in crate::capture) has_local_descriptors: bool,
    /// Whether all memory may be merged (PR_SET_MEMORY_MERGE).
    pub(in crate::capture) merges_memory: bool,
    /// Memory policy of the leader.
    pub(in crate::capture) memory_policy: Option<MemoryPolicy>,
    /// Dispositions that differ from the default.
    pub(in crate::capture) signal_actions: Vec<SignalAction>,
}

/// A query that was started.
pub(in crate::capture) struct InheritedStateQuery {
    running: RunningScript,
    calls: Vec<InjectedCall>,
}

impl InheritedStateQuery {
    /// Starts the query in the target, which has inherited all this state from the parent. A clone first leaves the
    /// descriptor table that it shares with the parent.
    pub(in crate::capture) fn start(
        injection_target: &InjectionTarget<'_>,
        is_clone: bool,
        runner: &ScriptRunner<'_, '_>,
    ) -> Result<Self, CaptureError> {
        let calls = query_calls(runner.pages.slot_address(0) + ANSWERS_OFFSET, is_clone);
        Ok(Self { running: injection_target.start_script(&calls, runner)?, calls })
    }

    /// Waits for the end of the query, and parses the answers.
    pub(in crate::capture) fn finish(
        self,
        injection_target: &InjectionTarget<'_>,
        runner: &mut ScriptRunner<'_, '_>,
    ) -> Result<InheritedState, CaptureError> {
        let Self { running, calls } = self;
        let slot = injection_target.finish_script(running, SLOTS_BYTES_MIN as usize, runner)?;
        let answers = &slot[ANSWERS_OFFSET as usize..];
        let result = |index: usize| calls[index].check_result(injection_target.pid, script::result_of(&slot, index));
        for index in (0..calls.len()).filter(|index| *index != MEMBARRIER_INDEX) {
            result(index)?;
        }
        Ok(InheritedState {
            brk: result(BRK_INDEX)?,
            dumpable: result(DUMPABLE_INDEX)? as u32,
            securebits: result(INHERITED_SECUREBITS_INDEX)? as u32,
            // An error means that the kernel does not report registrations.
            memory_barriers: result(MEMBARRIER_INDEX).unwrap_or(0) as u32,
            alt_stack: parse_alt_stack(answers),
            is_tsc_forbidden: result(TSC_MODE_INDEX)? == 0 && parse_tsc_forbidden(answers, TSC_MODE_OFFSET as usize),
            has_local_descriptors: result(LOCAL_DESCRIPTORS_INDEX)? == LOCAL_DESCRIPTOR_BYTES,
            // EINVAL: the kernel cannot merge memory.
            merges_memory: result(MEMORY_MERGE_INDEX)? == 1,
            memory_policy: (result(MEMORY_POLICY_INDEX)? == 0)
                .then(|| attributes::parse_memory_policy(answers, MEMORY_POLICY_OFFSET as usize))
                .flatten(),
            signal_actions: (1..=SIGNALS as u32).filter_map(|signal| parse_action(answers, signal)).collect(),
        })
    }
}

/// A template that is making its own session.
pub(in crate::capture) struct SessionDetach {
    running: RunningScript,
    calls: Vec<InjectedCall>,
}

impl SessionDetach {
    /// Makes a template call setsid(2), and then `probes`.
    pub(in crate::capture) fn start(
        template: &InjectionTarget<'_>,
        probes: &[InjectedCall],
        runner: &ScriptRunner<'_, '_>,
    ) -> Result<Self, CaptureError> {
        const SETSID: u64 = 112;
        debug_assert!(probes.len() <= PROBES_MAX);
        let calls: Vec<InjectedCall> =
            [InjectedCall::new("setsid", SETSID, [])].into_iter().chain(probes.iter().copied()).collect();
        Ok(Self { running: template.start_script(&calls, runner)?, calls })
    }

    /// Waits for the calls. Returns the results of the probes.
    pub(in crate::capture) fn finish(
        self,
        template: &InjectionTarget<'_>,
        runner: &mut ScriptRunner<'_, '_>,
    ) -> Result<Vec<u64>, CaptureError> {
        let slot = template.finish_script(self.running, self.calls.len() * ENTRY_BYTES, runner)?;
        self.calls[0].check_result(template.pid, script::result_of(&slot, 0))?;
        Ok((1..self.calls.len()).map(|index| script::result_of(&slot, index)).collect())
    }
}

/// Returns the call by which a clone leaves the parent's descriptor table for an empty one. The call closes and flushes no
/// file. A stopped parent keeps its table: it makes a call without effect.
fn leave_files_call(is_clone: bool) -> InjectedCall {
    const CLOSE_RANGE: u64 = 436;
    const CLOSE_RANGE_UNSHARE: u64 = 2;
    const GETPID: u64 = 39;
    if is_clone {
        InjectedCall::new("close_range", CLOSE_RANGE, [0, u64::from(u32::MAX), CLOSE_RANGE_UNSHARE])
    } else {
        InjectedCall::new("getpid", GETPID, [])
    }
}

// The scripts are in the leader's slot of the injection pages:
//
//  slot   calls          answers   0         24    32           64 + 32 × (signal − 1)            2112
//         with results             stack_t   int   descriptor   struct sigaction of each signal   memory policy
/// Builds the calls of a query. All signals are queried, because that is cheaper than finding the relevant ones in `/proc`.
fn query_calls(answers: u64, is_clone: bool) -> Vec<InjectedCall> {
    const BRK: u64 = 12;
    const RT_SIGACTION: u64 = 13;
    const MEMBARRIER: u64 = 324;
    const MEMBARRIER_CMD_GET_REGISTRATIONS: u64 = 1 << 9;
    const PR_GET_DUMPABLE: u64 = 3;
    const PR_GET_MEMORY_MERGE: u64 = 68;
    const SIGNAL_SET_BYTES: u64 = 8;
    let mut calls = vec![
        leave_files_call(is_clone),
        InjectedCall::new("brk", BRK, [0]),
        InjectedCall::new("prctl(PR_GET_DUMPABLE)", PRCTL, [PR_GET_DUMPABLE]),
        securebits_call(),
        alt_stack_call(answers),
        InjectedCall::new("membarrier", MEMBARRIER, [MEMBARRIER_CMD_GET_REGISTRATIONS, 0, 0]),
        tsc_mode_call(answers + TSC_MODE_OFFSET),
        local_descriptors::read_table_call(answers + LOCAL_DESCRIPTOR_OFFSET, LOCAL_DESCRIPTOR_BYTES),
        InjectedCall::new("prctl(PR_GET_MEMORY_MERGE)", PRCTL, [PR_GET_MEMORY_MERGE]).never_failing(),
        attributes::memory_policy_call(answers + MEMORY_POLICY_OFFSET),
    ];
    let action = |signal: u64| {
        let arguments = [signal, 0, answers + action_offset(signal as u32), SIGNAL_SET_BYTES];
        InjectedCall::new("rt_sigaction", RT_SIGACTION, arguments)
    };
    calls.extend((1..=SIGNALS).map(action));
    calls
}

fn action_offset(signal: u32) -> u64 {
    ACTIONS_OFFSET + u64::from(signal - 1) * ACTION_BYTES
}

/// The kernel's `struct sigaction`: handler, flags, restorer, mask.
fn parse_action(answers: &[u8], signal: u32) -> Option<SignalAction> {
    let field = |index: usize| read_word(answers, action_offset(signal) as usize + index * 8);
    let action = SignalAction { signal, handler: field(0), flags: field(1), restorer: field(2), mask: field(3) };
    (action.handler != 0 || action.flags != 0).then_some(action)
}
