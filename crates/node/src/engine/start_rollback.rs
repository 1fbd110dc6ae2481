//! Guard of a child that is being started: dropping it before [`StartRollback::disarm`] removes the child's directory,
//! and the pager's state of the child.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use farfork_wire::ChildId;

use super::child_dir_pool;
use crate::pager_link::PagerLink;

/// A child's directory and its registration with the pager, before the child is recorded.
#[derive(Debug)]
pub(super) struct StartRollback {
    id: ChildId,
    directory: PathBuf,
    /// `None` after the guard is disarmed.
    pager: Option<Arc<PagerLink>>,
}

impl StartRollback {
    /// Guards a child with this id and directory.
    pub(super) fn new(id: ChildId, directory: PathBuf, pager: &Arc<PagerLink>) -> Self {
        Self { id, directory, pager: Some(pager.clone()) }
    }

    pub(super) fn id(&self) -> &ChildId {
        &self.id
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Keeps the child's directory and registration: the child is recorded.
    pub(super) fn disarm(mut self) {
        self.pager = None;
    }
}

impl Drop for StartRollback {
    fn drop(&mut self) {
        let Some(pager) = self.pager.take() else { return };
        pager.release(&self.id);
        child_dir_pool::remove_directory(&self.directory);
    }
}
