//! The name of a directory entry. Its constructor checks the name, so that every Linux file system accepts it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::InodeNumber;

/// Maximum number of bytes of a name: NAME_MAX of Linux.
pub const NAME_BYTES_MAX: usize = 255;

/// 1 to 255 bytes without `/` and NUL; neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "serde_bytes::ByteBuf", into = "serde_bytes::ByteBuf")]
pub struct EntryName(Box<[u8]>);

impl EntryName {
    /// Checks a name; none if the bytes are not a valid name.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let has_valid_bytes = !bytes.iter().any(|byte| matches!(byte, 0 | b'/'));
        let is_name = (1..=NAME_BYTES_MAX).contains(&bytes.len()) && has_valid_bytes && bytes != b"." && bytes != b"..";
        is_name.then(|| Self(bytes.into()))
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Identifies an entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntryKey {
    /// The directory.
    pub parent: InodeNumber,
    /// The entry.
    pub name: EntryName,
}

impl fmt::Debug for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl TryFrom<serde_bytes::ByteBuf> for EntryName {
    type Error = &'static str;

    fn try_from(bytes: serde_bytes::ByteBuf) -> Result<Self, Self::Error> {
        Self::new(&bytes).ok_or("the bytes are not a valid name of a directory entry")
    }
}

impl From<EntryName> for serde_bytes::ByteBuf {
    fn from(name: EntryName) -> Self {
        Self::from(name.0.into_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_linux_file_names_are_accepted() {
        for wrong in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
            assert_eq!(EntryName::new(wrong), None, "{}", wrong.escape_ascii());
        }
        for right in [&b"a"[..], b"...", b"\xff\n", &[b'x'; 255]] {
            assert_eq!(EntryName::new(right).unwrap().as_bytes(), right);
        }
    }
}
