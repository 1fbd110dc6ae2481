//! Log lines about connections that the server ends: each names its client, and their number per sweep is limited.

use std::fmt;

/// Most lines between two looks: who floods the server is named, and does not flood the log.
const LINES_MAX: u32 = 8;

/// The complaints of a thread since its last look.
#[derive(Debug, Default)]
pub(super) struct RateLimitedLog {
    lines: u32,
    suppressed: u64,
}

impl RateLimitedLog {
    /// Says that a client's connection is ended.
    pub(super) fn log_disconnect(&mut self, peer: &str, cause: &dyn fmt::Display) {
        if self.lines < LINES_MAX {
            self.lines += 1;
            tracing::warn!(peer, %cause, "an RPC server ends a connection");
        } else {
            self.suppressed += 1;
        }
    }

    /// Begins another interval.
    pub(super) fn begin_interval(&mut self) {
        if self.suppressed > 0 {
            tracing::warn!(connections = self.suppressed, "an RPC server ended further connections");
        }
        *self = Self::default();
    }
}
