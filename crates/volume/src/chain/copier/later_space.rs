//! Free space of the later nodes on the path of a log, and the numbered requests for new reports of it.

use crate::chain::TreeSpace;

/// The space of the later nodes on the path of a log.
#[derive(Debug)]
pub struct LaterSpace {
    reported: TreeSpace,
    /// Number of reports until now.
    reports: u64,
    /// Number of requested reports, and number of the last request that is answered.
    requests: u64,
    answered: u64,
}

impl Default for LaterSpace {
    fn default() -> Self {
        Self { reported: TreeSpace::UNLIMITED, reports: 0, requests: 0, answered: 0 }
    }
}

impl LaterSpace {
    /// The least space that the later nodes have reported.
    pub fn reported(&self) -> TreeSpace {
        self.reported
    }

    /// Requests a report. Returns the number of the request.
    pub fn request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// The number of the last request.
    pub fn last_request(&self) -> u64 {
        self.requests
    }

    /// Whether the last request is not answered yet.
    pub fn is_requested(&self) -> bool {
        !self.is_answered(self.requests)
    }

    /// Whether a request is answered.
    pub fn is_answered(&self, request: u64) -> bool {
        self.answered >= request
    }

    /// Stores a report of the later nodes, which answers all requests up to `request`.
    pub fn report(&mut self, space: TreeSpace, request: u64) {
        self.reported = space;
        self.reports += 1;
        self.answered = self.answered.max(request);
    }

    /// Number of reports until now.
    pub fn reports(&self) -> u64 {
        self.reports
    }

    /// Whether there was a report.
    pub fn is_known(&self) -> bool {
        self.reports > 0
    }

    /// Whether a later node does not publish for lack of space.
    pub fn is_full(&self) -> bool {
        self.reported == TreeSpace::Full
    }
}
