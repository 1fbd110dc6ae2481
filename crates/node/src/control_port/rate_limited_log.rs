//! Rate-limited log lines about refused peers.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of log lines per second about refused peers. Further lines are only counted.
const LINES_PER_SECOND_MAX: usize = 20;

/// Logs warnings about peers at a limited rate, so that a peer cannot fill the disk.
#[derive(Debug, Default)]
pub(crate) struct RateLimitedLog(Mutex<LogWindow>);

/// The log lines of the current second.
#[derive(Debug, Default)]
struct LogWindow {
    began: Option<Instant>,
    lines: usize,
    suppressed: u64,
}

impl RateLimitedLog {
    /// Writes the line, or counts it if this second already has [`LINES_PER_SECOND_MAX`] lines.
    pub(crate) fn warn(&self, text: impl FnOnce() -> String) {
        let mut second = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if second.began.is_none_or(|began| now.duration_since(began) >= Duration::from_secs(1)) {
            *second = LogWindow { began: Some(now), lines: 0, suppressed: second.suppressed };
        }
        if second.lines >= LINES_PER_SECOND_MAX {
            second.suppressed += 1;
            return;
        }
        second.lines += 1;
        let suppressed = std::mem::take(&mut second.suppressed);
        if suppressed > 0 {
            tracing::warn!("{suppressed} more peers or requests were refused");
        }
        tracing::warn!("{}", text());
    }
}
