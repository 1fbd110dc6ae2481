//! Converts the pager's counters to API messages.

use farfork_fork::pager::{CacheStats, PagerCounters};

use farfork_api::v1;

/// Converts a child's counters.
pub(crate) fn pager_stats(counters: PagerCounters) -> v1::PagerStats {
    v1::PagerStats {
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

/// Converts the use of the page cache.
pub(crate) fn cache_use(stats: CacheStats) -> v1::CacheUse {
    let CacheStats { bytes_max, bytes, pages, seeds, hits, misses, evictions } = stats;
    v1::CacheUse { bytes_max, bytes, pages, seeds, hits, misses, evictions }
}
