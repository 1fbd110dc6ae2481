//! The memory map of a process, and the extents in which the owner serves its memory.

use serde::{Deserialize, Serialize};

use super::layer::InheritedRun;

/// PROT_* bits of mmap(2): 1 read, 2 write, 4 execute.
pub type Protection = u8;

/// Index into [`Descriptor::extents`](super::Descriptor::extents).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExtentId(pub u32);

impl ExtentId {
    /// The descriptor itself. It is read from the owner like memory.
    pub const DESCRIPTOR: ExtentId = ExtentId(u32::MAX);
    /// The pages that the seed's children touch, in order. It is read from the owner like memory, and is empty until the
    /// owner knows these pages.
    pub const WORKING_SET: ExtentId = ExtentId(u32::MAX - 1);
    /// The current states of the seed's files, one byte each ([`FileState`]): the mapped files first, then the file
    /// versions. They are read from the owner like memory; the owner examines each file at each read.
    pub const FILE_STATES: ExtentId = ExtentId(u32::MAX - 2);
}

/// One mapping of the address space; `start` and `end` are multiples of the page size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Permitted accesses.
    pub protection: Protection,
    /// Further properties.
    pub flags: MappingFlags,
    /// Where its contents come from.
    pub backing: Backing,
    /// Guard pages (MADV_GUARD_INSTALL), counted from the start of the mapping, ascending.
    pub guards: Vec<PageRun>,
}

/// Properties of a mapping other than its protection (proc_pid_smaps, VmFlags).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingFlags {
    /// MAP_GROWSDOWN: a main thread's stack.
    pub grows_down: bool,
    /// MAP_NORESERVE.
    pub no_reserve: bool,
    /// mlock(2).
    pub locked: bool,
    /// MADV_HUGEPAGE, or the kernel gave the mapping huge pages by itself.
    pub huge_page: bool,
    /// MADV_NOHUGEPAGE.
    pub no_huge_page: bool,
    /// MADV_WIPEONFORK: a child sees zeroes.
    pub wipe_on_fork: bool,
    /// MADV_DONTFORK: the child has the mapping, but the child's own forks do not.
    pub dont_fork: bool,
    /// MADV_DONTDUMP.
    pub dont_dump: bool,
    /// MADV_SEQUENTIAL.
    pub sequential: bool,
    /// MADV_RANDOM.
    pub random: bool,
    /// MADV_MERGEABLE.
    pub mergeable: bool,
    /// MAP_DROPPABLE: the kernel may drop its pages at any time, and a child sees zeroes.
    pub droppable: bool,
}

/// Where a mapping's contents come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Private memory without a file, or a private file mapping that has written pages: paged from the owner. Without an
    /// extent, all pages read as zeroes.
    Anonymous {
        /// The contents of the pages. The extent is exactly as long as the mapping.
        extent: Option<ExtentId>,
    },
    /// A private file mapping without written pages. If the node has the same file, the pages are read from it; otherwise
    /// they are paged from `extent`.
    PrivateFile {
        /// Index into the mapped files.
        file: u32,
        /// Offset in the file, in bytes.
        offset: u64,
        /// The owner's copy of the bytes.
        extent: ExtentId,
    },
    /// A shared mapping of a file on a disk.
    SharedFile {
        /// Index into the mapped files.
        file: u32,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Whether the file must be opened for writing.
        writable: bool,
        /// The owner's copy of the bytes. `None` if the process can write to the mapping.
        extent: Option<ExtentId>,
    },
    /// A shared mapping of memory without a path.
    SharedMemory {
        /// Index into the shared objects.
        object: u32,
        /// Offset in the object, in bytes.
        offset: u64,
    },
    /// A page that the kernel provides.
    Special(SpecialMapping),
    /// A private mapping of memory without a path. The pages of `written` belong to the process; the others show the current
    /// contents of the object.
    PrivateObject {
        /// Index into the shared objects.
        object: u32,
        /// Offset in the object, in bytes.
        offset: u64,
        /// The written pages; `None` if there are none.
        written: Option<ExtentId>,
    },
    /// A private mapping of a file that a process of the seed may also write to by other means. The pages of `written`
    /// belong to the process. The others show the current contents of the node's file, if that is the same file; otherwise
    /// they are paged from `extent`.
    PrivateWritableFile {
        /// Index into the mapped files.
        file: u32,
        /// Offset in the file, in bytes.
        offset: u64,
        /// All pages: the pages of the file, and the written ones.
        extent: ExtentId,
        /// The written pages; `None` if there are none.
        written: Option<ExtentId>,
    },
}

impl Backing {
    /// The pages that were written through a private mapping. From the child's start, they replace the pages of the file or
    /// object.
    pub fn written_extent(&self) -> Option<ExtentId> {
        match *self {
            Self::PrivateObject { written, .. } | Self::PrivateWritableFile { written, .. } => written,
            _ => None,
        }
    }
}

/// Mappings that the kernel provides to each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpecialMapping {
    /// `[vdso]`.
    Vdso,
    /// `[vvar]`.
    Vvar,
    /// `[vvar_vclock]`.
    VvarVclock,
}

impl SpecialMapping {
    /// All special mappings.
    pub const ALL: [Self; 3] = [Self::Vdso, Self::Vvar, Self::VvarVclock];
}

/// A range of memory that the owner serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Where the owner reads the extent.
    pub source: ExtentSource,
    /// Its length, in bytes; a multiple of the page size.
    pub bytes: u64,
    /// The pages that the owner has and that may contain data other than zeroes: ascending, with a gap between two runs.
    pub populated: Vec<PageRun>,
    /// The pages that other seeds own, ascending. The owner does not have them.
    pub inherited: Vec<InheritedRun>,
}

impl Extent {
    /// Whether all pages read as zeroes, so that there is nothing to fetch.
    pub fn is_empty(&self) -> bool {
        self.populated.is_empty() && self.inherited.is_empty()
    }

    /// Whether a page may contain data other than zeroes, in this seed or in a layer.
    pub fn has_data(&self, page: u64) -> bool {
        let own = self.populated.partition_point(|run| run.first <= page).checked_sub(1).map(|at| &self.populated[at]);
        let of_others =
            self.inherited.partition_point(|run| run.first <= page).checked_sub(1).map(|at| &self.inherited[at]);
        own.is_some_and(|run| page - run.first < run.count) || of_others.is_some_and(|run| page - run.first < run.count)
    }
}

/// Where the owner reads an extent. Readers never use the source: they name an extent and an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExtentSource {
    /// A template's memory, from this address.
    Template {
        /// Number of the process that the template belongs to.
        process: u32,
        /// First address.
        address: u64,
    },
    /// The copy of a shared object, from its start.
    SharedObject {
        /// Index into the shared objects.
        object: u32,
    },
    /// A file that the owner keeps open, from its start.
    File {
        /// Index into the file versions.
        version: u32,
    },
}

/// Adjacent pages of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRun {
    /// Number of the first page, counted from the extent's start.
    pub first: u64,
    /// Number of pages; at least one.
    pub count: u64,
}

/// A file that mappings refer to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedFile {
    /// Its path, as the process sees it.
    pub path: String,
    /// The values by which another node recognizes the same file.
    pub identity: FileIdentity,
    /// A mapping through which the owner finds the file.
    pub owner_range: MappedRange,
    /// Whether the process has written pages of a private mapping of the file. The kernel removes such pages from all
    /// processes when the file is truncated.
    pub has_written_pages: bool,
}

/// A mapping of a file in a template. It refers to the file even if the path now leads to another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedRange {
    /// Number of the process that the template belongs to.
    pub process: u32,
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
}

/// The current state of a file, compared with its state at capture, as the owner reports it ([`ExtentId::FILE_STATES`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileState {
    /// The bytes are those of the capture.
    Unchanged,
    /// The file was changed in place.
    Changed,
    /// The owner no longer holds the file.
    NotHeld,
}

impl FileState {
    /// The state as a byte of [`ExtentId::FILE_STATES`].
    pub fn to_byte(self) -> u8 {
        match self {
            Self::Unchanged => 0,
            Self::Changed => 1,
            Self::NotHeld => 2,
        }
    }

    /// Returns the state for a byte. An unknown byte counts as a change.
    pub fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Unchanged,
            2 => Self::NotHeld,
            _ => Self::Changed,
        }
    }
}

/// Distinguishes a file from other files with the same path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Size, in bytes.
    pub bytes: u64,
    /// Device number on the node of the capture. Device and inode are comparable only within one boot of one kernel.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Time of last modification, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Time of the last change of bytes or attributes, in nanoseconds since 1970. No system call can set it.
    pub changed_ns: i64,
    /// Number of hard links.
    pub links: u32,
    /// Mode and owner.
    pub status: FileStatus,
    /// The ELF build id, if the file has one.
    pub build_id: Option<Vec<u8>>,
    /// SHA-256 of the bytes; only for small files without a build id.
    pub digest: Option<[u8; super::DIGEST_BYTES]>,
}

/// Shared memory without a path, copied while the parent was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedObject {
    /// The name given to memfd_create(2); empty for shared anonymous memory.
    pub name: String,
    /// Size in bytes, as in fstat(2); not necessarily a multiple of the page size.
    pub bytes: u64,
    /// F_GET_SEALS; `None` if the object does not support seals.
    pub seals: Option<u32>,
    /// The kind of the object, with the fields that only this kind has.
    pub kind: SharedObjectKind,
    /// Times of the last access and modification.
    pub times: FileTimes,
    /// The extent with the contents; its length is `bytes`, rounded up to whole pages.
    pub extent: ExtentId,
}

/// The kind of a shared object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedObjectKind {
    /// Shared anonymous memory.
    #[default]
    Anonymous,
    /// A memfd.
    MemFd(FileStatus),
    /// A file that was deleted.
    DeletedFile(FileStatus),
    /// POSIX shared memory: a file below `/dev/shm`.
    PosixShm {
        /// The path, as the process sees it.
        path: String,
        /// Mode and owner.
        status: FileStatus,
    },
    /// A segment of System V shared memory.
    SystemV {
        /// The key given to shmget(2); 0 for none.
        key: u32,
        /// The id that shmget(2) returned.
        id: u32,
        /// Mode and owner.
        status: FileStatus,
        /// Whether it is marked for removal: it is destroyed when the last process detaches it.
        is_removed: bool,
    },
}

/// Mode and owner of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Permission bits.
    pub mode: u32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Times of the last access and modification of a file, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTimes {
    /// st_atime.
    pub accessed_ns: i64,
    /// st_mtime.
    pub modified_ns: i64,
}
