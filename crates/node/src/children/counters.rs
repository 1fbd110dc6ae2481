//! Converts the pager's counters to API messages.

use farfork_fork::pager::{CacheStats, PagerCounters};

use crate::api::v1;

impl From<PagerCounters> for v1::PagerStats {
    fn from(counters: PagerCounters) -> Self {
        Self {
            faults: counters.faults,
            faults_write: counters.faults_write,
            faults_missing: counters.faults_missing,
            faults_late: counters.faults_late,
            faults_zero: counters.faults_zero,
            round_trips: counters.round_trips,
            round_trips_demand: counters.round_trips_demand,
            demand_us: counters.demand_us,
            install_us: counters.install_us,
            pages_fetched: counters.pages_fetched,
            bytes_fetched: counters.bytes_fetched,
            pages_same_host: counters.pages_same_host,
            bytes_same_host: counters.bytes_same_host,
            zero_pages: counters.zero_pages,
            faults_cached: counters.faults_cached,
            pages_cached: counters.pages_cached,
            pages_inherited: counters.pages_inherited,
        }
    }
}

impl From<CacheStats> for v1::CacheUse {
    fn from(stats: CacheStats) -> Self {
        let CacheStats { bytes_max, bytes, pages, seeds, hits, misses, evictions } = stats;
        Self { bytes_max, bytes, pages, seeds, hits, misses, evictions }
    }
}
