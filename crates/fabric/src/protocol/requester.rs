//! The requester's side of a connection: which requests wait, which were sent, and what their answers mean. It outlives
//! the sockets: requests that were sent into a broken socket are sent again through the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use farfork_wire::frame::change::{ConnectionId, append_introduce, append_message, append_write};
use farfork_wire::frame::reply;
use farfork_wire::frame::request::{append_ask_grants, append_open, append_read};
use farfork_wire::frame::{FabricFrameError, FrameKind, Header};

use super::handle_table::HandleTable;
use super::pending_request::{PendingRequest, RequestOutcome};
use crate::Reply;
use crate::buffer::Buffer;

/// A request without an answer.
#[derive(Debug)]
struct UnansweredRequest {
    pending: PendingRequest,
    /// When it was sent for the first time, if it was.
    first_sent: Option<Instant>,
}

/// What is asked of one owner and not answered.
#[derive(Debug)]
pub(crate) struct Requester {
    /// What the owner knows the connection by, whatever sockets come and go.
    connection_id: ConnectionId,
    /// By request id; ids ascend in the order of asking.
    unanswered: BTreeMap<u64, UnansweredRequest>,
    /// How many of them ask for grants.
    unanswered_grants: usize,
    /// Bytes that they carry.
    unanswered_bytes: usize,
    deadlines: BTreeSet<(Instant, u64)>,
    next_id: u64,
    /// What has this id or a greater one was not sent on this connection.
    next_to_send: u64,
    /// What has this id or a greater one was not sent on earlier connections.
    sent_below: u64,
    /// Whether this connection's owner was told the name.
    is_introduced: bool,
    handles: HandleTable,
    /// Replies that this connection still has to bring, also those that nobody waits for any more.
    expected_replies: usize,
    /// Since when nothing has come though something is owed.
    silent_since: Option<Instant>,
}

impl Requester {
    /// With nothing to ask.
    pub(crate) fn new(name: ConnectionId) -> Self {
        Self {
            connection_id: name,
            unanswered: BTreeMap::new(),
            unanswered_grants: 0,
            unanswered_bytes: 0,
            deadlines: BTreeSet::new(),
            next_id: 0,
            next_to_send: 0,
            sent_below: 0,
            is_introduced: false,
            handles: HandleTable::default(),
            expected_replies: 0,
            silent_since: None,
        }
    }

    /// Takes something to ask.
    pub(crate) fn enqueue(&mut self, pending: PendingRequest) {
        self.unanswered_grants += usize::from(pending.is_grants_request());
        self.unanswered_bytes += pending.payload_bytes();
        self.deadlines.insert((pending.deadline(), self.next_id));
        self.unanswered.insert(self.next_id, UnansweredRequest { pending, first_sent: None });
        self.next_id += 1;
    }

    /// Whether anything is unanswered.
    pub(crate) fn has_unanswered(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// How many requests of the caller's are unanswered.
    pub(crate) fn unanswered_count(&self) -> usize {
        self.unanswered.len() - self.unanswered_grants
    }

    /// How many bytes those carry.
    pub(crate) fn unanswered_bytes(&self) -> usize {
        self.unanswered_bytes
    }

    /// Appends the frames of the next request that this connection has not seen; `false` when there is none.
    pub(crate) fn encode_next(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        let Some((&id, unanswered)) = self.unanswered.range_mut(self.next_to_send..).next() else {
            return false;
        };
        unanswered.first_sent.get_or_insert(now);
        let pending = &unanswered.pending;
        if pending.is_change() && !self.is_introduced {
            append_introduce(out, self.connection_id, self.sent_below);
            self.is_introduced = true;
        }
        let mut handle = 0;
        if let Some(key) = pending.seed_key() {
            let unknown;
            (handle, unknown) = self.handles.handle_for(key);
            if unknown {
                append_open(out, handle, &key.seed, &key.token);
            }
        }
        match pending {
            PendingRequest::Read(request) => append_read(out, id, handle, request.mode, &request.spans),
            PendingRequest::Write(request) => append_write(out, id, handle, &request.spans, &request.data),
            PendingRequest::Message(message) => append_message(out, id, &message.bytes),
            PendingRequest::Grants { .. } => append_ask_grants(out, id, handle),
        }
        self.next_to_send = id + 1;
        self.expected_replies += 1;
        self.silent_since.get_or_insert(now);
        true
    }

    /// Takes note that something came.
    pub(crate) fn mark_received(&mut self, now: Instant) {
        self.silent_since = (self.expected_replies > 0).then_some(now);
    }

    /// Since when nothing has come though something is owed.
    pub(crate) fn silent_since(&self) -> Option<Instant> {
        self.silent_since
    }

    /// Takes a frame from the owner; gives what it answers, unless nobody waits for that any more. A buffer that is
    /// not part of the outcome stays in `body`.
    ///
    /// # Errors
    /// Where the frame is none that an owner would send here; the connection must end.
    pub(crate) fn handle_frame(
        &mut self,
        header: &Header,
        body: &mut Buffer,
    ) -> Result<Option<(PendingRequest, RequestOutcome)>, FabricFrameError> {
        let sense = |what| FabricFrameError::InvalidBody { kind: header.kind, what };
        let decoded = reply::Reply::decode(header, body)?;
        if header.id >= self.next_to_send || self.expected_replies == 0 {
            return Err(sense("it answers what was not asked"));
        }
        self.expected_replies -= 1;
        if self.expected_replies == 0 {
            self.silent_since = None;
        }
        let Some(UnansweredRequest { pending, .. }) = self.unanswered.get(&header.id) else { return Ok(None) };
        if !pending.is_answered_by(&decoded) {
            return Err(sense("it is no answer to its request"));
        }
        let outcome = match decoded {
            reply::Reply::Refused(refusal) => RequestOutcome::Refused(refusal),
            reply::Reply::Granted(grants) => RequestOutcome::Granted(grants),
            reply::Reply::Data { data, extent_bytes } => {
                let data_bytes = data.len();
                let mut data = std::mem::take(body);
                data.truncate(data_bytes);
                RequestOutcome::Completed(Reply { data, extent_bytes })
            }
            reply::Reply::Written | reply::Reply::Arrived => RequestOutcome::Completed(Reply::default()),
        };
        let UnansweredRequest { pending, .. } = self.remove(header.id).expect("it was found above");
        Ok(Some((pending, outcome)))
    }

    /// Something whose deadline has passed, while there is any, and when it was first sent, if it was.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<(PendingRequest, Option<Instant>)> {
        let &(deadline, id) = self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        self.remove(id).map(|UnansweredRequest { pending, first_sent }| (pending, first_sent))
    }

    fn remove(&mut self, id: u64) -> Option<UnansweredRequest> {
        let removed = self.unanswered.remove(&id)?;
        let pending = &removed.pending;
        self.deadlines.remove(&(pending.deadline(), id));
        self.unanswered_grants -= usize::from(pending.is_grants_request());
        self.unanswered_bytes -= pending.payload_bytes();
        Some(removed)
    }

    /// Everything unanswered, which is forgotten, each with the time when it was first sent, if it was. Later answers are
    /// ignored.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (PendingRequest, Option<Instant>)> + use<> {
        self.deadlines.clear();
        self.unanswered_grants = 0;
        self.unanswered_bytes = 0;
        let unanswered = std::mem::take(&mut self.unanswered).into_values();
        unanswered.map(|UnansweredRequest { pending, first_sent }| (pending, first_sent))
    }

    /// The next deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The connection is gone: all is to be sent again on the next.
    pub(crate) fn handle_disconnect(&mut self) {
        self.handles.clear();
        self.is_introduced = false;
        self.sent_below = self.sent_below.max(self.next_to_send);
        self.next_to_send = 0;
        self.expected_replies = 0;
        self.silent_since = None;
    }
}

/// Whether a frame brings a file descriptor along.
pub(crate) fn carries_fd(header: &Header) -> bool {
    header.kind == FrameKind::Granted && header.body_bytes > 0
}
