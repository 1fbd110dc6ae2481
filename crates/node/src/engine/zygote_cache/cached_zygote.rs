//! A zygote that the cache owns. Dropping the last reference ends it, removes its directory and releases it from the
//! pager.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork_fork::zygote::Zygote;
use farfork_wire::ChildId;

use crate::pager_link::PagerLink;

/// A zygote that is ended and removed with its last reference.
#[derive(Debug)]
pub(crate) struct CachedZygote {
    /// `None` only during the drop.
    pub(super) zygote: Option<Zygote>,
    pub(super) pager: Arc<PagerLink>,
    /// Whether the zygote was made before any child was requested.
    pub(super) is_speculative: bool,
    /// Whether the pager has filled the zygote with all its pages.
    pub(super) is_filled: AtomicBool,
    /// Whether a child was made from the zygote.
    pub(super) is_proven: AtomicBool,
}

impl CachedZygote {
    pub(in crate::engine) fn zygote(&self) -> &Zygote {
        self.zygote.as_ref().expect("only a drop takes it")
    }

    /// Whether the pager still fills the zygote. If the pager does not reply, the zygote counts as filled.
    pub(crate) fn is_filling(&self) -> bool {
        let is_filling = self.pager.client().is_zygote_filling(self.zygote().id()).unwrap_or(false);
        self.is_filled.store(!is_filling, Ordering::Relaxed);
        is_filling
    }

    /// Whether the zygote is speculative, and no child was made from it yet.
    pub(super) fn is_unused_speculation(&self) -> bool {
        self.is_speculative && !self.is_proven.load(Ordering::Relaxed)
    }
}

impl Drop for CachedZygote {
    fn drop(&mut self) {
        let Some(zygote) = self.zygote.take() else { return };
        let (id, directory) = (zygote.id().clone(), zygote.directory().to_owned());
        drop(zygote);
        release_zygote(&self.pager, &id, &directory);
    }
}

/// Releases a zygote that has ended from the pager, and removes its directory.
pub(super) fn release_zygote(pager: &PagerLink, id: &ChildId, directory: &Path) {
    pager.release(id);
    remove_directory(directory);
}

pub(super) fn remove_directory(directory: &Path) {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(directory = %directory.display(), %error, "the directory of a zygote is not removed");
        }
        _ => {}
    }
}
