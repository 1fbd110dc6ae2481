//! Applies random operations of one client record by record at that client, and as change sets at another client. Both must
//! have the same namespace.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::*;
use crate::log::{AppendedRecord, LogPoint};
use crate::record::{EntryName, FileKind, InodeAttributes, RecordEffect, Timestamp};
use crate::replay::ReplayedRecord;
use crate::view::{AttributeChange, CallerIdentity, NewInode, PrivilegeLoss, RenameKind, RenameRequest, XattrMode};

const SEEDS: u64 = 300;
const CHANGE_SETS: u32 = 20;
const OPERATIONS_MAX: u32 = 20;

fn namespace(client: u16) -> VolumeNamespace {
    VolumeNamespace::new(Inode::new(InodeAttributes::of_root(FileKind::Directory, 0o755)), client, 0)
}

/// The client that writes, and the next change set for another client.
struct WritingClient {
    random: Rng,
    namespace: VolumeNamespace,
    changes: ChangeSet,
    clock: i64,
}

impl WritingClient {
    fn new(seed: u64) -> Self {
        let changes = ChangeSet::new(LogPoint::START, 1);
        Self { random: Rng::with_seed(seed), namespace: namespace(0), changes, clock: 0 }
    }

    fn log(&mut self, effects: Vec<RecordEffect>) {
        let point = self.changes.end;
        let end = LogPoint { sequence: point.sequence + 1, position: point.position + 64 };
        self.namespace.apply(&effects, AppendedRecord { sequence: point.sequence, data_position: 0, end });
        self.changes.fold(ReplayedRecord { point, effects, data_position: 0, epoch: 1, end });
    }

    fn take_changes(&mut self) -> ChangeSet {
        let next = ChangeSet::new(self.changes.end, 1);
        std::mem::replace(&mut self.changes, next)
    }

    fn inode(&mut self, is_wanted: impl Fn(&Inode) -> bool) -> Option<InodeNumber> {
        let wanted = self.namespace.inodes.iter().filter(|(_, inode)| is_wanted(inode));
        // Sorted, so that a seed always gives the same run.
        let wanted: BTreeSet<InodeNumber> = wanted.map(|(number, _)| *number).collect();
        self.random.choice(wanted)
    }

    fn place(&mut self) -> (InodeNumber, EntryName) {
        let parent = self.inode(Inode::is_directory).unwrap();
        (parent, EntryName::new(&[b'a' + self.random.u8(..4)]).unwrap())
    }

    fn operate(&mut self) {
        self.clock += 1;
        let caller = CallerIdentity { user: 1, group: 2, now: Timestamp { seconds: self.clock, nanoseconds: 0 } };
        let ((parent, name), (new_parent, new_name)) = (self.place(), self.place());
        let planned = match self.random.u32(..12) {
            0..=3 => self.plan_create(caller),
            4 => self.namespace.plan_unlink(parent, &name, caller),
            5 => self.namespace.plan_rmdir(parent, &name, caller),
            6..=8 => {
                let kind = if self.random.bool() { RenameKind::Replace } else { RenameKind::Exchange };
                self.namespace.plan_rename(&RenameRequest { parent, name, new_parent, new_name, kind }, caller)
            }
            9 => {
                let inode = self.inode(|inode| !inode.is_directory()).unwrap_or(InodeNumber::ROOT);
                self.namespace.plan_link(inode, parent, &name, caller)
            }
            10 => {
                let inode = self.inode(|_| true).unwrap();
                let change = AttributeChange { mode: Some(self.random.u16(..0o1000)), ..Default::default() };
                self.namespace.plan_set_attributes(inode, change, PrivilegeLoss::Nothing, caller)
            }
            _ => self.plan_drop_or_xattr(caller),
        };
        if let Ok(effects) = planned {
            self.log(effects);
        }
    }

    fn plan_create(&mut self, caller: CallerIdentity) -> Result<Vec<RecordEffect>, rustix::io::Errno> {
        let kind = [FileKind::Regular, FileKind::Directory, FileKind::Symlink][self.random.usize(..3)];
        let symlink_target = if kind == FileKind::Symlink { b"target".to_vec() } else { Vec::new() };
        let (parent, name) = self.place();
        let new = NewInode { kind, mode: 0o644, device: 0, symlink_target };
        Ok(self.namespace.plan_create(parent, &name, &new, caller)?.effects)
    }

    fn plan_drop_or_xattr(&mut self, caller: CallerIdentity) -> Result<Vec<RecordEffect>, rustix::io::Errno> {
        if let Some(unlinked) = self.inode(|inode| inode.entry_count == 0)
            && self.random.bool()
        {
            return self.namespace.plan_drop(unlinked).ok_or(rustix::io::Errno::NOENT);
        }
        let inode = self.inode(|inode| inode.entry_count > 0).unwrap();
        let value = self.random.bool().then_some(&b"value"[..]);
        let mode = if value.is_some() { XattrMode::Any } else { XattrMode::Replace };
        self.namespace.plan_set_xattr(inode, b"user.note", value, mode, caller)
    }
}

fn assert_equal(found: &VolumeNamespace, expected: &VolumeNamespace, seed: u64) {
    let numbers = |namespace: &VolumeNamespace| namespace.inodes.keys().copied().collect::<BTreeSet<_>>();
    assert_eq!(numbers(found), numbers(expected), "seed {seed}");
    for (number, inode) in &expected.inodes {
        let other = &found.inodes[number];
        let state = |inode: &Inode| (inode.attributes.clone(), inode.entry_count, inode.link_count());
        assert_eq!(state(other), state(inode), "seed {seed}: {number:?}");
        assert_eq!(other.xattrs, inode.xattrs, "seed {seed}: {number:?}");
        assert_eq!(other.is_unlinked_elsewhere, inode.entry_count == 0, "seed {seed}: {number:?}");
        assert_eq!(content_of(other), content_of(inode), "seed {seed}: {number:?}");
    }
}

/// Parent, number of subdirectories and entries of a directory; the target of a symbolic link. A directory without an entry
/// has no parent.
fn content_of(inode: &Inode) -> String {
    match &inode.content {
        InodeContent::Directory { entries, subdirectories } => {
            let entries: BTreeSet<_> = entries.after(0).map(|entry| (entry.name.clone(), entry.inode)).collect();
            let parent = (inode.entry_count > 0).then_some(inode.parent);
            format!("{parent:?} {subdirectories} {entries:?}")
        }
        InodeContent::Symlink(target) => format!("{target:?}"),
        InodeContent::File(extents) => format!("{}", extents.is_empty()),
        InodeContent::Special => String::new(),
    }
}

#[test]
fn change_sets_and_records_give_the_same_namespace() {
    for seed in 0..SEEDS {
        let mut writer = WritingClient::new(seed);
        let mut reader = namespace(1);
        for _ in 0..CHANGE_SETS {
            for _ in 0..writer.random.u32(1..OPERATIONS_MAX) {
                writer.operate();
            }
            reader.apply_published(&writer.take_changes());
            assert_equal(&reader, &writer.namespace, seed);
        }
        assert_eq!(reader.next_inode(), InodeNumber(InodeNumber::before_first_of(1).0 + 1), "seed {seed}");
    }
}

/// Creates a file that the kernels of both nodes know.
fn create_known_file(writer: &mut WritingClient, reader: &mut VolumeNamespace, name: &str) -> InodeNumber {
    let caller = CallerIdentity { user: 0, group: 0, now: Timestamp::default() };
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, device: 0, symlink_target: Vec::new() };
    let planned = writer.namespace.plan_create(InodeNumber::ROOT, &entry_name(name), &new, caller).unwrap();
    writer.log(planned.effects);
    reader.apply_published(&writer.take_changes());
    writer.namespace.count_lookup(planned.inode);
    reader.count_lookup(planned.inode);
    planned.inode
}

fn entry_name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).unwrap()
}

fn unlink(writer: &mut WritingClient, name: &str) {
    let caller = CallerIdentity { user: 0, group: 0, now: Timestamp::default() };
    let effects = writer.namespace.plan_unlink(InodeNumber::ROOT, &entry_name(name), caller).unwrap();
    writer.log(effects);
}

/// Another client writes a file after this one. This client learns later that its own data is published.
#[test]
fn data_of_another_client_replaces_unpublished_data() {
    let (mut writer, mut reader) = (WritingClient::new(0), namespace(1));
    let file = create_known_file(&mut writer, &mut reader, "a");
    let caller = CallerIdentity { user: 0, group: 0, now: Timestamp::default() };
    let write =
        |namespace: &VolumeNamespace| namespace.plan_write(file, 0, 10, PrivilegeLoss::Nothing, caller).unwrap();
    let record = AppendedRecord { sequence: 1, data_position: 64, end: LogPoint { sequence: 2, position: 128 } };
    reader.apply(&write(&reader), record);
    assert_eq!(content_of(&reader.inodes[&file]), "false", "the data is in the log of this client");
    writer.log(write(&writer.namespace));
    reader.apply_published(&writer.take_changes());
    assert_eq!(content_of(&reader.inodes[&file]), "true", "the data is in the shared tree");
}

#[test]
fn an_unlinked_file_is_dropped_only_by_its_unlinker() {
    let (mut writer, mut reader) = (WritingClient::new(0), namespace(1));
    let file = create_known_file(&mut writer, &mut reader, "a");
    unlink(&mut writer, "a");
    let cached = reader.apply_published(&writer.take_changes());
    let entry = EntryKey { parent: InodeNumber::ROOT, name: entry_name("a") };
    assert_eq!(cached.entries, BTreeMap::from([(entry, file)]));
    assert_eq!(cached.inodes, BTreeSet::from([InodeNumber::ROOT, file]));
    reader.forget(file, 1);
    assert_eq!(reader.plan_drop(file), None, "it may be open at the client that unlinked it");
    reader.count_lookup(file);

    writer.namespace.forget(file, 1);
    let drop = writer.namespace.plan_drop(file).unwrap();
    writer.log(drop);
    assert_eq!(reader.apply_published(&writer.take_changes()).inodes, BTreeSet::from([file]));
    assert!(reader.inode(file).is_err());
    assert!(reader.readable_inode(file).is_ok(), "a program may have it open");
    reader.forget(file, 1);
    assert!(reader.readable_inode(file).is_err());
}

#[test]
fn an_inode_knows_the_record_that_created_it() {
    let (mut writer, mut reader) = (WritingClient::new(0), namespace(1));
    let created_by = writer.changes.end.sequence;
    let file = create_known_file(&mut writer, &mut reader, "a");
    unlink(&mut writer, "a");
    writer.namespace.replace_with(namespace(0));
    assert!(writer.namespace.is_created_since(file, created_by), "it stays, because a program has it open");
    assert!(!writer.namespace.is_created_since(file, created_by + 1));
    assert!(!reader.is_created_since(file, created_by), "it was published before the other client had it");
}

#[test]
fn a_reloaded_namespace_keeps_the_inodes_known_to_the_kernel() {
    let (mut writer, mut reader) = (WritingClient::new(0), namespace(1));
    let [kept, unlinked] = ["a", "b"].map(|name| create_known_file(&mut writer, &mut reader, name));
    let mut loaded = namespace(1);
    let inode = Inode::new(reader.inode(kept).unwrap().attributes.clone());
    loaded.load(InodeNumber::ROOT, entry_name("c"), kept, inode);
    let cached = reader.replace_with(loaded);
    assert_eq!(cached.inodes, BTreeSet::from([InodeNumber::ROOT, kept, unlinked]));
    let entry = |name: &str| EntryKey { parent: InodeNumber::ROOT, name: entry_name(name) };
    assert_eq!(cached.entries, BTreeMap::from([(entry("a"), kept), (entry("b"), unlinked)]));
    assert_eq!(reader.inode(kept).unwrap().lookups, 1);
    assert_eq!(reader.lookup(InodeNumber::ROOT, &entry_name("c")), Ok(kept));
    assert!(reader.inode(unlinked).is_err());
    assert!(reader.readable_inode(unlinked).is_ok());
}
