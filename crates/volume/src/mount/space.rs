//! Estimates the space of the shared trees that unpublished records leave free. A write that a replica could not publish is
//! refused with ENOSPC immediately, instead of being lost later.
//!
//! Each report of published records contains the least space of a replica. A record that may not fit waits for a report that
//! was made after all earlier records were published. It is refused only then.

use std::collections::VecDeque;

use crate::chain::{AMPLE_BYTES, RECORD_BYTES, RESERVE_BYTES, TreeSpace};
use crate::log::LogPoint;

/// Space that a client may use in a term before the first report. If other clients have used up the space since the last
/// term, the client uses the reserve, which has room for several such clients.
const UNREPORTED_BYTES: u64 = 1 << 20;

/// An estimate of the space for new records on the replica with the least space.
#[derive(Debug)]
pub(super) struct SpaceEstimate {
    /// The last reported space, or less.
    reported: TreeSpace,
    /// The last report of this term.
    measured: Option<TreeSpace>,
    /// Records that the report does not count: sequence number, and bytes that the record needs.
    unpublished: VecDeque<(u64, u64)>,
    unpublished_bytes: u64,
    check: SpaceCheckState,
}

/// State of the request for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpaceCheckState {
    NotRequested,
    /// The offload process answers when the log is published up to this point, or when a replica is full.
    Requested(LogPoint),
    /// The report is current.
    Answered,
}

/// Whether a record may be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpaceDecision {
    /// There is space.
    Fits,
    /// Only a new report can decide.
    Unknown,
    /// Refused with ENOSPC.
    Refused,
}

impl Default for SpaceEstimate {
    fn default() -> Self {
        let (reported, check) = (TreeSpace::Full, SpaceCheckState::NotRequested);
        Self { reported, measured: None, unpublished: VecDeque::new(), unpublished_bytes: 0, check }
    }
}

impl SpaceEstimate {
    /// Decides whether a record that allocates `bytes` of a file may be logged. Unpublished records may turn out to need
    /// less space than is counted, so they prevent a refusal, unless a replica is full.
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

    /// Counts a logged record that allocates `bytes` of a file.
    pub(super) fn add_record(&mut self, sequence: u64, bytes: u64) {
        self.unpublished.push_back((sequence, needed_bytes(bytes)));
        self.unpublished_bytes += needed_bytes(bytes);
    }

    /// Starts a term: other clients may have used space since the last one. `space` is the least space of a replica at the
    /// start of the term; none if the space was ample in the last report, or is not known.
    pub(super) fn start_term(&mut self, space: Option<TreeSpace>) {
        self.measured = space;
        (self.reported, self.check) = match (space, self.reported) {
            (Some(space), _) => (space, SpaceCheckState::Answered),
            (None, TreeSpace::Free(bytes)) if bytes >= AMPLE_BYTES => {
                (TreeSpace::Free(RESERVE_BYTES + UNREPORTED_BYTES), SpaceCheckState::NotRequested)
            }
            (None, _) => (TreeSpace::Full, SpaceCheckState::NotRequested),
        };
    }

    /// Removes records before `point`, which are published.
    pub(super) fn advance_published(&mut self, point: LogPoint) {
        while let Some((_, bytes)) = self.unpublished.pop_front_if(|(sequence, _)| *sequence < point.sequence) {
            self.unpublished_bytes -= bytes;
        }
    }

    /// Stores the least space of a replica. It was measured after the records were published that the caller then removes by
    /// `advance_published`.
    pub(super) fn report(&mut self, space: TreeSpace) {
        self.reported = space;
        self.measured = Some(space);
    }

    /// Bytes that programs can write, if the file system of this node has `local` available ones. The reports of a client that
    /// is not the writer are old.
    pub(super) fn available_bytes(&self, local: u64, is_writer: bool) -> u64 {
        let least = match self.measured.filter(|_| is_writer) {
            Some(TreeSpace::Full) => 0,
            Some(TreeSpace::Free(bytes)) => local.min(bytes),
            None => local,
        };
        least.saturating_sub(self.unpublished_bytes).saturating_sub(RESERVE_BYTES)
    }

    /// Requests a report, unless a request is unanswered. Returns whether a request must be sent.
    pub(super) fn request_check(&mut self, head: LogPoint) -> bool {
        let is_requested = matches!(self.check, SpaceCheckState::Requested(_));
        if !is_requested {
            self.check = SpaceCheckState::Requested(head);
        }
        !is_requested
    }

    /// The point of the unanswered request, if there is one.
    pub(super) fn unanswered_check(&self) -> Option<LogPoint> {
        match self.check {
            SpaceCheckState::Requested(point) => Some(point),
            _ => None,
        }
    }

    /// Stores the requested report, which is current until `end_check`.
    pub(super) fn answer_check(&mut self, space: TreeSpace) {
        self.report(space);
        self.check = SpaceCheckState::Answered;
    }

    /// Ends a check after the operations that waited for it are executed. Later operations need another report.
    pub(super) fn end_check(&mut self) {
        if self.check == SpaceCheckState::Answered {
            self.check = SpaceCheckState::NotRequested;
        }
    }

    /// Whether the current report says that a replica publishes nothing for lack of space.
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

    /// Space for `bytes` in addition to the reserve.
    fn room(bytes: u64) -> TreeSpace {
        TreeSpace::Free(RESERVE_BYTES + needed_bytes(bytes))
    }

    #[test]
    fn a_record_is_refused_only_after_a_new_report() {
        let mut space = SpaceEstimate::default();
        assert_eq!(space.decide(0, false), SpaceDecision::Unknown);
        assert!(space.request_check(point(1)));
        assert!(!space.request_check(point(1)), "one request at a time");
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
        assert_eq!(space.decide(101, false), SpaceDecision::Refused, "the report at the start of a term is current");
    }
}
