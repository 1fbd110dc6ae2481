//! Log lines about connections that the server closes. Each line names the client, and the number of lines per sweep is
//! limited.

use std::fmt;

/// Maximum number of lines per sweep: a client that floods the server is named, but cannot flood the log.
const LINES_MAX: u32 = 8;

/// The lines that a thread has logged since its last sweep.
#[derive(Debug, Default)]
pub(super) struct RateLimitedLog {
    lines: u32,
    suppressed: u64,
}

impl RateLimitedLog {
    /// Logs that a client's connection is closed.
    pub(super) fn log_disconnect(&mut self, peer: &str, cause: &dyn fmt::Display) {
        if self.lines < LINES_MAX {
            self.lines += 1;
            tracing::warn!(peer, %cause, "an RPC server ends a connection");
        } else {
            self.suppressed += 1;
        }
    }

    /// Starts another interval.
    pub(super) fn begin_interval(&mut self) {
        if self.suppressed > 0 {
            tracing::warn!(connections = self.suppressed, "an RPC server ended further connections");
        }
        *self = Self::default();
    }
}
