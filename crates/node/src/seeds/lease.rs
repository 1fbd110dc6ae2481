//! Lease of a seed with a time to live. Each fork of the seed restarts the lease, and so does each check that finds the
//! seed needed.

use crate::clock;

/// Number of checks per time to live. A seed expires between 7/8 and 8/8 of its time to live after its last user has
/// ended.
const CHECKS_PER_LEASE: u64 = 8;

/// A seed's lease. Durations are in milliseconds, times in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    ttl_ms: u64,
    renewed_unix_ms: u64,
    expires_unix_ms: u64,
}

impl Lease {
    /// Creates the lease of a seed that was created at this time; `None` without a time to live.
    pub(super) fn new(ttl_ms: u64, created_unix_ms: u64) -> Option<Self> {
        let expires_unix_ms = created_unix_ms.saturating_add(ttl_ms);
        (ttl_ms > 0).then_some(Self { ttl_ms, renewed_unix_ms: created_unix_ms, expires_unix_ms })
    }

    /// Creates the lease of a sealed seed that a starting daemon loads. The lease keeps its expiry time.
    pub(super) fn from_image(ttl_ms: u64, expires_unix_ms: u64) -> Option<Self> {
        (ttl_ms > 0).then_some(Self { ttl_ms, renewed_unix_ms: 0, expires_unix_ms })
    }

    /// Restarts the lease now.
    pub(super) fn renew(&mut self) {
        self.renew_at(clock::unix_ms_now());
    }

    fn renew_at(&mut self, now_unix_ms: u64) {
        self.renewed_unix_ms = now_unix_ms;
        self.expires_unix_ms = now_unix_ms.saturating_add(self.ttl_ms);
    }

    /// Returns the time at which the lease expires.
    pub(super) fn expires_unix_ms(&self) -> u64 {
        self.expires_unix_ms
    }

    /// Whether it is time to check that the seed is still needed.
    pub(super) fn is_check_due(&self, now_unix_ms: u64) -> bool {
        self.is_expired(now_unix_ms)
            || now_unix_ms.saturating_sub(self.renewed_unix_ms) >= self.ttl_ms / CHECKS_PER_LEASE
    }

    /// Whether the lease has expired.
    pub(super) fn is_expired(&self, now_unix_ms: u64) -> bool {
        now_unix_ms >= self.expires_unix_ms
    }
}

#[cfg(test)]
mod tests {
    use super::Lease;

    #[test]
    fn a_lease_is_extended_by_its_renewal() {
        assert_eq!(Lease::new(0, 5), None);
        let mut lease = Lease::new(8_000, 10_000).unwrap();
        assert!(
            !lease.is_check_due(10_999)
                && lease.is_check_due(11_000)
                && !lease.is_expired(17_999)
                && lease.is_expired(18_000)
        );
        lease.renew_at(17_000);
        assert_eq!(lease.expires_unix_ms(), 25_000);
        assert!(!lease.is_check_due(17_999) && lease.is_check_due(18_000) && lease.is_expired(25_000));
    }
}
