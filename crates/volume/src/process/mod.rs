//! The processes of a mounted volume. Each has its lock, works on the volume's directory, and may be killed at any time.
//!
//! The client has the mount and appends to the log; the offload process reads the log and orders publishing; the host
//! worker applies change sets. `MountSupervisor` starts them and starts each again when it dies.

mod channel;
mod client;
mod message;
mod offload;
mod supervisor;
mod volume_directory;
mod worker;

pub use client::{ClientRunError, run_client};
pub use offload::run_offload;
pub use supervisor::{MountSupervisor, ProcessRole, end_with_supervisor};
pub use volume_directory::{CreateError, VolumeDirectory};
pub use worker::run_worker;
