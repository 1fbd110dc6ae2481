//! System V semaphores and message queues that the process uses in its IPC namespace.

use serde::{Deserialize, Serialize};

use super::FileStatus;

/// A set of semaphores (semget(2)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SemaphoreSet {
    /// The key for semget(2).
    pub key: u32,
    /// The id that semget(2) returned.
    pub id: u32,
    /// Mode and owner.
    pub status: FileStatus,
    /// The value of each semaphore.
    pub values: Vec<u16>,
}

/// A queue of messages (msgget(2)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageQueue {
    /// The key for msgget(2).
    pub key: u32,
    /// The id that msgget(2) returned.
    pub id: u32,
    /// Mode and owner.
    pub status: FileStatus,
    /// Capacity, in bytes.
    pub bytes_max: u64,
    /// Queued messages, oldest first: type (positive) and text.
    pub messages: Vec<(i64, Vec<u8>)>,
}
