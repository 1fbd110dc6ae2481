//! Errors of an inventory, with the position in its file.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Why an inventory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// The file cannot be read.
    #[error("inventory {}: {cause}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error.
        cause: io::Error,
    },
    /// The file has an error at a position.
    #[error("{position}: {cause}")]
    Content {
        /// The position.
        position: SourcePosition,
        /// The error, as a clause.
        cause: String,
    },
    /// The selection of hosts names neither a host nor a group.
    #[error("inventory {}: no host or group `{name}`; it has {known}", file.display())]
    UnknownName {
        /// The file.
        file: PathBuf,
        /// The name.
        name: String,
        /// The names of all hosts and groups.
        known: String,
    },
    /// The selection has no hosts.
    #[error("inventory {}: the selection has no hosts", file.display())]
    EmptySelection {
        /// The file.
        file: PathBuf,
    },
}

/// Phrases of serde, and what they mean in a file.
const PHRASES: [[&str; 2]; 8] = [
    ["wanted exactly 1 element, more than 1 element", "expected exactly one key, not several"],
    ["wanted exactly 1 element, found 0 elements", "expected exactly one key, not none"],
    ["a nonzero u64", "a nonzero whole number"],
    ["a nonzero u16", "a nonzero whole number up to 65535"],
    ["expected u16", "expected a whole number from 0 to 65535"],
    ["expected u32", "expected a whole number from 0 to 4294967295"],
    ["expected u64", "expected a whole number from 0"],
    ["expected a sequence", "expected a list"],
];

/// The text of an error of `toml`, in the words of a user.
pub fn toml_error_text(error: &toml::de::Error) -> String {
    PHRASES.iter().fold(error.message().to_owned(), |text, [phrase, meaning]| text.replace(phrase, meaning))
}

/// A position in a text file. Lines and columns count from 1; columns count characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePosition {
    /// The file.
    pub file: PathBuf,
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl SourcePosition {
    /// The position of a byte of the file's text.
    pub fn of_byte(file: &Path, text: &str, byte: usize) -> Self {
        let before = &text[..text.floor_char_boundary(byte)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl Display for SourcePosition {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}:{}", self.file.display(), self.line, self.column)
    }
}

/// A file and its text. Makes errors from spans of the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct SourceText<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
}

impl SourceText<'_> {
    /// An error at the first byte of a span.
    pub(super) fn error(&self, span: Range<usize>, cause: impl Display) -> InventoryError {
        let position = SourcePosition::of_byte(self.file, self.text, span.start);
        InventoryError::Content { position, cause: cause.to_string() }
    }
}
