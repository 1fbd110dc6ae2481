//! The errors of `farfork bench report`: which file, why, and what the user can do.

use std::io;
use std::path::PathBuf;

use super::section::SECTION_VERSION;

/// Why a report cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    /// The directory cannot be listed.
    #[error("cannot read the directory {}: {cause}", path.display())]
    Directory {
        /// Its path.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The directory has no results.
    #[error("{} has no results: no file NAME.json", path.display())]
    NoResults {
        /// Its path.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// A file is not JSON, or its section is damaged.
    #[error("{} is damaged: {cause}", path.display())]
    Damaged {
        /// Its path.
        path: PathBuf,
        /// The cause.
        cause: serde_json::Error,
    },
    /// A document is not a result of farfork.
    #[error("{} is not a result of `farfork bench --json` or `farfork stress --json`: it has no key `section`", path.display())]
    Foreign {
        /// Its path.
        path: PathBuf,
    },
    /// A document has another version of the format.
    #[error("{} has a section of version {version}, and this program reads version {SECTION_VERSION}", path.display())]
    Version {
        /// Its path.
        path: PathBuf,
        /// The version of the section.
        version: u64,
    },
    /// A page cannot be written.
    #[error("cannot write {}: {cause}", path.display())]
    Unwritable {
        /// Its path.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// A plot cannot be drawn.
    #[error("cannot draw the plot `{plot}`: {cause}")]
    Drawing {
        /// Its title.
        plot: String,
        /// The cause.
        cause: String,
    },
}

impl ReportError {
    /// The next step for the user.
    pub(crate) fn next_step(&self) -> &'static str {
        match self {
            Self::Directory { .. } => "name a directory with results; `farfork bench all --out DIR` makes one",
            Self::NoResults { .. } => {
                "make results with `farfork bench all --out DIR`, or `farfork bench NAME --json > DIR/NAME.json`"
            }
            Self::Unreadable { .. } | Self::Unwritable { .. } => "check its permissions, and the free space",
            Self::Damaged { .. } | Self::Version { .. } => {
                "remove it, or measure again: `farfork bench all --only NAME`"
            }
            Self::Foreign { .. } => "move it out of the directory",
            Self::Drawing { .. } => "report this as a bug, with the results",
        }
    }
}
