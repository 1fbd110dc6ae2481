//! The requests of a client to the offload process. `process::client` sends them.

use std::fmt;

use crate::log::LogPoint;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadRequest {
    /// This client wants to write. The answer is `VolumeClient::grant_write`.
    AcquireWrite,
    /// This client writes no more.
    Released,
    /// Each live replica is to have the log up to here. The answer is `VolumeClient::acknowledge_commit`.
    Commit(LogPoint),
    /// The space of the replicas is needed, as it is when the log is published up to here. The answer is
    /// `VolumeClient::answer_space_check`.
    CheckSpace(LogPoint),
    /// The view is to have the records that other clients have logged until now. The answer is
    /// `VolumeClient::acknowledge_refresh` with this number.
    Refresh(u64),
}

/// Sends requests, and never blocks for long. A request that is lost with a connection is sent again by
/// `VolumeClient::repeat_requests`.
pub trait OffloadLink: fmt::Debug + Send + Sync {
    /// Sends a request.
    fn send(&self, request: OffloadRequest);
}
