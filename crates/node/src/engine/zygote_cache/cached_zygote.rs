//! A zygote that the cache owns. It ends with its last user, and takes its directory and the pager's record of it along.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork_fork::zygote::Zygote;
use farfork_wire::ChildId;

use crate::pager_link::PagerLink;

/// A zygote that its last user removes, with its directory and the pager's record of it.
#[derive(Debug)]
pub(crate) struct CachedZygote {
    /// Taken when it goes.
    pub(super) zygote: Option<Zygote>,
    pub(super) pager: Arc<PagerLink>,
    /// It was made before any child was asked for.
    pub(super) is_speculative: bool,
    /// It has what it was to be given when it was made.
    pub(super) is_filled: AtomicBool,
    /// A child was made of it.
    pub(super) is_proven: AtomicBool,
}

impl CachedZygote {
    /// The zygote.
    pub(in crate::engine) fn zygote(&self) -> &Zygote {
        self.zygote.as_ref().expect("only a drop takes it")
    }

    /// Whether what it is to be given is still to come. One whose pager cannot tell is used as it is.
    pub(crate) fn is_filling(&self) -> bool {
        let is_filling = self.pager.client().is_zygote_filling(self.zygote().id()).unwrap_or(false);
        self.is_filled.store(!is_filling, Ordering::Relaxed);
        is_filling
    }

    /// Whether nobody has asked yet for what it was made for.
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

/// Has the pager forget a zygote that has ended, and removes its directory.
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
