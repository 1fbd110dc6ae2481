//! The mount of a volume: FUSE requests become operations on the view and records in the log. `process::client` runs it.
//!
//! Requests are answered from the view; data is read from the log or from the shared tree. Operations wait in a queue for
//! the write permission and for room in the log; open(2) waits for changes of other nodes.

mod answer;
mod base_files;
mod calling_thread;
mod client;
mod conversion;
mod covered_directory;
mod data;
mod device;
mod dropped_pages;
mod execution;
mod filesystem;
mod group_commit;
mod interrupts;
mod invalidation;
mod offload_link;
mod open_modes;
mod open_retry;
mod operations;
mod passthrough;
mod permission_check;
mod refresh;
mod space;
mod stale_entries;
mod stale_sizes;
mod unused_inodes;
mod users;
mod write_permission;

pub use client::{MountOptions, VolumeClient};
pub use covered_directory::{protect_covered_directory, release_covered_directory};
pub use device::{
    MountPoint, MountPointVolume, UnmountMode, abort_mount, detach_dead_mounts, find_mounted_volume, has_volume_mount,
    mount_volume, unmount_volume,
};
pub use filesystem::VolumeFilesystem;
pub use offload_link::{OffloadLink, OffloadRequest};
pub use users::describe_mount_users;
pub(crate) use write_permission::LEASE_TIME;
