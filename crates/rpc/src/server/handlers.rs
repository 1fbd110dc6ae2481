//! The table of handlers, by the id that a request contains.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use farfork_wire::rpc::Status;

use super::protocol::RequestExecutor;
use super::reply::{DeferredReply, ReplySink, ReplyWriter, RequestKey};
use crate::frame_decoder::ReceivedPayload;

type ImmediateHandler = Box<dyn FnMut(&[u8], &mut ReplyWriter<'_>) + Send>;
type DeferredHandler = Box<dyn FnMut(ReceivedPayload<'_>, DeferredReply) + Send>;

/// The handlers of one thread.
#[derive(Default)]
pub struct HandlerTable {
    entries: Vec<(u32, Handler)>,
}

enum Handler {
    Immediate(ImmediateHandler),
    Deferred(DeferredHandler),
}

impl fmt::Debug for HandlerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|(id, _)| id)).finish()
    }
}

impl HandlerTable {
    /// Adds a handler that replies before it returns. It must be fast, because all connections of its thread wait for
    /// it.
    ///
    /// # Panics
    /// Another handler has the id.
    pub fn add_handler(&mut self, id: u32, handler: impl FnMut(&[u8], &mut ReplyWriter<'_>) + Send + 'static) {
        self.insert(id, Handler::Immediate(Box::new(handler)));
    }

    /// Adds a handler that replies later, from any thread.
    ///
    /// # Panics
    /// Another handler has the id.
    pub fn add_deferred_handler(
        &mut self,
        id: u32,
        handler: impl FnMut(ReceivedPayload<'_>, DeferredReply) + Send + 'static,
    ) {
        self.insert(id, Handler::Deferred(Box::new(handler)));
    }

    fn insert(&mut self, id: u32, handler: Handler) {
        assert!(self.entries.iter().all(|(taken, _)| *taken != id), "two handlers have the id {id}");
        self.entries.push((id, handler));
    }
}

/// The handlers of a thread, and the sink for deferred replies.
#[derive(Debug)]
pub(super) struct HandlerService<'a, R> {
    pub(super) handlers: &'a mut HandlerTable,
    pub(super) reply_sink: &'a Arc<R>,
}

impl<R: ReplySink + 'static> RequestExecutor for HandlerService<'_, R> {
    fn execute(&mut self, handler: u32, ticket: RequestKey, payload: ReceivedPayload<'_>, reply: &mut ReplyWriter<'_>) {
        match self.handlers.entries.iter_mut().find(|(id, _)| *id == handler) {
            Some((_, Handler::Immediate(handler))) => handler(&payload, reply),
            Some((_, Handler::Deferred(handler))) => {
                let cancelled = Arc::new(AtomicBool::new(false));
                reply.defer(Arc::clone(&cancelled));
                let returns: Arc<R> = Arc::clone(self.reply_sink);
                handler(payload, DeferredReply::new(ticket, returns, cancelled));
            }
            None => reply.set_status(Status::NoHandler, ""),
        }
    }
}
