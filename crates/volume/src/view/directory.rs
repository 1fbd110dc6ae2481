//! The entries of a directory. Adding or removing entries does not change the order of the others, so that readdir(3) can
//! continue.

use std::collections::{BTreeMap, HashMap};

use crate::record::{EntryName, InodeNumber};

/// Offsets 1 and 2 are `.` and `..`.
const FIRST_OFFSET: u64 = 3;

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Its offset: readdir(3) continues with the next higher one.
    pub offset: u64,
    /// Its name.
    pub name: &'a EntryName,
    /// The inode that the entry leads to.
    pub inode: InodeNumber,
}

/// Entries by name and by offset. A new entry has the highest offset.
#[derive(Clone, Debug)]
pub struct DirectoryEntries {
    by_name: HashMap<EntryName, (u64, InodeNumber)>,
    by_offset: BTreeMap<u64, EntryName>,
    next_offset: u64,
}

impl Default for DirectoryEntries {
    fn default() -> Self {
        Self { by_name: HashMap::new(), by_offset: BTreeMap::new(), next_offset: FIRST_OFFSET }
    }
}

impl DirectoryEntries {
    /// The inode that a name leads to.
    pub fn get(&self, name: &EntryName) -> Option<InodeNumber> {
        self.by_name.get(name).map(|(_, inode)| *inode)
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Sets the inode that a name leads to, and returns the previous one. An existing name keeps its offset.
    pub fn set(&mut self, name: EntryName, inode: InodeNumber) -> Option<InodeNumber> {
        if let Some((_, target)) = self.by_name.get_mut(&name) {
            return Some(std::mem::replace(target, inode));
        }
        self.by_offset.insert(self.next_offset, name.clone());
        self.by_name.insert(name, (self.next_offset, inode));
        self.next_offset += 1;
        None
    }

    /// Removes a name, and returns the inode that it led to.
    pub fn remove(&mut self, name: &EntryName) -> Option<InodeNumber> {
        let (offset, inode) = self.by_name.remove(name)?;
        self.by_offset.remove(&offset);
        Some(inode)
    }

    /// Entries after an offset, in order.
    pub fn after(&self, offset: u64) -> impl Iterator<Item = DirectoryEntry<'_>> {
        self.by_offset.range(offset + 1..).map(|(offset, name)| {
            let (_, inode) = self.by_name[name];
            DirectoryEntry { offset: *offset, name, inode }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> EntryName {
        EntryName::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn directory_reads_continue_at_their_position_while_entries_change() {
        let mut entries = DirectoryEntries::default();
        for (index, text) in ["a", "b", "c"].into_iter().enumerate() {
            entries.set(name(text), InodeNumber(10 + index as u64));
        }
        let first = entries.after(2).next().unwrap().offset;
        entries.remove(&name("a"));
        entries.set(name("d"), InodeNumber(20));
        assert_eq!(entries.set(name("b"), InodeNumber(21)), Some(InodeNumber(11)));
        let rest: Vec<_> = entries.after(first).map(|entry| (entry.name.as_bytes().to_vec(), entry.inode.0)).collect();
        assert_eq!(rest, [(b"b".to_vec(), 21), (b"c".to_vec(), 12), (b"d".to_vec(), 20)]);
    }
}
