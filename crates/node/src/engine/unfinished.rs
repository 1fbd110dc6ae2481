//! A child that is being started: until it is finished, dropping this undoes what there is of it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farfork_wire::ChildId;

use super::PagerLink;
use crate::run_dir::RunDir;

/// A child's directory, and the pager's knowledge of it, before the child stands.
#[derive(Debug)]
pub(super) struct Unfinished {
    id: ChildId,
    directory: PathBuf,
    /// Taken when it is finished.
    pager: Option<Arc<PagerLink>>,
}

impl Unfinished {
    /// Makes the child's directory, for its owner alone.
    ///
    /// # Errors
    /// As mkdir(2).
    pub(super) fn begin(run_dir: &RunDir, id: ChildId, pager: &Arc<PagerLink>) -> io::Result<Self> {
        let directory = run_dir.child(&id);
        DirBuilder::new().mode(0o700).create(&directory)?;
        Ok(Self { id, directory, pager: Some(pager.clone()) })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The child stands: nothing is undone any more.
    pub(super) fn finish(mut self) {
        self.pager = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some(pager) = self.pager.take() else { return };
        pager.release(&self.id);
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            tracing::warn!(child = %self.id, %error, "the directory of a child that did not start is not removed");
        }
    }
}
