//! Acknowledges the committed part of a log: to the predecessor on the path, or to the client that writes the log.

use std::sync::MutexGuard;
use std::time::Instant;

use super::received_log::PendingAppend;
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
        let log = state.log(client);
        for append in log.appends.extract_if(.., |append| append.path != path) {
            append.reply.refuse_path();
        }
        let (committed, published) = (log.chain.committed(), log.chain.published_everywhere());
        let is_complete = |append: &mut PendingAppend| append.is_complete(committed, &log.later_space);
        let complete: Vec<_> = log.appends.extract_if(.., is_complete).collect();
        let (stored, now) = (log.chain.stored(), Instant::now());
        let is_early = |append: &mut PendingAppend| append.is_answered_early(stored, now);
        let early: Vec<_> = log.appends.extract_if(.., is_early).collect();
        // A replica that catches up must have all records of its predecessor.
        if complete.iter().any(PendingAppend::is_last_piece) && !log.chain.is_announced() {
            log.chain.announce();
            self.notify();
        }
        if state.client_of(client).is_some() {
            return self.acknowledge_client(state, client);
        }
        let space = (!complete.is_empty()).then(|| self.least_space(&state, client));
        drop(state);
        complete.into_iter().for_each(|append| append.reply.send(StoredLog { committed, published, space }));
        early.into_iter().for_each(|append| append.reply.send(StoredLog { committed, published, space: None }));
    }

    fn acknowledge_client(&self, mut state: MutexGuard<'_, ReplicaState>, number: u16) {
        let has_space_answer = state.has_space_answer(number);
        let log = state.log(number);
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
