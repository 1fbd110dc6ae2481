//! The processes of a mounted volume. Each process has a lock, works on the volume's directory, and may be killed at any
//! time.
//!
//! The client has the mount and appends to the log; the offload process reads the log and orders publishing; the host worker
//! applies change sets. The supervisors start these processes, and restart each one that dies.

mod channel;
mod client;
mod control;
mod data_copier;
pub mod decoders;
#[cfg(test)]
mod fuzz_corpus;
mod message;
mod mount_holder;
mod offload;
mod open_tree;
mod replica_loss;
mod store;
mod supervisor;
mod volume_directory;
mod work_priority;
mod worker;

pub use client::{ClientRunError, run_client};
pub use control::{
    CatalogImport, CheckProgress, CheckReport, ControlAnswer, ControlRequest, DIFFERENCES_MAX, DifferenceSubject,
    ExportedCatalog, LastCheck, LogStatus, NewVolume, ReplicaDifference, ReplicaReplacement, ReplicaStatus,
    VolumeCheck, VolumeList, VolumeStatus, check_volume, send_control_request, send_control_request_within,
};
pub use data_copier::CopyMethod;
pub use offload::{OffloadError, OffloadMode, OffloadOptions, REPLICAS_MAX, run_offload};
pub use store::{STORE_PATH_BYTES_MAX, VolumeStore};
pub use supervisor::{
    CLIENT_ENDED, MountSupervisor, NodeSupervisor, ProcessRole, end_after_panic, end_with_supervisor,
};
pub use volume_directory::{CreateError, VolumeDirectory};
pub use work_priority::WorkPriority;
pub use worker::run_worker;
