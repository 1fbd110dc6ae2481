//! `FileTree`: the contents of all files below a directory, as a process on a machine reads them. Two nodes must read the same
//! files from one volume.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::endpoint::print_line;
use crate::error::BenchError;
use crate::machine::Machine;

/// The kind of the process, and its name in errors.
const READER: &str = "file-tree";

/// Size of one read(2), in bytes.
const READ_BYTES: usize = 1 << 20;

/// Regular files, by their paths below a directory.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileTree(BTreeMap<PathBuf, FileContent>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct FileContent {
    bytes: u64,
    digest: u64,
}

/// The number of files that were read again, and their bytes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct FileCount {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl FileCount {
    pub(crate) fn add(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
    }
}

impl FileTree {
    /// Reads all files below a directory of a machine.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn read(machine: &dyn Machine, directory: &Path) -> Result<Self, BenchError> {
        machine.run_process(READER, &directory)
    }

    pub(crate) fn count(&self) -> FileCount {
        FileCount { files: self.0.len() as u64, bytes: self.0.values().map(|content| content.bytes).sum() }
    }

    /// The first file that is missing in one tree, or differs; `None` if the trees are equal.
    pub(crate) fn first_difference<'a>(&'a self, other: &'a Self) -> Option<&'a Path> {
        let all = self.0.keys().chain(other.0.keys());
        all.filter(|path| self.0.get(*path) != other.0.get(*path)).map(PathBuf::as_path).min()
    }
}

/// Reads the files below the directory of a specification, which is JSON, and prints them.
///
/// # Errors
/// The specification is invalid, a file cannot be read, or standard output failed.
pub(crate) fn run_file_tree(specification: &str) -> io::Result<()> {
    let directory: PathBuf = serde_json::from_str(specification)?;
    let mut tree = FileTree::default();
    read_directory(&directory, Path::new(""), &mut tree)?;
    print_line(&json!(tree).to_string())
}

fn read_directory(root: &Path, below: &Path, tree: &mut FileTree) -> io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let (path, file_type) = (below.join(entry.file_name()), entry.file_type()?);
        if file_type.is_dir() {
            read_directory(root, &path, tree)?;
        } else if file_type.is_file() {
            tree.0.insert(path, FileContent::read(&entry.path())?);
        }
    }
    Ok(())
}

impl FileContent {
    fn read(path: &Path) -> io::Result<Self> {
        let (mut file, mut buffer) = (fs::File::open(path)?, vec![0; READ_BYTES]);
        let (mut bytes, mut hasher) = (0, DefaultHasher::new());
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                return Ok(Self { bytes, digest: hasher.finish() });
            }
            bytes += count as u64;
            hasher.write(&buffer[..count]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{FileTree, read_directory};

    fn tree(files: &[(&str, &str)]) -> FileTree {
        let directory = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let mut tree = FileTree::default();
        read_directory(directory.path(), Path::new(""), &mut tree).unwrap();
        tree
    }

    #[test]
    fn the_first_difference_is_named() {
        let one = tree(&[("a", "1"), ("b/c", "22"), ("b/d", "")]);
        assert_eq!((one.count().files, one.count().bytes), (3, 3));
        assert_eq!(one.first_difference(&tree(&[("a", "1"), ("b/c", "22"), ("b/d", "")])), None);
        for (other, path) in [
            (&[("a", "1"), ("b/c", "23"), ("b/d", "4")][..], "b/c"),
            (&[("a", "1"), ("b/c", "22")], "b/d"),
            (&[("a", "1"), ("a0", ""), ("b/c", "22"), ("b/d", "")], "a0"),
        ] {
            assert_eq!(one.first_difference(&tree(other)), Some(Path::new(path)));
        }
    }
}
