//! Tracks how long the next replica on the path of a log has not taken the log, and when the replica must leave the chain.
//! `forwarder` calls it after each attempt.

use std::time::{Duration, Instant};

use farfork_wire::NodeName;

use super::replica_progress::{ReplicaProgress, ReplicaRate};

/// Wait before the next request to a successor that has failed.
const RETRY_WAIT: Duration = Duration::from_millis(100);
/// Wait before the next request to a successor that has another path, or waits for its own successor.
const ALIVE_RETRY_WAIT: Duration = Duration::from_millis(5);

/// Why a successor has not taken the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SuccessorFailure {
    /// Its process does not answer.
    Silent,
    /// It has not answered this request, but its process is alive. It leaves only if it also takes its log too slowly.
    Waiting,
    /// This node cannot read the catalog, which says nothing about the successor.
    Unknown,
    /// It has another path of the log.
    OtherPath,
    /// It is a live replica whose disk has no space for a new log. Writers wait until it has space.
    DiskFull,
    /// It cannot take the log.
    Refusing,
}

/// The failures of a successor since it has last taken the log.
#[derive(Debug)]
pub(super) struct SuccessorHealth {
    /// The successor that has failed last.
    node: Option<NodeName>,
    retry_at: Instant,
    /// Last time at which the successor's process was known to be alive. None if the last request has succeeded.
    silent_since: Option<Instant>,
    /// Start of the present series of refusals; none if the last request has not been refused.
    refusing_since: Option<Instant>,
    /// How fast the successor validates the log.
    pub(super) progress: ReplicaProgress,
}

impl SuccessorHealth {
    /// Creates the state of a successor that has not failed.
    pub(super) fn new(rate: ReplicaRate, now: Instant) -> Self {
        let progress = ReplicaProgress::new(rate, now);
        Self { node: None, retry_at: now, silent_since: None, refusing_since: None, progress }
    }

    /// Time at which the next request is due.
    pub(super) fn retry_at(&self) -> Instant {
        self.retry_at
    }

    /// Whether the last request has failed.
    pub(super) fn is_failing(&self) -> bool {
        self.silent_since.is_some()
    }

    /// Selects the successor whose failure is counted next. Earlier failures of another successor do not count against it.
    pub(super) fn begin(&mut self, node: &NodeName, now: Instant) {
        if self.node.as_ref() != Some(node) {
            self.node = Some(node.clone());
            self.reset();
            self.progress.renew(now);
        }
    }

    /// Drops the counted failures: the successor has taken the log or left the chain, or there is no successor.
    pub(super) fn reset(&mut self) {
        (self.silent_since, self.refusing_since) = (None, None);
    }

    /// Counts the failure of a request that was made at `started`. Returns whether the successor must leave the chain: it
    /// was silent, or has only refused, for the time of failure detection. Or it is alive, and takes its log too slowly.
    pub(super) fn fail(&mut self, failure: SuccessorFailure, started: Instant, now: Instant) -> bool {
        let detection_time = self.progress.rate().detection_time;
        self.retry_at = now + RETRY_WAIT;
        let has_lasted = |since: Instant| now.saturating_duration_since(since) >= detection_time;
        match failure {
            SuccessorFailure::Silent => {
                self.refusing_since = None;
                return has_lasted(*self.silent_since.get_or_insert(started));
            }
            SuccessorFailure::Refusing => {
                self.silent_since = Some(now);
                // Not `started`: the refusal may be the end of a long attempt.
                return has_lasted(*self.refusing_since.get_or_insert(now));
            }
            SuccessorFailure::Waiting => self.retry_at = now + ALIVE_RETRY_WAIT,
            SuccessorFailure::OtherPath => {
                self.retry_at = now + ALIVE_RETRY_WAIT;
                self.progress.renew(now);
            }
            SuccessorFailure::DiskFull | SuccessorFailure::Unknown => self.progress.renew(now),
        }
        (self.silent_since, self.refusing_since) = (Some(now), None);
        failure == SuccessorFailure::Waiting && self.progress.is_stalled(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DETECTION: Duration = Duration::from_secs(1);
    const RATE: ReplicaRate = ReplicaRate { bytes_min: 1000, detection_time: DETECTION };

    /// Applies failures at these times, in milliseconds. Returns for each one whether the successor must leave.
    fn verdicts(failures: &[(u64, SuccessorFailure)]) -> Vec<bool> {
        let start = Instant::now();
        let mut health = SuccessorHealth::new(RATE, start);
        let verdict = |(at_ms, failure): &(u64, SuccessorFailure)| {
            let now = start + Duration::from_millis(*at_ms);
            health.fail(*failure, now, now)
        };
        failures.iter().map(verdict).collect()
    }

    #[test]
    fn a_successor_leaves_when_it_was_silent_or_refusing_for_the_detection_time() {
        for failure in [SuccessorFailure::Silent, SuccessorFailure::Refusing] {
            assert_eq!(verdicts(&[(0, failure), (999, failure), (1000, failure)]), [false, false, true]);
        }
    }

    #[test]
    fn a_successor_that_waits_knows_another_path_or_has_a_full_disk_stays() {
        for failure in [SuccessorFailure::Waiting, SuccessorFailure::OtherPath, SuccessorFailure::DiskFull] {
            assert_eq!(verdicts(&[(0, failure), (5000, failure), (9000, failure)]), [false; 3]);
            // The failure in the middle shows that the successor is alive, and ends the series of refusals.
            for other in [SuccessorFailure::Silent, SuccessorFailure::Refusing] {
                assert_eq!(verdicts(&[(0, other), (900, failure), (1800, other)]), [false; 3]);
            }
        }
    }

    #[test]
    fn a_successor_that_is_alive_leaves_only_if_it_takes_its_log_too_slowly() {
        use SuccessorFailure::Waiting;
        let window_ms = RATE.window().as_millis() as u64;
        assert_eq!(verdicts(&[(0, Waiting), (window_ms - 1, Waiting), (window_ms, Waiting)]), [false, false, true]);
        let start = Instant::now();
        let mut health = SuccessorHealth::new(RATE, start);
        for second in 1..100 {
            let now = start + second * DETECTION;
            health.progress.advance(u64::from(second) * RATE.bytes_min, now);
            assert!(!health.fail(Waiting, now, now), "after {second} s");
        }
    }

    #[test]
    fn one_refusal_after_a_long_attempt_does_not_remove_a_successor() {
        let (start, mut health) = (Instant::now(), SuccessorHealth::new(RATE, Instant::now()));
        let end = start + 2 * DETECTION;
        assert!(!health.fail(SuccessorFailure::Refusing, start, end));
        assert!(health.fail(SuccessorFailure::Refusing, end, end + DETECTION));
    }

    #[test]
    fn failures_of_one_successor_do_not_count_against_the_next() {
        let nodes = ["n2", "n3"].map(|name| NodeName::new(name).unwrap());
        for failure in [SuccessorFailure::Silent, SuccessorFailure::Refusing] {
            let (start, mut health) = (Instant::now(), SuccessorHealth::new(RATE, Instant::now()));
            let end = start + 2 * DETECTION;
            health.begin(&nodes[0], start);
            assert!(!health.fail(failure, start, start));
            health.begin(&nodes[1], end);
            assert!(!health.is_failing() && !health.fail(failure, end, end));
        }
    }

    #[test]
    fn a_process_that_starts_again_does_not_leave_for_its_refusals_before() {
        use SuccessorFailure::{Refusing, Silent};
        assert_eq!(
            verdicts(&[(0, Refusing), (600, Silent), (1200, Refusing), (2200, Refusing)]),
            [false, false, false, true]
        );
    }
}
