//! Counts wrong join tokens by source address, and delays sources that sent many. Time is an argument.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Wrong tokens that an address may send before it must wait: people mistype, or use an old file.
const FREE_ATTEMPTS: u32 = 3;

/// The first wait. Each further wrong token doubles it.
const WAIT_INITIAL: Duration = Duration::from_secs(1);

/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// An address that sent no wrong token for this long is forgotten. This is longer than the longest wait, so that waiting
/// does not reset the count.
const FORGET_AFTER: Duration = Duration::from_secs(3600);

/// Maximum number of addresses in the table. The one with the oldest wrong token is dropped first.
const ADDRESSES_MAX: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct AddressRecord {
    wrong_count: u32,
    /// The time of the last wrong token.
    last_wrong_at: Instant,
}

impl AddressRecord {
    fn penalty(&self) -> Duration {
        match self.wrong_count.checked_sub(FREE_ATTEMPTS) {
            None => Duration::ZERO,
            Some(doublings) => (WAIT_INITIAL * 2u32.saturating_pow(doublings.min(16))).min(WAIT_MAX),
        }
    }
}

/// The table of wrong tokens by source address.
#[derive(Debug, Default)]
pub struct JoinThrottle {
    records: HashMap<IpAddr, AddressRecord>,
    wrong_total: u64,
}

impl JoinThrottle {
    /// How long an address must still wait before it may send a token.
    pub fn remaining_wait(&self, from: IpAddr, now: Instant) -> Duration {
        let record = self.records.get(&from);
        record.map_or(Duration::ZERO, |record| (record.last_wrong_at + record.penalty()).saturating_duration_since(now))
    }

    /// Records a wrong token. Returns how many this address sent recently.
    pub fn record_wrong_token(&mut self, from: IpAddr, now: Instant) -> u32 {
        self.wrong_total += 1;
        self.records.retain(|_, record| now.saturating_duration_since(record.last_wrong_at) < FORGET_AFTER);
        if self.records.len() >= ADDRESSES_MAX
            && !self.records.contains_key(&from)
            && let Some(oldest) =
                self.records.iter().min_by_key(|(_, record)| record.last_wrong_at).map(|(address, _)| *address)
        {
            self.records.remove(&oldest);
        }
        let record = self.records.entry(from).or_insert(AddressRecord { wrong_count: 0, last_wrong_at: now });
        *record = AddressRecord { wrong_count: record.wrong_count.saturating_add(1), last_wrong_at: now };
        record.wrong_count
    }

    /// Number of wrong tokens from all addresses.
    pub fn wrong_total(&self) -> u64 {
        self.wrong_total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_wrong_tokens_are_delayed_for_hours() {
        let (mut throttle, from) = (JoinThrottle::default(), IpAddr::from([10, 0, 0, 1]));
        let mut now = Instant::now();
        let start = now;
        for _ in 0..100 {
            now += throttle.remaining_wait(from, now);
            throttle.record_wrong_token(from, now);
        }
        assert!(now - start > Duration::from_secs(20_000), "{:?}", now - start);
        assert_eq!(
            throttle.remaining_wait(IpAddr::from([10, 0, 0, 2]), now),
            Duration::ZERO,
            "others are not disturbed"
        );
        assert_eq!(throttle.remaining_wait(from, now + WAIT_MAX), Duration::ZERO);
        assert_eq!(throttle.wrong_total(), 100);
    }

    #[test]
    fn the_number_of_recorded_addresses_is_bounded() {
        let (mut throttle, now) = (JoinThrottle::default(), Instant::now());
        for number in 0..3 * ADDRESSES_MAX as u32 {
            throttle.record_wrong_token(IpAddr::from(number.to_be_bytes()), now);
        }
        assert_eq!(throttle.records.len(), ADDRESSES_MAX);
    }
}
