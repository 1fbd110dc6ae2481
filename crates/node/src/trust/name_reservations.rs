//! Names of machines that have just joined, and that are not members yet. So two concurrent join requests do not get
//! the same name.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use farfork_cluster::membership::UNREACHABLE_AFTER;
use farfork_wire::NodeName;

/// For each name, the time of the reservation, and the certificate request. A reservation lasts for
/// `UNREACHABLE_AFTER`: a machine that has joined sends a heartbeat earlier.
#[derive(Debug, Default)]
pub(crate) struct NameReservations(Mutex<HashMap<NodeName, (Instant, Vec<u8>)>>);

impl NameReservations {
    /// Reserves a name, and returns whether the request now has it. The same request may be repeated, because the reply
    /// may have been lost.
    pub(crate) fn reserve(&self, name: &NodeName, request: &[u8], now: Instant) -> bool {
        let mut reserved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reserved.retain(|_, (since, _)| now.saturating_duration_since(*since) < UNREACHABLE_AFTER);
        let (_, holder) = reserved.entry(name.clone()).or_insert_with(|| (now, request.to_vec()));
        holder == request
    }

    /// Releases a name when a node of this name has sent a heartbeat: the node is a member from now on.
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
        assert!(reservations.reserve(&one, b"first", now), "the request is repeated");
        assert!(reservations.reserve(&other, b"second", now));
        assert!(reservations.reserve(&one, b"second", now + UNREACHABLE_AFTER), "the first reservation has expired");
        reservations.release(&other);
        assert!(reservations.reserve(&other, b"third", now), "this table does not know whether the node is alive");
    }
}
