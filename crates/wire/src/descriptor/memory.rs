//! The memory map of a process, and the extents that the owner serves of it.

use serde::{Deserialize, Serialize};

use super::layer::InheritedRun;

/// PROT_* bits of mmap(2): 1 read, 2 write, 4 execute.
pub type Protection = u8;

/// Index into [`Descriptor::extents`](super::Descriptor::extents).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExtentId(pub u32);

impl ExtentId {
    /// The descriptor itself, which is read from the owner like memory.
    pub const DESCRIPTOR: ExtentId = ExtentId(u32::MAX);
    /// Which pages the seed's children touch, in order: read from the owner like memory, and empty while none is known.
    pub const WORKING_SET: ExtentId = ExtentId(u32::MAX - 1);
    /// What became of the seed's files since, a byte for each ([`FileState`]): of those that are mapped first, then of the others. Read from the
    /// owner like memory; the owner looks at each file anew.
    pub const FILE_STATES: ExtentId = ExtentId(u32::MAX - 2);
}

/// One area of the address space; `start` and `end` are multiples of the page size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address behind the last byte.
    pub end: u64,
    /// What may be done with it.
    pub protection: Protection,
    /// Further properties.
    pub flags: MappingFlags,
    /// Where its contents come from.
    pub backing: Backing,
    /// Pages that must not be touched (MADV_GUARD_INSTALL), counted from its start, ascending.
    pub guards: Vec<PageRun>,
}

/// Properties of a mapping beside its protection (proc_pid_smaps, VmFlags).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingFlags {
    /// MAP_GROWSDOWN: a main thread's stack.
    pub grows_down: bool,
    /// MAP_NORESERVE.
    pub no_reserve: bool,
    /// mlock(2).
    pub locked: bool,
    /// MADV_HUGEPAGE, or the kernel gave it huge pages without.
    pub huge_page: bool,
    /// MADV_NOHUGEPAGE.
    pub no_huge_page: bool,
    /// MADV_WIPEONFORK: a child sees zeroes.
    pub wipe_on_fork: bool,
    /// MADV_DONTFORK: carried, but absent from what the child itself forks.
    pub dont_fork: bool,
    /// MADV_DONTDUMP.
    pub dont_dump: bool,
    /// MADV_SEQUENTIAL.
    pub sequential: bool,
    /// MADV_RANDOM.
    pub random: bool,
    /// MADV_MERGEABLE.
    pub mergeable: bool,
    /// MAP_DROPPABLE: the kernel may take its pages away at any time, and a child sees zeroes.
    pub droppable: bool,
}

/// Where a mapping's contents come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Private memory without a file, or a private file mapping that has written pages: paged from the owner.
    /// `None`: nothing to fetch, the child sees zeroes.
    Anonymous {
        /// What the pages come from; the extent is exactly as long as the mapping.
        extent: Option<ExtentId>,
    },
    /// A private file mapping without written pages: from the node's own file where it is the same file, else paged
    /// from `extent`.
    PrivateFile {
        /// Index into the mapped files.
        file: u32,
        /// Offset in the file, in bytes.
        offset: u64,
        /// The same bytes as the owner holds them.
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
        /// The same bytes as the owner holds them, where the process can only read them.
        extent: Option<ExtentId>,
    },
    /// A shared mapping of memory that no path leads to.
    SharedMemory {
        /// Index into the shared objects.
        object: u32,
        /// Offset in the object, in bytes.
        offset: u64,
    },
    /// A page that the kernel provides.
    Special(SpecialMapping),
    /// A private mapping of memory that no path leads to: the pages of `written` are the process's own, the others show what the object holds by now.
    PrivateObject {
        /// Index into the shared objects.
        object: u32,
        /// Offset in the object, in bytes.
        offset: u64,
        /// What was written; `None`: nothing.
        written: Option<ExtentId>,
    },
    /// A private mapping of a file that a process of the seed may write to otherwise: as [`Self::PrivateObject`] of the node's own file where it is
    /// the same file, else paged from `extent`.
    PrivateWritableFile {
        /// Index into the mapped files.
        file: u32,
        /// Offset in the file, in bytes.
        offset: u64,
        /// All its pages, those of the file and those that were written.
        extent: ExtentId,
        /// What was written; `None`: nothing.
        written: Option<ExtentId>,
    },
}

impl Backing {
    /// The pages that were written through a private mapping, which lie over those of its file from the start.
    pub fn written_extent(&self) -> Option<ExtentId> {
        match *self {
            Self::PrivateObject { written, .. } | Self::PrivateWritableFile { written, .. } => written,
            _ => None,
        }
    }
}

/// Mappings that a kernel provides to each process.
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
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Vdso, Self::Vvar, Self::VvarVclock];
}

/// A range of memory that the owner serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Where the owner reads it.
    pub source: ExtentSource,
    /// Its length, in bytes; a multiple of the page size.
    pub bytes: u64,
    /// The pages that may hold something other than zeroes and that the owner has, ascending, never touching one another.
    pub populated: Vec<PageRun>,
    /// The pages that other seeds own, ascending: the owner does not have these.
    pub inherited: Vec<InheritedRun>,
}

impl Extent {
    /// Whether there is nothing to fetch: all of it reads as zeroes.
    pub fn is_empty(&self) -> bool {
        self.populated.is_empty() && self.inherited.is_empty()
    }

    /// Whether a page may hold something other than zeroes, whoever owns it.
    pub fn has_data(&self, page: u64) -> bool {
        let own = self.populated.partition_point(|run| run.first <= page).checked_sub(1).map(|at| &self.populated[at]);
        let of_others =
            self.inherited.partition_point(|run| run.first <= page).checked_sub(1).map(|at| &self.inherited[at]);
        own.is_some_and(|run| page - run.first < run.count) || of_others.is_some_and(|run| page - run.first < run.count)
    }
}

/// Where the owner reads an extent. A reader never uses this: it names extent and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExtentSource {
    /// A template's memory, from this address.
    Template {
        /// The process whose template it is, by its number.
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

/// Neighbouring pages of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRun {
    /// Number of the first page, counted from the extent's start.
    pub first: u64,
    /// How many pages; at least one.
    pub count: u64,
}

/// A file that mappings refer to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedFile {
    /// Its path, as the process sees it.
    pub path: String,
    /// What tells that another node's file is the same.
    pub identity: FileIdentity,
    /// Where the owner finds it.
    pub owner_range: MappedRange,
    /// Whether pages of a private mapping of it were written, which the kernel takes away from all processes when the file is truncated.
    pub has_written_pages: bool,
}

/// A mapping of a file in a template: whatever the file's path leads to by now, the mapping leads to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedRange {
    /// The process whose template it is, by its number.
    pub process: u32,
    /// First address.
    pub start: u64,
    /// Address behind the last byte.
    pub end: u64,
}

/// What became of a file since it was captured, as the owner tells ([`ExtentId::FILE_STATES`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileState {
    /// Its bytes are those of the capture.
    Unchanged,
    /// It was changed in place.
    Changed,
    /// The owner does not hold it any more.
    NotHeld,
}

impl FileState {
    /// As it is told.
    pub fn to_byte(self) -> u8 {
        match self {
            Self::Unchanged => 0,
            Self::Changed => 1,
            Self::NotHeld => 2,
        }
    }

    /// What was told; what nobody knows is taken for a change.
    pub fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Unchanged,
            2 => Self::NotHeld,
            _ => Self::Changed,
        }
    }
}

/// What tells a file from another of the same path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Size, in bytes.
    pub bytes: u64,
    /// Device and inode at the origin; they speak only within one boot of one kernel.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Time of last modification, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Time of the last change of bytes or attributes, which nobody can set, in nanoseconds since 1970.
    pub changed_ns: i64,
    /// How many names it has.
    pub links: u32,
    /// Mode and owner.
    pub status: FileStatus,
    /// The ELF build id, where it has one.
    pub build_id: Option<Vec<u8>>,
    /// SHA-256 of its bytes, of small files without a build id.
    pub digest: Option<[u8; super::DIGEST_BYTES]>,
}

/// Shared memory that no path leads to, copied while the parent was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedObject {
    /// Its name, as memfd_create(2) took it; empty for shared anonymous memory.
    pub name: String,
    /// Its size, in bytes, as fstat tells it; need not be a multiple of the page size.
    pub bytes: u64,
    /// F_GET_SEALS; `None` where it was not made for sealing.
    pub seals: Option<u32>,
    /// What else it is.
    pub kind: SharedObjectKind,
    /// When it was read and written last.
    pub times: FileTimes,
    /// What the owner serves; its length is `bytes`, rounded up to whole pages.
    pub extent: ExtentId,
}

/// What shared memory is beside its bytes.
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
        /// As the process sees it.
        path: String,
        /// Mode and owner.
        status: FileStatus,
    },
    /// A segment of System V shared memory.
    SystemV {
        /// As shmget(2) took it; 0 for none.
        key: u32,
        /// As shmget(2) gave it.
        id: u32,
        /// Mode and owner.
        status: FileStatus,
        /// Whether it goes with the last who has it attached.
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

/// When a file was read and written last, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTimes {
    /// st_atime.
    pub accessed_ns: i64,
    /// st_mtime.
    pub modified_ns: i64,
}
