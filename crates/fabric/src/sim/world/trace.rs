//! The trace of a simulated world: a digest that is equal for two runs only if their events were the same, and the last
//! events as text.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Maximum number of events that are kept as text.
const EVENTS_KEPT_MAX: usize = 400;

/// The events of a world.
#[derive(Debug, Default)]
pub(super) struct EventTrace {
    digest: u64,
    events: VecDeque<String>,
}

impl EventTrace {
    /// Records an event.
    pub(super) fn record(&mut self, at: Duration, event: fmt::Arguments<'_>) {
        let line = format!("{:>12.6} {event}", at.as_secs_f64());
        // FNV-1a suffices to distinguish runs.
        self.digest = line.bytes().fold(self.digest ^ 0xcbf2_9ce4_8422_2325, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        if self.events.len() == EVENTS_KEPT_MAX {
            self.events.pop_front();
        }
        self.events.push_back(line);
    }

    /// Returns the digest of all events so far.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    /// Formats the last events, one per line.
    pub(super) fn format(&self) -> String {
        self.events.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    }
}
