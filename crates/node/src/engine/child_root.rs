//! The root of a child, if it is a directory of the node: `farfork fork --root`, or a seed whose parent had such a root.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use farfork_fork::restore::LocalNode;
use farfork_fork::resume::SeedSource;

use super::{Engine, StartOptions};

impl Engine {
    /// This node, with the root of a child.
    pub(super) fn node_of_child(&self, root: Option<&Path>) -> Cow<'_, LocalNode> {
        match root {
            Some(root) => Cow::Owned(self.node.with_root(root)),
            None => Cow::Borrowed(&self.node),
        }
    }
}

/// The directory of the node that is the root of a child: the requested one, else the path of the seed's root. `None`: the
/// node's root.
pub(super) fn root_directory<'a>(source: &'a SeedSource, options: &'a StartOptions) -> Option<&'a Path> {
    let of_seed = source.descriptor.origin.root.as_ref().map(Path::new);
    options.root_directory.as_deref().or(of_seed).filter(|root| *root != Path::new("/"))
}

/// Like [`root_directory`], but without symbolic links, so that checks of files and the container use the same directory. A
/// missing directory keeps its path: the container refuses it by name.
pub(super) fn resolve_root_directory(source: &SeedSource, options: &StartOptions) -> Option<PathBuf> {
    let root = root_directory(source, options)?;
    let resolved = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    (resolved != Path::new("/")).then_some(resolved)
}
