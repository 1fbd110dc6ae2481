//! Executes random operations on a volume and on a local directory. Results, errors and the final tree must be the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::thread;
use std::time::Instant;

use farfork_volume::process::ProcessRole;
use fastrand::Rng;
use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat,
    chownat, fallocate, fstat, ftruncate, lgetxattr, linkat, llistxattr, lremovexattr, lsetxattr, mkdirat, mknodat,
    openat, readlinkat, renameat_with, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite};

use super::mounted_volume::MountedVolume;
use super::test_node::WAIT_LIMIT;
use super::volume_cluster::VolumeCluster;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("random_operations_are_as_on_a_local_file_system", random_operations_are_as_on_a_local_file_system),
    ("concurrent_operations_are_published_as_they_were_seen", concurrent_operations_are_published_as_they_were_seen),
    ("nodes_that_change_the_same_names_see_the_same_tree", nodes_that_change_the_same_names_see_the_same_tree),
];

pub(crate) const LONG_TESTS: &[(&str, fn())] =
    &[("five_thousand_sequences_are_as_on_a_local_file_system", || run_sequences(0..SEQUENCES_LONG))];

/// Number of seeds. `VOLUME_MODEL_SEED` sets the first seed.
const SEQUENCES: u64 = 200;
const SEQUENCES_LONG: u64 = 5_000;
const OPERATIONS: u32 = 120;
const OPEN_FILES: usize = 4;
const FILE_BYTES: u64 = 100_000;

/// The result of an operation, in a form that does not depend on the file system.
pub(crate) type OperationResult = Result<Vec<u8>, Errno>;

/// A root directory, and open files in it.
pub(crate) struct Side {
    root: OwnedFd,
    path: std::path::PathBuf,
    files: [Option<OwnedFd>; OPEN_FILES],
}

/// One operation; its paths are relative to a root.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Open { slot: usize, path: String, flags: OFlags, mode: u32 },
    Close { slot: usize },
    Read { slot: usize, offset: u64, bytes: usize },
    Write { slot: usize, offset: u64, byte: u8, bytes: usize },
    Truncate { slot: usize, bytes: u64 },
    Allocate { slot: usize, mode: FallocateFlags, offset: u64, bytes: u64 },
    Sync { slot: usize },
    StatFile { slot: usize },
    Stat { path: String },
    MakeDirectory { path: String, mode: u32 },
    MakeFifo { path: String, mode: u32 },
    RemoveFile { path: String },
    RemoveDirectory { path: String },
    Rename { path: String, new_path: String, flags: RenameFlags },
    Link { path: String, new_path: String },
    MakeSymlink { target: String, path: String },
    ReadSymlink { path: String },
    ReadDirectory { path: String },
    SetMode { path: String, mode: u32 },
    SetOwner { path: String, user: u32, group: u32 },
    SetTimes { path: String, seconds: i64, nanoseconds: i64 },
    SetXattr { path: String, name: &'static str, value: String, flags: XattrFlags },
    RemoveXattr { path: String, name: &'static str },
    ReadXattrs { path: String },
}

impl Side {
    pub(crate) fn new(path: &Path) -> Self {
        let root = openat(CWD, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        Self { root, path: path.to_owned(), files: [const { None }; OPEN_FILES] }
    }

    fn file(&self, slot: usize) -> Result<&OwnedFd, Errno> {
        self.files[slot].as_ref().ok_or(Errno::BADF)
    }

    pub(crate) fn execute(&mut self, operation: &Operation) -> OperationResult {
        match operation {
            Operation::Open { slot, path, flags, mode } => {
                let flags = *flags | OFlags::CLOEXEC;
                self.files[*slot] = None;
                self.files[*slot] = Some(openat(&self.root, path, flags, Mode::from_raw_mode(*mode))?);
                Ok(Vec::new())
            }
            Operation::Close { slot } => {
                self.files[*slot] = None;
                Ok(Vec::new())
            }
            Operation::Read { .. }
            | Operation::Write { .. }
            | Operation::Truncate { .. }
            | Operation::Allocate { .. }
            | Operation::Sync { .. }
            | Operation::StatFile { .. } => self.execute_on_file(operation),
            Operation::SetXattr { .. } | Operation::RemoveXattr { .. } | Operation::ReadXattrs { .. } => {
                self.execute_on_xattrs(operation)
            }
            _ => self.execute_on_path(operation),
        }
    }

    /// Whether an operation uses an open file that has no name any more.
    pub(crate) fn is_removed(&self, operation: &Operation) -> bool {
        let slot = match *operation {
            Operation::Read { slot, .. }
            | Operation::Write { slot, .. }
            | Operation::Truncate { slot, .. }
            | Operation::Allocate { slot, .. }
            | Operation::Sync { slot }
            | Operation::StatFile { slot } => slot,
            _ => return false,
        };
        self.file(slot).and_then(fstat).is_ok_and(|state| state.st_nlink == 0)
    }

    fn execute_on_file(&self, operation: &Operation) -> OperationResult {
        match *operation {
            Operation::Read { slot, offset, bytes } => {
                let mut buffer = vec![0; bytes];
                let count = pread(self.file(slot)?, buffer.as_mut_slice(), offset)?;
                buffer.truncate(count);
                Ok(buffer)
            }
            Operation::Write { slot, offset, byte, bytes } => {
                Ok(vec![u8::from(pwrite(self.file(slot)?, &vec![byte; bytes], offset)? == bytes)])
            }
            Operation::Truncate { slot, bytes } => ftruncate(self.file(slot)?, bytes).map(|()| Vec::new()),
            Operation::Allocate { slot, mode, offset, bytes } => {
                fallocate(self.file(slot)?, mode, offset, bytes).map(|()| Vec::new())
            }
            Operation::Sync { slot } => rustix::fs::fsync(self.file(slot)?).map(|()| Vec::new()),
            Operation::StatFile { slot } => Ok(describe(&fstat(self.file(slot)?)?)),
            _ => unreachable!("an operation on an open file"),
        }
    }

    fn execute_on_path(&self, operation: &Operation) -> OperationResult {
        let root = self.root.as_fd();
        let done = |()| Vec::new();
        match operation {
            Operation::Stat { path } => Ok(describe(&statat(root, path, AtFlags::SYMLINK_NOFOLLOW)?)),
            Operation::MakeDirectory { path, mode } => mkdirat(root, path, Mode::from_raw_mode(*mode)).map(done),
            Operation::MakeFifo { path, mode } => {
                mknodat(root, path, rustix::fs::FileType::Fifo, Mode::from_raw_mode(*mode), 0).map(done)
            }
            Operation::RemoveFile { path } => unlinkat(root, path, AtFlags::empty()).map(done),
            Operation::RemoveDirectory { path } => unlinkat(root, path, AtFlags::REMOVEDIR).map(done),
            Operation::Rename { path, new_path, flags } => {
                renameat_with(root, path, root, new_path, *flags).map(done).map_err(|error| match error {
                    // POSIX permits both errors. For a directory that is not empty, XFS reports this one.
                    Errno::EXIST if flags.is_empty() => Errno::NOTEMPTY,
                    error => error,
                })
            }
            Operation::Link { path, new_path } => linkat(root, path, root, new_path, AtFlags::empty()).map(done),
            Operation::MakeSymlink { target, path } => symlinkat(target, root, path).map(done),
            Operation::ReadSymlink { path } => Ok(readlinkat(root, path, Vec::new())?.into_bytes()),
            Operation::ReadDirectory { path } => self.read_directory(path),
            Operation::SetMode { path, mode } => {
                chmodat(root, path, Mode::from_raw_mode(*mode), AtFlags::empty()).map(done)
            }
            Operation::SetOwner { path, user, group } => {
                let (user, group) = (Some(Uid::from_raw(*user)), Some(Gid::from_raw(*group)));
                chownat(root, path, user, group, AtFlags::SYMLINK_NOFOLLOW).map(done)
            }
            Operation::SetTimes { path, seconds, nanoseconds } => {
                let time = Timespec { tv_sec: *seconds, tv_nsec: *nanoseconds };
                let times = Timestamps { last_access: time, last_modification: time };
                utimensat(root, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
                let state = statat(root, path, AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(format!("{} {}", state.st_mtime, state.st_mtime_nsec).into_bytes())
            }
            _ => unreachable!("an operation on a path"),
        }
    }

    fn execute_on_xattrs(&self, operation: &Operation) -> OperationResult {
        match operation {
            Operation::SetXattr { path, name, value, flags } => {
                lsetxattr(self.path.join(path), *name, value.as_bytes(), *flags).map(|()| Vec::new())
            }
            Operation::RemoveXattr { path, name } => lremovexattr(self.path.join(path), *name).map(|()| Vec::new()),
            Operation::ReadXattrs { path } => read_xattrs(&self.path.join(path)),
            _ => unreachable!("an operation on extended attributes"),
        }
    }

    fn read_directory(&self, path: &str) -> OperationResult {
        let directory = openat(&self.root, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            names.push(format!("{:?} {:?}", entry.file_name(), entry.file_type()));
        }
        names.sort();
        Ok(names.join("\n").into_bytes())
    }
}

fn read_xattrs(path: &Path) -> OperationResult {
    let mut names = vec![0; 4096];
    let length = llistxattr(path, names.as_mut_slice())?;
    let mut found = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0; 4096];
        let length = lgetxattr(path, name, value.as_mut_slice())?;
        found.insert(name.to_vec(), value[..length].to_vec());
    }
    Ok(format!("{found:?}").into_bytes())
}

/// Describes kind, mode, links, owner and size. The size of a directory is left out, because it depends on the file system.
fn describe(state: &rustix::fs::Stat) -> Vec<u8> {
    let is_directory = rustix::fs::FileType::from_raw_mode(state.st_mode).is_dir();
    let size = if is_directory { 0 } else { state.st_size };
    format!("{:o} {} {} {} {size}", state.st_mode, state.st_nlink, state.st_uid, state.st_gid).into_bytes()
}

/// Returns a path with up to three names. There are few names, so that many paths exist and many do not.
fn random_path(random: &mut Rng) -> String {
    let levels = random.usize(1..=3);
    let names: Vec<&str> = (0..levels).map(|_| ["a", "b", "c", "d"][random.usize(..4)]).collect();
    names.join("/")
}

pub(crate) fn random_operation(random: &mut Rng) -> Operation {
    let slot = random.usize(..OPEN_FILES);
    let mode = random.u32(..0o10000);
    let offset = random.u64(..FILE_BYTES);
    let bytes = random.u64(1..FILE_BYTES / 4);
    let path = random_path(random);
    match random.u32(..34) {
        0..=3 => Operation::Open { slot, path, flags: random_flags(random), mode },
        4 => Operation::Close { slot },
        5..=7 => Operation::Read { slot, offset, bytes: bytes as usize },
        8..=11 => Operation::Write { slot, offset, byte: random.u8(..), bytes: bytes as usize },
        12 => Operation::Truncate { slot, bytes: offset },
        13 => Operation::Allocate { slot, mode: random_allocation(random), offset, bytes },
        14 => Operation::Sync { slot },
        15 => Operation::StatFile { slot },
        16 => Operation::Stat { path },
        17..=19 => Operation::MakeDirectory { path, mode },
        20 => Operation::MakeFifo { path, mode },
        21 => Operation::RemoveFile { path },
        22 => Operation::RemoveDirectory { path },
        23..=25 => {
            let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE][random.usize(..3)];
            Operation::Rename { path, new_path: random_path(random), flags }
        }
        26 => Operation::Link { path, new_path: random_path(random) },
        27 => Operation::MakeSymlink { target: random_path(random), path },
        28 => Operation::ReadSymlink { path },
        29 => Operation::ReadDirectory { path },
        30 => Operation::SetMode { path, mode },
        31 => Operation::SetOwner { path, user: random.u32(..3), group: random.u32(..3) },
        32 => Operation::SetTimes { path, seconds: random.i64(-9..1 << 31), nanoseconds: random.i64(..1_000_000_000) },
        _ => random_xattr_operation(random, path),
    }
}

fn random_flags(random: &mut Rng) -> OFlags {
    let access = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR][random.usize(..4)];
    // Without O_NONBLOCK, the open(2) of a FIFO would wait.
    let mut flags = access | OFlags::NONBLOCK;
    for flag in [OFlags::CREATE, OFlags::CREATE, OFlags::EXCL, OFlags::TRUNC, OFlags::APPEND, OFlags::NOFOLLOW] {
        if random.u32(..3) == 0 {
            flags |= flag;
        }
    }
    flags
}

fn random_allocation(random: &mut Rng) -> FallocateFlags {
    let keep = FallocateFlags::KEEP_SIZE;
    let modes = [FallocateFlags::empty(), keep, FallocateFlags::PUNCH_HOLE | keep, FallocateFlags::ZERO_RANGE];
    modes[random.usize(..modes.len())]
}

fn random_xattr_operation(random: &mut Rng, path: String) -> Operation {
    let name = ["user.one", "user.two", "trusted.three"][random.usize(..3)];
    let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE][random.usize(..3)];
    match random.u32(..3) {
        0 => Operation::SetXattr { path, name, value: "v".repeat(random.usize(..100)), flags },
        1 => Operation::RemoveXattr { path, name },
        _ => Operation::ReadXattrs { path },
    }
}

/// Returns attributes and data of all files below a directory, by path.
pub(crate) fn digest(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let state = rustix::fs::lstat(&path).unwrap();
        let kind = rustix::fs::FileType::from_raw_mode(state.st_mode);
        let mut value = describe(&state);
        if kind.is_file() {
            value.extend(fs::read(&path).unwrap());
        } else if kind.is_symlink() {
            value.extend(fs::read_link(&path).unwrap().as_os_str().as_bytes());
        } else if kind.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        value.extend(read_xattrs(&path).unwrap_or_default());
        found.insert(name, value);
    }
    found
}

/// Returns the paths that differ between digests, with the values of each digest.
fn find_differences(trees: &[&BTreeMap<String, Vec<u8>>]) -> Vec<String> {
    let paths: BTreeSet<&String> = trees.iter().flat_map(|tree| tree.keys()).collect();
    let differs = |path: &&String| trees.iter().any(|tree| tree.get(*path) != trees[0].get(*path));
    let described = paths.into_iter().filter(differs).map(|path| {
        let values = trees.iter().map(|tree| tree.get(path).map(|value| value.escape_ascii().to_string()));
        format!("{path}: {:.100?}", values.collect::<Vec<_>>())
    });
    described.collect()
}

pub(crate) fn require_equal_trees(
    found: &BTreeMap<String, Vec<u8>>,
    expected: &BTreeMap<String, Vec<u8>>,
    compared: &str,
) {
    let differences = find_differences(&[found, expected]);
    assert!(differences.is_empty(), "{compared}: {differences:#?}");
}

fn run_sequence(volume: &MountedVolume, local: &Path, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let name = format!("sequence-{seed}");
    let roots = [volume.path().join(&name), local.join(&name)];
    let mut sides = roots.each_ref().map(|root| {
        fs::create_dir(root).unwrap();
        Side::new(root)
    });
    for step in 0..OPERATIONS {
        let operation = random_operation(&mut random);
        let [found, expected] = sides.each_mut().map(|side| side.execute(&operation));
        assert!(found == expected, "seed {seed}, step {step}: {operation:?}\n volume {found:?}\n local  {expected:?}");
    }
    drop(sides);
    let [found, expected] = roots.each_ref().map(|root| digest(root));
    require_equal_trees(&found, &expected, &format!("seed {seed}, the volume and a local directory"));
    fs::remove_dir_all(&roots[1]).unwrap();
}

fn random_operations_are_as_on_a_local_file_system() {
    let first = std::env::var("VOLUME_MODEL_SEED").map_or(0, |text| text.parse().expect("a number"));
    run_sequences(first..first + SEQUENCES);
}

fn run_sequences(seeds: Range<u64>) {
    rustix::process::umask(Mode::empty());
    let mut volume = MountedVolume::create();
    let local = volume.local_path().join("local");
    fs::create_dir(&local).unwrap();
    let started = Instant::now();
    for seed in seeds.clone() {
        run_sequence(&volume, &local, seed);
        match seed % 20 {
            5 => volume.kill(&[ProcessRole::Worker]),
            15 => volume.kill(&[ProcessRole::Offload, ProcessRole::Worker]),
            _ => {}
        }
    }
    let before = digest(&volume.path());
    volume.unmount();
    volume.mount();
    require_equal_trees(&digest(&volume.path()), &before, "after a remount and before");
    println!("sequences {seeds:?} of {OPERATIONS} operations: {:.1} s", started.elapsed().as_secs_f64());
}

/// Executes operations, most of which fail.
pub(crate) fn execute_random(root: &Path, seed: u64, operations: u32) {
    let (mut side, mut random) = (Side::new(root), Rng::with_seed(seed));
    let successes = (0..operations).filter(|_| side.execute(&random_operation(&mut random)).is_ok()).count();
    assert!(successes * 30 > operations as usize, "only {successes} of {operations} operations succeeded");
}

/// Threads change the same few names. The resulting tree must be the same after a kill and after a remount.
fn concurrent_operations_are_published_as_they_were_seen() {
    const THREADS: u64 = 4;
    const OPERATIONS_PER_THREAD: u32 = 3_000;
    rustix::process::umask(Mode::empty());
    let mut volume = MountedVolume::create();
    let root = volume.path();
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let root = &root;
            scope.spawn(move || execute_random(root, 1_000_000 + seed, OPERATIONS_PER_THREAD));
        }
        for roles in [&[ProcessRole::Worker][..], &[ProcessRole::Offload], &[ProcessRole::Worker, ProcessRole::Offload]]
        {
            volume.kill(roles);
        }
    });
    let before = digest(&root);
    assert!(before.len() > 5, "{:?}", before.keys());
    volume.kill(&[ProcessRole::Client]);
    require_equal_trees(&digest(&root), &before, "after a killed client and before");
    volume.unmount();
    volume.mount();
    require_equal_trees(&digest(&root), &before, "after a remount and before");
}

/// Waits until all nodes see the same tree: the kernel may have older attributes for some milliseconds.
pub(crate) fn wait_for_equal_trees(cluster: &VolumeCluster) -> BTreeMap<String, Vec<u8>> {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        let trees: Vec<_> = (0..cluster.nodes.len()).map(|node| digest(&cluster.path(node))).collect();
        let differences = find_differences(&trees.iter().collect::<Vec<_>>());
        if differences.is_empty() {
            return trees.into_iter().next().unwrap();
        }
        assert!(Instant::now() < deadline, "nodes see different files: {differences:#?}");
    }
}

/// Threads of three nodes change the same few names. Afterwards all nodes, and new clients, must see the same tree.
fn nodes_that_change_the_same_names_see_the_same_tree() {
    const THREADS_PER_NODE: u64 = 2;
    const OPERATIONS_PER_THREAD: u32 = 600;
    rustix::process::umask(Mode::empty());
    let cluster = VolumeCluster::three_replicas();
    thread::scope(|scope| {
        for seed in 0..3 * THREADS_PER_NODE {
            let root = cluster.path(seed as usize % 3);
            scope.spawn(move || execute_random(&root, 2_000_000 + seed, OPERATIONS_PER_THREAD));
        }
    });
    let published = cluster.published_tree();
    let expected = wait_for_equal_trees(&cluster);
    assert_eq!(published.len() + 1, expected.len(), "the root, and each published file");
    for node in 0..3 {
        cluster.nodes[node].kill(&[ProcessRole::Client]);
        assert!(digest(&cluster.path(node)) == expected, "after a killed client of node {node}");
    }
}
