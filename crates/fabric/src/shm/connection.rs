//! The requester's end of `shm`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use farfork_wire::frame::request::{ReadMode, check_spans};
use rustix::io::Errno;

use super::Dialer;
use super::grants::{Access, Grants, Template};
use crate::protocol::Ask;
use crate::stream::{EpollRim, Link, Parts};
use crate::tcp::random_name;
use crate::{Address, Buffer, Completion, MessageRequest, REQUESTS_MAX, ReadRequest, Reply, SubmitError, WriteRequest};

/// Most bytes that one poll reads from templates, so that it does not hold up the caller's other work.
const POLL_BYTES_MAX: usize = 2 << 20;

/// Begins to connect to an owner on the same host.
///
/// # Errors
/// Where this process cannot have another file descriptor.
pub fn connect(path: &Path) -> io::Result<Box<dyn crate::Connection>> {
    let (address, dialer) = (Address::Shm(path.to_owned()), Box::new(Dialer::new(path.to_owned())));
    let parts = Parts { address, dialer, security: None, rim: Box::new(EpollRim::new()?), name: random_name()? };
    let mut link = Link::new(parts);
    let now = Instant::now();
    link.connect(now);
    Ok(Box::new(Connection { link, grants: Grants::default(), direct: VecDeque::new(), polled_at: now }))
}

/// A connection to an owner on the same host.
#[derive(Debug)]
struct Connection {
    link: Link,
    grants: Grants,
    /// Reads that need no owner, each with its template.
    direct: VecDeque<(ReadRequest, Arc<Template>)>,
    /// When polled last. Direct reads that wait are due then: at once.
    polled_at: Instant,
}

impl Connection {
    /// The template from which all of a read can be had.
    fn template_for(&mut self, request: &ReadRequest) -> Option<Arc<Template>> {
        let Some(Access::Template(template)) = self.grants.of(&request.key) else { return None };
        let granted = request.mode == ReadMode::Exact && request.spans.iter().all(|s| template.locate(s).is_some());
        granted.then(|| Arc::clone(template))
    }

    /// Asks the owner, and for grants with the first read of a seed.
    fn ask(&mut self, request: ReadRequest) {
        let (key, deadline) = (Arc::clone(&request.key), request.deadline);
        self.link.ask(Ask::Read(request));
        if self.grants.of(&key).is_none() {
            self.grants.asked(&key);
            self.link.ask(Ask::Grants { key, deadline });
        }
    }

    fn take_grants(&mut self) {
        for answer in self.link.take_grant_answers() {
            match answer.grants {
                Some(grants) => self.grants.answered(&answer.key, grants, answer.template),
                None => self.grants.forget(&answer.key),
            }
        }
    }

    fn read_direct(&mut self, completions: &mut Vec<Completion>) {
        let mut read_bytes = 0;
        while read_bytes < POLL_BYTES_MAX {
            let Some((request, template)) = self.direct.pop_front() else { return };
            let bytes = request.spans.iter().map(|span| span.bytes as usize).sum();
            read_bytes += bytes;
            let mut data = self.link.pool().take(bytes);
            match read_template(&template, &request, &mut data) {
                Ok(extent_bytes) => {
                    completions.push(Completion { tag: request.tag, result: Ok(Reply { data, extent_bytes }) });
                }
                Err(error) => {
                    self.link.pool().put(data);
                    self.fall_back(request, &error);
                }
            }
        }
    }

    /// What cannot be read is the owner's to judge: it may have the seed's memory elsewhere when the template has ended.
    fn fall_back(&mut self, request: ReadRequest, error: &io::Error) {
        if Errno::from_io_error(error) == Some(Errno::SRCH) {
            self.grants.forget(&request.key);
        }
        self.ask(request);
    }
}

/// Reads all spans; gives the length of the first one's extent.
fn read_template(template: &Template, request: &ReadRequest, data: &mut [u8]) -> io::Result<u64> {
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

impl crate::Connection for Connection {
    fn submit(&mut self, request: ReadRequest) -> Result<(), SubmitError> {
        check_spans(request.mode, &request.spans)?;
        self.link.check_room(0)?;
        if self.unanswered() >= REQUESTS_MAX {
            return Err(SubmitError::Full);
        }
        match self.template_for(&request) {
            Some(template) => self.direct.push_back((request, template)),
            None => self.ask(request),
        }
        Ok(())
    }

    fn write(&mut self, request: WriteRequest) -> Result<(), SubmitError> {
        self.link.write(request)
    }

    fn send(&mut self, message: MessageRequest) -> Result<(), SubmitError> {
        crate::Connection::send(&mut self.link, message)
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        self.polled_at = now;
        self.read_direct(completions);
        self.link.poll(now, completions);
        self.take_grants();
    }

    fn next_timeout(&self) -> Option<Instant> {
        if self.direct.is_empty() { self.link.next_timeout() } else { Some(self.polled_at) }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }

    fn clock(&self) -> Instant {
        self.link.clock()
    }

    fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        if self.direct.is_empty() { self.link.wait(until) } else { Ok(()) }
    }

    fn unanswered(&self) -> usize {
        self.link.unanswered() + self.direct.len()
    }

    fn forget_all(&mut self) {
        self.direct.clear();
        self.link.forget_all();
        self.grants.forget_asked();
    }

    fn close(&mut self) {
        self.link.close();
    }

    fn is_closed(&self) -> bool {
        self.direct.is_empty() && self.link.is_closed()
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.link.pool().put(buffer);
    }

    fn address(&self) -> &Address {
        self.link.address()
    }
}
