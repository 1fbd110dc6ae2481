//! Space of the shared trees, as far as the log will not use it. A write that a replica could not publish is refused with
//! ENOSPC when it is made, not lost later.
//!
//! Each report of published records has the least space of a replica. A record that may not fit waits for a report that was
//! made after everything before the record was published, and is refused only then.

use std::collections::VecDeque;

use crate::chain::{AMPLE_BYTES, RECORD_BYTES, RESERVE_BYTES, TreeSpace};
use crate::log::LogPoint;

/// Space for records of a term before its first report. When others have used up all space since, as many clients as the reserve
/// has room for may each write this once.
const UNREPORTED_BYTES: u64 = 1 << 20;

/// An estimate of the space that the replica with the least has for new records.
#[derive(Debug)]
pub(super) struct SpaceEstimate {
    /// The last report, or less.
    reported: TreeSpace,
    /// Space that records need which the report does not count: sequence number and bytes.
    unpublished: VecDeque<(u64, u64)>,
    unpublished_bytes: u64,
    check: SpaceCheckState,
}

/// Whether the offload process is asked for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpaceCheckState {
    NotRequested,
    /// It answers when the log is published up to here, or a replica is full.
    Requested(LogPoint),
    /// The report is from now.
    Answered,
}

/// Whether a record may be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpaceDecision {
    /// There is space.
    Fits,
    /// A new report decides.
    Unknown,
    /// ENOSPC.
    Refused,
}

impl Default for SpaceEstimate {
    fn default() -> Self {
        let (reported, check) = (TreeSpace::Full, SpaceCheckState::NotRequested);
        Self { reported, unpublished: VecDeque::new(), unpublished_bytes: 0, check }
    }
}

impl SpaceEstimate {
    /// Whether a record may be logged that allocates so many bytes of a file. While earlier records are unpublished, they may
    /// turn out to need less space than they are counted with, unless a replica is full and does not publish them.
    pub(super) fn decide(&self, bytes: u64, has_unpublished: bool) -> SpaceDecision {
        let room = match self.reported {
            TreeSpace::Full => 0,
            TreeSpace::Free(bytes) => bytes.saturating_sub(self.unpublished_bytes).saturating_sub(RESERVE_BYTES),
        };
        let is_final = self.is_full() || (self.check == SpaceCheckState::Answered && !has_unpublished);
        if needed_bytes(bytes) <= room {
            SpaceDecision::Fits
        } else if is_final {
            SpaceDecision::Refused
        } else {
            SpaceDecision::Unknown
        }
    }

    /// A record was logged that allocates so many bytes of a file.
    pub(super) fn add_record(&mut self, sequence: u64, bytes: u64) {
        self.unpublished.push_back((sequence, needed_bytes(bytes)));
        self.unpublished_bytes += needed_bytes(bytes);
    }

    /// Another client may have written since the last term. `space` is the least of a replica at the begin of the term, unless it
    /// was ample before.
    pub(super) fn start_term(&mut self, space: Option<TreeSpace>) {
        (self.reported, self.check) = match (space, self.reported) {
            (Some(space), _) => (space, SpaceCheckState::Answered),
            (None, TreeSpace::Free(bytes)) if bytes >= AMPLE_BYTES => {
                (TreeSpace::Free(RESERVE_BYTES + UNREPORTED_BYTES), SpaceCheckState::NotRequested)
            }
            (None, _) => (TreeSpace::Full, SpaceCheckState::NotRequested),
        };
    }

    /// Records before `point` are published.
    pub(super) fn advance_published(&mut self, point: LogPoint) {
        while let Some((_, bytes)) = self.unpublished.pop_front_if(|(sequence, _)| *sequence < point.sequence) {
            self.unpublished_bytes -= bytes;
        }
    }

    /// The least space of a replica, which counts everything that is published.
    pub(super) fn report(&mut self, space: TreeSpace) {
        self.reported = space;
    }

    /// Asks for a report. Whether the question has to be sent.
    pub(super) fn request_check(&mut self, head: LogPoint) -> bool {
        let is_requested = matches!(self.check, SpaceCheckState::Requested(_));
        if !is_requested {
            self.check = SpaceCheckState::Requested(head);
        }
        !is_requested
    }

    /// The question that is not answered.
    pub(super) fn unanswered_check(&self) -> Option<LogPoint> {
        match self.check {
            SpaceCheckState::Requested(point) => Some(point),
            _ => None,
        }
    }

    /// The report that was requested. It counts until `end_check`.
    pub(super) fn answer_check(&mut self, space: TreeSpace) {
        (self.reported, self.check) = (space, SpaceCheckState::Answered);
    }

    /// The operations that waited for the report are executed. Later ones need another report.
    pub(super) fn end_check(&mut self) {
        if self.check == SpaceCheckState::Answered {
            self.check = SpaceCheckState::NotRequested;
        }
    }

    /// Whether a replica publishes nothing for lack of space, as a report says that is from now.
    pub(super) fn is_full(&self) -> bool {
        self.check == SpaceCheckState::Answered && self.reported == TreeSpace::Full
    }
}

fn needed_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(RECORD_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(sequence: u64) -> LogPoint {
        LogPoint { sequence, position: sequence * 4096 }
    }

    /// Space for `bytes` besides the reserve.
    fn room(bytes: u64) -> TreeSpace {
        TreeSpace::Free(RESERVE_BYTES + needed_bytes(bytes))
    }

    #[test]
    fn a_record_is_refused_only_after_a_new_report() {
        let mut space = SpaceEstimate::default();
        assert_eq!(space.decide(0, false), SpaceDecision::Unknown);
        assert!(space.request_check(point(1)));
        assert!(!space.request_check(point(1)), "one question at a time");
        assert_eq!(space.unanswered_check(), Some(point(1)));
        space.answer_check(room(100));
        assert_eq!(space.decide(100, false), SpaceDecision::Fits);
        assert_eq!(space.decide(101, false), SpaceDecision::Refused);
        space.end_check();
        assert_eq!(space.decide(101, false), SpaceDecision::Unknown, "space may be free by now");
    }

    #[test]
    fn unpublished_records_use_space_and_published_ones_do_not() {
        let mut space = SpaceEstimate::default();
        space.report(room(1 << 20));
        space.add_record(1, 1 << 19);
        assert_eq!(space.decide(1 << 20, false), SpaceDecision::Unknown);
        space.advance_published(point(2));
        assert_eq!(space.decide(1 << 20, false), SpaceDecision::Fits);
    }

    #[test]
    fn an_incomplete_space_report_refuses_no_record() {
        let mut space = SpaceEstimate::default();
        space.request_check(point(1));
        space.answer_check(room(100));
        assert_eq!(space.decide(101, true), SpaceDecision::Unknown);
        assert!(space.request_check(point(2)));
        space.answer_check(TreeSpace::Full);
        assert_eq!(space.decide(0, true), SpaceDecision::Refused, "a full replica publishes nothing more");
        assert!(space.is_full());
    }

    #[test]
    fn a_new_term_starts_before_its_first_report_if_space_is_ample() {
        let mut space = SpaceEstimate::default();
        space.report(TreeSpace::Free(AMPLE_BYTES));
        space.start_term(None);
        assert_eq!(space.decide(4096, false), SpaceDecision::Fits);
        assert_eq!(space.decide(UNREPORTED_BYTES, false), SpaceDecision::Unknown);
        space.report(TreeSpace::Free(AMPLE_BYTES - 1));
        space.start_term(None);
        assert_eq!(space.decide(0, false), SpaceDecision::Unknown);
        space.start_term(Some(room(100)));
        assert_eq!(space.decide(100, false), SpaceDecision::Fits);
        assert_eq!(space.decide(101, false), SpaceDecision::Refused, "each turn decides something");
    }
}
