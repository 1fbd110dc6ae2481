//! The requests of a client to the offload process. `process::client` sends them.

use std::fmt;

use crate::log::LogPoint;

/// A request to the offload process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadRequest {
    /// Requests the write permission. The answer calls `VolumeClient::grant_write`.
    AcquireWrite,
    /// Returns the write permission.
    Released,
    /// Requests that each live replica has the log up to this point. The answer calls `VolumeClient::acknowledge_commit`.
    Commit(LogPoint),
    /// Requests the space of the replicas after the log is published up to this point. The answer calls
    /// `VolumeClient::answer_space_check`.
    CheckSpace(LogPoint),
    /// Requests that the view has all records that other clients have logged until now. The answer calls
    /// `VolumeClient::acknowledge_refresh` with this number.
    Refresh(u64),
}

/// Sends requests, and never blocks for long. A request that is lost with a connection is sent again by
/// `VolumeClient::repeat_requests`.
pub trait OffloadLink: fmt::Debug + Send + Sync {
    /// Sends a request.
    fn send(&self, request: OffloadRequest);
}
