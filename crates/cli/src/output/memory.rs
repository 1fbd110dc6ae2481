//! The memory of a child: the counters of its pager, and how much is shared, private or not fetched yet.

use farfork_api::v1::{MemoryUse, PagerStats};
use serde::Serialize;

use super::{format_bytes, format_microseconds};

/// The counters of a pager; the API documents the fields.
#[derive(Debug, Serialize)]
pub(crate) struct PagerView {
    pub(crate) faults: u64,
    pub(crate) faults_write: u64,
    pub(crate) faults_missing: u64,
    pub(crate) faults_late: u64,
    pub(crate) faults_zero: u64,
    pub(crate) round_trips: u64,
    pub(crate) round_trips_demand: u64,
    pub(crate) demand_us: u64,
    pub(crate) install_us: u64,
    pub(crate) pages_fetched: u64,
    pub(crate) bytes_fetched: u64,
    pub(crate) pages_same_host: u64,
    pub(crate) bytes_same_host: u64,
    pub(crate) zero_pages: u64,
    pub(crate) faults_cached: u64,
    pub(crate) pages_cached: u64,
    pub(crate) pages_inherited: u64,
}

/// Where a child's memory is. A field is null if it is unknown, for example for a child that has ended.
#[derive(Debug, Serialize)]
pub(crate) struct MemoryView {
    pub(crate) shared_bytes: Option<u64>,
    pub(crate) private_bytes: Option<u64>,
    pub(crate) remote_bytes: Option<u64>,
    pub(crate) file_bytes: Option<u64>,
}

impl From<PagerStats> for PagerView {
    fn from(stats: PagerStats) -> Self {
        Self {
            faults: stats.faults,
            faults_write: stats.faults_write,
            faults_missing: stats.faults_missing,
            faults_late: stats.faults_late,
            faults_zero: stats.faults_zero,
            round_trips: stats.round_trips,
            round_trips_demand: stats.round_trips_demand,
            demand_us: stats.demand_us,
            install_us: stats.install_us,
            pages_fetched: stats.pages_fetched,
            bytes_fetched: stats.bytes_fetched,
            pages_same_host: stats.pages_same_host,
            bytes_same_host: stats.bytes_same_host,
            zero_pages: stats.zero_pages,
            faults_cached: stats.faults_cached,
            pages_cached: stats.pages_cached,
            pages_inherited: stats.pages_inherited,
        }
    }
}

impl From<MemoryUse> for MemoryView {
    fn from(memory: MemoryUse) -> Self {
        let MemoryUse { shared_bytes, private_bytes, remote_bytes, file_bytes } = memory;
        Self { shared_bytes, private_bytes, remote_bytes, file_bytes }
    }
}

/// Adds up the counters of several pagers.
pub(crate) fn sum_pager_stats<'a>(counted: impl IntoIterator<Item = &'a PagerStats>) -> PagerStats {
    let add = |sum: PagerStats, one: &PagerStats| PagerStats {
        faults: sum.faults + one.faults,
        faults_write: sum.faults_write + one.faults_write,
        faults_missing: sum.faults_missing + one.faults_missing,
        faults_late: sum.faults_late + one.faults_late,
        faults_zero: sum.faults_zero + one.faults_zero,
        round_trips: sum.round_trips + one.round_trips,
        round_trips_demand: sum.round_trips_demand + one.round_trips_demand,
        demand_us: sum.demand_us + one.demand_us,
        install_us: sum.install_us + one.install_us,
        pages_fetched: sum.pages_fetched + one.pages_fetched,
        bytes_fetched: sum.bytes_fetched + one.bytes_fetched,
        pages_same_host: sum.pages_same_host + one.pages_same_host,
        bytes_same_host: sum.bytes_same_host + one.bytes_same_host,
        zero_pages: sum.zero_pages + one.zero_pages,
        faults_cached: sum.faults_cached + one.faults_cached,
        pages_cached: sum.pages_cached + one.pages_cached,
        pages_inherited: sum.pages_inherited + one.pages_inherited,
    };
    counted.into_iter().fold(PagerStats::default(), add)
}

/// Adds up the known values of several children's memory.
pub(crate) fn sum_memory_use<'a>(used: impl IntoIterator<Item = &'a MemoryUse>) -> MemoryUse {
    let add = |sum: Option<u64>, one: Option<u64>| sum.map(|sum| sum + one.unwrap_or(0)).or(one);
    used.into_iter().fold(MemoryUse::default(), |sum, one| MemoryUse {
        shared_bytes: add(sum.shared_bytes, one.shared_bytes),
        private_bytes: add(sum.private_bytes, one.private_bytes),
        remote_bytes: add(sum.remote_bytes, one.remote_bytes),
        file_bytes: add(sum.file_bytes, one.file_bytes),
    })
}

/// Describes the counters in sentences, one per line.
pub(crate) fn pager_text(stats: &PagerStats) -> String {
    let network_pages = stats.pages_fetched.saturating_sub(stats.pages_same_host);
    let network_bytes = stats.bytes_fetched.saturating_sub(stats.bytes_same_host);
    let waited = match stats.round_trips_demand {
        0 => String::new(),
        trips => format!(", {} each", format_microseconds(stats.demand_us / trips)),
    };
    let inherited = match stats.pages_inherited {
        0 => String::new(),
        pages => format!(", {pages} inherited from other seeds"),
    };
    format!(
        "faults  {}: {} missing, {} late, {} zero, {} cached; {} of them writes\n\
         reads   {}: {} that somebody waited for{waited}\n\
         pages   {}: {network_pages} over the network ({}), {} of this host ({}){inherited}; {} kept by this node; {} zero pages\n\
         install {} in all",
        stats.faults,
        stats.faults_missing,
        stats.faults_late,
        stats.faults_zero,
        stats.faults_cached,
        stats.faults_write,
        stats.round_trips,
        stats.round_trips_demand,
        stats.pages_fetched,
        format_bytes(network_bytes),
        stats.pages_same_host,
        format_bytes(stats.bytes_same_host),
        stats.pages_cached,
        stats.zero_pages,
        format_microseconds(stats.install_us),
    )
}

/// Describes in one line where the memory is.
pub(crate) fn memory_text(memory: &MemoryUse) -> String {
    let bytes_text = |count: Option<u64>| count.map_or_else(|| "unknown".to_owned(), format_bytes);
    let resident = match (memory.shared_bytes, memory.private_bytes) {
        (None, None) => "freed: the child has ended".to_owned(),
        (shared, private) => {
            let of_files = bytes_text(memory.file_bytes);
            format!(
                "{} shared, {} private, {of_files} of it of this node's files",
                bytes_text(shared),
                bytes_text(private)
            )
        }
    };
    format!("memory  {resident}; {} never fetched", bytes_text(memory.remote_bytes))
}
