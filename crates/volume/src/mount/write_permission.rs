//! Whether this client may write: one client of a volume at a time may.

use super::offload_link::{OffloadLink, OffloadRequest};

/// The permission, and who waits for it. The state lock of the client guards it.
#[derive(Debug, Default)]
pub(super) struct WritePermission {
    term: Option<u32>,
    is_requested: bool,
    /// Operations that wait for the permission.
    waiting: u32,
    /// An operation has used it since it was granted.
    is_used: bool,
    /// It has to be given back after the next operation.
    is_recalled: bool,
}

impl WritePermission {
    /// The term in which this client may write, if it may.
    pub(super) fn term(&self) -> Option<u32> {
        self.term
    }

    /// An operation begins to wait.
    pub(super) fn begin_wait(&mut self, link: &dyn OffloadLink) {
        self.waiting += 1;
        self.request(link);
    }

    /// An operation waits no longer.
    pub(super) fn end_wait(&mut self) {
        self.waiting -= 1;
    }

    /// Asks for the permission, unless it is on its way.
    pub(super) fn request(&mut self, link: &dyn OffloadLink) {
        if self.term.is_none() && !std::mem::replace(&mut self.is_requested, true) {
            link.send(OffloadRequest::AcquireWrite);
        }
    }

    /// The permission has come.
    pub(super) fn grant(&mut self, term: u32) {
        *self = Self { term: Some(term), waiting: self.waiting, ..Self::default() };
    }

    /// An operation has used the permission. Whether it must be given back now.
    pub(super) fn use_once(&mut self) -> bool {
        self.is_used = true;
        self.is_recalled
    }

    /// Another client wants it. Whether it must be given back now: an operation that has waited for it is executed before.
    pub(super) fn recall(&mut self) -> bool {
        self.is_recalled = self.term.is_some();
        !self.is_recalled || self.is_used || self.waiting == 0
    }

    /// It is given back.
    pub(super) fn release(&mut self) {
        *self = Self { waiting: self.waiting, ..Self::default() };
    }

    /// Whether a request is not answered.
    pub(super) fn is_requested(&self) -> bool {
        self.is_requested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct NoLink;

    impl OffloadLink for NoLink {
        fn send(&self, _request: OffloadRequest) {}
    }

    #[test]
    fn a_waiting_operation_writes_once_before_the_permission_is_released() {
        let mut permission = WritePermission::default();
        permission.begin_wait(&NoLink);
        permission.grant(3);
        assert!(!permission.recall(), "the waiting operation is executed before");
        permission.end_wait();
        assert!(permission.use_once(), "now it must go");
        permission.release();
        assert_eq!(permission.term(), None);
        permission.grant(5);
        assert!(permission.recall(), "no operation waits");
    }
}
