//! The requester's end of `tcp`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use farfork_wire::frame::request::check_spans;

use crate::protocol::Ask;
use crate::stream::Link;
use crate::{Address, Buffer, Completion, REQUESTS_MAX, ReadRequest, SubmitError};

/// A connection to an owner through TCP.
#[derive(Debug)]
pub struct Connection {
    link: Link,
}

impl Connection {
    /// Begins to connect.
    ///
    /// # Errors
    /// Where this process cannot have another file descriptor.
    pub fn new(address: Address) -> io::Result<Self> {
        let mut link = Link::new(address)?;
        link.connect(Instant::now());
        Ok(Self { link })
    }
}

impl crate::Connection for Connection {
    fn submit(&mut self, request: ReadRequest) -> Result<(), SubmitError> {
        check_spans(request.mode, &request.spans)?;
        if self.unanswered() >= REQUESTS_MAX {
            return Err(SubmitError::Full);
        }
        self.link.ask(Ask::Read(request));
        Ok(())
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        self.link.poll(now, completions);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.link.next_timeout()
    }

    fn unanswered(&self) -> usize {
        self.link.unanswered_reads()
    }

    fn forget_all(&mut self) {
        self.link.forget_all();
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.link.pool().put(buffer);
    }

    fn address(&self) -> &Address {
        self.link.address()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}
