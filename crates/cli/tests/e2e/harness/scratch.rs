//! Files that one test needs for a moment.

use std::io::Write;

use tempfile::NamedTempFile;

/// A file with this content, which goes away with the value.
pub(crate) fn file(content: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("the temporary directory can be written");
    file.write_all(content.as_bytes()).expect("a small file can be written");
    file
}

/// A directory, which goes away with the value.
pub(crate) fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("the temporary directory can be written")
}
