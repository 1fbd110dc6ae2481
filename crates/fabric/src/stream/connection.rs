//! Implements `Connection` for a [`Link`], and checks requests before the link accepts them.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use farfork_wire::frame::change::MESSAGE_BYTES_MAX;
use farfork_wire::frame::request::{ReadMode, check_spans};

use super::link::Link;
use crate::protocol::PendingRequest;
use crate::{
    Address, Buffer, CHANGE_BYTES_MAX, Completion, Connection, MessageRequest, REQUESTS_MAX, ReadRequest, SubmitError,
    WriteRequest,
};

impl Link {
    /// Checks whether a request with this many payload bytes may be accepted.
    ///
    /// # Errors
    /// [`SubmitError::Closed`] or [`SubmitError::Full`].
    pub(crate) fn check_capacity(&self, bytes: usize) -> Result<(), SubmitError> {
        if self.is_closing {
            return Err(SubmitError::Closed);
        }
        let full = self.requester.unanswered_count() >= REQUESTS_MAX;
        if full || self.requester.unanswered_bytes() + bytes > CHANGE_BYTES_MAX {
            return Err(SubmitError::Full);
        }
        Ok(())
    }
}

impl Connection for Link {
    fn submit_read(&mut self, request: ReadRequest) -> Result<(), SubmitError> {
        check_spans(request.mode, &request.spans)?;
        self.check_capacity(0)?;
        self.enqueue(PendingRequest::Read(request));
        Ok(())
    }

    fn submit_write(&mut self, request: WriteRequest) -> Result<(), SubmitError> {
        let spans = check_spans(ReadMode::Exact, &request.spans)?;
        let data = request.data.len();
        if data != spans {
            return Err(SubmitError::LengthMismatch { data, spans });
        }
        self.check_capacity(data)?;
        self.enqueue(PendingRequest::Write(request));
        Ok(())
    }

    fn submit_message(&mut self, message: MessageRequest) -> Result<(), SubmitError> {
        let bytes = message.bytes.len();
        if bytes > MESSAGE_BYTES_MAX {
            return Err(SubmitError::MessageTooLong(bytes));
        }
        self.check_capacity(bytes)?;
        self.enqueue(PendingRequest::Message(message));
        Ok(())
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        self.poll(now, completions);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.next_timeout()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.config.event_source.poll_fd()
    }

    fn now(&self) -> Instant {
        self.config.event_source.now()
    }

    fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        self.config.event_source.wait(until, &|| self.is_ready())
    }

    fn unanswered_count(&self) -> usize {
        self.requester.unanswered_count()
    }

    fn abandon_all(&mut self) {
        self.forget_all();
    }

    fn close(&mut self) {
        self.is_closing = true;
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn recycle_buffer(&mut self, buffer: Buffer) {
        self.pool().put(buffer);
    }

    fn incoming_cpu(&self) -> Option<u32> {
        rustix::net::sockopt::socket_incoming_cpu(self.socket()?).ok()
    }

    fn address(&self) -> &Address {
        &self.config.address
    }
}
