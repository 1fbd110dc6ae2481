//! The mapped file of a log. Opening it takes no lock: the caller holds the lock of the volume.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use farfork_sys::shared_mapping::SharedMapping;
use rustix::fs::{FallocateFlags, fallocate};

use super::layout::{HEADER_BYTES, LogHeader, LogHeaderError, RING_OFFSET};
use super::storage::LogStorage;
use crate::replica_file::{is_lost, open_regular_file};

/// A log file and its mapping.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    mapping: SharedMapping,
    header: LogHeader,
}

/// The header and the metadata of a log, which `LogFile::inspect` reads.
#[derive(Debug)]
pub struct InspectedLog {
    /// The header of the log.
    pub header: LogHeader,
    /// The metadata of its file.
    pub metadata: Metadata,
}

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogFileError {
    /// A system call failed.
    #[error("cannot access the log: {0}")]
    Access(#[from] io::Error),
    /// The file is not a log, or its header is damaged.
    #[error("cannot read the log: {0}")]
    Header(#[from] LogHeaderError),
}

impl LogFileError {
    /// Whether the file is missing, of another type, too short, or has a damaged header.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Access(error) => is_lost(error) || error.kind() == io::ErrorKind::UnexpectedEof,
            Self::Header(error) => *error == LogHeaderError::Invalid,
        }
    }
}

impl LogFile {
    /// Creates a log file. Allocates its blocks now: otherwise, a store to the mapping would raise SIGBUS on a full disk.
    ///
    /// # Errors
    /// As open(2) and fallocate(2). An existing file is not replaced.
    pub fn create(path: &Path, header: &LogHeader) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        fallocate(&file, FallocateFlags::empty(), 0, RING_OFFSET + header.ring_bytes)?;
        file.write_all_at(&header.encode(), 0)?;
        file.sync_all()
    }

    /// Reads header and metadata of the log at a path, without mapping it.
    ///
    /// # Errors
    /// As `open`.
    pub fn inspect(path: &Path) -> Result<InspectedLog, LogFileError> {
        inspect(&open_regular_file(OpenOptions::new().read(true), path)?)
    }

    /// Opens and maps a log.
    ///
    /// # Errors
    /// [`LogFileError`]; `UnexpectedEof` for a file that is shorter than its ring.
    pub fn open(path: &Path) -> Result<Self, LogFileError> {
        let file = open_regular_file(OpenOptions::new().read(true).write(true), path)?;
        let header = inspect(&file)?.header;
        let mapping = SharedMapping::map_file(&file, (RING_OFFSET + header.ring_bytes) as usize)?;
        Ok(Self { file, mapping, header })
    }

    /// Maps the same file once more, for another thread.
    ///
    /// # Errors
    /// As dup(2) and mmap(2).
    pub fn map_again(&self) -> io::Result<Self> {
        let mapping = SharedMapping::map_file(&self.file, (RING_OFFSET + self.header.ring_bytes) as usize)?;
        Ok(Self { file: self.file.try_clone()?, mapping, header: self.header })
    }

    /// The header.
    pub fn header(&self) -> &LogHeader {
        &self.header
    }

    /// Copies bytes at an offset of the log to the end of a buffer.
    pub fn append_to(&self, buffer: &mut Vec<u8>, offset: u64, bytes: u64) {
        self.mapping.append_to(buffer, offset as usize, bytes as usize);
    }

    /// Writes bytes at an offset of the log to another file, without a copy of them in this process. Returns the number of
    /// written bytes.
    ///
    /// # Errors
    /// As pwrite(2).
    pub fn write_to(&self, offset: u64, bytes: usize, file: impl AsFd, file_offset: u64) -> io::Result<usize> {
        self.mapping.write_to(offset as usize, bytes, file, file_offset)
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The mapping of the whole file.
    pub(crate) fn mapping(&self) -> &SharedMapping {
        &self.mapping
    }

    /// Duplicates the file descriptor, to flush the log while others use the mapping.
    ///
    /// # Errors
    /// As dup(2).
    pub fn try_clone_file(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

fn inspect(file: &File) -> Result<InspectedLog, LogFileError> {
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    let (header, metadata) = (LogHeader::decode(&bytes)?, file.metadata()?);
    if metadata.len() < RING_OFFSET + header.ring_bytes {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(InspectedLog { header, metadata })
}

impl LogStorage for LogFile {
    fn store(&mut self, offset: u64, bytes: &[u8]) {
        self.mapping.copy_in(offset as usize, bytes);
    }

    fn load(&self, offset: u64, into: &mut [u8]) {
        self.mapping.copy_out(offset as usize, into);
    }
}
