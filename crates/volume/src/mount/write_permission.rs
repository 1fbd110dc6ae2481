//! The write permission of a volume, which one client at a time has.

use super::offload_link::{OffloadLink, OffloadRequest};

/// State of the write permission at this client. The state lock of the client protects it.
#[derive(Debug, Default)]
pub(super) struct WritePermission {
    term: Option<u32>,
    is_requested: bool,
}

impl WritePermission {
    /// The term of this client's write permission; none if it has no permission.
    pub(super) fn term(&self) -> Option<u32> {
        self.term
    }

    /// Requests the permission, unless this client has it or has already requested it.
    pub(super) fn request(&mut self, link: &dyn OffloadLink) {
        if self.term.is_none() && !std::mem::replace(&mut self.is_requested, true) {
            link.send(OffloadRequest::AcquireWrite);
        }
    }

    /// Stores the permission for a term.
    pub(super) fn grant(&mut self, term: u32) {
        *self = Self { term: Some(term), is_requested: false };
    }

    /// Drops the permission.
    pub(super) fn release(&mut self) {
        *self = Self::default();
    }

    /// Whether a request is unanswered.
    pub(super) fn is_requested(&self) -> bool {
        self.is_requested
    }
}
