//! Group commit: one acknowledgement of the offload process serves all calls that wait for it. No thread waits.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::invalidation::DeferredAnswer;
use super::offload_link::{OffloadLink, OffloadRequest};
use crate::log::LogPoint;

/// Requests commits of the log, each for all calls that wait.
pub(super) struct GroupCommit {
    state: Mutex<CommitState>,
}

struct CommitState {
    /// Each live replica has the log up to this point.
    committed: LogPoint,
    /// The point of the unanswered request. There is at most one.
    requested: Option<LogPoint>,
    /// Answers, each with the point that it waits for.
    waiting: Vec<(LogPoint, DeferredAnswer)>,
}

impl fmt::Debug for GroupCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupCommit").field("unanswered", &self.unanswered()).finish_non_exhaustive()
    }
}

impl GroupCommit {
    pub(super) fn new(committed: LogPoint) -> Self {
        Self { state: Mutex::new(CommitState { committed, requested: None, waiting: Vec::new() }) }
    }

    /// Calls `answer` when the log is committed up to a point.
    pub(super) fn add(&self, point: LogPoint, answer: DeferredAnswer, link: &dyn OffloadLink) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if point <= state.committed {
            drop(state);
            return answer();
        }
        state.waiting.push((point, answer));
        state.request(link);
    }

    /// Records that the log is committed up to a point: the offload process has confirmed it, or the log is published up to
    /// the point.
    pub(super) fn acknowledge(&self, point: LogPoint, link: &dyn OffloadLink) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let committed = state.committed.max(point);
        state.committed = committed;
        state.requested.take_if(|requested| *requested <= point);
        let ready: Vec<_> = state.waiting.extract_if(.., |(waited, _)| *waited <= committed).collect();
        state.request(link);
        drop(state);
        ready.into_iter().for_each(|(_, answer)| answer());
    }

    /// The point up to which the log is known to be committed.
    pub(super) fn committed(&self) -> LogPoint {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).committed
    }

    /// The point of the unanswered request, if there is one.
    pub(super) fn unanswered(&self) -> Option<LogPoint> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).requested
    }
}

impl CommitState {
    /// Requests the last point that an answer waits for, unless a request is unanswered.
    fn request(&mut self, link: &dyn OffloadLink) {
        if self.requested.is_none()
            && let Some(point) = self.waiting.iter().map(|(point, _)| *point).max()
        {
            self.requested = Some(point);
            link.send(OffloadRequest::Commit(point));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    #[derive(Debug)]
    struct TestLink(Mutex<Sender<OffloadRequest>>);

    impl OffloadLink for TestLink {
        fn send(&self, request: OffloadRequest) {
            self.0.lock().unwrap().send(request).unwrap();
        }
    }

    fn point(sequence: u64) -> LogPoint {
        LogPoint { sequence, position: 64 * sequence }
    }

    #[test]
    fn one_request_serves_all_that_wait() {
        let (sender, requests) = channel();
        let link = TestLink(Mutex::new(sender));
        let commit = GroupCommit::new(LogPoint::START);
        let given = Arc::new(AtomicU32::new(0));
        let add = |at: u64| {
            let given = Arc::clone(&given);
            commit.add(point(at), Box::new(move || _ = given.fetch_add(1, Ordering::Relaxed)), &link);
        };
        [4, 9, 7].into_iter().for_each(add);
        assert_eq!(requests.try_iter().collect::<Vec<_>>(), [OffloadRequest::Commit(point(4))]);
        commit.acknowledge(point(5), &link);
        assert_eq!(given.load(Ordering::Relaxed), 1);
        assert_eq!(requests.try_iter().collect::<Vec<_>>(), [OffloadRequest::Commit(point(9))]);
        commit.acknowledge(point(9), &link);
        assert_eq!((given.load(Ordering::Relaxed), commit.unanswered()), (3, None));
        add(5);
        assert_eq!(given.load(Ordering::Relaxed), 4, "a committed point needs no request");
        assert_eq!(requests.try_iter().count(), 0);
    }
}
