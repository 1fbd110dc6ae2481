//! The log of the phases of one request on one node, and its conversion to a list for the API.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_api::v1;

/// Maximum phases of one recording; further phases are dropped. The start of one child has about 40, so retries fit
/// too. The limit bounds the memory that a request for a profile uses.
const PHASES_MAX: usize = 512;

/// The index of a phase in its log.
pub(super) type PhaseIndex = usize;

/// The root phase, which every log has.
pub(super) const ROOT: PhaseIndex = 0;

/// The phases of one request on one node.
#[derive(Debug)]
pub(super) struct PhaseLog {
    node: String,
    started: Instant,
    /// `started` as CLOCK_REALTIME since 1970. Other processes report their phases in CLOCK_REALTIME.
    started_realtime: Duration,
    phases: Mutex<Vec<LoggedPhase>>,
}

/// A phase. Times are relative to the start of the log.
#[derive(Debug)]
struct LoggedPhase {
    name: Cow<'static, str>,
    parent: PhaseIndex,
    started: Duration,
    /// `None` while the phase is in progress.
    ended: Option<Duration>,
}

impl PhaseLog {
    /// Creates a log whose root phase begins now.
    pub(super) fn new(node: String, root: &'static str) -> Self {
        let root = LoggedPhase { name: Cow::Borrowed(root), parent: ROOT, started: Duration::ZERO, ended: None };
        let started_realtime = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { node, started: Instant::now(), started_realtime, phases: Mutex::new(vec![root]) }
    }

    /// Begins a phase. Returns `None` if the log is full.
    pub(super) fn begin_phase(&self, name: &'static str, parent: PhaseIndex) -> Option<PhaseIndex> {
        let started = self.started.elapsed();
        self.push(LoggedPhase { name: Cow::Borrowed(name), parent, started, ended: None })
    }

    /// Ends a phase; a later end replaces an earlier one.
    pub(super) fn end_phase(&self, index: PhaseIndex) {
        let ended = self.started.elapsed();
        self.phases()[index].ended = Some(ended);
    }

    /// Ends a phase that has not been ended.
    pub(super) fn close_phase(&self, index: PhaseIndex) {
        let ended = self.started.elapsed();
        self.phases()[index].ended.get_or_insert(ended);
    }

    /// Adds a phase reported by another process, with times in nanoseconds of CLOCK_REALTIME.
    pub(super) fn add_remote_phase(&self, name: String, parent: PhaseIndex, started_ns: u64, ended_ns: u64) {
        let since = |ns: u64| Duration::from_nanos(ns).saturating_sub(self.started_realtime);
        let (started, ended) = (since(started_ns), Some(since(ended_ns)));
        self.push(LoggedPhase { name: Cow::Owned(name), parent, started, ended });
    }

    /// Lists the phases in depth-first order: each after its parent, siblings by their start. No phase extends beyond
    /// its parent. Phases in progress end now.
    pub(super) fn list(&self) -> Vec<v1::Phase> {
        let now = self.started.elapsed();
        let phases = self.phases();
        let mut parts: Vec<Vec<PhaseIndex>> = vec![Vec::new(); phases.len()];
        for (index, phase) in phases.iter().enumerate().skip(1) {
            parts[phase.parent].push(index);
        }
        let mut listed = Vec::with_capacity(phases.len());
        let mut waiting = vec![(ROOT, 0, 0, to_us(now))];
        while let Some((index, depth, from_us, until_us)) = waiting.pop() {
            let phase = &phases[index];
            let start_us = to_us(phase.started).clamp(from_us, until_us);
            let end_us = to_us(phase.ended.unwrap_or(now)).clamp(start_us, until_us);
            let (name, node) = (phase.name.to_string(), self.node.clone());
            listed.push(v1::Phase { name, depth, start_us, duration_us: end_us - start_us, node });
            // Push in reverse order, since the last phase is popped first.
            parts[index].sort_by_key(|part| std::cmp::Reverse((phases[*part].started, *part)));
            waiting.extend(parts[index].iter().map(|part| (*part, depth + 1, start_us, end_us)));
        }
        listed
    }

    fn push(&self, phase: LoggedPhase) -> Option<PhaseIndex> {
        let mut phases = self.phases();
        (phases.len() < PHASES_MAX).then(|| {
            phases.push(phase);
            phases.len() - 1
        })
    }

    fn phases(&self) -> MutexGuard<'_, Vec<LoggedPhase>> {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Duration, PHASES_MAX, PhaseLog, ROOT};

    #[test]
    fn remote_phases_are_limited_to_their_outer_phase() {
        let log = PhaseLog::new("n1".to_owned(), "resume");
        let outer = log.begin_phase("resume.child", ROOT).unwrap();
        let started = log.started_realtime;
        let at = |offset: Duration| u64::try_from((started + offset).as_nanos()).unwrap();
        log.add_remote_phase(
            "child.threads".to_owned(),
            outer,
            at(Duration::from_nanos(2)),
            at(Duration::from_secs(3600)),
        );
        log.add_remote_phase("child.map".to_owned(), outer, at(Duration::ZERO), at(Duration::from_nanos(1)));
        log.end_phase(outer);
        log.begin_phase("resume.record", ROOT).unwrap();
        let listed = log.list();
        let names: Vec<_> = listed.iter().map(|phase| (phase.depth, phase.name.as_str())).collect();
        let expected =
            [(0, "resume"), (1, "resume.child"), (2, "child.map"), (2, "child.threads"), (1, "resume.record")];
        assert_eq!(names, expected);
        let end = |index: usize| listed[index].start_us + listed[index].duration_us;
        assert!(end(3) <= end(1), "a wrong clock moves no phase beyond its parent");
        assert!(end(4) <= end(0), "a phase in progress ends when it is listed");
    }

    #[test]
    fn a_phase_log_is_bounded() {
        let log = PhaseLog::new("n1".to_owned(), "prepare");
        let entered = (0..2 * PHASES_MAX).filter_map(|_| log.begin_phase("prepare.stop", ROOT)).count();
        assert_eq!(entered, PHASES_MAX - 1);
        assert_eq!(log.list().len(), PHASES_MAX);
    }
}
