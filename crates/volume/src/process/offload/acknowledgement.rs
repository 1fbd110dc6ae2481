//! Acknowledges the committed part of a log: to the predecessor on the path, or to the client that writes the log.

use std::sync::MutexGuard;
use std::time::Instant;

use super::received_log::ReceivedRequest;
use super::volume::{ReplicaState, ReplicatedVolume};
use crate::chain::PathVersion;
use crate::chain::calls::StoredLog;
use crate::process::message::OffloadMessage;
use crate::publish::PublishedMark;

impl ReplicatedVolume {
    /// Replies to the predecessor on the path of a log, or to the client of this node if it writes the log.
    pub(super) fn acknowledge(&self, client: u16) {
        let mut state = self.lock();
        let path = PathVersion::of(&state.record, client);
        let log = &mut state.log(client).copied;
        let due = log.take_replies(path, Instant::now());
        let (committed, published) = (log.chain.committed(), log.chain.published_everywhere());
        let is_space_known = log.later_space.is_known();
        if due.is_announced {
            self.notify();
        }
        due.other_path.into_iter().for_each(ReceivedRequest::refuse_path);
        if state.client_of(client).is_some() {
            return self.acknowledge_client(state, client);
        }
        let must_reply = !(due.complete.is_empty() && due.early.is_empty());
        let space = (must_reply && is_space_known).then(|| self.least_space(&state, client));
        drop(state);
        let progress = |is_complete| StoredLog { committed, published, space, is_complete };
        due.complete.into_iter().for_each(|request| request.reply.send(progress(true)));
        due.early.into_iter().for_each(|request| request.reply.send(progress(false)));
    }

    fn acknowledge_client(&self, mut state: MutexGuard<'_, ReplicaState>, number: u16) {
        let has_space_answer = state.has_space_answer(number);
        let log = &state.log(number).copied;
        let committed = log.chain.committed();
        let reports = log.later_space.reports();
        let mark = PublishedMark { point: log.chain.published_everywhere(), ..log.chain.published() };
        let Some(client) = state.client_of(number) else { return };
        let sender = client.sender.clone();
        let has_committed = client.commit_requested.is_some_and(|requested| requested <= committed);
        if has_committed {
            client.commit_requested = None;
        }
        let has_published = client.take_published(mark.point, reports);
        if has_space_answer {
            client.space_check = None;
        }
        // `least_space` makes a system call, which most acknowledgements do not need.
        let space = (has_published || has_space_answer).then(|| self.least_space(&state, number));
        drop(state);
        if has_committed {
            sender.send(&OffloadMessage::Committed(committed));
        }
        let Some(space) = space else { return };
        if has_published {
            sender.send(&OffloadMessage::Published { mark, space });
        }
        if has_space_answer {
            sender.send(&OffloadMessage::SpaceChecked(space));
        }
    }
}
