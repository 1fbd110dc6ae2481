//! Two nodes take turns to change a few files by all kinds of calls. After each turn, the other node must find each byte by
//! open(2). Meanwhile programs of both nodes read files that they have opened earlier, so the kernels always have old pages
//! and old sizes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use farfork_cluster::catalog::Durability;
use farfork_sys::shared_mapping::SharedMapping;
use fastrand::Rng;
use rustix::fs::{FallocateFlags, OFlags, copy_file_range, fallocate, fcntl_setfl, sendfile};

use super::mounted_volume::LOG_BYTES;
use super::test_node::{NO_DETECTION_MS, SetOnDrop};
use super::volume_cluster::VolumeCluster;

/// The tests of this file.
pub(crate) const TESTS: &[(&str, fn())] = &[("nodes_find_what_the_other_one_did_in_its_turn", || run_turns(1, 120))];

/// Tests of this file that take minutes.
pub(crate) const LONG_TESTS: &[(&str, fn())] =
    &[("nodes_find_what_the_other_one_did_in_many_turns", || (2..12).for_each(|seed| run_turns(seed, 300)))];

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const CALLS_PER_TURN: u32 = 6;
/// Largest offset of a change: some pages.
const OFFSET_MAX: usize = 20_000;
const CHANGE_BYTES_MAX: usize = 6_000;

/// The files that the volume must have. Each file has a number, because it may have several names.
#[derive(Default)]
struct Model {
    names: BTreeMap<&'static str, u32>,
    files: BTreeMap<u32, Vec<u8>>,
    last_file: u32,
}

impl Model {
    fn create(&mut self, name: &'static str, content: Vec<u8>) {
        self.last_file += 1;
        self.names.insert(name, self.last_file);
        self.files.insert(self.last_file, content);
    }

    fn content(&mut self, name: &str) -> &mut Vec<u8> {
        self.files.get_mut(&self.names[name]).unwrap()
    }

    /// Writes bytes at an offset, after zeroes if the file ends before it.
    fn write(&mut self, name: &str, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let content = self.content(name);
        content.resize(content.len().max(offset + bytes.len()), 0);
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// A random call: the file, an offset, the bytes to write, and the size of the file before the call.
#[derive(Clone, Copy)]
struct Turn<'a> {
    name: &'static str,
    offset: usize,
    bytes: &'a [u8],
    size: usize,
}

/// A node, and files that its programs opened earlier.
struct TurnNode {
    root: PathBuf,
    open: Mutex<Vec<File>>,
}

impl TurnNode {
    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn open(&self, name: &str) -> File {
        OpenOptions::new().read(true).write(true).open(self.path(name)).unwrap()
    }

    /// Reads files that were opened earlier, until the test ends.
    fn read_open_files(&self, must_stop: &AtomicBool) {
        let mut buffer = vec![0; OFFSET_MAX + CHANGE_BYTES_MAX];
        while !must_stop.load(Ordering::Relaxed) {
            for file in &*self.open.lock().unwrap() {
                // Another node may have removed the file.
                let _ = file.read_at(&mut buffer, 0);
                let _ = file.read_at(&mut buffer[..1], 0);
            }
            thread::yield_now();
        }
    }

    /// Requires the content of the model under each name.
    fn require(&self, model: &Model, place: &str) {
        for name in NAMES {
            let opened = File::open(self.path(name));
            let Some(number) = model.names.get(name) else {
                assert_eq!(opened.map_err(|error| error.kind()).err(), Some(ErrorKind::NotFound), "{place}: {name}");
                continue;
            };
            let (mut file, expected) = (opened.unwrap(), &model.files[number]);
            let mut found = Vec::new();
            // Ends at the size that the kernel has cached.
            let pipe = rustix::pipe::pipe().unwrap();
            if !expected.is_empty() {
                let sent = sendfile(&pipe.1, &file, Some(&mut (expected.len() as u64 - 1)), 100).unwrap();
                assert_eq!(sent, 1, "{place}: {name} with {} bytes ends elsewhere", expected.len());
            }
            file.read_to_end(&mut found).unwrap();
            let difference = found.iter().zip(expected).position(|(found, expected)| found != expected);
            assert_eq!((found.len(), difference), (expected.len(), None), "{place}: {name}");
            let links = model.names.values().filter(|other| *other == number).count() as u64;
            let state = file.metadata().unwrap();
            assert_eq!((state.len(), state.nlink()), (expected.len() as u64, links), "{place}: {name}");
            let mut open = self.open.lock().unwrap();
            if open.len() >= 8 {
                open.remove(0);
            }
            open.push(file);
        }
    }

    /// Executes a random call on this node, and in the model. Returns its description.
    fn change(&self, model: &mut Model, random: &mut Rng) -> String {
        let names: Vec<&'static str> = model.names.keys().copied().collect();
        if names.is_empty() || random.u32(..10) == 0 {
            return self.create(model, random);
        }
        let name = names[random.usize(..names.len())];
        let (offset, byte) = (random.usize(..OFFSET_MAX), random.u8(1..));
        let bytes = vec![byte; random.usize(1..CHANGE_BYTES_MAX)];
        let size = model.content(name).len();
        let turn = Turn { name, offset, bytes: &bytes, size };
        let called = match random.u32(..14) {
            kind @ 0..=4 => self.write(model, turn, kind),
            kind @ 5..=7 => self.cut(model, turn, kind, random.usize(..OFFSET_MAX)),
            8 if size > 0 => self.store(model, turn, random.usize(..size), random.bool()),
            9 => self.punch(model, turn),
            10 => self.write_uncached(model, turn),
            11 => self.copy_range(model, turn, names[random.usize(..names.len())]),
            12 => self.rename_or_link(model, name, random),
            _ => {
                fs::remove_file(self.path(name)).unwrap();
                model.names.remove(name);
                "remove"
            }
        };
        format!("{called} {name} at {offset}, {} bytes of {size}", bytes_of(model, name))
    }

    /// Writes through the page cache, in the way that `kind` selects.
    fn write(&self, model: &mut Model, turn: Turn<'_>, kind: u32) -> &'static str {
        let Turn { name, offset, bytes, size } = turn;
        let (called, at) = match kind {
            0 | 1 => {
                self.open(name).write_all_at(bytes, offset as u64).unwrap();
                ("write", offset)
            }
            2 => {
                let file = self.open(name);
                file.write_all_at(bytes, offset as u64).unwrap();
                file.sync_all().unwrap();
                ("write and sync", offset)
            }
            3 => {
                let mut file = OpenOptions::new().append(true).open(self.path(name)).unwrap();
                file.write_all(bytes).unwrap();
                ("append", size)
            }
            _ => {
                let mut file = self.open(name);
                fcntl_setfl(&file, OFlags::APPEND).unwrap();
                file.write_all(bytes).unwrap();
                ("append after fcntl", size)
            }
        };
        model.write(name, at, bytes);
        called
    }

    /// Changes the size of the file, in the way that `kind` selects. `end`: the new size of a truncation.
    fn cut(&self, model: &mut Model, turn: Turn<'_>, kind: u32, end: usize) -> &'static str {
        let Turn { name, bytes, size, .. } = turn;
        match kind {
            5 => {
                self.open(name).set_len(end as u64).unwrap();
                model.content(name).resize(end, 0);
                "truncate"
            }
            6 => {
                let file = self.open(name);
                file.set_len(size as u64 / 2).unwrap();
                file.write_all_at(bytes, (size / 2 + 100) as u64).unwrap();
                model.content(name).truncate(size / 2);
                model.write(name, size / 2 + 100, bytes);
                "cut and extend"
            }
            _ => {
                fs::write(self.path(name), bytes).unwrap();
                bytes.clone_into(model.content(name));
                "O_TRUNC"
            }
        }
    }

    /// Stores into a shared mapping, from `start` to the end of the file at most.
    fn store(&self, model: &mut Model, turn: Turn<'_>, start: usize, is_synced: bool) -> &'static str {
        let Turn { name, bytes, size, .. } = turn;
        let mapping = SharedMapping::map_file(&self.open(name), size).unwrap();
        let stored = &bytes[..bytes.len().min(size - start)];
        mapping.copy_in(start, stored);
        model.write(name, start, stored);
        if is_synced {
            mapping.synchronize().unwrap();
        }
        "mapping"
    }

    fn punch(&self, model: &mut Model, turn: Turn<'_>) -> &'static str {
        let Turn { name, offset, bytes, .. } = turn;
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(self.open(name), mode, offset as u64, bytes.len() as u64).unwrap();
        let content = model.content(name);
        let end = content.len().min(offset + bytes.len());
        content[offset.min(end)..end].fill(0);
        "punch"
    }

    fn write_uncached(&self, model: &mut Model, turn: Turn<'_>) -> &'static str {
        let Turn { name, offset, bytes, .. } = turn;
        let flags = OFlags::DIRECT.bits() as i32;
        let file = OpenOptions::new().write(true).custom_flags(flags).open(self.path(name)).unwrap();
        file.write_all_at(bytes, offset as u64).unwrap();
        model.write(name, offset, bytes);
        "O_DIRECT"
    }

    fn copy_range(&self, model: &mut Model, turn: Turn<'_>, source: &str) -> &'static str {
        let Turn { name, offset, .. } = turn;
        let (from, to) = (self.open(source), self.open(name));
        let length = copy_file_range(&from, Some(&mut 0), &to, Some(&mut (offset as u64)), 1_000);
        // A range may not be copied onto itself.
        if let Ok(length) = length {
            let copied = model.content(source)[..length].to_vec();
            model.write(name, offset, &copied);
        }
        "copy"
    }

    fn create(&self, model: &mut Model, random: &mut Rng) -> String {
        let name = NAMES[random.usize(..NAMES.len())];
        let content = vec![random.u8(..); random.usize(..OFFSET_MAX)];
        fs::write(self.path("new"), &content).unwrap();
        fs::rename(self.path("new"), self.path(name)).unwrap();
        model.create(name, content);
        format!("create {name}")
    }

    fn rename_or_link(&self, model: &mut Model, name: &'static str, random: &mut Rng) -> &'static str {
        let other = NAMES[random.usize(..NAMES.len())];
        let number = model.names[name];
        if random.bool() && !model.names.contains_key(other) {
            fs::hard_link(self.path(name), self.path(other)).unwrap();
            model.names.insert(other, number);
            return "link";
        }
        fs::rename(self.path(name), self.path(other)).unwrap();
        // Nothing happens if both names are of one file.
        if model.names.get(other) != Some(&number) {
            model.names.remove(name);
            model.names.insert(other, number);
        }
        "rename"
    }
}

fn bytes_of(model: &Model, name: &str) -> usize {
    model.names.get(name).map_or(0, |number| model.files[number].len())
}

fn run_turns(seed: u64, turns: u32) {
    let cluster = VolumeCluster::mounted(&["n1", "n2"], LOG_BYTES, Durability::Memory, NO_DETECTION_MS);
    let sides = [0, 1].map(|node| TurnNode { root: cluster.path(node), open: Mutex::default() });
    let (mut model, mut random, must_stop) = (Model::default(), Rng::with_seed(seed), AtomicBool::new(false));
    thread::scope(|scope| {
        let _stop = SetOnDrop(&must_stop);
        sides.iter().for_each(|side| _ = scope.spawn(|| side.read_open_files(&must_stop)));
        for turn in 0..turns {
            let side = &sides[random.usize(..2)];
            let calls: Vec<String> =
                (0..random.u32(1..=CALLS_PER_TURN)).map(|_| side.change(&mut model, &mut random)).collect();
            let place = format!("seed {seed}, turn {turn} of {}: {calls:#?}", side.root.display());
            for (node, side) in sides.iter().enumerate().rev() {
                side.require(&model, &format!("on node {node}: {place}"));
            }
        }
    });
}
