//! What fork(2) hands down and only system calls tell: asked of the template when the answer is out, since nothing of it is
//! refused. What comes before the answer is that it is set [`Apart`]: it gets a session of its own, so that no
//! kill(0) or terminal reaches it; its areas are probed ([`crate::capture::memory::seals`]) on the same occasion. The parent's table of descriptors,
//! which it shares, it leaves as soon as the answer is out: the first that it does when it is asked.
//!
//! The calls are scripts on the leader's desk of the lifeline:
//!
//! ```text
//!  desk   calls          answers   0         24    64 + 32 × (signal − 1)
//!         with results             stack_t   int   struct sigaction of each signal
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;

use farfork_sys::ptrace::Registers;
use farfork_wire::descriptor::{AltStack, SignalAction};

use crate::capture::calls::ask::{
    PRCTL, alt_stack_call, forbids_time_stamps, parse_alt_stack, securebits_call, time_stamps_call,
};
use crate::capture::calls::inject::{Call, Injector};
use crate::capture::calls::lifeline::{DESKS_BYTES_MIN, Lifeline};
use crate::capture::calls::script::{self, ENTRIES_ADDED, ENTRY_BYTES, Running, word};
use crate::capture::error::CaptureError;
use crate::capture::tracer::post::at_once;

/// Calls beside those for signals.
const OTHER_CALLS: usize = 7;

/// Where among the calls some stand whose results matter.
const BRK_CALL: usize = 1;
const DUMPABLE_CALL: usize = 2;
const SECUREBITS_CALL: usize = 3;
const BARRIERS_CALL: usize = 5;

/// Most calls of [`crate::capture::memory::seals`] that one script makes: as many as a desk has room for, beside setsid.
pub(in crate::capture) const PROBES_MAX: usize = DESKS_BYTES_MIN as usize / ENTRY_BYTES - ENTRIES_ADDED - 1;

/// Where the answers begin.
const ANSWERS_AT: u64 = ((OTHER_CALLS + SIGNALS as usize + ENTRIES_ADDED) * ENTRY_BYTES) as u64;

/// Where it stands whether time stamps may be read.
const TIME_STAMPS_AT: u64 = 24;

/// Where the dispositions begin, and the size of one.
const ACTIONS_AT: u64 = 64;
const ACTION_BYTES: u64 = 32;
const SIGNALS: u64 = 64;

const _: () = assert!(ANSWERS_AT + ACTIONS_AT + SIGNALS * ACTION_BYTES <= DESKS_BYTES_MIN);

/// The process that stands for the parent after the pause: its template, or itself in freeze mode.
pub(in crate::capture) struct Subject<'a> {
    pub(in crate::capture) pid: i32,
    /// Registers for calls made in it.
    pub(in crate::capture) registers: &'a Registers,
    /// Its id in its pid namespace.
    pub(in crate::capture) inner_id: u32,
    pub(in crate::capture) mem: &'a File,
}

/// What calls made in the subject tell.
#[derive(Debug, Default)]
pub(in crate::capture) struct Inherited {
    pub(in crate::capture) brk: u64,
    pub(in crate::capture) securebits: u32,
    /// Registrations for membarrier(2).
    pub(in crate::capture) memory_barriers: u32,
    pub(in crate::capture) dumpable: u32,
    /// The leader's.
    pub(in crate::capture) alt_stack: AltStack,
    /// Whether the leader is stopped at reading the processor's time stamps.
    pub(in crate::capture) forbids_time_stamps: bool,
    /// Dispositions that differ from the default.
    pub(in crate::capture) signal_actions: Vec<SignalAction>,
}

/// A subject that is being asked.
pub(in crate::capture) struct Asked {
    running: Running,
    calls: Vec<Call>,
}

impl Asked {
    /// Asks the subject, which has inherited all of this from the parent. One that `is_clone` leaves the parent's table of descriptors first.
    pub(in crate::capture) fn begin(
        subject: &Subject<'_>,
        is_clone: bool,
        (lifeline, injector): (&Lifeline, &Injector<'_>),
    ) -> Result<Self, CaptureError> {
        let calls = calls(lifeline.desk(0) + ANSWERS_AT, is_clone);
        Ok(Self { running: subject.start(&calls, lifeline, injector)?, calls })
    }

    /// Waits for its answers.
    pub(in crate::capture) fn finish(
        self,
        subject: &Subject<'_>,
        (lifeline, injector): (&Lifeline, &mut Injector<'_>),
    ) -> Result<Inherited, CaptureError> {
        let Self { running, calls } = self;
        let desk = subject.finish(running, DESKS_BYTES_MIN as usize, lifeline, injector)?;
        let answers = &desk[ANSWERS_AT as usize..];
        let result = |index: usize| calls[index].checked(subject.pid, script::result(&desk, index));
        for index in (0..calls.len()).filter(|index| *index != BARRIERS_CALL) {
            result(index)?;
        }
        Ok(Inherited {
            brk: result(BRK_CALL)?,
            dumpable: result(DUMPABLE_CALL)? as u32,
            securebits: result(SECUREBITS_CALL)? as u32,
            // Before Linux 6.3 nobody can tell.
            memory_barriers: result(BARRIERS_CALL).unwrap_or(0) as u32,
            alt_stack: parse_alt_stack(answers),
            forbids_time_stamps: forbids_time_stamps(answers, TIME_STAMPS_AT as usize),
            signal_actions: (1..=SIGNALS as u32).filter_map(|signal| parse_action(answers, signal)).collect(),
        })
    }
}

/// A template that is getting a session of its own.
pub(in crate::capture) struct Apart {
    running: Running,
    calls: Vec<Call>,
}

impl Apart {
    /// Has a template make itself a session, and then `probes`.
    pub(in crate::capture) fn begin(
        template: &Subject<'_>,
        probes: &[Call],
        (lifeline, injector): (&Lifeline, &Injector<'_>),
    ) -> Result<Self, CaptureError> {
        const SETSID: u64 = 112;
        debug_assert!(probes.len() <= PROBES_MAX);
        let calls: Vec<Call> = [Call::new("setsid", SETSID, [])].into_iter().chain(probes.iter().copied()).collect();
        Ok(Self { running: template.start(&calls, lifeline, injector)?, calls })
    }

    /// Waits until it has. Gives the results of the probes.
    pub(in crate::capture) fn finish(
        self,
        template: &Subject<'_>,
        (lifeline, injector): (&Lifeline, &mut Injector<'_>),
    ) -> Result<Vec<u64>, CaptureError> {
        let desk = template.finish(self.running, self.calls.len() * ENTRY_BYTES, lifeline, injector)?;
        self.calls[0].checked(template.pid, script::result(&desk, 0))?;
        Ok((1..self.calls.len()).map(|index| script::result(&desk, index)).collect())
    }
}

impl Subject<'_> {
    /// Makes calls in the subject, and gives its desk afterwards.
    pub(in crate::capture) fn run(
        &self,
        calls: &[Call],
        lifeline: &Lifeline,
        injector: &mut Injector<'_>,
    ) -> Result<Vec<u8>, CaptureError> {
        let running = self.start(calls, lifeline, injector)?;
        self.finish(running, DESKS_BYTES_MIN as usize, lifeline, injector)
    }

    fn start(&self, calls: &[Call], lifeline: &Lifeline, injector: &Injector<'_>) -> Result<Running, CaptureError> {
        let script = script::encode(calls, (self.inner_id, self.inner_id), lifeline.end());
        let written = self.mem.write_all_at(&script, lifeline.desk(0));
        written.map_err(CaptureError::trace("write the calls of", self.pid))?;
        let running = lifeline.running(0, self.pid, calls.len());
        injector.start(&running, self.registers)?;
        Ok(running)
    }

    fn finish(
        &self,
        running: Running,
        bytes: usize,
        lifeline: &Lifeline,
        injector: &mut Injector<'_>,
    ) -> Result<Vec<u8>, CaptureError> {
        at_once(injector.finish(&mut vec![running], |_| true))?;
        let mut desk = vec![0; bytes];
        self.mem
            .read_exact_at(&mut desk, lifeline.desk(0))
            .map_err(CaptureError::trace("read the answers of", self.pid))?;
        Ok(desk)
    }
}

/// Has a template leave the parent's table of descriptors for an empty one: no file is closed by that, nor flushed. A parent keeps its own:
/// in the call's place stands one that does nothing.
fn leave_files_call(is_clone: bool) -> Call {
    const CLOSE_RANGE: u64 = 436;
    const CLOSE_RANGE_UNSHARE: u64 = 2;
    const GETPID: u64 = 39;
    if is_clone {
        Call::new("close_range", CLOSE_RANGE, [0, u64::from(u32::MAX), CLOSE_RANGE_UNSHARE])
    } else {
        Call::new("getpid", GETPID, [])
    }
}

/// The calls whose results are the answers come first. All signals are asked for: that is cheaper than to learn from
/// `/proc` which matter.
fn calls(answers: u64, is_clone: bool) -> Vec<Call> {
    const BRK: u64 = 12;
    const RT_SIGACTION: u64 = 13;
    const MEMBARRIER: u64 = 324;
    const MEMBARRIER_CMD_GET_REGISTRATIONS: u64 = 1 << 9;
    const PR_GET_DUMPABLE: u64 = 3;
    const SIGNAL_SET_BYTES: u64 = 8;
    let mut calls = vec![
        leave_files_call(is_clone),
        Call::new("brk", BRK, [0]),
        Call::new("prctl(PR_GET_DUMPABLE)", PRCTL, [PR_GET_DUMPABLE]),
        securebits_call(),
        alt_stack_call(answers),
        Call::new("membarrier", MEMBARRIER, [MEMBARRIER_CMD_GET_REGISTRATIONS, 0, 0]),
        time_stamps_call(answers + TIME_STAMPS_AT),
    ];
    let action = |signal: u64| {
        let arguments = [signal, 0, answers + action_at(signal as u32), SIGNAL_SET_BYTES];
        Call::new("rt_sigaction", RT_SIGACTION, arguments)
    };
    calls.extend((1..=SIGNALS).map(action));
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
