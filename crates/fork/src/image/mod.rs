//! The image of a seed: one file with the whole seed, which outlives the template and the daemon.
//!
//! `write_image` writes an image completely or not at all. `Image` reads it, and verifies the checksum of each page that it
//! reads. The file has mode 0600, because it contains the parent's memory and the seed's token. The daemon decides when
//! images are made and removed.

mod flatten;
mod format;
mod page_index;
mod reader;
mod working_set;
mod writer;

use std::io;
use std::path::PathBuf;

use farfork_wire::SeedId;
use farfork_wire::descriptor::OversizedDescriptor;

use crate::resume::ResumeError;

pub(crate) use flatten::{flatten_layers, split_by_owner};
pub use format::ImageHeader;
pub use reader::Image;
pub use working_set::working_set_path;
pub use writer::ImageProgress;
pub(crate) use writer::write_image;

//  template ── writer: page by page ──▶ ID.image.new ── rename ──▶ ID.image ── reader ──▶ fabric
//
// The file next to it, `ID.set`, names the pages that the seed's children touch (`working_set`).
/// Why an image cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file system would be too full afterwards.
    #[error("image {} needs {image_bytes} bytes plus a reserve of {reserved_bytes}, and {free_bytes} are free there: free some space, or keep images elsewhere", path.display())]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Size of the file, in bytes.
        image_bytes: u64,
        /// Bytes that must stay free for other programs.
        reserved_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// Another seed owns a part of the memory, and this part cannot be read.
    #[error(
        "seed {seed} owns a part of its memory, which cannot be read: {cause}; settle the child with `farfork settle` before it is prepared"
    )]
    ReadLayer {
        /// The seed.
        seed: SeedId,
        /// The cause.
        cause: Box<ResumeError>,
    },
    /// The image cannot be written.
    #[error("image {} cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The seed's memory cannot be read.
    #[error("the seed's memory cannot be read: {source}")]
    ReadMemory {
        /// The cause.
        source: io::Error,
    },
    /// The descriptor of the whole memory is too large.
    #[error("the seed cannot be sealed: {0}")]
    Descriptor(#[from] OversizedDescriptor),
    /// The image was cancelled by [`ImageProgress::cancel`].
    #[error("image {} is not wanted any more", path.display())]
    Cancelled {
        /// The file.
        path: PathBuf,
    },
    /// The image cannot be read.
    #[error("image {} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not an image, or is damaged.
    #[error("image {} is damaged: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The damage that was found.
        what: String,
    },
}
