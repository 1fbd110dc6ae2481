//! A link as the connection that its users see: what they may ask for is checked here.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use farfork_wire::frame::change::MESSAGE_BYTES_MAX;
use farfork_wire::frame::request::{ReadMode, check_spans};

use super::link::Link;
use crate::protocol::Ask;
use crate::{
    Address, Buffer, CHANGE_BYTES_MAX, Completion, Connection, MessageRequest, REQUESTS_MAX, ReadRequest, SubmitError,
    WriteRequest,
};

impl Link {
    /// Whether a request may be taken that carries so many bytes.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check_room(&self, bytes: usize) -> Result<(), SubmitError> {
        if self.closing {
            return Err(SubmitError::Closed);
        }
        let full = self.requester.unanswered() >= REQUESTS_MAX;
        if full || self.requester.unanswered_bytes() + bytes > CHANGE_BYTES_MAX {
            return Err(SubmitError::Full);
        }
        Ok(())
    }
}

impl Connection for Link {
    fn submit(&mut self, request: ReadRequest) -> Result<(), SubmitError> {
        check_spans(request.mode, &request.spans)?;
        self.check_room(0)?;
        self.ask(Ask::Read(request));
        Ok(())
    }

    fn write(&mut self, request: WriteRequest) -> Result<(), SubmitError> {
        let spans = check_spans(ReadMode::Exact, &request.spans)?;
        let data = request.data.len();
        if data != spans {
            return Err(SubmitError::Length { data, spans });
        }
        self.check_room(data)?;
        self.ask(Ask::Write(request));
        Ok(())
    }

    fn send(&mut self, message: MessageRequest) -> Result<(), SubmitError> {
        let bytes = message.bytes.len();
        if bytes > MESSAGE_BYTES_MAX {
            return Err(SubmitError::Message(bytes));
        }
        self.check_room(bytes)?;
        self.ask(Ask::Message(message));
        Ok(())
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        self.poll(now, completions);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.next_timeout()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.parts.rim.descriptor()
    }

    fn clock(&self) -> Instant {
        self.parts.rim.clock()
    }

    fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        self.parts.rim.wait(until, &|| self.is_ready())
    }

    fn unanswered(&self) -> usize {
        self.requester.unanswered()
    }

    fn forget_all(&mut self) {
        self.forget_all();
    }

    fn close(&mut self) {
        self.closing = true;
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.pool().put(buffer);
    }

    fn incoming_cpu(&self) -> Option<u32> {
        rustix::net::sockopt::socket_incoming_cpu(self.socket()?).ok()
    }

    fn address(&self) -> &Address {
        &self.parts.address
    }
}
