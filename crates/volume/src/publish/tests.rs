//! Random operations are published to a real directory, with a crash between any two system calls. The result is always
//! the tree of a model.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use fastrand::Rng;
use rustix::io::{Errno, pwrite};
use tempfile::TempDir;

use super::{
    CallBudget, DataCopy, DataDigester, DataPart, Durability, LogData, PublishError, Publisher, SharedTree, TreeReader,
    digest_inodes, find_unlinked_inodes, load_namespace, write_fully,
};
use crate::change::ChangeSet;
use crate::change::model::ModelVolume;
use crate::log::{AppendedRecord, LogPoint};
use crate::record::{EntryName, FileKind, InodeAttributes, InodeNumber, RecordEffect, Timestamp};
use crate::replay::ReplayedRecord;
use crate::view::{
    AttributeChange, CallerIdentity, Inode, InodeContent, NewInode, PrivilegeLoss, RenameKind, RenameRequest,
    SpaceRequest, VolumeNamespace, XattrMode,
};

const SEEDS: u64 = 200;
const ROUNDS: u32 = 12;
const OPERATIONS_MAX: u32 = 25;
/// Larger than any record, so the ranges of two records never overlap.
const RECORD_BYTES: u64 = 1 << 20;

#[derive(Default)]
struct TestLog(HashMap<u64, Vec<u8>>);

impl LogData for &TestLog {
    /// Several, so that one call can execute copies of several files.
    fn copies_max(&self) -> usize {
        3
    }

    fn copy(&mut self, copies: &[DataCopy<'_>]) -> Result<(), Errno> {
        // The order of copies has no meaning, so the test reverses it.
        copies.iter().rev().try_for_each(|copy| {
            let base = copy.log_position / RECORD_BYTES * RECORD_BYTES;
            let data = &self.0[&base][(copy.log_position - base) as usize..][..copy.bytes];
            write_fully(copy.bytes, |done| pwrite(copy.file, &data[done..], copy.offset + done as u64))
        })
    }
}

/// A client without a mount: its namespace, its log and the model.
struct Scenario {
    random: Rng,
    namespace: VolumeNamespace,
    model: ModelVolume,
    records: Vec<ReplayedRecord>,
    log: TestLog,
    clock: i64,
}

impl Scenario {
    fn new(seed: u64, tree: &Path) -> Self {
        let namespace = load_namespace(&SharedTree::open(tree).unwrap(), 0, 1).unwrap();
        let model = model_of(&namespace, tree);
        let random = Rng::with_seed(seed);
        Self { random, namespace, model, records: Vec::new(), log: TestLog::default(), clock: 1_000 }
    }

    fn next_point(&self) -> LogPoint {
        self.records.last().map_or(LogPoint::START, |record| record.end)
    }

    fn log(&mut self, effects: Vec<RecordEffect>, data: Vec<u8>) {
        if effects.is_empty() {
            return;
        }
        let point = self.next_point();
        let end = LogPoint { sequence: point.sequence + 1, position: point.position + RECORD_BYTES };
        effects.iter().for_each(|effect| {
            effect.validate().unwrap();
            self.model.apply(effect, &data);
        });
        self.namespace.apply(&effects, AppendedRecord { sequence: point.sequence, data_position: point.position, end });
        self.log.0.insert(point.position, data);
        self.records.push(ReplayedRecord { point, effects, data_position: point.position, epoch: 1, end });
    }

    fn directory(&mut self) -> InodeNumber {
        self.any_inode(Inode::is_directory).unwrap_or(InodeNumber::ROOT)
    }

    /// Any inode of the tree, or one that has no entry.
    fn any_inode(&mut self, is_wanted: impl Fn(&Inode) -> bool) -> Option<InodeNumber> {
        let numbers = self.model.inodes.keys().copied();
        let wanted: Vec<_> = numbers.filter(|n| self.namespace.inode(*n).is_ok_and(&is_wanted)).collect();
        self.random.choice(wanted)
    }

    fn name(&mut self) -> EntryName {
        EntryName::new(&[b'a' + self.random.u8(..5)]).unwrap()
    }

    fn caller(&mut self) -> CallerIdentity {
        self.clock += 1;
        let now = Timestamp { seconds: self.clock, nanoseconds: self.random.u32(..1_000_000_000) };
        CallerIdentity { user: self.random.u32(..3), group: self.random.u32(..3), now }
    }

    fn operate(&mut self) {
        let caller = self.caller();
        let (parent, name) = (self.directory(), self.name());
        let planned = match self.random.u32(..12) {
            0..=3 => self.plan_create(caller),
            4 => self.namespace.plan_unlink(parent, &name, caller),
            5 => self.namespace.plan_rmdir(parent, &name, caller),
            6 | 7 => self.plan_rename(caller),
            8 => self.plan_link(caller),
            9 => return self.write(caller),
            10 => self.plan_file_change(caller),
            _ => self.plan_drop_or_xattr(caller),
        };
        if let Ok(effects) = planned {
            self.log(effects, Vec::new());
        }
    }

    fn plan_create(&mut self, caller: CallerIdentity) -> Result<Vec<RecordEffect>, rustix::io::Errno> {
        let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Directory, FileKind::Symlink, FileKind::Fifo];
        let kind = kinds[self.random.usize(..kinds.len())];
        let symlink_target = if kind == FileKind::Symlink { b"some/target".to_vec() } else { Vec::new() };
        let new = NewInode { kind, mode: self.random.u16(..0o10000), device: 0, symlink_target };
        let (parent, name) = (self.directory(), self.name());
        Ok(self.namespace.plan_create(parent, &name, &new, caller)?.effects)
    }

    fn plan_rename(&mut self, caller: CallerIdentity) -> Result<Vec<RecordEffect>, rustix::io::Errno> {
        let kind = [RenameKind::Replace, RenameKind::Replace, RenameKind::Exchange][self.random.usize(..3)];
        let (parent, name, new_parent, new_name) = (self.directory(), self.name(), self.directory(), self.name());
        self.namespace.plan_rename(&RenameRequest { parent, name, new_parent, new_name, kind }, caller)
    }

    fn plan_link(&mut self, caller: CallerIdentity) -> Result<Vec<RecordEffect>, rustix::io::Errno> {
        let (parent, name) = (self.directory(), self.name());
        let inode = self.any_inode(|inode| !inode.is_directory()).ok_or(rustix::io::Errno::NOENT)?;
        self.namespace.plan_link(inode, parent, &name, caller)
    }

    fn file(&mut self) -> Option<InodeNumber> {
        self.any_inode(|inode| matches!(inode.content, InodeContent::File(_)))
    }

    fn write(&mut self, caller: CallerIdentity) {
        let Some(inode) = self.file() else { return };
        let length = self.random.usize(1..9000);
        let data: Vec<u8> = std::iter::repeat_with(|| self.random.u8(1..)).take(length).collect();
        let offset = self.random.u64(..20_000);
        let effects =
            self.namespace.plan_write(inode, offset, data.len() as u32, PrivilegeLoss::Nothing, caller).unwrap();
        self.log(effects, data);
    }

    fn plan_file_change(&mut self, caller: CallerIdentity) -> Result<Vec<RecordEffect>, rustix::io::Errno> {
        let inode = self.file().ok_or(rustix::io::Errno::NOENT)?;
        let (offset, bytes) = (self.random.u64(..20_000), self.random.u64(1..9000));
        let loss = PrivilegeLoss::ProgramBits;
        match self.random.u32(..4) {
            0 => self.namespace.plan_allocate(inode, SpaceRequest::PunchHole, offset, bytes, loss, caller),
            1 => self.namespace.plan_allocate(inode, SpaceRequest::ZeroRange, offset, bytes, loss, caller),
            2 => self.namespace.plan_allocate(inode, SpaceRequest::Allocate, offset, bytes, loss, caller),
            _ => {
                let change = AttributeChange { size: Some(offset), ..Default::default() };
                self.namespace.plan_set_attributes(inode, change, PrivilegeLoss::Nothing, caller)
            }
        }
    }

    fn plan_drop_or_xattr(&mut self, caller: CallerIdentity) -> Result<Vec<RecordEffect>, rustix::io::Errno> {
        if let Some(unlinked) = self.any_inode(|inode| inode.entry_count == 0)
            && self.random.bool()
        {
            return self.namespace.plan_drop(unlinked).ok_or(rustix::io::Errno::NOENT);
        }
        let can_have_xattrs = |inode: &Inode| matches!(inode.attributes.kind, FileKind::Regular | FileKind::Directory);
        let inode = self.any_inode(can_have_xattrs).ok_or(rustix::io::Errno::NOENT)?;
        let value = self.random.bool().then_some(&b"value"[..]);
        let mode = if value.is_some() { XattrMode::Any } else { XattrMode::Replace };
        let name = if self.random.bool() { "user.note" } else { "trusted.note" };
        self.namespace.plan_set_xattr(inode, name.as_bytes(), value, mode, caller)
    }

    /// Folds the first `record_count` records, without those before a point.
    fn fold(&self, from: LogPoint, record_count: usize) -> ChangeSet {
        let mut changes = ChangeSet::new(from, 1);
        self.records[..record_count]
            .iter()
            .filter(|record| record.point >= from)
            .for_each(|record| changes.fold(record.clone()));
        changes.coalesce();
        changes
    }
}

/// A directory in memory where possible: the tests do not depend on disks.
fn test_directory() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

fn create_tree(path: &Path) {
    SharedTree::create(path).unwrap();
    SharedTree::open(path).unwrap().create_mark(0).unwrap();
}

fn open(tree: &Path, calls: CallBudget) -> Result<Publisher, PublishError> {
    Publisher::open(SharedTree::open(tree).unwrap(), Durability::Memory, calls)
}

/// Creates a model from the shared tree.
fn model_of(namespace: &VolumeNamespace, tree: &Path) -> ModelVolume {
    let shared = SharedTree::open(tree).unwrap();
    let mut model = ModelVolume::default();
    let mut pending = vec![InodeNumber::ROOT];
    while let Some(number) = pending.pop() {
        let inode = namespace.inode(number).unwrap();
        let mut state = crate::change::model::ModelInode {
            attributes: Some(inode.attributes.clone()),
            xattrs: inode.xattrs.clone(),
            ..Default::default()
        };
        match &inode.content {
            InodeContent::File(_) => {
                shared.open_data(number).unwrap().read_to_end(&mut state.data).unwrap();
            }
            InodeContent::Symlink(target) => state.target.clone_from(target),
            InodeContent::Directory { entries, .. } => {
                for entry in entries.after(0) {
                    model.entries.insert((number, entry.name.clone()), entry.inode);
                    pending.push(entry.inode);
                }
            }
            InodeContent::Special => {}
        }
        model.inodes.insert(number, state);
    }
    model
}

/// Publishes in rounds; each round may crash once or twice. After a crash, all logged records are folded into one change
/// set.
fn run_scenario(seed: u64) -> u32 {
    let directory = test_directory();
    let tree = directory.path().join("shared");
    create_tree(&tree);
    let mut scenario = Scenario::new(seed, &tree);
    let mut crashes = 0;
    for _ in 0..ROUNDS {
        for _ in 0..scenario.random.u32(1..OPERATIONS_MAX) {
            scenario.operate();
        }
        let mut record_count = scenario.random.usize(0..=scenario.records.len());
        let calls = CallBudget::limited(scenario.random.u64(..120));
        let mut publisher = open(&tree, calls).unwrap();
        while let Err(error) = {
            let changes = scenario.fold(publisher.mark(0).unwrap().point, record_count);
            publisher.publish(0, &changes, &mut &scenario.log)
        } {
            assert_eq!(error, PublishError::InjectedCrash, "seed {seed}");
            crashes += 1;
            record_count = scenario.records.len();
            let is_last = scenario.random.bool();
            let calls = if is_last { CallBudget::default() } else { CallBudget::limited(scenario.random.u64(..200)) };
            publisher = open(&tree, calls).unwrap();
        }
    }
    finish(&mut scenario, &tree, seed);
    crashes
}

/// Publishes the rest, drops unlinked inodes as the next client does, and compares the tree with the model and with a copy.
fn finish(scenario: &mut Scenario, tree: &Path, seed: u64) {
    publish_rest(scenario, tree);
    let unlinked = find_unlinked_inodes(&SharedTree::open(tree).unwrap()).unwrap();
    for inode in &unlinked {
        assert!(scenario.namespace.inode(*inode).is_ok_and(|inode| inode.entry_count == 0), "seed {seed}: {inode:?}");
    }
    scenario.log(unlinked.into_iter().map(|inode| RecordEffect::DropInode { inode }).collect(), Vec::new());
    publish_rest(scenario, tree);
    compare_tree(scenario, tree, seed);
    let copy = tree.with_extension("copy");
    copy_tree(tree, &copy);
    compare_tree(scenario, &copy, seed);
    compare_digests(tree, &copy, seed);
}

/// Compares digests as `volume check` does for replicas.
fn compare_digests(tree: &Path, copy: &Path, seed: u64) {
    let [tree, copy] = [tree, copy].map(|path| SharedTree::open(path).unwrap());
    let inodes = digest_inodes(&tree).unwrap();
    assert_eq!(digest_inodes(&copy).unwrap(), inodes, "seed {seed}");
    let [mut tree, mut copy] = [tree, copy].map(DataDigester::new);
    for inode in inodes.digests.iter().filter(|inode| inode.data_bytes > 0) {
        let part = DataPart { inode: inode.inode, index: 0 };
        let [found, copied] = [&mut tree, &mut copy].map(|digester| digester.digest(part).unwrap());
        assert!(found.is_some() && found == copied, "seed {seed}: {inode:?}");
    }
}

/// Copies a tree as a replica does that joins a chain.
fn copy_tree(from: &Path, to: &Path) {
    create_tree(to);
    let mut publisher = open(to, CallBudget::default()).unwrap();
    let mut reader = TreeReader::new(SharedTree::open(from).unwrap()).unwrap();
    loop {
        let part = reader.next_part().unwrap();
        publisher.apply(&part.changes, &mut &part).unwrap();
        if part.is_last {
            break;
        }
    }
    let mark = SharedTree::open(from).unwrap().open_mark(0).unwrap().mark();
    publisher.set_mark(0, mark).unwrap();
}

fn compare_tree(scenario: &Scenario, tree: &Path, seed: u64) {
    let inode_max = SharedTree::open(tree).unwrap().open_mark(0).unwrap().mark().inode_max;
    let loaded = load_namespace(&SharedTree::open(tree).unwrap(), 0, inode_max).unwrap();
    let mut expected = scenario.model.clone();
    expected.inodes.retain(|number, _| scenario.namespace.inode(*number).is_ok_and(|inode| inode.entry_count > 0));
    let found = model_of(&loaded, tree);
    assert_eq!(found.entries, expected.entries, "seed {seed}");
    for (number, inode) in &expected.inodes {
        assert!(found.inodes[number] == *inode, "seed {seed}: {number:?} is {:?}", found.inodes[number].attributes);
    }
    assert_eq!(found.inodes.len(), expected.inodes.len(), "seed {seed}");
    compare_links(&loaded, &scenario.namespace, seed);
}

fn publish_rest(scenario: &mut Scenario, tree: &Path) {
    let mut publisher = open(tree, CallBudget::default()).unwrap();
    let changes = scenario.fold(publisher.mark(0).unwrap().point, scenario.records.len());
    publisher.publish(0, &changes, &mut &scenario.log).unwrap();
}

fn compare_links(loaded: &VolumeNamespace, expected: &VolumeNamespace, seed: u64) {
    let mut pending = vec![InodeNumber::ROOT];
    while let Some(number) = pending.pop() {
        let (found, state) = (loaded.inode(number).unwrap(), expected.inode(number).unwrap());
        assert_eq!(found.link_count(), state.link_count(), "seed {seed}: links of {number:?}");
        if let InodeContent::Directory { entries, .. } = &found.content {
            pending.extend(entries.after(0).map(|entry| entry.inode));
        }
    }
}

#[test]
fn a_crash_between_any_two_calls_loses_nothing() {
    let crashes: u32 = (0..SEEDS).map(run_scenario).sum();
    assert!(crashes > SEEDS as u32, "only {crashes} crashes: the test does too little");
}

#[test]
fn a_path_longer_than_path_max_is_published() {
    let directory = test_directory();
    let tree = directory.path().join("shared");
    create_tree(&tree);
    let mut scenario = Scenario::new(0, &tree);
    let new = NewInode { kind: FileKind::Directory, mode: 0o755, device: 0, symlink_target: Vec::new() };
    let mut parent = InodeNumber::ROOT;
    for _ in 0..40 {
        let caller = scenario.caller();
        let name = EntryName::new(&[b'd'; 255]).unwrap();
        let planned = scenario.namespace.plan_create(parent, &name, &new, caller).unwrap();
        parent = planned.inode;
        scenario.log(planned.effects, Vec::new());
    }
    finish(&mut scenario, &tree, 0);
}

/// Counts the open files of a shared tree when data is copied.
struct CountingLog<'t> {
    tree: &'t Path,
    open_files: usize,
}

impl LogData for CountingLog<'_> {
    fn copies_max(&self) -> usize {
        30
    }

    fn copy(&mut self, _: &[DataCopy<'_>]) -> Result<(), Errno> {
        let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        self.open_files = links.filter(|path| path.starts_with(self.tree)).count();
        Ok(())
    }
}

/// A copy waits for others, and many files without data follow.
#[test]
fn the_number_of_open_files_is_bounded() {
    let directory = test_directory();
    let tree = directory.path().join("shared");
    create_tree(&tree);
    let mut scenario = Scenario::new(0, &tree);
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, device: 0, symlink_target: Vec::new() };
    for number in 0..300 {
        let (caller, name) = (scenario.caller(), EntryName::new(format!("{number}").as_bytes()).unwrap());
        let planned = scenario.namespace.plan_create(InodeNumber::ROOT, &name, &new, caller).unwrap();
        scenario.log(planned.effects, Vec::new());
        if number == 0 {
            scenario.write(caller);
        }
    }
    let changes = scenario.fold(LogPoint::START, scenario.records.len());
    let mut log = CountingLog { tree: &tree, open_files: 0 };
    open(&tree, CallBudget::default()).unwrap().publish(0, &changes, &mut log).unwrap();
    assert!((1..100).contains(&log.open_files), "{} files are open", log.open_files);
}

fn create_file(scenario: &mut Scenario) -> InodeNumber {
    let (caller, name) = (scenario.caller(), scenario.name());
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, device: 0, symlink_target: Vec::new() };
    let planned = scenario.namespace.plan_create(InodeNumber::ROOT, &name, &new, caller).unwrap();
    scenario.log(planned.effects, Vec::new());
    planned.inode
}

#[test]
fn a_symbolic_link_that_xfs_cannot_keep_is_refused() {
    let directory = test_directory();
    let tree = directory.path().join("shared");
    create_tree(&tree);
    let mut scenario = Scenario::new(0, &tree);
    for (bytes, refusal) in [(1023, None), (1024, Some(Errno::NAMETOOLONG))] {
        let (caller, name) = (scenario.caller(), EntryName::new(b"link").unwrap());
        let (kind, symlink_target) = (FileKind::Symlink, vec![b'x'; bytes]);
        let new = NewInode { kind, mode: 0o777, device: 0, symlink_target };
        let planned = scenario.namespace.plan_create(InodeNumber::ROOT, &name, &new, caller);
        assert_eq!(planned.err(), refusal);
    }
}

/// On a disk, because ext4 has the least space for attributes.
#[test]
fn all_attributes_that_a_client_accepts_are_published() {
    for value_bytes in [0, 1, 100, 3000] {
        let directory = TempDir::new().unwrap();
        let tree = directory.path().join("shared");
        create_tree(&tree);
        let mut scenario = Scenario::new(0, &tree);
        let inode = create_file(&mut scenario);
        let refusal = (0..).find_map(|number| {
            let (caller, name, value) = (scenario.caller(), format!("user.{number}"), vec![b'v'; value_bytes]);
            let value = Some(value.as_slice());
            let planned = scenario.namespace.plan_set_xattr(inode, name.as_bytes(), value, XattrMode::Any, caller);
            planned.map(|effects| scenario.log(effects, Vec::new())).err()
        });
        assert_eq!(refusal, Some(Errno::NOSPC));
        finish(&mut scenario, &tree, 0);
    }
}

/// No file system has attributes with this name.
#[test]
fn an_attribute_that_the_tree_cannot_keep_stops_no_later_change() {
    let directory = test_directory();
    let tree = directory.path().join("shared");
    create_tree(&tree);
    let mut scenario = Scenario::new(0, &tree);
    let file = create_file(&mut scenario);
    for inode in [file, InodeNumber::ROOT] {
        for value in [Some(b"value".to_vec().into()), None] {
            let effect = RecordEffect::SetXattr { inode, name: b"bogus.note".to_vec().into(), value };
            scenario.log(vec![effect], Vec::new());
            publish_rest(&mut scenario, &tree);
        }
    }
    finish(&mut scenario, &tree, 0);
}

#[test]
fn the_model_has_the_attributes_of_the_root() {
    let directory = test_directory();
    let tree = directory.path().join("shared");
    create_tree(&tree);
    let scenario = Scenario::new(0, &tree);
    let root: &InodeAttributes = &scenario.namespace.inode(InodeNumber::ROOT).unwrap().attributes;
    assert_eq!((root.kind, root.mode), (FileKind::Directory, 0o755));
}
