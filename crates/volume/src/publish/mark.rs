//! The published mark: the point up to which a log is applied to the shared tree. Writes alternate between two slots, so
//! that a torn write leaves the older mark.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::log::LogPoint;
use crate::record::InodeNumber;
use crate::replica_file::{find_metadata, is_lost, open_regular_file, remove_any};

/// Size of a slot: a page, so that a torn write damages only one slot.
const SLOT_BYTES: u64 = 4096;
const MAGIC: [u8; 8] = *b"ffvolpub";
/// Maximum number of reads of a file that seems to be damaged. A mark that is being written may look torn, but both marks look
/// so only if two writes meet one read.
const READS_MAX: u32 = 3;

/// The records before `point` are in the shared tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PublishedMark {
    /// The next record to publish.
    pub point: LogPoint,
    /// Epoch of the record before `point`.
    pub epoch: u32,
    /// The highest number that the client has given to an inode in any published record. Numbers are not used twice.
    pub inode_max: u64,
}

/// Whether a client has applied the log of each other client exactly up to its mark. `applied` and `marks` are by client
/// number, and clients without a point in `applied` have applied nothing.
pub fn has_applied_others(client: u16, applied: &[LogPoint], marks: &[PublishedMark]) -> bool {
    let applied = |other: usize| applied.get(other).copied().unwrap_or(LogPoint::START);
    let mut others = marks.iter().enumerate().filter(|(other, _)| *other != usize::from(client));
    others.all(|(other, mark)| applied(other) == mark.point)
}

impl PublishedMark {
    /// The mark of a client's log, with nothing published.
    pub const fn start_of(client: u16) -> Self {
        Self { point: LogPoint::START, epoch: 0, inode_max: InodeNumber::before_first_of(client).0 }
    }
}

//  0       8          16         24          32      36
//  │ magic │ sequence │ position │ inode max │ epoch │ crc32c │
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct MarkLayout {
    magic: [u8; 8],
    sequence: U64,
    position: U64,
    inode_max: U64,
    epoch: U32,
    checksum: U32,
}

/// Whether an error of [`MarkFile::open`] means that the file is damaged.
pub fn is_damaged_mark(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// The file of the mark.
#[derive(Debug)]
pub struct MarkFile {
    file: File,
    mark: PublishedMark,
    next_slot: u64,
}

impl MarkFile {
    /// Creates the file with the blocks of both slots, so that later writes need no space. A crash leaves a complete file or
    /// none.
    ///
    /// # Errors
    /// As open(2), fsync(2) and rename(2).
    pub fn create(path: &Path, mark: PublishedMark) -> io::Result<()> {
        let new = path.with_extension("new");
        // A crash may have left it.
        remove_any(&new)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let mut slots = encode(&mark);
        slots.resize(2 * SLOT_BYTES as usize, 0);
        file.write_all_at(&slots, 0)?;
        file.sync_all()?;
        std::fs::rename(new, path)
    }

    /// Opens the file and reads the newer mark.
    ///
    /// # Errors
    /// `InvalidData` when both slots are damaged, `UnexpectedEof` when the file is too short.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_regular_file(OpenOptions::new().read(true).write(true), path)?;
        let (mark, next_slot) = read_newest(&file)?;
        Ok(Self { file, mark, next_slot })
    }

    /// Whether a file with both slots is at a path. Does not read the marks.
    ///
    /// # Errors
    /// As lstat(2), except for a missing file.
    pub fn is_complete(path: &Path) -> io::Result<bool> {
        Ok(find_metadata(path)?.is_some_and(|found| found.is_file() && found.len() >= 2 * SLOT_BYTES))
    }

    /// Whether a file with a mark at `point` or later is at a path. A worker may write the file at the same time.
    ///
    /// # Errors
    /// As open(2), except for a missing file.
    pub fn has_reached(path: &Path, point: LogPoint) -> io::Result<bool> {
        for _ in 0..READS_MAX {
            let found = open_regular_file(OpenOptions::new().read(true), path).and_then(|file| read_newest(&file));
            match found {
                Ok((mark, _)) if mark.point >= point => return Ok(true),
                Ok(_) => {}
                Err(error) if is_damaged_mark(&error) || is_lost(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// The newest mark.
    pub fn mark(&self) -> PublishedMark {
        self.mark
    }

    /// Writes a mark. It survives a kill of the process, and a power failure after `sync`.
    ///
    /// # Errors
    /// As write(2).
    pub fn write(&mut self, mark: PublishedMark) -> io::Result<()> {
        self.file.write_all_at(&encode(&mark), self.next_slot * SLOT_BYTES)?;
        self.mark = mark;
        self.next_slot = 1 - self.next_slot;
        Ok(())
    }

    /// Makes the mark durable.
    ///
    /// # Errors
    /// As fdatasync(2).
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Reads the newer mark, and returns it with the slot of the next one.
fn read_newest(file: &File) -> io::Result<(PublishedMark, u64)> {
    let mut slots = vec![0; 2 * SLOT_BYTES as usize];
    file.read_exact_at(&mut slots, 0)?;
    let (first, second) = slots.split_at(SLOT_BYTES as usize);
    match (decode(first), decode(second)) {
        (Some(first), Some(second)) if second.point > first.point => Ok((second, 0)),
        (Some(first), _) => Ok((first, 1)),
        (None, Some(second)) => Ok((second, 0)),
        (None, None) => Err(io::Error::new(io::ErrorKind::InvalidData, "both published marks are damaged")),
    }
}

fn encode(mark: &PublishedMark) -> Vec<u8> {
    let mut layout = MarkLayout {
        magic: MAGIC,
        sequence: mark.point.sequence.into(),
        position: mark.point.position.into(),
        inode_max: mark.inode_max.into(),
        epoch: mark.epoch.into(),
        checksum: U32::ZERO,
    };
    layout.checksum = checksum(&layout).into();
    layout.as_bytes().to_vec()
}

fn decode(slot: &[u8]) -> Option<PublishedMark> {
    let (layout, _) = MarkLayout::read_from_prefix(slot).ok()?;
    let is_valid = layout.magic == MAGIC && layout.checksum.get() == checksum(&layout);
    let point = LogPoint { sequence: layout.sequence.get(), position: layout.position.get() };
    is_valid.then(|| PublishedMark { point, epoch: layout.epoch.get(), inode_max: layout.inode_max.get() })
}

fn checksum(layout: &MarkLayout) -> u32 {
    let bytes = layout.as_bytes();
    crc32c::crc32c(&bytes[..bytes.len() - size_of::<U32>()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(sequence: u64) -> PublishedMark {
        PublishedMark { point: LogPoint { sequence, position: 64 * sequence }, epoch: 2, inode_max: 5 }
    }

    #[test]
    fn a_torn_mark_keeps_the_previous_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("published");
        MarkFile::create(&path, PublishedMark::start_of(0)).unwrap();
        let mut file = MarkFile::open(&path).unwrap();
        for sequence in 2..5 {
            file.write(mark(sequence)).unwrap();
            assert_eq!(MarkFile::open(&path).unwrap().mark(), mark(sequence));
        }
        file.file.write_all_at(b"torn", file.next_slot * SLOT_BYTES + 12).unwrap();
        assert_eq!(MarkFile::open(&path).unwrap().mark(), mark(4));
        let has_reached = |sequence| MarkFile::has_reached(&path, mark(sequence).point).unwrap();
        assert!(has_reached(3) && has_reached(4) && !has_reached(5));
        file.file.write_all_at(b"torn", (1 - file.next_slot) * SLOT_BYTES + 12).unwrap();
        assert!(!has_reached(1), "both are torn");
        assert_eq!(MarkFile::open(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
