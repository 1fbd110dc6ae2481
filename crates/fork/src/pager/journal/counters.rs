//! Counters of the pager's work for a child. The child's journal stores the counters, so they survive a killed pager.
//! The daemon reports them.

use serde::{Deserialize, Serialize};

/// Counters of the pager's work for a child since it was adopted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PagerCounters {
    /// Page faults that were read. Most are also counted by kind: missing, late, zero or cached.
    pub faults: u64,
    /// Faults of write accesses.
    pub faults_write: u64,
    /// Faults whose page was requested from an owner.
    pub faults_missing: u64,
    /// Faults whose page was already in flight.
    pub faults_late: u64,
    /// Faults that were answered with zeroes.
    pub faults_zero: u64,
    /// Completed reads from owners, for faults and for prefetches.
    pub round_trips: u64,
    /// Completed reads of the demand lane, for pages that a thread waited for.
    pub round_trips_demand: u64,
    /// Total time from the request of a page that a thread waits for until it is installed, in microseconds.
    pub demand_us: u64,
    /// Total time spent on installing pages, in microseconds.
    pub install_us: u64,
    /// Pages fetched from owners and installed, over the network or from the same host.
    pub pages_fetched: u64,
    /// Bytes of pages received from owners.
    pub bytes_fetched: u64,
    /// The part of `pages_fetched` from owners on the same host, without a network.
    pub pages_same_host: u64,
    /// The part of `bytes_fetched` from owners on the same host.
    pub bytes_same_host: u64,
    /// Pages installed as zeroes.
    pub zero_pages: u64,
    /// Faults whose page was in the node's page cache.
    pub faults_cached: u64,
    /// Pages installed from the node's page cache.
    pub pages_cached: u64,
    /// The part of `pages_fetched` that the child's own seed inherits from another seed. They were fetched from the
    /// seed that owns them.
    pub pages_inherited: u64,
}

/// Number of counters in a [`PagerCounters`].
pub(in crate::pager) const COUNTER_COUNT: usize = 17;

impl PagerCounters {
    /// Returns the counters in the order of the journal.
    pub(in crate::pager) fn to_words(mut self) -> [u64; COUNTER_COUNT] {
        self.fields_mut().map(|field| *field)
    }

    /// Creates the counters from the words of a journal.
    pub(in crate::pager) fn from_words(words: [u64; COUNTER_COUNT]) -> Self {
        let mut counters = Self::default();
        counters.fields_mut().into_iter().zip(words).for_each(|(field, word)| *field = word);
        counters
    }

    /// Combines each counter with the same counter of `other`.
    pub fn zip_with(&self, other: &Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        let (ours, others) = (self.to_words(), other.to_words());
        Self::from_words(std::array::from_fn(|index| combine(ours[index], others[index])))
    }

    fn fields_mut(&mut self) -> [&mut u64; COUNTER_COUNT] {
        [
            &mut self.faults,
            &mut self.faults_write,
            &mut self.faults_missing,
            &mut self.faults_late,
            &mut self.faults_zero,
            &mut self.round_trips,
            &mut self.round_trips_demand,
            &mut self.demand_us,
            &mut self.install_us,
            &mut self.pages_fetched,
            &mut self.bytes_fetched,
            &mut self.pages_same_host,
            &mut self.bytes_same_host,
            &mut self.zero_pages,
            &mut self.faults_cached,
            &mut self.pages_cached,
            &mut self.pages_inherited,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_converted_to_words_and_back() {
        let words: [u64; COUNTER_COUNT] = std::array::from_fn(|index| index as u64 + 1);
        let counters = PagerCounters::from_words(words);
        assert_eq!(counters.to_words(), words);
        assert_eq!(
            (counters.faults, counters.pages_inherited),
            (1, COUNTER_COUNT as u64),
            "each counter has its own word"
        );
    }
}
