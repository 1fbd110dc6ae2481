//! The registry of served children: a directory with a symbolic link to each child's directory, named after the child.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use farfork_wire::ChildId;

/// Name of the directory in the run directory.
const REGISTRY_DIR: &str = "pager.children";

/// The registry of one run directory.
#[derive(Debug, Clone)]
pub(in crate::pager) struct ChildRegistry {
    dir: PathBuf,
}

impl ChildRegistry {
    /// Opens the registry of a run directory. Creates it if needed.
    ///
    /// # Errors
    /// As mkdir(2).
    pub(in crate::pager) fn open(run_dir: &Path) -> io::Result<Self> {
        let dir = run_dir.join(REGISTRY_DIR);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self { dir })
    }

    /// Adds a child.
    ///
    /// # Errors
    /// As symlink(2). It is no error if the child is already registered.
    pub(in crate::pager) fn insert(&self, child: &ChildId, child_dir: &Path) -> io::Result<()> {
        match symlink(child_dir, self.link_path(child)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    /// Removes a child, if it is registered.
    pub(in crate::pager) fn remove(&self, child: &ChildId) {
        let _ = fs::remove_file(self.link_path(child));
    }

    /// Returns the registered children, each with its directory.
    ///
    /// # Errors
    /// As readdir(3).
    pub(in crate::pager) fn children(&self) -> io::Result<Vec<(ChildId, PathBuf)>> {
        let mut children = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let (Some(id), Ok(dir)) = (id, fs::read_link(entry.path())) else { continue };
            children.push((id, dir));
        }
        Ok(children)
    }

    fn link_path(&self, child: &ChildId) -> PathBuf {
        self.dir.join(child.to_string())
    }
}
