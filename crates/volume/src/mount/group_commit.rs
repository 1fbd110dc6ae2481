//! Group commit: one acknowledgement of the offload process serves all calls that wait for it.

use std::sync::{Condvar, Mutex, PoisonError};

use super::offload_link::{OffloadLink, OffloadRequest};
use crate::log::LogPoint;

/// Has the log committed for many waiters.
#[derive(Debug)]
pub(super) struct GroupCommit {
    state: Mutex<CommitState>,
    committed: Condvar,
}

#[derive(Debug)]
struct CommitState {
    /// Each live replica has the log up to here.
    committed: LogPoint,
    /// Requested, and not answered.
    requested: Option<LogPoint>,
}

impl GroupCommit {
    pub(super) fn new(committed: LogPoint) -> Self {
        Self { state: Mutex::new(CommitState { committed, requested: None }), committed: Condvar::new() }
    }

    /// Waits until the log is committed up to a point. `head`: the end of the log at the time of the call, because one
    /// request at a time is on its way, for as much as possible.
    pub(super) fn commit(&self, point: LogPoint, link: &dyn OffloadLink, head: impl Fn() -> LogPoint) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.committed < point {
            if state.requested.is_none() {
                let head = head();
                state.requested = Some(head);
                link.send(OffloadRequest::Commit(head));
            }
            state = self.committed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The offload process has answered.
    pub(super) fn acknowledge(&self, point: LogPoint) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.committed = state.committed.max(point);
        state.requested.take_if(|requested| *requested <= point);
        self.committed.notify_all();
    }

    /// The request that is not answered, if there is one.
    pub(super) fn unanswered(&self) -> Option<LogPoint> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).requested
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};
    use std::thread;

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
        let link = Arc::new(TestLink(Mutex::new(sender)));
        let commit = Arc::new(GroupCommit::new(LogPoint::START));
        let start = |at: u64| {
            let (commit, link) = (Arc::clone(&commit), Arc::clone(&link));
            thread::spawn(move || commit.commit(point(at), &*link, || point(9)))
        };
        let waiting = [start(4), start(9)];
        assert_eq!(requests.recv().unwrap(), OffloadRequest::Commit(point(9)));
        commit.acknowledge(point(9));
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        start(5).join().unwrap();
        assert!(requests.try_recv().is_err(), "a committed point needs no request");
    }
}
