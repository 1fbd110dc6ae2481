//! Digests of a shared tree, so that replicas can be compared: one of each inode without its data, and one of each part of
//! the data. Replicas that have published the logs up to the same points have the same digests.

use std::fs::File;
use std::io;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use super::file_data::{find_data, read_up_to};
use super::layout::SharedTree;
use super::tree_reader::{LoadedTree, load_tree};
use crate::record::{FileKind, InodeNumber, PAGE_BYTES};
use crate::view::{Inode, InodeContent};

/// Size of a part of a file's data. Each part has its own digest.
pub const DATA_PART_BYTES: u64 = 16 << 20;
/// Maximum number of bytes of one read.
const READ_BYTES: u64 = 256 << 10;

/// SHA-256.
pub type Digest = [u8; 32];

/// One inode without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeDigest {
    /// The inode.
    pub inode: InodeNumber,
    /// Bytes of its data; 0 unless it is a regular file.
    pub data_bytes: u64,
    /// SHA-256 of attributes, extended attributes, and entries or target. The access time is not included: it differs
    /// between nodes.
    pub digest: Digest,
}

/// All inodes of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeDigest {
    /// Number of inodes.
    pub inodes: u64,
    /// Bytes of all files.
    pub data_bytes: u64,
    /// SHA-256 of all inode numbers and digests.
    pub digest: Digest,
}

impl TreeDigest {
    /// Computes the digest of all inodes, which are sorted by number.
    pub fn of(inodes: &[InodeDigest]) -> Self {
        let mut context = Context::new(&SHA256);
        for inode in inodes {
            context.update(&inode.inode.0.to_le_bytes());
            context.update(&inode.digest);
        }
        let data_bytes = inodes.iter().map(|inode| inode.data_bytes).sum();
        Self { inodes: inodes.len() as u64, data_bytes, digest: finish(context) }
    }
}

/// A part of a file's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DataPart {
    /// The file.
    pub inode: InodeNumber,
    /// Index of the part: it begins at `index * DATA_PART_BYTES`.
    pub index: u64,
}

/// The inodes of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestedInodes {
    /// The digest of each inode, by number.
    pub digests: Vec<InodeDigest>,
    /// Paths in `inodes` and `orphans` of files that do not belong to the volume.
    pub foreign: Vec<String>,
}

/// Computes the digest of each inode. Nothing may be published during the call.
///
/// # Errors
/// As `load_namespace`.
pub fn digest_inodes(shared: &SharedTree) -> io::Result<DigestedInodes> {
    let LoadedTree { inodes, foreign } = load_tree(shared)?;
    let mut digests: Vec<_> = inodes.iter().map(|(number, inode)| digest_of(*number, inode)).collect();
    digests.sort_by_key(|digest| digest.inode);
    Ok(DigestedInodes { digests, foreign })
}

/// Computes digests of parts of files. Keeps the last file open, as its other parts usually follow.
#[derive(Debug)]
pub struct DataDigester {
    shared: SharedTree,
    file: Option<(InodeNumber, File)>,
    buffer: Vec<u8>,
    read_bytes: u64,
}

impl DataDigester {
    /// Creates a digester for the files of a tree.
    pub fn new(shared: SharedTree) -> Self {
        Self { shared, file: None, buffer: vec![0; READ_BYTES as usize], read_bytes: 0 }
    }

    /// Number of bytes that were read, without holes.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Computes the digest of a part; none if the file does not exist. A hole has the digest of zeros.
    ///
    /// # Errors
    /// As read(2).
    pub fn digest(&mut self, part: DataPart) -> io::Result<Option<Digest>> {
        if self.file.as_ref().is_none_or(|(inode, _)| *inode != part.inode) {
            self.file = match self.shared.open_data(part.inode) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                opened => Some((part.inode, opened?)),
            };
        }
        let Some((_, file)) = &self.file else { return Ok(None) };
        let mut context = Context::new(&SHA256);
        let mut offset = part.index.saturating_mul(DATA_PART_BYTES);
        let part_end = offset.saturating_add(DATA_PART_BYTES);
        while let Some(data) = find_data(file, offset)?.filter(|data| *data < part_end) {
            let begin = data - data % PAGE_BYTES;
            let room = READ_BYTES.min(part_end - begin) as usize;
            let bytes = read_up_to(file, &mut self.buffer[..room], begin)?;
            if bytes == 0 {
                break;
            }
            // Holes depend on the local file system. So all pages of zeros are left out, whether they are holes or not.
            for (page, content) in (0..).zip(self.buffer[..bytes].chunks(PAGE_BYTES as usize)) {
                if content.iter().any(|byte| *byte != 0) {
                    context.update(&(begin + page * PAGE_BYTES).to_le_bytes());
                    context.update(content);
                }
            }
            self.read_bytes += bytes as u64;
            offset = begin + bytes as u64;
        }
        Ok(Some(finish(context)))
    }
}

fn digest_of(number: InodeNumber, inode: &Inode) -> InodeDigest {
    let mut context = Context::new(&SHA256);
    let attributes = &inode.attributes;
    let [modified, changed] = [attributes.modified, attributes.changed];
    update(&mut context, &[attributes.kind as u8]);
    update(&mut context, &attributes.mode.to_le_bytes());
    for number in [attributes.user, attributes.group, attributes.device, inode.entry_count] {
        update(&mut context, &number.to_le_bytes());
    }
    for time in [modified, changed] {
        update(&mut context, &time.seconds.to_le_bytes());
        update(&mut context, &time.nanoseconds.to_le_bytes());
    }
    update(&mut context, &attributes.size.to_le_bytes());
    for (name, value) in &inode.xattrs {
        update(&mut context, name);
        update(&mut context, value);
    }
    match &inode.content {
        InodeContent::Symlink(target) => update(&mut context, target),
        InodeContent::Directory { entries, .. } => {
            let mut entries: Vec<_> = entries.after(0).map(|entry| (entry.name.as_bytes(), entry.inode.0)).collect();
            entries.sort_unstable();
            for (name, inode) in entries {
                update(&mut context, name);
                update(&mut context, &inode.to_le_bytes());
            }
        }
        InodeContent::File(_) | InodeContent::Special => {}
    }
    let data_bytes = if attributes.kind == FileKind::Regular { attributes.size } else { 0 };
    InodeDigest { inode: number, data_bytes, digest: finish(context) }
}

/// Adds a field after its length, so that bytes cannot move between fields without changing the digest.
fn update(context: &mut Context, field: &[u8]) {
    context.update(&(field.len() as u64).to_le_bytes());
    context.update(field);
}

fn finish(context: Context) -> Digest {
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt as _;
    use std::path::{Path, PathBuf};

    use farfork_cluster::catalog::Durability;
    use rustix::fs::FallocateFlags;
    use rustix::io::Errno;
    use tempfile::TempDir;

    use super::*;
    use crate::change::{ChangeSet, InodeChange};
    use crate::log::LogPoint;
    use crate::publish::{CallBudget, DataCopy, LogData, Publisher};
    use crate::record::{EntryKey, EntryName, InodeAttributes, Timestamp};

    const FILE: InodeNumber = InodeNumber(2);

    struct NoData;

    impl LogData for NoData {
        fn copy(&mut self, _copies: &[DataCopy<'_>]) -> Result<(), Errno> {
            panic!("the change set has no data");
        }
    }

    /// Creates a tree with one file. Returns the path of the file.
    fn tree_with_file(size: u64) -> (TempDir, SharedTree, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shared");
        SharedTree::create(&path).unwrap();
        let time = Timestamp { seconds: 5, nanoseconds: 6 };
        let attributes = InodeAttributes {
            kind: FileKind::Regular,
            mode: 0o644,
            user: 0,
            group: 0,
            device: 0,
            size,
            accessed: time,
            modified: time,
            changed: time,
        };
        let mut changes = ChangeSet::new(LogPoint::START, 0);
        changes.inodes.insert(FILE, InodeChange { attributes: Some(attributes), ..InodeChange::default() });
        let key = EntryKey { parent: InodeNumber::ROOT, name: EntryName::new(b"file").unwrap() };
        changes.entries.insert(key, Some(FILE));
        let shared = || SharedTree::open(&path).unwrap();
        let mut publisher = Publisher::open(shared(), Durability::Memory, CallBudget::default()).unwrap();
        publisher.apply(&changes, &mut NoData).unwrap();
        (directory, shared(), path.join("tree/file"))
    }

    /// Changes a file as a faulty disk would: its timestamps stay.
    fn change(path: &Path, change: impl FnOnce(&File)) {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        let times = fs::FileTimes::new().set_modified(file.metadata().unwrap().modified().unwrap());
        change(&file);
        file.set_times(times).unwrap();
    }

    fn change_data(path: &Path, bytes: &[u8], offset: u64) {
        change(path, |file| file.write_all_at(bytes, offset).unwrap());
    }

    fn digest_data(directory: &TempDir, inode: InodeNumber, index: u64) -> Option<Digest> {
        let shared = SharedTree::open(&directory.path().join("shared")).unwrap();
        DataDigester::new(shared).digest(DataPart { inode, index }).unwrap()
    }

    #[test]
    fn holes_are_not_read() {
        let parts = 1000;
        let (_directory, shared, path) = tree_with_file(parts * DATA_PART_BYTES);
        change_data(&path, &[1; 5000], 700 * DATA_PART_BYTES);
        let mut digester = DataDigester::new(shared);
        let digests: Vec<_> =
            (0..parts).map(|index| digester.digest(DataPart { inode: FILE, index }).unwrap().unwrap()).collect();
        assert_eq!(digests.iter().filter(|digest| **digest != digests[0]).count(), 1);
        assert!(digester.read_bytes() < 2 * READ_BYTES, "{} bytes are read", digester.read_bytes());
    }

    #[test]
    fn a_changed_byte_changes_one_digest_and_a_hole_is_zeros() {
        let (directory, shared, path) = tree_with_file(10_000);
        let data = || digest_data(&directory, FILE, 0).unwrap();
        let (inodes, hole) = (digest_inodes(&shared).unwrap(), data());
        assert_eq!(inodes.digests.iter().map(|digest| digest.data_bytes).collect::<Vec<_>>(), [0, 10_000]);
        change_data(&path, &[0; 4096], 4096);
        assert_eq!(data(), hole, "zeros");
        change_data(&path, &[1], 9_000);
        let changed = data();
        assert_ne!(changed, hole);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        change(&path, |file| rustix::fs::fallocate(file, punch, 4096, 4096).unwrap());
        assert_eq!(data(), changed, "the zeros are a hole again");
        assert_eq!(digest_inodes(&shared).unwrap(), inodes);
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        assert_ne!(digest_inodes(&shared).unwrap(), inodes);
        assert_eq!(digest_data(&directory, InodeNumber(99), 0), None);
    }

    #[test]
    fn foreign_files_are_named_and_change_no_digest() {
        let (directory, shared, _path) = tree_with_file(10);
        let before = digest_inodes(&shared).unwrap();
        assert_eq!(before.foreign, [""; 0]);
        let foreign = ["inodes/03/notes", "inodes/05/0000000000000005", "inodes/readme", "orphans/lost"];
        for path in foreign {
            fs::write(directory.path().join("shared").join(path), b"foreign").unwrap();
        }
        let mut after = digest_inodes(&shared).unwrap();
        after.foreign.sort();
        assert_eq!((after.digests, after.foreign), (before.digests, foreign.map(str::to_owned).to_vec()));
    }

    #[test]
    fn each_part_of_the_data_has_a_digest() {
        let (directory, _shared, path) = tree_with_file(DATA_PART_BYTES + 3000);
        change_data(&path, &[1; 5000], DATA_PART_BYTES - 2000);
        let digest = |index| digest_data(&directory, FILE, index).unwrap();
        let (first, second, beyond) = (digest(0), digest(1), digest(2));
        assert!(first != second && second != beyond);
        change_data(&path, &[2], DATA_PART_BYTES + 2999);
        assert_eq!((digest(0), digest(2)), (first, beyond));
        assert_ne!(digest(1), second);
    }
}
