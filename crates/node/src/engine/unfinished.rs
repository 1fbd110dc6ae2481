//! A child that is being started: until it is finished, dropping this undoes what there is of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use farfork_wire::ChildId;

use super::PagerLink;
use super::nest::{self, Nest};

/// A child's directory, and the pager's knowledge of it, before the child stands.
#[derive(Debug)]
pub(super) struct Unfinished {
    id: ChildId,
    directory: PathBuf,
    /// Taken when it is finished.
    pager: Option<Arc<PagerLink>>,
}

impl Unfinished {
    /// A child that is to live in this nest.
    pub(super) fn begin(nest: Nest, pager: &Arc<PagerLink>) -> Self {
        let (id, directory) = nest.into_parts();
        Self { id, directory, pager: Some(pager.clone()) }
    }

    pub(super) fn id(&self) -> &ChildId {
        &self.id
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
        nest::remove(&self.directory);
    }
}
