//! Names of machines that have just joined and that membership does not know yet. Two concurrent requests do not get
//! the same name.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use farfork_cluster::membership::UNREACHABLE_AFTER;
use farfork_wire::NodeName;

/// For each name, when it was reserved, and the certificate request. A reservation lasts as long as a silent member
/// counts as alive. By then the machine has sent a heartbeat, or will not.
#[derive(Debug, Default)]
pub(crate) struct NameReservations(Mutex<HashMap<NodeName, (Instant, Vec<u8>)>>);

impl NameReservations {
    /// Reserves a name, unless another request has it. The same request may be repeated, as its answer may have been
    /// lost.
    pub(crate) fn reserve(&self, name: &NodeName, request: &[u8], now: Instant) -> bool {
        let mut reserved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reserved.retain(|_, (since, _)| now.saturating_duration_since(*since) < UNREACHABLE_AFTER);
        let (_, holder) = reserved.entry(name.clone()).or_insert_with(|| (now, request.to_vec()));
        holder == request
    }

    /// Releases a name when a node of this name has sent a heartbeat: membership knows it from now on.
    pub(crate) fn release(&self, name: &NodeName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_concurrent_joins_gets_the_name() {
        let (reservations, now) = (NameReservations::default(), Instant::now());
        let (one, other) = (NodeName::new("one").unwrap(), NodeName::new("other").unwrap());
        assert!(reservations.reserve(&one, b"first", now));
        assert!(!reservations.reserve(&one, b"second", now));
        assert!(reservations.reserve(&one, b"first", now), "it asks again");
        assert!(reservations.reserve(&other, b"second", now));
        assert!(reservations.reserve(&one, b"second", now + UNREACHABLE_AFTER), "the first one never came");
        reservations.release(&other);
        assert!(reservations.reserve(&other, b"third", now), "whether it lives is not known here");
    }
}
