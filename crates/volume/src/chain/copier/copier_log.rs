//! The state of one log that all parts of its copier share: its progress along the chain, the unanswered requests of the
//! predecessor, and what waiting threads have requested.

use std::time::Instant;

use super::later_space::LaterSpace;
use crate::chain::calls::StoredLog;
use crate::chain::{ChainLog, LogRestart, PathVersion, PublishedAhead};
use crate::log::LogPoint;
use crate::publish::PublishedMark;

/// One log on one node. `R` is what the caller needs to reply to a request of the predecessor.
#[derive(Debug)]
pub struct CopierLog<R> {
    /// The progress of the log along the chain.
    pub chain: ChainLog,
    /// Space of the later nodes on the path.
    pub later_space: LaterSpace,
    /// Number of requested looks for new records of this node's client, and number of completed looks.
    looks_requested: u64,
    pub(super) looks_done: u64,
    /// A thread waits until the log is published up to this point, so the publisher does not wait for more records.
    urgent_end: LogPoint,
    /// Unanswered requests of the predecessor.
    pub(super) appends: Vec<PendingAppend<R>>,
    /// The log must be read again. Later records are ignored until they are announced again.
    pub(super) restart: Option<LogRestart>,
    /// Number of times that the log was read again.
    pub(super) restarts: u64,
}

/// The predecessor announces that it has written the log up to `end`.
#[derive(Clone, Copy, Debug)]
pub struct LogAnnouncement {
    /// The path of the sender. A request for an earlier path is refused: its term may have ended.
    pub path: PathVersion,
    /// End of the announced records.
    pub end: LogPoint,
    /// A thread waits until the log is published up to `end`.
    pub is_urgent: bool,
    /// The reply must have the present space of all later nodes.
    pub needs_space: bool,
    /// When to reply.
    pub reply_time: ReplyTime,
}

/// When the predecessor gets its reply.
#[derive(Clone, Copy, Debug)]
pub enum ReplyTime {
    /// When all later nodes have the log.
    Committed,
    /// At this time, as soon as this node has validated the log. Without `has_more`, earlier if all later nodes have it.
    Stored {
        /// The predecessor has more records.
        has_more: bool,
        /// The time of the reply.
        answer_at: Instant,
    },
}

/// An unanswered request of the predecessor.
#[derive(Debug)]
pub(super) struct PendingAppend<R> {
    announcement: LogAnnouncement,
    /// Number of the space report that the reply needs.
    space_request: u64,
    pub(super) request: R,
}

/// Replies that are due. `complete` and `early` get the progress of the log.
#[derive(Debug)]
pub struct DueReplies<R> {
    /// The path has changed since the request.
    pub other_path: Vec<R>,
    /// All later nodes have the log, and have reported their space if this was requested.
    pub complete: Vec<R>,
    /// This node has validated the log, but not all later nodes have it.
    pub early: Vec<R>,
    /// The log is announced now, and was not before.
    pub is_announced: bool,
}

impl<R> PendingAppend<R> {
    pub(super) fn path(&self) -> PathVersion {
        self.announcement.path
    }

    pub(super) fn end(&self) -> LogPoint {
        self.announcement.end
    }

    /// Whether each later node has the log up to `end`, and has reported its space if this was requested.
    pub(super) fn is_complete(&self, committed: LogPoint, later_space: &LaterSpace) -> bool {
        self.end() <= committed && later_space.is_answered(self.space_request)
    }

    /// The time of the reply if the log is validated, but not all later nodes have it.
    pub(super) fn answer_at(&self) -> Option<Instant> {
        match self.announcement.reply_time {
            ReplyTime::Committed => None,
            ReplyTime::Stored { answer_at, .. } => Some(answer_at),
        }
    }

    fn is_answered_early(&self, stored: LogPoint, now: Instant) -> bool {
        self.end() <= stored && self.answer_at().is_some_and(|answer_at| answer_at <= now)
    }

    /// The predecessor has no more records than the announced ones.
    fn is_last_piece(&self) -> bool {
        !matches!(self.announcement.reply_time, ReplyTime::Stored { has_more: true, .. })
    }
}

impl<R> CopierLog<R> {
    /// Creates the state of a log.
    pub fn new(chain: ChainLog) -> Self {
        Self {
            chain,
            later_space: LaterSpace::default(),
            looks_requested: 0,
            looks_done: 0,
            urgent_end: LogPoint::START,
            appends: Vec::new(),
            restart: None,
            restarts: 0,
        }
    }

    /// Handles `OpenLog` of a predecessor, as `ChainLog::accept_predecessor`. Returns whether the log must be read again
    /// before the reply.
    ///
    /// # Errors
    /// When published records would be lost.
    pub fn handle_open(
        &mut self,
        published: PublishedMark,
        stored: LogPoint,
        needs_tree: bool,
    ) -> Result<bool, PublishedAhead> {
        let Some(restart) = self.chain.accept_predecessor(published, stored, needs_tree)? else { return Ok(false) };
        self.restart = Some(restart);
        // The pending requests are from an earlier predecessor.
        self.appends.clear();
        Ok(true)
    }

    /// Handles an announcement. The caller has checked that its path is the present one.
    pub fn handle_append(&mut self, announcement: LogAnnouncement, request: R) {
        if announcement.is_urgent {
            self.raise_urgent_end(announcement.end);
        }
        let needs_report = announcement.needs_space || !self.later_space.is_known();
        let space_request = if needs_report { self.later_space.request() } else { 0 };
        self.appends.push(PendingAppend { announcement, space_request, request });
    }

    /// Removes the requests whose replies are due. `path` is the present path.
    pub fn take_replies(&mut self, path: PathVersion, now: Instant) -> DueReplies<R> {
        let other_path = self.take_appends(|_, append| append.path() != path);
        let (committed, stored) = (self.chain.committed(), self.chain.stored());
        let later_space = &self.later_space;
        let complete: Vec<_> =
            self.appends.extract_if(.., |append| append.is_complete(committed, later_space)).collect();
        let early: Vec<_> = self.appends.extract_if(.., |append| append.is_answered_early(stored, now)).collect();
        // A replica that catches up must have all records of its predecessor. An early reply counts, too: the predecessor
        // may have nothing more to announce.
        let has_last_piece = complete.iter().chain(&early).any(PendingAppend::is_last_piece);
        let is_announced = has_last_piece && !self.chain.is_announced();
        if is_announced {
            self.chain.announce();
        }
        DueReplies { other_path, complete: requests(complete), early: requests(early), is_announced }
    }

    /// Stores the progress of all later members. A complete report answers the requests for space up to `space_request`.
    pub(super) fn handle_progress(&mut self, later: StoredLog, space_request: u64) {
        self.chain.commit(later.committed, later.published);
        // Each progress of `published` needs a new report: clients expect that the space was measured after the records
        // were published.
        if let Some(space) = later.space {
            self.later_space.report(space, if later.is_complete { space_request } else { 0 });
        }
    }

    /// Whether a reply is due although not all later nodes have the log.
    pub fn has_early_reply(&self, now: Instant) -> bool {
        self.appends.iter().any(|append| append.is_answered_early(self.chain.stored(), now))
    }

    /// Removes all requests of the predecessor: this node is not on the path, or closes the log.
    pub fn take_all_appends(&mut self) -> Vec<R> {
        self.take_appends(|_, _| true)
    }

    pub(super) fn take_appends(&mut self, mut is_taken: impl FnMut(&ChainLog, &PendingAppend<R>) -> bool) -> Vec<R> {
        let chain = &self.chain;
        requests(self.appends.extract_if(.., |append| is_taken(chain, append)).collect())
    }

    /// The unanswered requests for a path, in the order of the log.
    pub fn requests_of(&mut self, path: PathVersion) -> impl Iterator<Item = &mut R> {
        self.appends.iter_mut().filter(move |append| append.path() == path).map(|append| &mut append.request)
    }

    /// The end of the records that the predecessor has announced for a path.
    pub(super) fn announced_end(&self, path: PathVersion) -> Option<LogPoint> {
        self.appends.iter().filter(|append| append.path() == path).map(PendingAppend::end).max()
    }

    /// Makes the copier look for new records of this node's client. Returns the number of the look.
    pub fn request_look(&mut self) -> u64 {
        self.looks_requested += 1;
        self.looks_requested
    }

    pub(super) fn looks_requested(&self) -> u64 {
        self.looks_requested
    }

    /// Whether a requested look is done.
    pub fn has_looked(&self, look: u64) -> bool {
        self.looks_done >= look
    }

    /// Whether the log must be read again.
    pub fn must_restart(&self) -> bool {
        self.restart.is_some()
    }

    /// Requests that the log is published up to `end` without delay.
    pub fn raise_urgent_end(&mut self, end: LogPoint) {
        self.urgent_end = self.urgent_end.max(end);
    }

    /// Whether a thread waits until this node has published the log further.
    pub fn is_publishing_urgent(&self) -> bool {
        self.chain.published().point < self.urgent_end
    }

    /// Whether a thread waits until all nodes have published the log further. False while the file system of a later node is
    /// full, because that node publishes nothing.
    pub fn is_urgent(&self) -> bool {
        self.chain.published_everywhere() < self.urgent_end && !self.later_space.is_full()
    }
}

fn requests<R>(appends: Vec<PendingAppend<R>>) -> Vec<R> {
    appends.into_iter().map(|append| append.request).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::chain::TreeSpace;

    #[test]
    fn the_last_piece_announces_the_log_also_if_its_reply_is_early() {
        let (now, path) = (Instant::now(), PathVersion { epoch: 1, term: 1, is_writing: true });
        let mut log = CopierLog::new(ChainLog::open(PublishedMark::start_of(0), LogPoint::START));
        let answer_at = now + Duration::from_secs(1);
        for has_more in [true, false] {
            let reply_time = ReplyTime::Stored { has_more, answer_at };
            let (is_urgent, needs_space) = (false, false);
            let announcement = LogAnnouncement { path, end: LogPoint::START, is_urgent, needs_space, reply_time };
            log.handle_append(announcement, has_more);
        }
        assert!(log.take_replies(path, now).early.is_empty(), "the later nodes have reported no space yet");
        let due = log.take_replies(path, answer_at);
        assert_eq!((due.complete, due.early), (Vec::new(), vec![true, false]));
        assert!(due.is_announced && log.chain.is_announced());
    }

    #[test]
    fn an_early_reply_reports_space_but_answers_no_request() {
        let mut log = CopierLog::<()>::new(ChainLog::open(PublishedMark::start_of(0), LogPoint::START));
        let request = log.later_space.request();
        for (is_complete, bytes) in [(false, 200), (true, 100)] {
            let (committed, published, space) = (LogPoint::START, LogPoint::START, Some(TreeSpace::Free(bytes)));
            log.handle_progress(StoredLog { committed, published, space, is_complete }, request);
            assert_eq!(log.later_space.reported(), TreeSpace::Free(bytes));
            assert_eq!(log.later_space.is_answered(request), is_complete);
        }
    }
}
