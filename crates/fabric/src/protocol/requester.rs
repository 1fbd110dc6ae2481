//! The requester's side of a connection: which reads wait, which were sent, and what their answers mean. It outlives
//! the sockets: what was sent into one that broke is sent again into the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::reply::{self, Grant, Refusal};
use farfork_wire::frame::request::{ReadMode, append_ask_grants, append_open, append_read};
use farfork_wire::frame::{FrameError, Header, Kind};

use super::handles::Handles;
use crate::buffer::Buffer;
use crate::{ReadRequest, Reply, SeedKey};

/// What is asked of an owner.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Bytes.
    Read(ReadRequest),
    /// Where this host can read for itself.
    Grants {
        /// Of this seed.
        key: Arc<SeedKey>,
        /// When it is no longer of interest.
        deadline: Instant,
    },
}

impl Ask {
    pub(crate) fn key(&self) -> &Arc<SeedKey> {
        match self {
            Self::Read(request) => &request.key,
            Self::Grants { key, .. } => key,
        }
    }

    fn is_grants(&self) -> bool {
        matches!(self, Self::Grants { .. })
    }

    fn deadline(&self) -> Instant {
        match self {
            Self::Read(request) => request.deadline,
            Self::Grants { deadline, .. } => *deadline,
        }
    }
}

/// What the owner answered.
#[derive(Debug)]
pub(crate) enum Outcome {
    Data(Reply),
    Refused(Refusal),
    Granted(Vec<Grant>),
}

/// What is asked of one owner and not answered.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// By request id; ids ascend in the order of asking.
    unanswered: BTreeMap<u64, Ask>,
    /// How many of them ask for grants.
    unanswered_grants: usize,
    deadlines: BTreeSet<(Instant, u64)>,
    next_id: u64,
    /// What has this id or a greater one was not sent on this connection.
    next_to_send: u64,
    handles: Handles,
    /// Replies that this connection still has to bring, also those that nobody waits for any more.
    owed: usize,
    /// Since when nothing has come though something is owed.
    silent_since: Option<Instant>,
}

impl Requester {
    /// Takes something to ask.
    pub(crate) fn ask(&mut self, ask: Ask) {
        self.unanswered_grants += usize::from(ask.is_grants());
        self.deadlines.insert((ask.deadline(), self.next_id));
        self.unanswered.insert(self.next_id, ask);
        self.next_id += 1;
    }

    /// Whether anything is unanswered.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// How many reads are unanswered.
    pub(crate) fn unanswered_reads(&self) -> usize {
        self.unanswered.len() - self.unanswered_grants
    }

    /// Appends the frames of the next request that this connection has not seen; `false` when there is none.
    pub(crate) fn encode_next(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        let Some((&id, ask)) = self.unanswered.range(self.next_to_send..).next() else {
            return false;
        };
        let (handle, unknown) = self.handles.of(ask.key());
        if unknown {
            append_open(out, handle, &ask.key().seed, &ask.key().token);
        }
        match ask {
            Ask::Read(request) => append_read(out, id, handle, request.mode, &request.spans),
            Ask::Grants { .. } => append_ask_grants(out, id, handle),
        }
        self.next_to_send = id + 1;
        self.owed += 1;
        self.silent_since.get_or_insert(now);
        true
    }

    /// Takes note that something came.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.silent_since = (self.owed > 0).then_some(now);
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
    ) -> Result<Option<(Ask, Outcome)>, FrameError> {
        let sense = |what| FrameError::Body { kind: header.kind, what };
        let decoded = reply::Reply::decode(header, body)?;
        if header.id >= self.next_to_send || self.owed == 0 {
            return Err(sense("it answers what was not asked"));
        }
        self.owed -= 1;
        if self.owed == 0 {
            self.silent_since = None;
        }
        let Some(ask) = self.unanswered.get(&header.id) else { return Ok(None) };
        if !answers(ask, &decoded) {
            return Err(sense("it is no answer to its request"));
        }
        let outcome = match decoded {
            reply::Reply::Refused(refusal) => Outcome::Refused(refusal),
            reply::Reply::Granted(grants) => Outcome::Granted(grants),
            reply::Reply::Data { data, extent_bytes } => {
                let data_bytes = data.len();
                let mut data = std::mem::take(body);
                data.truncate(data_bytes);
                Outcome::Data(Reply { data, extent_bytes })
            }
        };
        let ask = self.remove(header.id).expect("it was found above");
        Ok(Some((ask, outcome)))
    }

    /// Something whose deadline has passed, while there is any.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Ask> {
        let &(deadline, id) = self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        self.remove(id)
    }

    fn remove(&mut self, id: u64) -> Option<Ask> {
        let ask = self.unanswered.remove(&id)?;
        self.deadlines.remove(&(ask.deadline(), id));
        self.unanswered_grants -= usize::from(ask.is_grants());
        Some(ask)
    }

    /// Everything unanswered, which is forgotten; answers that still come are passed over.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Ask> + use<> {
        self.deadlines.clear();
        self.unanswered_grants = 0;
        std::mem::take(&mut self.unanswered).into_values()
    }

    /// The next deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The connection is gone: all is to be sent again on the next.
    pub(crate) fn disconnected(&mut self) {
        self.handles.clear();
        self.next_to_send = 0;
        self.owed = 0;
        self.silent_since = None;
    }
}

/// Whether a reply is of the kind and length that a request calls for.
fn answers(ask: &Ask, reply: &reply::Reply<'_>) -> bool {
    match (ask, reply) {
        (_, reply::Reply::Refused(_)) => true,
        (Ask::Grants { .. }, reply::Reply::Granted(_)) => true,
        (Ask::Read(request), reply::Reply::Data { data, extent_bytes }) => {
            let wanted = request.spans.iter().map(|span| u64::from(span.bytes)).sum::<u64>();
            let there = request.spans.first().map_or(0, |span| extent_bytes.saturating_sub(span.offset));
            let expected = match request.mode {
                ReadMode::Exact => wanted,
                ReadMode::Clip => wanted.min(there),
            };
            data.len() as u64 == expected
        }
        _ => false,
    }
}

/// Whether a frame brings a file descriptor along.
pub(crate) fn brings_descriptor(header: &Header) -> bool {
    header.kind == Kind::Granted && header.body_bytes > 0
}
