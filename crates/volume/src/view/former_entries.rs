//! Lookups in directories that another client has removed, when the path of the directory may lead to another one now.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::{Inode, VolumeNamespace};
use crate::record::{EntryKey, EntryName, InodeNumber};

/// Limit of the former entries of a directory. With more, nothing is concluded from them.
const FORMER_ENTRIES_MAX: usize = 16;
/// Limit of the removed directories of a path from which a successor is concluded.
const REMOVED_DIRECTORIES_MAX: usize = 64;

impl VolumeNamespace {
    /// As `lookup`, for a program.
    ///
    /// If another client has removed the directory, the error is ENOENT only if the path does not have the name either. The
    /// kernel then continues with a call that creates the name. It sends a request for the removed directory, and repeats
    /// the path after ESTALE. It does not repeat such a call after ESTALE from the lookup.
    ///
    /// # Errors
    /// As `lookup`.
    pub fn lookup_by_path(&self, directory: InodeNumber, name: &EntryName) -> Result<InodeNumber, Errno> {
        if self.has_entry(directory) || !self.former_entries.contains_key(&directory) {
            return self.lookup(directory, name);
        }
        let mut left = REMOVED_DIRECTORIES_MAX;
        let successors = self.successors_of(directory, &mut left).ok_or(Errno::STALE)?;
        let is_missing = |successor: InodeNumber| self.lookup(successor, name) == Err(Errno::NOENT);
        Err(if successors.into_iter().all(is_missing) { Errno::NOENT } else { Errno::STALE })
    }

    /// Keeps entries that have led to directories which the kernel knows.
    pub(super) fn keep_former_entries(&mut self, entries: &BTreeMap<EntryKey, InodeNumber>) {
        for (entry, number) in entries {
            let is_changed = self.lookup(entry.parent, &entry.name) != Ok(*number);
            if is_changed && self.readable_inode(*number).is_ok_and(Inode::is_directory) {
                let former = self.former_entries.entry(*number).or_default();
                if former.len() < FORMER_ENTRIES_MAX && !former.contains(entry) {
                    former.push(entry.clone());
                }
            }
        }
    }

    /// The inodes to which the former entries of a removed directory lead now. None if one of its paths is unknown: it leads
    /// through a directory that another client has renamed. `left` is the number of removed directories that may be visited.
    fn successors_of(&self, directory: InodeNumber, left: &mut usize) -> Option<Vec<InodeNumber>> {
        *left = left.checked_sub(1)?;
        let former = self.former_entries.get(&directory).filter(|former| former.len() < FORMER_ENTRIES_MAX)?;
        let mut successors = Vec::new();
        for entry in former {
            let parents = if self.has_entry(entry.parent) {
                let is_renamed = |inode: &InodeNumber| self.former_entries.contains_key(inode);
                if self.path_of(entry.parent).iter().any(is_renamed) {
                    return None;
                }
                vec![entry.parent]
            } else {
                self.successors_of(entry.parent, left)?
            };
            successors.extend(parents.into_iter().filter_map(|parent| self.lookup(parent, &entry.name).ok()));
        }
        Some(successors)
    }

    fn has_entry(&self, number: InodeNumber) -> bool {
        self.inode(number).is_ok_and(|inode| inode.entry_count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{FileKind, InodeAttributes};

    const REMOVED: InodeNumber = InodeNumber(10);
    const NEXT: InodeNumber = InodeNumber(11);
    const CHILD: InodeNumber = InodeNumber(12);

    fn directory() -> Inode {
        Inode::new(InodeAttributes::of_root(FileKind::Directory, 0o755))
    }

    fn name(text: &str) -> EntryName {
        EntryName::new(text.as_bytes()).unwrap()
    }

    fn namespace() -> VolumeNamespace {
        VolumeNamespace::new(directory(), 0, 100)
    }

    /// Removes an entry as another client does, while the kernel knows the directory.
    fn remove_elsewhere(namespace: &mut VolumeNamespace, parent: InodeNumber, text: &str, is_dropped: bool) {
        let number = namespace.set_entry(parent, name(text), None).unwrap();
        if is_dropped {
            let inode = namespace.inodes.remove(&number).unwrap();
            namespace.gone.insert(number, inode);
        }
        namespace.keep_former_entries(&BTreeMap::from([(EntryKey { parent, name: name(text) }, number)]));
    }

    #[test]
    fn a_removed_directory_lacks_the_names_that_its_successor_lacks() {
        for is_dropped in [false, true] {
            let mut namespace = namespace();
            namespace.load(InodeNumber::ROOT, name("directory"), REMOVED, directory());
            assert_eq!(namespace.lookup_by_path(REMOVED, &name("file")), Err(Errno::NOENT));
            remove_elsewhere(&mut namespace, InodeNumber::ROOT, "directory", is_dropped);
            assert_eq!(namespace.lookup_by_path(REMOVED, &name("file")), Err(Errno::NOENT), "the path leads nowhere");
            namespace.load(InodeNumber::ROOT, name("directory"), NEXT, directory());
            namespace.load(NEXT, name("file"), CHILD, directory());
            assert_eq!(namespace.lookup_by_path(REMOVED, &name("file")), Err(Errno::STALE));
            assert_eq!(namespace.lookup_by_path(REMOVED, &name("other")), Err(Errno::NOENT));
            assert_eq!(namespace.lookup_by_path(NEXT, &name("file")), Ok(CHILD));
        }
    }

    #[test]
    fn a_successor_is_found_below_a_removed_directory() {
        let mut namespace = namespace();
        namespace.load(InodeNumber::ROOT, name("outer"), InodeNumber(20), directory());
        namespace.load(InodeNumber(20), name("inner"), REMOVED, directory());
        remove_elsewhere(&mut namespace, InodeNumber(20), "inner", true);
        remove_elsewhere(&mut namespace, InodeNumber::ROOT, "outer", true);
        namespace.load(InodeNumber::ROOT, name("outer"), InodeNumber(21), directory());
        namespace.load(InodeNumber(21), name("inner"), NEXT, directory());
        namespace.load(NEXT, name("file"), CHILD, directory());
        assert_eq!(namespace.lookup_by_path(REMOVED, &name("file")), Err(Errno::STALE));
        assert_eq!(namespace.lookup_by_path(REMOVED, &name("other")), Err(Errno::NOENT));
    }

    #[test]
    fn a_path_through_a_renamed_directory_is_unknown() {
        let mut namespace = namespace();
        let (root, outer) = (InodeNumber::ROOT, InodeNumber(20));
        namespace.load(root, name("outer"), outer, directory());
        namespace.load(outer, name("inner"), REMOVED, directory());
        remove_elsewhere(&mut namespace, root, "outer", false);
        namespace.load(root, name("renamed"), outer, directory());
        remove_elsewhere(&mut namespace, outer, "inner", true);
        assert_eq!(namespace.lookup_by_path(REMOVED, &name("file")), Err(Errno::STALE));
    }

    #[test]
    fn a_directory_that_was_renamed_before_it_was_removed_has_two_successors() {
        let mut namespace = namespace();
        namespace.load(InodeNumber::ROOT, name("current"), REMOVED, directory());
        remove_elsewhere(&mut namespace, InodeNumber::ROOT, "current", false);
        namespace.load(InodeNumber::ROOT, name("previous"), REMOVED, directory());
        namespace.load(InodeNumber::ROOT, name("current"), NEXT, directory());
        namespace.load(NEXT, name("file"), CHILD, directory());
        assert_eq!(namespace.lookup_by_path(REMOVED, &name("file")), Err(Errno::NOENT), "it still exists");
        remove_elsewhere(&mut namespace, InodeNumber::ROOT, "previous", true);
        assert_eq!(namespace.lookup_by_path(REMOVED, &name("file")), Err(Errno::STALE));
    }
}
