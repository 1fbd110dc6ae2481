//! Whether this client may write: one client of a volume at a time may.

use super::offload_link::{OffloadLink, OffloadRequest};

/// The permission. The state lock of the client guards it.
#[derive(Debug, Default)]
pub(super) struct WritePermission {
    term: Option<u32>,
    is_requested: bool,
}

impl WritePermission {
    /// The term in which this client may write, if it may.
    pub(super) fn term(&self) -> Option<u32> {
        self.term
    }

    /// Asks for the permission, unless this client has it or has asked.
    pub(super) fn request(&mut self, link: &dyn OffloadLink) {
        if self.term.is_none() && !std::mem::replace(&mut self.is_requested, true) {
            link.send(OffloadRequest::AcquireWrite);
        }
    }

    /// The permission has come.
    pub(super) fn grant(&mut self, term: u32) {
        *self = Self { term: Some(term), is_requested: false };
    }

    /// It is given back.
    pub(super) fn release(&mut self) {
        *self = Self::default();
    }

    /// Whether a request is not answered.
    pub(super) fn is_requested(&self) -> bool {
        self.is_requested
    }
}
