//! The requester's side of a connection: tracks queued and sent requests, and decodes replies. It outlives the sockets:
//! requests that were sent on a broken socket are sent again on the next one.

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

/// An unanswered request.
#[derive(Debug)]
struct UnansweredRequest {
    pending: PendingRequest,
    /// Time at which the request was first sent; `None` if it was not sent yet.
    first_sent: Option<Instant>,
}

/// The unanswered requests to one owner.
#[derive(Debug)]
pub(crate) struct Requester {
    /// The id by which the owner knows the connection, the same on all its sockets.
    connection_id: ConnectionId,
    /// Requests by id. Ids ascend in the order of submission.
    unanswered: BTreeMap<u64, UnansweredRequest>,
    /// Number of unanswered requests for grants.
    unanswered_grants: usize,
    /// Number of payload bytes of all unanswered requests.
    unanswered_bytes: usize,
    deadlines: BTreeSet<(Instant, u64)>,
    next_id: u64,
    /// Requests with this or a greater id were not sent on this socket.
    next_to_send: u64,
    /// Requests with this or a greater id were not sent on earlier sockets.
    sent_below: u64,
    /// Whether the connection's id (an INTRODUCE frame) was sent on this socket.
    is_introduced: bool,
    handles: HandleTable,
    /// Number of replies that are still due on this socket, including replies to requests that have ended.
    expected_replies: usize,
    /// Time since which nothing has arrived although a reply is due; `None` if no reply is due.
    silent_since: Option<Instant>,
}

impl Requester {
    /// Creates a requester without requests.
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

    /// Adds a request.
    pub(crate) fn enqueue(&mut self, pending: PendingRequest) {
        self.unanswered_grants += usize::from(pending.is_grants_request());
        self.unanswered_bytes += pending.payload_bytes();
        self.deadlines.insert((pending.deadline(), self.next_id));
        self.unanswered.insert(self.next_id, UnansweredRequest { pending, first_sent: None });
        self.next_id += 1;
    }

    /// Whether any request is unanswered.
    pub(crate) fn has_unanswered(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// Number of unanswered requests of the caller.
    pub(crate) fn unanswered_count(&self) -> usize {
        self.unanswered.len() - self.unanswered_grants
    }

    /// Number of payload bytes of all unanswered requests, in total.
    pub(crate) fn unanswered_bytes(&self) -> usize {
        self.unanswered_bytes
    }

    /// Appends the frames of the next request that was not sent on this socket. Returns `false` if there is none.
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

    /// Records that bytes were received.
    pub(crate) fn mark_received(&mut self, now: Instant) {
        self.silent_since = (self.expected_replies > 0).then_some(now);
    }

    /// Time since which nothing has arrived although a reply is due; `None` if no reply is due.
    pub(crate) fn silent_since(&self) -> Option<Instant> {
        self.silent_since
    }

    /// Handles a reply from the owner. Returns its request and the outcome; `None` if the request has ended already. If
    /// the outcome does not use the buffer, the buffer stays in `body`.
    ///
    /// # Errors
    /// The owner violated the protocol. The caller must close the connection.
    pub(crate) fn handle_frame(
        &mut self,
        header: &Header,
        body: &mut Buffer,
    ) -> Result<Option<(PendingRequest, RequestOutcome)>, FabricFrameError> {
        let sense = |what| FabricFrameError::InvalidBody { kind: header.kind, what };
        let decoded = reply::Reply::decode(header, body)?;
        if header.id >= self.next_to_send || self.expected_replies == 0 {
            return Err(sense("it answers no request"));
        }
        self.expected_replies -= 1;
        if self.expected_replies == 0 {
            self.silent_since = None;
        }
        let Some(UnansweredRequest { pending, .. }) = self.unanswered.get(&header.id) else { return Ok(None) };
        if !pending.is_answered_by(&decoded) {
            return Err(sense("its kind or length does not match its request"));
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

    /// Removes a request whose deadline has passed. Returns it with the time at which it was first sent, if it was
    /// sent.
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

    /// Removes all unanswered requests. Returns each with the time at which it was first sent, if it was sent. Later
    /// replies to them are ignored.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (PendingRequest, Option<Instant>)> + use<> {
        self.deadlines.clear();
        self.unanswered_grants = 0;
        self.unanswered_bytes = 0;
        let unanswered = std::mem::take(&mut self.unanswered).into_values();
        unanswered.map(|UnansweredRequest { pending, first_sent }| (pending, first_sent))
    }

    /// Returns the earliest deadline of the unanswered requests.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Handles the loss of the socket: all unanswered requests must be sent again on the next one.
    pub(crate) fn handle_disconnect(&mut self) {
        self.handles.clear();
        self.is_introduced = false;
        self.sent_below = self.sent_below.max(self.next_to_send);
        self.next_to_send = 0;
        self.expected_replies = 0;
        self.silent_since = None;
    }
}

/// Whether a file descriptor is passed with a frame.
pub(crate) fn carries_fd(header: &Header) -> bool {
    header.kind == FrameKind::Granted && header.body_bytes > 0
}
