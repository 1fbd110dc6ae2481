//! The volumes of a node. `supervision` runs the offload process and the host worker; `offload_requests` sends requests to
//! the offload process. `daemon` starts and stops the service, and `service::volumes` answers clients.

mod offload_requests;
mod supervision;

pub(crate) use offload_requests::{OffloadRequests, failure_of_text, unexpected_answer};
pub(crate) use supervision::{VolumeService, VolumeServiceConfig};
