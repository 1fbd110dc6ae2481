//! The owner's side of one connection: decodes requests and encodes replies. Memory is read directly into the reply,
//! and written directly from the request.

use std::io;
use std::sync::Arc;

use farfork_wire::SeedId;
use farfork_wire::frame::change::Change;
use farfork_wire::frame::reply::{
    Grant, Refusal, append_arrived, append_granted, append_refused, append_written, data_frame_bytes, seal_data,
    seal_data_without_checksum,
};
use farfork_wire::frame::request::{HANDLES_MAX, ReadMode, Request, Span};
use farfork_wire::frame::{FabricFrameError, HEADER_BYTES, Header, encode_hello};
use rustix::io::Errno;

use super::{ChangeSessionTable, RefusedRequest, SendQueue, SessionAttachment};
use crate::buffer::BufferPool;
use crate::{Exporter, LinkError, LocalTemplate, Region, SeedKey};

/// The state that all connections of an owner share.
#[derive(Clone)]
pub(crate) struct OwnerContext {
    /// The memory and the message receiver.
    pub(crate) exporter: Arc<dyn Exporter>,
    /// The record of the requesters' changes.
    pub(crate) change_sessions: Arc<ChangeSessionTable>,
}

impl OwnerContext {
    /// Creates the context of an owner that has just started.
    pub(crate) fn new(exporter: &Arc<dyn Exporter>) -> Self {
        Self { exporter: Arc::clone(exporter), change_sessions: Arc::default() }
    }
}

/// The owner's state of one connection.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The seeds of the requester's handles.
    handles: Vec<Option<SeedKey>>,
    /// The attachment to the requester's session, once the requester has sent INTRODUCE.
    attachment: Option<SessionAttachment>,
    /// The requester's name, for messages and the log.
    peer_name: String,
    /// Whether the requester is on this host, and so may get grants.
    same_host: bool,
    /// Whether the stream itself protects each byte. Then DATA frames need no checksum.
    is_integrity_protected: bool,
    /// The last refusal since [`Responder::take_last_refusal`].
    last_refusal: Option<RefusedRequest>,
    /// The buffer in which small replies are encoded.
    scratch: Vec<u8>,
}

impl Responder {
    /// Starts a connection by queueing the hello.
    pub(crate) fn new(from: String, same_host: bool, out: &mut SendQueue, pool: &mut BufferPool) -> Self {
        out.append(&encode_hello(), pool);
        Self {
            handles: Vec::new(),
            attachment: None,
            peer_name: from,
            same_host,
            is_integrity_protected: false,
            last_refusal: None,
            scratch: Vec::new(),
        }
    }

    /// Returns the requester's name, as in the log.
    pub(crate) fn peer_name(&self) -> &str {
        &self.peer_name
    }

    /// Sets the requester's name after it has proved its identity.
    pub(crate) fn set_peer_name(&mut self, from: String) {
        self.peer_name = from;
    }

    /// Records that the stream itself protects each byte from now on.
    pub(crate) fn set_integrity_protected(&mut self) {
        self.is_integrity_protected = true;
    }

    /// Serves one request.
    ///
    /// # Errors
    /// The requester violated the protocol, or has reconnected. The caller must close the connection.
    pub(crate) fn serve_request(
        &mut self,
        header: &Header,
        body: &[u8],
        shared: &OwnerContext,
        out: &mut SendQueue,
        pool: &mut BufferPool,
    ) -> Result<(), LinkError> {
        if header.kind.is_change() {
            return self.serve_change(header, body, shared, out, pool);
        }
        let exporter = &*shared.exporter;
        match Request::decode(header, body)? {
            Request::Open { handle, seed, token } => self.bind_handle(handle, SeedKey { seed, token }),
            Request::Read { handle, mode, spans } => {
                let key = self.seed_key(header, handle)?;
                let needs_checksum = !self.is_integrity_protected;
                let span_read = SpanRead { id: header.id, mode, spans: &spans, needs_checksum };
                if let Err(refusal) = append_read_reply(exporter, key, span_read, out, pool) {
                    let seed = key.seed.clone();
                    self.append_refusal(header.id, Some(seed), refusal, out, pool);
                }
            }
            Request::AskGrants { handle } => {
                let key = self.seed_key(header, handle)?;
                match collect_grants(exporter, key, self.same_host) {
                    Ok((grants, same_host)) => self.append_grants(header.id, &grants, same_host, out, pool),
                    Err(refusal) => {
                        let seed = key.seed.clone();
                        self.append_refusal(header.id, Some(seed), refusal, out, pool);
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes and returns the last refusal.
    pub(crate) fn take_last_refusal(&mut self) -> Option<RefusedRequest> {
        self.last_refusal.take()
    }

    fn serve_change(
        &mut self,
        header: &Header,
        body: &[u8],
        shared: &OwnerContext,
        out: &mut SendQueue,
        pool: &mut BufferPool,
    ) -> Result<(), LinkError> {
        let exporter = &*shared.exporter;
        let stranger = FabricFrameError::InvalidBody { kind: header.kind, what: "no INTRODUCE frame precedes it" };
        if header.id == u64::MAX {
            // No id is greater, so the session could not record that this change was made (`applied_below`).
            return Err(FabricFrameError::InvalidBody { kind: header.kind, what: "its id exceeds the limit" }.into());
        }
        let (seed, made, answer): (_, _, fn(&mut Vec<u8>, u64)) = match Change::decode(header, body)? {
            Change::Introduce { connection, sent_below } => {
                self.attachment = Some(shared.change_sessions.attach(connection, sent_below));
                return Ok(());
            }
            Change::Write { handle, spans, data } => {
                let key = self.seed_key(header, handle)?;
                let session_attachment = self.attachment.as_ref().ok_or(stranger)?;
                (
                    Some(&key.seed),
                    session_attachment.apply_once(header.id, || apply_write(exporter, key, &spans, data))?,
                    append_written,
                )
            }
            Change::Message { bytes } => {
                let session_attachment = self.attachment.as_ref().ok_or(stranger)?;
                (
                    None,
                    session_attachment.apply_once(header.id, || exporter.deliver_message(&self.peer_name, bytes))?,
                    append_arrived,
                )
            }
        };
        match made {
            Ok(()) => {
                self.scratch.clear();
                answer(&mut self.scratch, header.id);
                out.append(&self.scratch, pool);
            }
            Err(refusal) => {
                let seed = seed.cloned();
                self.append_refusal(header.id, seed, refusal, out, pool);
            }
        }
        Ok(())
    }

    fn bind_handle(&mut self, handle: u32, key: SeedKey) {
        debug_assert!(handle < HANDLES_MAX, "decoding checks it");
        let at = handle as usize;
        if at >= self.handles.len() {
            self.handles.resize_with(at + 1, || None);
        }
        self.handles[at] = Some(key);
    }

    fn seed_key(&self, header: &Header, handle: u32) -> Result<&SeedKey, FabricFrameError> {
        let key = self.handles.get(handle as usize).and_then(Option::as_ref);
        key.ok_or(FabricFrameError::InvalidBody { kind: header.kind, what: "no OPEN frame precedes its handle" })
    }

    fn append_refusal(
        &mut self,
        id: u64,
        seed: Option<SeedId>,
        refusal: Refusal,
        out: &mut SendQueue,
        pool: &mut BufferPool,
    ) {
        if let Some(refused) = RefusedRequest::from_refusal(seed, refusal) {
            self.last_refusal = Some(refused);
        }
        self.scratch.clear();
        append_refused(&mut self.scratch, id, refusal);
        out.append(&self.scratch, pool);
    }

    fn append_grants(
        &mut self,
        id: u64,
        grants: &[Grant],
        from: Option<LocalTemplate>,
        out: &mut SendQueue,
        pool: &mut BufferPool,
    ) {
        self.scratch.clear();
        append_granted(&mut self.scratch, id, grants);
        match from {
            Some(same_host) if !grants.is_empty() => {
                out.append_with_fd(&self.scratch, same_host.template, pool);
            }
            _ => out.append(&self.scratch, pool),
        }
    }
}

/// A request to read spans of a seed's memory.
#[derive(Debug, Clone, Copy)]
struct SpanRead<'a> {
    /// The request's id, which its reply repeats.
    id: u64,
    mode: ReadMode,
    spans: &'a [Span],
    /// Whether the data of the reply needs a checksum.
    needs_checksum: bool,
}

/// Appends the reply to a read; appends nothing if the read is refused.
fn append_read_reply(
    exporter: &dyn Exporter,
    key: &SeedKey,
    span_read: SpanRead<'_>,
    out: &mut SendQueue,
    pool: &mut BufferPool,
) -> Result<(), Refusal> {
    let SpanRead { id, mode, spans, needs_checksum } = span_read;
    let region = exporter.open_region(&key.seed, &key.token)?;
    let mut data_bytes = 0;
    let mut extent_bytes = None;
    for span in spans {
        let (bytes, of) = clip_span(&*region, mode, span)?;
        data_bytes += bytes;
        extent_bytes.get_or_insert(of);
    }
    let frame = out.reserve(data_frame_bytes(data_bytes), pool);
    let mut rest = &mut frame[HEADER_BYTES..HEADER_BYTES + data_bytes];
    for span in spans {
        // Only a read of one span is clipped. Its length is the length of the reply.
        let (into, behind) = rest.split_at_mut(rest.len().min(span.bytes as usize));
        if !into.is_empty() {
            region.read(span.extent, span.offset, into).map_err(|error| refusal_from_error(&error))?;
        }
        rest = behind;
    }
    debug_assert!(rest.is_empty(), "the spans fill the reply");
    let seal = if needs_checksum { seal_data } else { seal_data_without_checksum };
    seal(frame, id, extent_bytes.unwrap_or_default());
    out.commit(data_frame_bytes(data_bytes));
    Ok(())
}

/// Makes a write. If a span is out of bounds, nothing is written. If writing fails midway, the bytes before the failure
/// stay written.
fn apply_write(exporter: &dyn Exporter, key: &SeedKey, spans: &[Span], data: &[u8]) -> Result<(), Refusal> {
    let region = exporter.open_region(&key.seed, &key.token)?;
    for span in spans {
        clip_span(&*region, ReadMode::Exact, span)?;
    }
    let mut rest = data;
    for span in spans {
        let (from, behind) = rest.split_at(span.bytes as usize);
        region.write(span.extent, span.offset, from).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::SRCH) => Refusal::UnknownSeed,
            Some(Errno::ROFS) => Refusal::ReadOnly,
            errno => Refusal::Unwritable { errno: errno.unwrap_or(Errno::IO).raw_os_error() },
        })?;
        rest = behind;
    }
    debug_assert!(rest.is_empty(), "decoding checks that the bytes fill the spans");
    Ok(())
}

/// Returns the number of bytes of a span that exist, and the length of its extent.
fn clip_span(region: &dyn Region, mode: ReadMode, span: &Span) -> Result<(usize, u64), Refusal> {
    let extent_bytes = region.extent_bytes(span.extent).ok_or(Refusal::OutOfBounds)?;
    let left = extent_bytes.saturating_sub(span.offset);
    let wanted = u64::from(span.bytes);
    match mode {
        ReadMode::Exact if wanted > left => Err(Refusal::OutOfBounds),
        ReadMode::Exact | ReadMode::Clip => Ok((wanted.min(left) as usize, extent_bytes)),
    }
}

/// Converts the error of a read to a refusal. If the template has ended (ESRCH), the seed no longer exists. Any other
/// error is permanent.
fn refusal_from_error(error: &io::Error) -> Refusal {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    if errno == Errno::SRCH { Refusal::UnknownSeed } else { Refusal::Unreadable { errno: errno.raw_os_error() } }
}

/// Returns the grants for a requester on this host; none for a requester on another host.
fn collect_grants(
    exporter: &dyn Exporter,
    key: &SeedKey,
    same_host: bool,
) -> Result<(Vec<Grant>, Option<LocalTemplate>), Refusal> {
    let region = exporter.open_region(&key.seed, &key.token)?;
    let Some(from) = region.local_template().filter(|_| same_host) else {
        return Ok((Vec::new(), None));
    };
    let grant = |(extent, address): &(_, u64)| {
        region.extent_bytes(*extent).map(|bytes| Grant { extent: *extent, address: *address, bytes })
    };
    Ok((from.extents.iter().filter_map(grant).collect(), Some(from)))
}
