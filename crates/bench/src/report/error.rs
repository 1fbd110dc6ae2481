//! The errors of `farfork bench report`: which file, why, and what the user can do.

use std::io;
use std::path::PathBuf;

use super::section::SECTION_VERSION;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The directory cannot be listed.
    #[error("cannot read the directory {}: {cause}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The directory has no results.
    #[error("{} has no results: no file NAME.json", path.display())]
    NoResults {
        /// Which.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A file is not JSON, or its section is damaged.
    #[error("{} is damaged: {cause}", path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: serde_json::Error,
    },
    /// A document is of another program.
    #[error("{} is not a result of `farfork bench --json` or `farfork stress --json`: it has no key `section`", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
    },
    /// A document is of another version of farfork.
    #[error("{} has a section of version {version}, and this program reads version {SECTION_VERSION}", path.display())]
    Version {
        /// Which.
        path: PathBuf,
        /// The version that the section has.
        version: u64,
    },
    /// A page cannot be written.
    #[error("cannot write {}: {cause}", path.display())]
    Unwritable {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A plot cannot be drawn.
    #[error("cannot draw the plot `{plot}`: {cause}")]
    Drawing {
        /// Its title.
        plot: String,
        /// Why.
        cause: String,
    },
}

impl ReportError {
    /// The next step for the user.
    pub fn next_step(&self) -> &'static str {
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
