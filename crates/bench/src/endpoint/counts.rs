//! The counters and latencies that an endpoint records.

use std::sync::atomic::{AtomicBool, AtomicU64};

use hdrhistogram::Histogram;

/// Maximum recorded latency, in ns.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The counters of one thread, and the flag that stops the thread.
#[derive(Debug, Default)]
pub(crate) struct CallCounts {
    pub(crate) answers: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) stop: AtomicBool,
}

/// Latencies of one thread.
pub(crate) type Latencies = Histogram<u64>;

/// Creates an empty histogram with two significant digits, for latencies up to a minute.
pub(crate) fn new_latencies() -> Latencies {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2).expect("the bounds are valid")
}
