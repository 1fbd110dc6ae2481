//! The write permission of a volume, which one client at a time has, and the lease of this client. The client may answer
//! open(2) from its view without a message while the lease is valid: until then, no other client can have written.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::offload_link::{OffloadLink, OffloadRequest};

/// Validity of a lease, from the time at which the confirmation was requested. A fenced term does not end earlier: the head
/// waits for `FENCE_WAIT` first.
pub(crate) const LEASE_TIME: Duration = Duration::from_millis(400);
/// Time after the last use of the lease for which it is renewed. An open(2) after a longer pause waits for the offload
/// process of this node.
const LEASE_IDLE_MAX: Duration = Duration::from_secs(10);

/// Returns the time since boot. Unlike CLOCK_MONOTONIC, it continues while the machine is suspended, so that leases expire.
pub(super) fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

/// State of the write permission at this client. The state lock of the client protects it. All times are `boot_time`.
#[derive(Debug, Default)]
pub(super) struct WritePermission {
    term: Option<u32>,
    /// Time of the unanswered request.
    requested_at: Option<Duration>,
    /// At this time or later, the catalog had the term of this client as the present one.
    confirmed_at: Option<Duration>,
    /// Last time at which a program needed the lease.
    used_at: Option<Duration>,
    /// The volume has one replica, so this client is never fenced.
    is_only_replica: bool,
}

impl WritePermission {
    /// The term of this client's write permission; none if it has no permission.
    pub(super) fn term(&self) -> Option<u32> {
        self.term
    }

    /// Requests the permission, unless this client has it or has already requested it.
    pub(super) fn request(&mut self, link: &dyn OffloadLink) {
        if self.term.is_none() && self.requested_at.is_none() {
            self.requested_at = Some(boot_time());
            link.send(OffloadRequest::AcquireWrite);
        }
    }

    /// Stores the permission for a term. The lease begins at the request: this process may have been stopped since the
    /// answer was sent.
    pub(super) fn grant(&mut self, term: u32) {
        self.term = Some(term);
        self.confirmed_at = self.requested_at.take();
    }

    /// Drops the permission.
    pub(super) fn release(&mut self) {
        (self.term, self.requested_at, self.confirmed_at) = (None, None, None);
    }

    /// Whether a request is unanswered.
    pub(super) fn is_requested(&self) -> bool {
        self.requested_at.is_some()
    }

    /// Records that the volume has no other replica.
    pub(super) fn set_only_replica(&mut self) {
        self.is_only_replica = true;
    }

    /// Renews the lease: the offload process has answered a request of this time, after it has read the catalog.
    pub(super) fn confirm(&mut self, requested_at: Duration) {
        if self.term.is_some() {
            self.confirmed_at = self.confirmed_at.max(Some(requested_at));
        }
    }

    /// Whether this client is the writer, and no other client can have become the writer.
    pub(super) fn has_lease(&self, now: Duration) -> bool {
        let is_confirmed = || self.confirmed_at.is_some_and(|at| now < at + LEASE_TIME);
        self.term.is_some() && (self.is_only_replica || is_confirmed())
    }

    /// Records that a program needs the lease. Returns whether its renewal has to begin.
    pub(super) fn note_use(&mut self, now: Duration) -> bool {
        let was_renewed = self.needs_renewal(now);
        self.used_at = Some(now);
        !was_renewed && self.needs_renewal(now)
    }

    /// Whether the lease is in use and expires.
    pub(super) fn needs_renewal(&self, now: Duration) -> bool {
        let is_used = self.used_at.is_some_and(|at| now < at + LEASE_IDLE_MAX);
        is_used && self.term.is_some() && !self.is_only_replica
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    fn granted(requested_at: Option<Duration>) -> WritePermission {
        let mut permission = WritePermission { requested_at, ..WritePermission::default() };
        permission.grant(3);
        permission
    }

    #[test]
    fn a_lease_ends_after_its_time_since_the_request() {
        let mut permission = granted(Some(START));
        assert!(permission.has_lease(START) && !permission.has_lease(START + LEASE_TIME));
        permission.confirm(START + LEASE_TIME);
        permission.confirm(START);
        assert!(permission.has_lease(START + LEASE_TIME), "an older confirmation does not shorten the lease");
        assert!(!permission.has_lease(START + 2 * LEASE_TIME));
        assert!(!granted(None).has_lease(START), "the time of the request is unknown");
    }

    #[test]
    fn only_the_writer_has_a_lease() {
        let mut permission = granted(Some(START));
        permission.release();
        permission.confirm(START);
        assert!(!permission.has_lease(START));
        permission.grant(4);
        assert!(!permission.has_lease(START), "confirmed before the term");
    }

    #[test]
    fn the_writer_of_the_only_replica_needs_no_renewal() {
        let mut permission = granted(None);
        permission.set_only_replica();
        assert!(permission.has_lease(START) && !permission.note_use(START));
        permission.release();
        assert!(!permission.has_lease(START));
    }

    #[test]
    fn a_lease_is_renewed_while_programs_use_it() {
        let mut permission = granted(Some(START));
        assert!(!permission.needs_renewal(START));
        assert!(permission.note_use(START), "the renewal begins");
        assert!(!permission.note_use(START) && permission.needs_renewal(START + LEASE_TIME));
        assert!(!permission.needs_renewal(START + LEASE_IDLE_MAX));
        assert!(permission.note_use(START + LEASE_IDLE_MAX));
        permission.release();
        assert!(!permission.note_use(START), "without a term");
        permission.grant(4);
        assert!(permission.needs_renewal(START), "used before the term");
    }
}
