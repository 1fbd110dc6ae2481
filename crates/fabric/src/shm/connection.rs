//! The requester's end of `shm`: reads granted memory directly, and sends every other request to the owner.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::request::{ReadMode, check_spans};
use rustix::io::Errno;

use super::ShmDialer;
use super::grant_cache::{GrantCache, GrantedTemplate, SeedAccess};
use crate::protocol::PendingRequest;
use crate::stream::{EpollEventSource, Link, LinkConfig};
use crate::tcp::random_connection_id;
use crate::{Address, Buffer, Completion, MessageRequest, REQUESTS_MAX, ReadRequest, Reply, SubmitError, WriteRequest};

/// Limit on the bytes that one poll reads from templates, so that the poll does not delay the caller's other work.
const POLL_BYTES_MAX: usize = 2 << 20;

/// Starts to connect to an owner on the same host.
///
/// # Errors
/// The process cannot create another file descriptor.
pub fn connect(path: &Path) -> io::Result<Box<dyn crate::Connection>> {
    let (address, dialer) = (Address::Shm(path.to_owned()), Box::new(ShmDialer::new(path.to_owned())));
    let parts = LinkConfig {
        address,
        dialer,
        security: None,
        event_source: Box::new(EpollEventSource::new()?),
        connection_id: random_connection_id()?,
    };
    let mut link = Link::new(parts);
    let now = Instant::now();
    link.connect(now);
    Ok(Box::new(ShmConnection { link, grants: GrantCache::default(), direct_reads: VecDeque::new(), polled_at: now }))
}

/// A connection to an owner on the same host.
#[derive(Debug)]
struct ShmConnection {
    link: Link,
    grants: GrantCache,
    /// Reads that do not need the owner, each with its template.
    direct_reads: VecDeque<(ReadRequest, Arc<GrantedTemplate>)>,
    /// Time of the last poll. While direct reads are queued, `next_timeout` returns this time, so that the caller polls
    /// at once.
    polled_at: Instant,
}

impl ShmConnection {
    /// Returns the template with all bytes of a read, if direct reads of it are granted.
    fn find_template(&mut self, request: &ReadRequest) -> Option<Arc<GrantedTemplate>> {
        let Some(SeedAccess::Local(template)) = self.grants.get(&request.key) else { return None };
        let granted = request.mode == ReadMode::Exact && request.spans.iter().all(|s| template.locate(s).is_some());
        granted.then(|| Arc::clone(template))
    }

    /// Sends a read to the owner, with a request for grants if it is the first read of a seed.
    fn submit_to_owner(&mut self, request: ReadRequest) {
        let (key, deadline) = (Arc::clone(&request.key), request.deadline);
        self.link.enqueue(PendingRequest::Read(request));
        if self.grants.get(&key).is_none() {
            self.grants.mark_requested(&key);
            self.link.enqueue(PendingRequest::Grants { key, deadline });
        }
    }

    fn store_grant_answers(&mut self) {
        for answer in self.link.take_grant_answers() {
            match answer.grants {
                Some(grants) => self.grants.record_answer(&answer.key, grants, answer.template),
                None => self.grants.remove(&answer.key),
            }
        }
    }

    fn read_direct(&mut self, completions: &mut Vec<Completion>) {
        let mut read_bytes = 0;
        while read_bytes < POLL_BYTES_MAX {
            let Some((request, template)) = self.direct_reads.pop_front() else { return };
            let bytes = request.spans.iter().map(|span| span.bytes as usize).sum();
            read_bytes += bytes;
            let mut data = self.link.pool().take(bytes);
            match read_spans(&template, &request, &mut data) {
                Ok(extent_bytes) => {
                    completions.push(Completion { tag: request.tag, result: Ok(Reply { data, extent_bytes }) });
                }
                Err(error) => {
                    self.link.pool().put(data);
                    self.fall_back_to_owner(request, &error);
                }
            }
        }
    }

    /// Sends a failed direct read to the owner: after the template has ended, the owner may have the memory elsewhere.
    fn fall_back_to_owner(&mut self, request: ReadRequest, error: &io::Error) {
        if Errno::from_io_error(error) == Some(Errno::SRCH) {
            self.grants.remove(&request.key);
        }
        self.submit_to_owner(request);
    }
}

/// Reads all spans. Returns the length of the first span's extent.
fn read_spans(template: &GrantedTemplate, request: &ReadRequest, data: &mut [u8]) -> io::Result<u64> {
    let mut rest = data;
    let mut first_extent_bytes = None;
    for span in &request.spans {
        let (address, extent_bytes) = template.locate(span).ok_or(Errno::FAULT)?;
        let (into, behind) = rest.split_at_mut(span.bytes as usize);
        template.memory.read(address, into)?;
        first_extent_bytes.get_or_insert(extent_bytes);
        rest = behind;
    }
    Ok(first_extent_bytes.unwrap_or_default())
}

impl crate::Connection for ShmConnection {
    fn submit_read(&mut self, request: ReadRequest) -> Result<(), SubmitError> {
        check_spans(request.mode, &request.spans)?;
        self.link.check_capacity(0)?;
        if self.unanswered_count() >= REQUESTS_MAX {
            return Err(SubmitError::Full);
        }
        match self.find_template(&request) {
            Some(template) => self.direct_reads.push_back((request, template)),
            None => self.submit_to_owner(request),
        }
        Ok(())
    }

    fn submit_write(&mut self, request: WriteRequest) -> Result<(), SubmitError> {
        self.link.submit_write(request)
    }

    fn submit_message(&mut self, message: MessageRequest) -> Result<(), SubmitError> {
        crate::Connection::submit_message(&mut self.link, message)
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        self.polled_at = now;
        self.read_direct(completions);
        self.link.poll(now, completions);
        self.store_grant_answers();
    }

    fn next_timeout(&self) -> Option<Instant> {
        if self.direct_reads.is_empty() { self.link.next_timeout() } else { Some(self.polled_at) }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.poll_fd()
    }

    fn now(&self) -> Instant {
        self.link.now()
    }

    fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        if self.direct_reads.is_empty() { self.link.wait(until) } else { Ok(()) }
    }

    fn unanswered_count(&self) -> usize {
        self.link.unanswered_count() + self.direct_reads.len()
    }

    fn abandon_all(&mut self) {
        self.direct_reads.clear();
        self.link.forget_all();
        self.grants.remove_requested();
    }

    fn close(&mut self) {
        self.link.close();
    }

    fn is_closed(&self) -> bool {
        self.direct_reads.is_empty() && self.link.is_closed()
    }

    fn recycle_buffer(&mut self, buffer: Buffer) {
        self.link.pool().put(buffer);
    }

    fn address(&self) -> &Address {
        self.link.address()
    }
}
