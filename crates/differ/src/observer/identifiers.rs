//! `IdentifierMap`: replaces ids and inode numbers by names. A child has other numbers than its parent for the same objects,
//! but the same names.

use std::cmp::Ordering;
use std::collections::HashMap;

use farfork_sys::process::{self, EpollSlot, TaskFd};

use super::ObserveError;
use super::tree::{StoppedTree, inner_id};

/// The name of a process or thread outside of the tree.
pub(super) const OUTSIDE: &str = "outside";

/// Names of the objects that a tree refers to.
#[derive(Debug, Default)]
pub(super) struct IdentifierMap {
    /// For each process and thread of the tree, its id on this machine and its id in its own pid namespace.
    ids: HashMap<i32, u32>,
    /// The place where each object was first seen, by kind and number.
    first_seen: HashMap<(String, String), String>,
    /// A descriptor of each open file, in the kernel's order of open files, with the place where the file was first seen.
    open_files: Vec<(TaskFd, String)>,
}

impl IdentifierMap {
    pub(super) fn new(tree: &StoppedTree) -> Result<Self, ObserveError> {
        let mut ids = HashMap::new();
        for process in tree.processes() {
            ids.insert(process.pid, process.inner_id);
            let threads = process::thread_ids(process.pid).unwrap_or_default();
            for tid in threads {
                let inner = inner_id(tid).map_err(ObserveError::read(format!("/proc/{tid}/status")))?;
                ids.insert(tid, inner);
            }
        }
        Ok(Self { ids, ..Self::default() })
    }

    /// Returns the id of a process or thread in its own pid namespace, for its id on this machine; [`OUTSIDE`] if it is not
    /// in the tree.
    pub(super) fn inner_id_text(&self, id: i32) -> String {
        // −1 and 0 mean none. Other negative numbers are process groups, as in F_GETOWN.
        match id {
            -1 | 0 => id.to_string(),
            _ => self.ids.get(&id).map_or_else(|| OUTSIDE.to_owned(), u32::to_string),
        }
    }

    /// Like [`Self::inner_id_text`], for an id as text. Other text is unchanged.
    pub(super) fn translate_text(&self, text: &str) -> String {
        text.parse().map_or_else(|_| text.to_owned(), |id| self.inner_id_text(id))
    }

    /// Returns the place where an object was first seen.
    pub(super) fn name_object(&mut self, kind: &str, number: &str, place: &str) -> String {
        let key = (kind.to_owned(), number.to_owned());
        self.first_seen.entry(key).or_insert_with(|| place.to_owned()).clone()
    }

    /// Returns the place where the file that an epoll instance watches was first seen; `None` if no descriptor of the tree
    /// refers to it. Call it when all descriptors are known.
    pub(super) fn epoll_target_name(&self, slot: EpollSlot) -> Option<&str> {
        let order = |known: TaskFd| process::compare_with_epoll_target(known, slot).unwrap_or(Ordering::Less);
        let at = self.open_files.binary_search_by(|(known, _)| order(*known)).ok()?;
        Some(&self.open_files[at].1)
    }

    /// Returns the place where the open file of a descriptor was first seen.
    pub(super) fn name_open_file(&mut self, descriptor: TaskFd, place: &str) -> String {
        let order = |known: TaskFd| process::compare_open_files(known, descriptor).unwrap_or(Ordering::Less);
        match self.open_files.binary_search_by(|(known, _)| order(*known)) {
            Ok(at) => self.open_files[at].1.clone(),
            Err(at) => {
                self.open_files.insert(at, (descriptor, place.to_owned()));
                place.to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_after_their_first_occurrence() {
        let mut names = IdentifierMap { ids: HashMap::from([(4711, 7)]), ..IdentifierMap::default() };
        assert_eq!(names.name_object("pipe", "99", "7 fd 3"), "7 fd 3");
        assert_eq!(names.name_object("pipe", "99", "7 fd 4"), "7 fd 3");
        assert_eq!(names.name_object("socket", "99", "7 fd 5"), "7 fd 5");
        assert_eq!([names.inner_id_text(4711), names.inner_id_text(0), names.inner_id_text(1)], ["7", "0", "outside"]);
        assert_eq!(names.translate_text("SIGEV"), "SIGEV");
    }
}
