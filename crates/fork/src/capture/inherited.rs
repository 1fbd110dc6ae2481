//! What fork(2) hands down and only system calls tell: asked of the template, when the parent runs again.
//!
//! The calls are a script on the leader's desk of the lifeline, whose pages the template has too and is then rid of:
//!
//! ```text
//!  desk   calls        answers   0         24 … 64   64 + 32 × (signal − 1)
//!         with results           stack_t   -         struct sigaction of each signal that is asked for
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;

use farfork_sys::process::Status;
use farfork_sys::ptrace::Registers;
use farfork_wire::descriptor::{AltStack, SignalAction};

use super::ask::{PRCTL, alt_stack_call, parse_alt_stack, word};
use super::error::CaptureError;
use super::inject::{Call, Injector};
use super::lifeline::{DESKS_BYTES_MIN, Lifeline};
use super::script::{self, ENTRIES_ADDED, ENTRY_BYTES};

/// Calls beside those for signals.
const OTHER_CALLS: usize = 4;

/// Where the answers begin.
const ANSWERS_AT: u64 = ((OTHER_CALLS + SIGNALS as usize + ENTRIES_ADDED) * ENTRY_BYTES) as u64;

/// Where the dispositions begin, and the size of one.
const ACTIONS_AT: u64 = 64;
const ACTION_BYTES: u64 = 32;
const SIGNALS: u64 = 64;

const _: () = assert!(ANSWERS_AT + ACTIONS_AT + SIGNALS * ACTION_BYTES <= DESKS_BYTES_MIN);

/// The process that stands for the parent after the pause: its template, or itself in freeze mode.
pub(super) struct Subject<'a> {
    pub(super) pid: i32,
    /// Registers for calls made in it.
    pub(super) registers: &'a Registers,
    /// Its id in its pid namespace.
    pub(super) inner_id: u32,
    pub(super) mem: &'a File,
}

/// What calls made in the subject tell.
#[derive(Debug, Default)]
pub(super) struct Inherited {
    pub(super) brk: u64,
    pub(super) securebits: u32,
    pub(super) dumpable: u32,
    /// The leader's.
    pub(super) alt_stack: AltStack,
    /// Dispositions that differ from the default.
    pub(super) signal_actions: Vec<SignalAction>,
}

impl Inherited {
    /// Asks the subject, which has inherited all of this from the parent.
    pub(super) fn ask(
        subject: &Subject<'_>,
        lifeline: &Lifeline,
        injector: &mut Injector<'_>,
    ) -> Result<Self, CaptureError> {
        let status = Status::read(subject.pid).map_err(CaptureError::read(subject.pid, "status"))?;
        let signals = signals_to_ask_for(&status);
        let calls = calls(lifeline.desk(0) + ANSWERS_AT, &signals);
        let desk = subject.run(&calls, lifeline, injector)?;
        let answers = &desk[ANSWERS_AT as usize..];
        let result = |index: usize| calls[index].checked(subject.pid, script::result(&desk, index));
        Ok(Self {
            brk: result(0)?,
            dumpable: result(1)? as u32,
            securebits: result(2)? as u32,
            alt_stack: parse_alt_stack(answers),
            signal_actions: signals.iter().filter_map(|signal| parse_action(answers, *signal)).collect(),
        })
    }
}

impl Subject<'_> {
    /// Makes calls in the subject, and gives its desk afterwards.
    fn run(&self, calls: &[Call], lifeline: &Lifeline, injector: &mut Injector<'_>) -> Result<Vec<u8>, CaptureError> {
        let failed = |operation| CaptureError::trace(operation, self.pid);
        let script = script::encode(calls, (self.inner_id, self.inner_id), lifeline.end());
        self.mem.write_all_at(&script, lifeline.desk(0)).map_err(failed("write the calls of"))?;
        let running = lifeline.running(0, self.pid, calls.len());
        injector.start(&running, self.registers)?;
        injector.finish(&mut vec![running], |_| true)?;
        let mut desk = vec![0; DESKS_BYTES_MIN as usize];
        self.mem.read_exact_at(&mut desk, lifeline.desk(0)).map_err(failed("read the answers of"))?;
        Ok(desk)
    }
}

/// SIGCHLD is asked for always: it can have flags (SA_NOCLDWAIT) with the default handler, which /proc does not show.
fn signals_to_ask_for(status: &Status) -> Vec<u32> {
    const SIGCHLD: i32 = 17;
    let matters = |signal: &i32| status.catches(*signal) || status.ignores(*signal) || *signal == SIGCHLD;
    (1..=SIGNALS as i32).filter(matters).map(i32::cast_unsigned).collect()
}

/// The calls whose results are the answers come first.
fn calls(answers: u64, signals: &[u32]) -> Vec<Call> {
    const BRK: u64 = 12;
    const RT_SIGACTION: u64 = 13;
    const PR_GET_DUMPABLE: u64 = 3;
    const PR_GET_SECUREBITS: u64 = 27;
    const SIGNAL_SET_BYTES: u64 = 8;
    let mut calls = vec![
        Call::new("brk", BRK, [0]),
        Call::new("prctl(PR_GET_DUMPABLE)", PRCTL, [PR_GET_DUMPABLE]),
        Call::new("prctl(PR_GET_SECUREBITS)", PRCTL, [PR_GET_SECUREBITS]),
        alt_stack_call(answers),
    ];
    let action = |signal: &u32| {
        let arguments = [u64::from(*signal), 0, answers + action_at(*signal), SIGNAL_SET_BYTES];
        Call::new("rt_sigaction", RT_SIGACTION, arguments)
    };
    calls.extend(signals.iter().map(action));
    calls
}

fn action_at(signal: u32) -> u64 {
    ACTIONS_AT + u64::from(signal - 1) * ACTION_BYTES
}

/// The kernel's `struct sigaction`: handler, flags, restorer, mask.
fn parse_action(answers: &[u8], signal: u32) -> Option<SignalAction> {
    let field = |index: usize| word(answers, action_at(signal) as usize + index * 8);
    let action = SignalAction { signal, handler: field(0), flags: field(1), restorer: field(2), mask: field(3) };
    (action.handler != 0 || action.flags != 0).then_some(action)
}
