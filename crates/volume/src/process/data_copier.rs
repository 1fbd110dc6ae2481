//! Copies the data of logs to files of the shared tree, by one of the methods that `--volume-copy` names. The publisher of a
//! volume calls it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use farfork_sys::reflink::{CloneRange, clone_range};
use farfork_sys::write_ring::{CompletionWait, MappedWrite, WriteRing};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::log::{LogFile, file_offset};
use crate::named_values::named_values;
use crate::publish::{DataCopy, LogData, errno_of, write_fully};
use crate::record::PAGE_BYTES;

/// Number of copies in one submission, the same as in LineFS ("LineFS", SOSP 2021).
const BATCH_COPIES: usize = 30;

/// The method to copy data of a log to files of a shared tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMethod {
    /// pwrite(2), one call for each copy.
    #[default]
    Memcpy,
    /// io_uring(7), one copy at a time. The thread polls for the completion.
    Async,
    /// io_uring(7), up to 30 copies at once. The thread polls for the completions.
    AsyncBatch,
    /// io_uring(7), up to 30 copies at once. The thread sleeps until all are complete.
    Event,
    /// Whole blocks are shared with the log (ioctl_ficlonerange(2)), and the rest is copied. Blocks that cannot be shared are
    /// copied, too.
    None,
}

named_values!(CopyMethod {
    Memcpy = "memcpy",
    Async = "async",
    AsyncBatch = "async-batch",
    Event = "event",
    None = "none",
});

impl CopyMethod {
    /// Whether a node can use the method for replicas in a directory.
    ///
    /// # Errors
    /// When the kernel or the file system does not support the method. The text has the next step.
    pub fn check(self, store: &Path) -> io::Result<()> {
        let failed = |cause: &str, error: io::Error| {
            let name = self.name();
            io::Error::other(format!("--volume-copy {name} {cause} ({error}): choose --volume-copy memcpy"))
        };
        match self {
            Self::Memcpy => Ok(()),
            Self::Async | Self::AsyncBatch | Self::Event => DataCopier::new(self).map(drop).map_err(|error| {
                failed("needs io_uring, which this machine does not allow: see kernel.io_uring_disabled", error)
            }),
            Self::None => check_reflinks(store).map_err(|error| {
                let cause = "needs a file system with reflinks, such as XFS or Btrfs";
                failed(&format!("{cause}; {} has none", store.display()), error)
            }),
        }
    }
}

/// Tests whether a file system supports reflinks: shares a block between two files without names.
fn check_reflinks(store: &Path) -> io::Result<()> {
    let [source, target] = [tempfile_in(store)?, tempfile_in(store)?];
    source.write_all_at(&[1; PAGE_BYTES as usize], 0)?;
    clone_range(&source, &target, CloneRange { from_offset: 0, bytes: PAGE_BYTES, to_offset: 0 })
}

fn tempfile_in(directory: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Copies data from logs by one method.
pub(super) struct DataCopier {
    method: CopyMethod,
    /// The ring of a method that uses io_uring.
    ring: Option<WriteRing>,
}

impl DataCopier {
    /// # Errors
    /// As io_uring_setup(2).
    pub(super) fn new(method: CopyMethod) -> io::Result<Self> {
        let ring = match method {
            CopyMethod::Memcpy | CopyMethod::None => None,
            CopyMethod::Async => Some(WriteRing::new(1, CompletionWait::Poll)?),
            CopyMethod::AsyncBatch => Some(WriteRing::new(BATCH_COPIES as u32, CompletionWait::Poll)?),
            CopyMethod::Event => Some(WriteRing::new(BATCH_COPIES as u32, CompletionWait::Event)?),
        };
        Ok(Self { method, ring })
    }

    /// Returns a copier for the data of one log.
    pub(super) fn data_of<'a>(&'a mut self, log: &'a LogFile) -> CopiedLog<'a> {
        CopiedLog { log, copier: self }
    }
}

/// A log whose data is copied.
pub(super) struct CopiedLog<'a> {
    log: &'a LogFile,
    copier: &'a mut DataCopier,
}

impl LogData for CopiedLog<'_> {
    fn copies_max(&self) -> usize {
        match self.copier.method {
            CopyMethod::AsyncBatch | CopyMethod::Event => BATCH_COPIES,
            CopyMethod::Memcpy | CopyMethod::Async | CopyMethod::None => 1,
        }
    }

    fn copy(&mut self, copies: &[DataCopy<'_>]) -> Result<(), Errno> {
        let log = self.log;
        let Some(ring) = &mut self.copier.ring else {
            let is_shared = self.copier.method == CopyMethod::None;
            return copies.iter().try_for_each(|copy| {
                let shared = if is_shared { share_blocks(log, copy) } else { 0..0 };
                let rest = [0..shared.start, shared.end..copy.bytes];
                rest.into_iter().try_for_each(|part| write_part(log, copy, part))
            });
        };
        let writes = copies.iter().map(|copy| MappedWrite {
            mapping: log.mapping(),
            offset: log_offset(log, copy) as usize,
            bytes: copy.bytes,
            file: copy.file,
            file_offset: copy.offset,
        });
        ring.write(&writes.collect::<Vec<_>>()).map_err(errno_of)
    }
}

/// Shares all whole blocks of a copy. Returns their range within the copy. The range is empty if source and target have
/// different offsets within a block, or if the file system refuses. For example, an allocation group of XFS that is nearly full
/// accepts no more references, although other groups have space for a copy.
fn share_blocks(log: &LogFile, copy: &DataCopy<'_>) -> Range<usize> {
    let from = log_offset(log, copy);
    let before = from.next_multiple_of(PAGE_BYTES) - from;
    let bytes = (copy.bytes as u64).saturating_sub(before) / PAGE_BYTES * PAGE_BYTES;
    let is_aligned = from % PAGE_BYTES == copy.offset % PAGE_BYTES;
    if bytes == 0 || !is_aligned {
        return 0..0;
    }
    let range = CloneRange { from_offset: from + before, bytes, to_offset: copy.offset + before };
    match clone_range(log.file(), copy.file, range) {
        Ok(()) => before as usize..(before + bytes) as usize,
        Err(error) => {
            tracing::debug!(%error, bytes, "blocks of a log are copied, because they cannot be shared");
            0..0
        }
    }
}

fn write_part(log: &LogFile, copy: &DataCopy<'_>, part: Range<usize>) -> Result<(), Errno> {
    let from = log_offset(log, copy);
    write_fully(part.len(), |done| {
        let at = (part.start + done) as u64;
        log.write_to(from + at, part.len() - done, copy.file.as_fd(), copy.offset + at).map_err(errno_of)
    })
}

/// Offset of the first byte of a copy in the log file.
fn log_offset(log: &LogFile, copy: &DataCopy<'_>) -> u64 {
    file_offset(copy.log_position, log.header().ring_bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fastrand::Rng;

    use super::*;
    use crate::log::{LOG_BYTES_MIN, LogHeader, LogStorage as _, RING_OFFSET};

    const RING_BYTES: u64 = LOG_BYTES_MIN;

    /// A log with random bytes.
    fn create_log(directory: &Path, random: &mut Rng) -> LogFile {
        let path = directory.join("log");
        LogFile::create(&path, &LogHeader { volume: 1, client: 0, ring_bytes: RING_BYTES }).unwrap();
        let mut log = LogFile::open(&path).unwrap();
        let bytes: Vec<u8> = (0..RING_BYTES).map(|_| random.u8(..)).collect();
        log.store(RING_OFFSET, &bytes);
        log
    }

    #[test]
    fn every_method_copies_every_byte() {
        let mut random = Rng::with_seed(7);
        let directory = tempfile::tempdir().unwrap();
        let log = create_log(directory.path(), &mut random);
        for &method in CopyMethod::ALL {
            // Without reflinks, blocks are copied.
            if method != CopyMethod::None {
                method.check(directory.path()).unwrap();
            }
            let mut copier = DataCopier::new(method).unwrap();
            for round in 0..20 {
                let path = |file: u64| directory.path().join(format!("{method}-{round}-{file}"));
                let files: Vec<File> = (0..3).map(|file| File::create(path(file)).unwrap()).collect();
                let count = copier.data_of(&log).copies_max() as u64;
                let copies: Vec<DataCopy<'_>> = (0..count)
                    .map(|index| {
                        let bytes = random.usize(1..60_000);
                        let position = random.u64(..RING_BYTES - bytes as u64);
                        // Only copies with the same alignment can share blocks.
                        let alignment = if random.bool() { PAGE_BYTES } else { 1 };
                        let log_position = 5 * RING_BYTES + position / alignment * alignment;
                        let file = files[(index % 3) as usize].as_fd();
                        DataCopy { log_position, bytes, file, offset: index * 15 * PAGE_BYTES }
                    })
                    .collect();
                copier.data_of(&log).copy(&copies).unwrap();
                for (index, copy) in copies.iter().enumerate() {
                    let file = fs::read(path(index as u64 % 3)).unwrap();
                    let mut expected = vec![0; copy.bytes];
                    log.load(log_offset(&log, copy), &mut expected);
                    assert!(file[copy.offset as usize..][..copy.bytes] == expected, "{method}, round {round}");
                }
            }
        }
    }

    #[test]
    fn a_file_system_without_reflinks_is_named() {
        // A tmpfs has no reflinks.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let error = CopyMethod::None.check(directory.path()).unwrap_err().to_string();
        assert!(error.contains("XFS or Btrfs") && error.contains("--volume-copy memcpy"), "{error}");
        assert!(error.contains(&directory.path().display().to_string()), "{error}");
    }

    #[test]
    fn copy_methods_parse_from_their_names() {
        for &method in CopyMethod::ALL {
            assert_eq!(method.name().parse(), Ok(method));
        }
        assert!("dma".parse::<CopyMethod>().unwrap_err().contains("async-batch"));
    }
}
