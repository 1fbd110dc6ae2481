//! The failure of a connection, recorded until the next reply. A request without a reply gets its error from this
//! record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Address, FabricError, LinkError};

/// The failures since the last reply.
#[derive(Debug, Default)]
pub(crate) struct LinkFailure {
    /// Cause of the last failure.
    cause: Option<Arc<LinkError>>,
    /// Time since which a request has waited for a failed connection; `None` if no request waits.
    waiting_since: Option<Instant>,
}

impl LinkFailure {
    /// Clears the record after a reply.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Records a failure. `waiting_since` is the time since which a request has waited for the connection, if any
    /// waits.
    pub(crate) fn record(&mut self, cause: LinkError, waiting_since: Option<Instant>) {
        self.cause = Some(Arc::new(cause));
        self.waiting_since = waiting_since.map(|since| self.waiting_since.unwrap_or(since));
    }

    /// Records that a request waits now, if the connection has failed.
    pub(crate) fn record_waiter(&mut self, now: Instant) {
        if self.cause.is_some() {
            self.waiting_since.get_or_insert(now);
        }
    }

    /// Creates the error of a request without a reply. `change_sent` is the time at which a change was sent, which may
    /// have been made. `silent_since` is the time since which an open connection has been silent.
    pub(crate) fn to_error(
        &self,
        address: &Address,
        change_sent: Option<Instant>,
        silent_since: Option<Instant>,
        now: Instant,
    ) -> FabricError {
        let cause = self.cause.clone().unwrap_or_else(|| Arc::new(LinkError::NoResponse));
        let since = |since: Option<Instant>| since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let address = address.clone();
        match change_sent {
            // Use the time since the change was sent: since then, the owner may have replied to other requests, or the
            // connection may have failed.
            Some(_) => FabricError::OutcomeUnknown { address, cause, silence: since(change_sent) },
            None => FabricError::Unreachable { address, cause, silence: since(self.waiting_since.or(silent_since)) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(link_failure: &LinkFailure, now: Instant) -> Duration {
        match link_failure.to_error(&"tcp:10.0.0.1:1".parse().unwrap(), None, None, now) {
            FabricError::Unreachable { silence, .. } => silence,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn an_unanswered_change_reports_the_time_since_it_was_sent() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        // Another reply was received at the time of the deadline.
        let error =
            LinkFailure::default().to_error(&"tcp:10.0.0.1:1".parse().unwrap(), Some(start), Some(at(2)), at(2));
        assert!(error.to_string().contains("did not answer for 2.0s"), "{error}");
        let error = LinkFailure::default().to_error(&"tcp:10.0.0.1:1".parse().unwrap(), Some(start), None, start);
        assert!(error.to_string().contains("did not answer in time"), "{error}");
        let error = LinkFailure::default().to_error(&"tcp:10.0.0.1:1".parse().unwrap(), None, None, start);
        assert!(error.to_string().contains("cannot be reached for now: "), "{error}");
    }

    #[test]
    fn silence_counts_only_while_a_request_waits() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut link_failure = LinkFailure::default();
        link_failure.record(LinkError::Closed, None);
        assert_eq!(silence(&link_failure, at(100)), Duration::ZERO);
        link_failure.record_waiter(at(100));
        link_failure.record(LinkError::ConnectTimeout, Some(at(103)));
        assert_eq!(silence(&link_failure, at(104)), Duration::from_secs(4));
        link_failure.clear();
        link_failure.record(LinkError::NoResponse, Some(at(110)));
        assert_eq!(silence(&link_failure, at(111)), Duration::from_secs(1));
    }
}
