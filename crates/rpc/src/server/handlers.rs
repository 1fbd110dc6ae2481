//! Which handler a request calls.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use farfork_wire::rpc::Status;

use super::peer::Service;
use super::reply::{Deferred, Reply, Returns, Ticket};
use crate::inbound::Payload;

type Now = Box<dyn FnMut(&[u8], &mut Reply<'_>) + Send>;
type Later = Box<dyn FnMut(Payload<'_>, Deferred) + Send>;

/// The handlers of one thread.
#[derive(Default)]
pub struct Handlers {
    entries: Vec<(u32, Handler)>,
}

enum Handler {
    Now(Now),
    Later(Later),
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|(id, _)| id)).finish()
    }
}

impl Handlers {
    /// Adds a handler that answers at once. It must be quick: all connections of its thread wait for it.
    ///
    /// # Panics
    /// When the id is taken.
    pub fn on(&mut self, id: u32, handler: impl FnMut(&[u8], &mut Reply<'_>) + Send + 'static) {
        self.add(id, Handler::Now(Box::new(handler)));
    }

    /// Adds a handler that answers later, from any thread.
    ///
    /// # Panics
    /// When the id is taken.
    pub fn on_deferred(&mut self, id: u32, handler: impl FnMut(Payload<'_>, Deferred) + Send + 'static) {
        self.add(id, Handler::Later(Box::new(handler)));
    }

    fn add(&mut self, id: u32, handler: Handler) {
        assert!(self.entries.iter().all(|(taken, _)| *taken != id), "two handlers have the id {id}");
        self.entries.push((id, handler));
    }
}

/// Handlers, and where the answers go that they give later.
#[derive(Debug)]
pub(super) struct Serving<'a, R> {
    pub(super) handlers: &'a mut Handlers,
    pub(super) returns: &'a Arc<R>,
}

impl<R: Returns + 'static> Service for Serving<'_, R> {
    fn call(&mut self, handler: u32, ticket: Ticket, payload: Payload<'_>, reply: &mut Reply<'_>) {
        match self.handlers.entries.iter_mut().find(|(id, _)| *id == handler) {
            Some((_, Handler::Now(handler))) => handler(&payload, reply),
            Some((_, Handler::Later(handler))) => {
                let cancelled = Arc::new(AtomicBool::new(false));
                reply.later(Arc::clone(&cancelled));
                let returns: Arc<R> = Arc::clone(self.returns);
                handler(payload, Deferred::new(ticket, returns, cancelled));
            }
            None => reply.end(Status::NoHandler, ""),
        }
    }
}
