//! The mount of a volume: FUSE requests become operations on the view and records in the log. `process::client` runs it.
//!
//! Requests are answered from the view; data is read from the log or from the shared tree. Nothing here waits for
//! publishing, except for room in the log.

mod answer;
mod base_files;
mod client;
mod conversion;
mod data;
mod device;
mod filesystem;
mod group_commit;
mod operations;
mod space;

pub use client::{ClientError, ClientOptions, VolumeClient};
pub use device::{MountPoint, mount_volume};
pub use filesystem::VolumeFilesystem;
