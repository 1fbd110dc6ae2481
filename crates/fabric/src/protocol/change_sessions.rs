//! The owner's record of each requester's changes (writes and messages), shared by all sockets of that requester's
//! connection. It ensures that no change is made twice, and none by a socket that its requester has abandoned.
//! [`farfork_wire::frame::change`] defines the rules.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_wire::frame::change::ConnectionId;
use farfork_wire::frame::reply::Refusal;

use crate::{LinkError, REQUESTS_MAX};

/// Maximum number of requesters in the table. The requester that connected longest ago is dropped first. If a dropped
/// requester reconnects and then repeats a change, it gets [`Refusal::OutcomeForgotten`].
const SESSIONS_MAX: usize = 4096;

/// Maximum number of refusals in a session: a requester has at most this many unanswered requests.
const REFUSALS_MAX: usize = REQUESTS_MAX;

/// The sessions of an owner, shared by all its threads.
#[derive(Debug, Default)]
pub(crate) struct ChangeSessionTable {
    index: Mutex<ChangeSessionIndex>,
}

#[derive(Debug, Default)]
struct ChangeSessionIndex {
    sessions: BTreeMap<ConnectionId, (u64, Arc<ChangeSession>)>,
    /// Connection ids in the order of their latest attachment.
    by_attach_order: BTreeMap<u64, ConnectionId>,
    attach_counter: u64,
}

/// The record of one requester.
#[derive(Debug)]
struct ChangeSession {
    state: Mutex<ChangeSessionState>,
}

#[derive(Debug)]
struct ChangeSessionState {
    /// Epoch of the only attachment that may make changes.
    current_epoch: u64,
    /// Changes with smaller ids were made or refused. Changes that are not in `refused` were made.
    applied_below: u64,
    /// The outcome of changes with smaller ids is unknown.
    forgotten_below: u64,
    /// Refused changes, ascending by id.
    refused: VecDeque<(u64, Refusal)>,
}

/// The attachment of one socket to its requester's session.
#[derive(Debug)]
pub(crate) struct SessionAttachment {
    session: Arc<ChangeSession>,
    epoch: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ChangeSessionTable {
    /// Attaches a socket, which supersedes all earlier sockets of its connection. Waits until a change that one of them
    /// is making is complete.
    pub(crate) fn attach(&self, name: ConnectionId, sent_below: u64) -> SessionAttachment {
        let (session, number) = lock(&self.index).attach(name, sent_below);
        // If two sockets attach at the same time, the one with the higher epoch supersedes the other.
        let mut state = lock(&session.state);
        state.current_epoch = state.current_epoch.max(number);
        drop(state);
        SessionAttachment { session, epoch: number }
    }
}

impl ChangeSessionIndex {
    fn attach(&mut self, name: ConnectionId, sent_below: u64) -> (Arc<ChangeSession>, u64) {
        self.attach_counter += 1;
        let fresh = || {
            let refused = VecDeque::new();
            let state = ChangeSessionState { current_epoch: 0, applied_below: 0, forgotten_below: sent_below, refused };
            Arc::new(ChangeSession { state: Mutex::new(state) })
        };
        let (attach_number, session) = self.sessions.entry(name).or_insert_with(|| (0, fresh()));
        self.by_attach_order.remove(attach_number);
        *attach_number = self.attach_counter;
        let session = Arc::clone(session);
        self.by_attach_order.insert(self.attach_counter, name);
        while self.sessions.len() > SESSIONS_MAX {
            let Some((_, oldest)) = self.by_attach_order.pop_first() else { break };
            self.sessions.remove(&oldest);
        }
        (session, self.attach_counter)
    }
}

impl SessionAttachment {
    /// Makes a change, unless it was made before. Returns the outcome of this execution, or of the earlier one.
    ///
    /// # Errors
    /// [`LinkError::Superseded`] if another socket has been attached.
    pub(crate) fn apply_once(
        &self,
        id: u64,
        make: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<Result<(), Refusal>, LinkError> {
        // Hold the lock while the change is made, so that the change is complete before the next socket is attached.
        let mut state = lock(&self.session.state);
        if state.current_epoch != self.epoch {
            return Err(LinkError::Superseded);
        }
        if id < state.forgotten_below {
            return Ok(Err(Refusal::OutcomeForgotten));
        }
        if id < state.applied_below {
            let before = state.refused.binary_search_by_key(&id, |(refused, _)| *refused);
            return Ok(before.map_or(Ok(()), |at| Err(state.refused[at].1)));
        }
        let made = make();
        state.applied_below = id + 1;
        if let Err(refusal) = made {
            if state.refused.len() == REFUSALS_MAX {
                let forgotten = state.refused.pop_front().map_or(0, |(forgotten, _)| forgotten + 1);
                state.forgotten_below = state.forgotten_below.max(forgotten);
            }
            state.refused.push_back((id, refusal));
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> ConnectionId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        ConnectionId::from_bytes(bytes)
    }

    /// Applies a change with this outcome. Returns the result, and whether this call has made the change.
    fn ask(
        session_attachment: &SessionAttachment,
        id: u64,
        outcome: Result<(), Refusal>,
    ) -> (Result<(), Refusal>, bool) {
        let mut now = false;
        let result = session_attachment.apply_once(id, || {
            now = true;
            outcome
        });
        (result.unwrap(), now)
    }

    #[test]
    fn a_repeated_change_is_not_applied_and_has_the_same_outcome() {
        let sessions = ChangeSessionTable::default();
        let first = sessions.attach(name(1), 0);
        assert_eq!(ask(&first, 3, Ok(())), (Ok(()), true));
        assert_eq!(ask(&first, 5, Err(Refusal::OutOfBounds)), (Err(Refusal::OutOfBounds), true));
        assert_eq!(ask(&first, 9, Ok(())), (Ok(()), true));
        let second = sessions.attach(name(1), 10);
        assert!(matches!(first.apply_once(10, || Ok(())), Err(LinkError::Superseded)));
        assert_eq!(ask(&second, 5, Ok(())), (Err(Refusal::OutOfBounds), false));
        assert_eq!(ask(&second, 9, Ok(())), (Ok(()), false));
        assert_eq!(ask(&second, 10, Ok(())), (Ok(()), true));
    }

    #[test]
    fn an_owner_without_the_session_does_not_repeat_old_changes() {
        let sessions = ChangeSessionTable::default();
        let session_attachment = sessions.attach(name(1), 7);
        assert_eq!(ask(&session_attachment, 6, Ok(())), (Err(Refusal::OutcomeForgotten), false));
        // The reply is lost, and the requester reconnects.
        let session_attachment = sessions.attach(name(1), 7);
        assert_eq!(ask(&session_attachment, 6, Ok(())), (Err(Refusal::OutcomeForgotten), false));
        assert_eq!(ask(&session_attachment, 7, Ok(())), (Ok(()), true));
    }

    #[test]
    fn session_memory_is_bounded_and_evicted_outcomes_are_reported() {
        let sessions = ChangeSessionTable::default();
        let session_attachment = sessions.attach(name(0), 0);
        for id in 0..REFUSALS_MAX as u64 + 2 {
            assert!(ask(&session_attachment, id, Err(Refusal::ReadOnly)).1);
        }
        assert_eq!(ask(&session_attachment, 1, Ok(())), (Err(Refusal::OutcomeForgotten), false));
        assert_eq!(ask(&session_attachment, 2, Ok(())), (Err(Refusal::ReadOnly), false));
        for number in 1..=SESSIONS_MAX as u64 {
            sessions.attach(name(number), 0);
        }
        assert_eq!(lock(&sessions.index).sessions.len(), SESSIONS_MAX);
        assert_eq!(lock(&sessions.index).by_attach_order.len(), SESSIONS_MAX);
        // A dropped requester continues while it is connected. Once it reconnects, the owner has no record of it.
        assert_eq!(ask(&session_attachment, 5000, Ok(())), (Ok(()), true));
        assert_eq!(ask(&sessions.attach(name(0), 5001), 5000, Ok(())), (Err(Refusal::OutcomeForgotten), false));
    }
}
