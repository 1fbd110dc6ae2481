//! Errors of resuming a seed as a child.

use std::io;

use farfork_container::ContainerError;
use farfork_fabric::BlockingError;
use farfork_wire::descriptor::DecodeError;

use crate::eager_paging::EagerError;
use crate::pager::{ClientError, PlanError};
use crate::restore::RestoreError;

/// Why a seed did not become a child. Drop the child's container, too: then nothing of the child is left.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The descriptor or shared memory could not be read from the owner.
    #[error("{what} could not be read from its owner: {cause}")]
    Fetch {
        /// The data that could not be read.
        what: &'static str,
        /// The cause.
        cause: BlockingError,
    },
    /// The owner's bytes are not a valid descriptor.
    #[error(transparent)]
    Descriptor(#[from] DecodeError),
    /// The child could not be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The payload could not be put into the container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// The memory plan could not be written.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The pager does not serve the child.
    #[error(transparent)]
    Pager(#[from] ClientError),
    /// The child must have all of its memory before it runs (strategy `eager`), and did not get it.
    #[error(transparent)]
    Eager(#[from] EagerError),
    /// A file of the seed is not available in its state at the capture.
    #[error("file {path} {reason}")]
    UnavailableFile {
        /// Path as the process sees it.
        path: String,
        /// The cause.
        reason: &'static str,
    },
    /// A volume that the seed's processes use is not mounted on this node, or is mounted at another path.
    #[error("the seed uses {path} on volume {volume}, and this node does not have {} mounted at {mount_path}", describe_volume(.volume, .directory))]
    VolumeNotMounted {
        /// Name of the volume.
        volume: String,
        /// The directory of the volume that was mounted.
        directory: String,
        /// Where it was mounted.
        mount_path: String,
        /// A path on the volume, as the processes see it.
        path: String,
    },
    /// The node could not create a resource.
    #[error("{what} could not be created: {cause}")]
    CreateResource {
        /// The resource.
        what: &'static str,
        /// The errno.
        cause: io::Error,
    },
}

fn describe_volume(volume: &str, directory: &str) -> String {
    if directory == "/" { format!("volume {volume}") } else { format!("directory {directory} of volume {volume}") }
}

impl ResumeError {
    pub(crate) fn creation_error(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::CreateResource { what, cause }
    }
}
