//! Limits the join requests in progress, by source address. Without this limit, a source could have many tokens checked
//! at once before its first wrong token is counted.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of join requests in progress for one source address: several machines at one address may start
/// together. Each request takes milliseconds.
pub(crate) const JOINS_PER_ADDRESS_MAX: usize = 8;

/// The number of requests in progress, by source address.
#[derive(Debug, Default)]
pub(crate) struct JoinLimiter(Mutex<HashMap<IpAddr, usize>>);

/// The permit of one request in progress.
#[derive(Debug)]
pub(crate) struct JoinPermit {
    limiter: Arc<JoinLimiter>,
    from: IpAddr,
}

impl JoinLimiter {
    /// Takes a permit for a request from this address; `None` if too many are in progress.
    pub(crate) fn acquire(self: &Arc<Self>, from: IpAddr) -> Option<JoinPermit> {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = under_way.entry(from).or_default();
        if *count >= JOINS_PER_ADDRESS_MAX {
            return None;
        }
        *count += 1;
        Some(JoinPermit { limiter: self.clone(), from })
    }
}

impl Drop for JoinPermit {
    fn drop(&mut self) {
        let mut under_way = self.limiter.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = under_way.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_a_limit_of_concurrent_joins() {
        let turns = Arc::new(JoinLimiter::default());
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let held: Vec<JoinPermit> = (0..JOINS_PER_ADDRESS_MAX).map(|_| turns.acquire(one).unwrap()).collect();
        assert!(turns.acquire(one).is_none());
        assert!(turns.acquire(other).is_some(), "another address is not limited");
        drop(held);
        assert!(turns.acquire(one).is_some());
        assert!(turns.0.lock().unwrap().is_empty(), "an address without requests has no entry");
    }
}
