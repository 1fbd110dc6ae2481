//! Objects that are copied in the pause: shared anonymous mappings, memfds, POSIX and System V shared memory, and files that
//! other nodes lack at their paths.
//!
//! Before the pause, the objects are found and opened, and buffers of their present size are allocated and touched. So the
//! pause costs one copy and no page faults.

mod executable;
mod sysv_sem_msg;
mod sysv_shm;

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use farfork_sys::hugetlbfs;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{
    Extent, ExtentId, ExtentSource, FileStatus, FileTimes, MessageQueue, PageRun, SemaphoreSet, SharedObject,
    SharedObjectKind,
};
use rustix::fs::{Mode, OFlags, SealFlags, SeekFrom, fcntl_get_seals, seek};
use rustix::io::Errno;

use super::error::{CaptureError, Refusal};
use super::files::{DELETED_SUFFIX, FdKind, InflightFiles, SHARED_MEMORY_PREFIX};
use super::survey::Survey;
use super::tracer::deadline::Deadline;
use sysv_shm::SysvSegment;

/// Maximum size of the shared memory that a pause copies, in bytes. Copying this much takes several seconds, in which the
/// process is stopped.
const SHARED_BYTES_MAX: u64 = 16 << 30;

/// Bytes copied between two checks of the deadline, in a few milliseconds.
const COPY_CHUNK_BYTES: usize = 16 << 20;

/// Prefix of a System V shared memory segment in a memory map.
pub(super) const SEGMENT_PREFIX: &[u8] = b"/SYSV";

/// Mode bits that are carried.
const PERMISSIONS: u32 = 0o7777;

/// Ids of the segments that a process has attached.
fn attached_segments(survey: &Survey) -> Vec<u64> {
    survey.maps.iter().filter(|entry| entry.path.starts_with(SEGMENT_PREFIX)).map(|entry| entry.inode).collect()
}

/// Device and inode.
type ObjectKey = (u64, u64);

/// The contents of one shared object at the time of the capture.
#[derive(Debug)]
pub struct SharedCopy {
    bytes: u64,
    /// Page-aligned runs that hold data, ascending.
    runs: Vec<DataRun>,
}

#[derive(Debug)]
struct DataRun {
    offset: u64,
    bytes: Vec<u8>,
}

impl SharedCopy {
    /// Size of the object, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `into` with the contents from `offset` on. Holes, and bytes after the end, are zeroes.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        let end = offset.saturating_add(into.len() as u64);
        let from = self.runs.partition_point(|run| run.data_end() <= offset);
        for run in self.runs[from..].iter().take_while(|run| run.offset < end) {
            let (first, last) = (run.offset.max(offset), run.data_end().min(end));
            let source = &run.bytes[(first - run.offset) as usize..(last - run.offset) as usize];
            into[(first - offset) as usize..(last - offset) as usize].copy_from_slice(source);
        }
    }

    /// The pages that hold data.
    fn populated_pages(&self) -> Vec<PageRun> {
        let pages = |run: &DataRun| PageRun {
            first: run.offset / PAGE_SIZE,
            count: (run.bytes.len() as u64).div_ceil(PAGE_SIZE),
        };
        super::memory::merge_runs(self.runs.iter().map(pages))
    }
}

impl DataRun {
    fn data_end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// A shared object of a running process, opened.
#[derive(Debug)]
struct SharedSource {
    key: ObjectKey,
    name: String,
    kind: SharedObjectKind,
    file: File,
    /// Whether the object is on hugetlbfs.
    is_hugetlb: bool,
    /// Whether the contents cannot change, because the file is being executed.
    is_immutable: bool,
    /// Buffers for the data that was found before the pause, allocated and touched.
    buffers: Vec<DataRun>,
}

/// Total length of runs, each given by offset and length.
fn sum_bytes(runs: &[(u64, u64)]) -> u64 {
    runs.iter().map(|(_, bytes)| bytes).sum()
}

/// Refuses more shared memory than a pause may copy.
fn check_size(pid: i32, bytes: u64) -> Option<Refusal> {
    let reason =
        || format!("it has more than {SHARED_BYTES_MAX} bytes of shared memory, too much to copy while it is stopped");
    (bytes > SHARED_BYTES_MAX).then(|| Refusal::new(format!("pid {pid}"), reason()))
}

/// The shared objects of a process, ready to be copied.
#[derive(Debug, Default)]
pub(super) struct SharedSources(Vec<SharedSource>, sysv_sem_msg::IpcSources);

impl SharedSources {
    /// Opens every object that the survey found, and the System V segments that the process created. Finds its System V
    /// semaphores and message queues.
    pub(super) fn open(survey: &Survey) -> Result<Self, CaptureError> {
        let pid = survey.pid;
        let mapped = survey.maps.iter().filter(|entry| super::memory::is_shared_object(entry));
        let mapped = mapped.map(|entry| (format!("/proc/{pid}/map_files/{}", entry.range_name()), &entry.path));
        let opened = survey.fds.iter().filter(|fd| fd.kind == FdKind::Memory && !fd.is_standard_stream);
        let opened = opened.map(|fd| (format!("/proc/{pid}/fd/{}", fd.number), &fd.link));
        let mut sources: BTreeMap<ObjectKey, SharedSource> = BTreeMap::new();
        let (segments, made) = sysv_shm::list_segments(pid, &attached_segments(survey))?;
        let executed = executable::open_executable(survey).map_err(CaptureError::reading(pid, "its executable"))?;
        sources.extend(executed.map(|source| (source.key, source)));
        for (path, link) in opened.chain(mapped) {
            let source = SharedSource::open(&path, link, &segments).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => CaptureError::Unstable { pid, what: "its shared memory".to_owned() },
                _ => {
                    CaptureError::Read { pid, what: format!("shared memory {}", String::from_utf8_lossy(link)), source }
                }
            })?;
            sources.entry(source.key).or_insert(source);
        }
        for (segment, file) in made {
            let source = SharedSource::from_segment(file, segment)
                .map_err(CaptureError::reading(pid, "System V shared memory"))?;
            sources.entry(source.key).or_insert(source);
        }
        Ok(Self(sources.into_values().collect(), sysv_sem_msg::IpcSources::find(pid)?))
    }

    /// Adds the objects of another process of the tree.
    pub(super) fn merge(&mut self, others: Self) {
        for source in others.0 {
            if !self.0.iter().any(|known| known.key == source.key) {
                self.0.push(source);
            }
        }
        self.1.merge(others.1);
    }

    /// Adds memory files in flight in sockets, which are found only in the pause.
    pub(super) fn add_inflight(&mut self, inflight_files: &InflightFiles) -> io::Result<()> {
        for (path, link) in inflight_files.memory_files() {
            let source = SharedSource::open(&path, link, &[])?;
            if !self.0.iter().any(|known| known.key == source.key) {
                self.0.push(source);
            }
        }
        Ok(())
    }

    /// Allocates buffers for the copies, except for objects that other processes of the tree have, too (`others`). Reads an
    /// executable already, because it cannot change.
    pub(super) fn allocate_buffers<'a>(
        &mut self,
        pid: i32,
        others: impl Iterator<Item = &'a Self> + Clone,
    ) -> Result<(), CaptureError> {
        let mut total = 0;
        for source in &mut self.0 {
            let runs = source.data_ranges().map_err(CaptureError::reading(pid, "shared memory"))?;
            total += sum_bytes(&runs);
            if let Some(refusal) = check_size(pid, total) {
                return Err(CaptureError::refused(pid, vec![refusal]));
            }
            if others.clone().any(|other| other.0.iter().any(|known| known.key == source.key)) {
                continue;
            }
            // Filled with ones: for zeroes, the allocator would return untouched pages, which would fault in the pause.
            source.buffers = runs
                .iter()
                .map(|(offset, bytes)| DataRun { offset: *offset, bytes: vec![1; *bytes as usize] })
                .collect();
            if source.is_immutable {
                let mut read = source.buffers.iter_mut();
                read.try_for_each(|run| source.file.read_exact_at(&mut run.bytes, run.offset))
                    .map_err(CaptureError::reading(pid, "its executable"))?;
            }
        }
        Ok(())
    }

    /// Returns a refusal if the objects are too large to be copied.
    pub(super) fn size_refusal(&self, pid: i32) -> Result<Option<Refusal>, CaptureError> {
        let mut total = 0;
        for source in &self.0 {
            total += sum_bytes(&source.data_ranges().map_err(CaptureError::reading(pid, "shared memory"))?);
        }
        Ok(check_size(pid, total))
    }

    /// Copies all objects. The process is stopped.
    pub(super) fn copy_all(self, pid: i32, deadline: &Deadline) -> Result<SharedCopies, CaptureError> {
        let mut copies = SharedCopies { sysv_ipc: self.1.copy(pid)?, ..SharedCopies::default() };
        for source in self.0 {
            let (key, name) = (source.key, source.name.clone());
            let seals = fcntl_get_seals(&source.file).ok().filter(|seals| *seals != SealFlags::SEAL);
            let now = source.file.metadata().map_err(CaptureError::reading(pid, "shared memory"))?;
            let kind = set_status(source.kind.clone(), file_status(&now));
            let copy = source.copy_data(pid, now.len(), deadline)?;
            copies.keys.push(key);
            copies.attributes.push(SharedAttributes {
                name,
                seals: seals.map(|seals| seals.bits()),
                kind,
                times: file_times(&now),
            });
            copies.copies.push(copy);
        }
        Ok(copies)
    }
}

impl SharedSource {
    fn open(path: &str, link: &[u8], segments: &[SysvSegment]) -> io::Result<Self> {
        let file = open_noatime(path)?;
        let metadata = file.metadata()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let status = file_status(&metadata);
        let undeleted = link.strip_suffix(DELETED_SUFFIX);
        let is_huge = hugetlbfs::is_on_hugetlbfs(&file)?;
        let named = |path: &[u8]| {
            (text(path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)), SharedObjectKind::DeletedFile(status))
        };
        let (name, kind) = match (link, undeleted) {
            (link, _) if link.starts_with(b"/memfd:") => {
                (text(&undeleted.unwrap_or(link)[b"/memfd:".len()..]), SharedObjectKind::MemFd(status))
            }
            (link, _) if link.starts_with(SEGMENT_PREFIX) => {
                let segment = segments.iter().find(|segment| u64::from(segment.id) == metadata.ino());
                (String::new(), segment.ok_or(io::ErrorKind::NotFound)?.to_shared_kind())
            }
            (_, Some(b"/dev/zero" | b"/anon_hugepage")) => (String::new(), SharedObjectKind::Anonymous),
            (_, Some(path)) => named(path),
            (link, None) if link.starts_with(SHARED_MEMORY_PREFIX) => {
                (String::new(), SharedObjectKind::PosixShm { path: text(link), status })
            }
            // Another node may have a different file at that path, or none.
            (path, None) => named(path),
        };
        Ok(Self {
            key: (metadata.dev(), metadata.ino()),
            name,
            kind,
            file,
            is_hugetlb: is_huge,
            is_immutable: false,
            buffers: Vec::new(),
        })
    }

    /// Returns a System V segment that the process has not attached.
    fn from_segment(file: File, segment: SysvSegment) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let (key, is_huge) = ((metadata.dev(), metadata.ino()), hugetlbfs::is_on_hugetlbfs(&file)?);
        let (name, kind) = (String::new(), segment.to_shared_kind());
        Ok(Self { key, name, kind, file, is_hugetlb: is_huge, is_immutable: false, buffers: Vec::new() })
    }

    /// Returns offset and length, in bytes, of each run of data.
    fn data_ranges(&self) -> io::Result<Vec<(u64, u64)>> {
        if self.is_hugetlb {
            return Ok(hugetlbfs::find_present_ranges(&self.file)?
                .into_iter()
                .map(|run| (run.start, run.end - run.start))
                .collect());
        }
        let mut runs = Vec::new();
        let mut from = 0;
        loop {
            let start = match seek(&self.file, SeekFrom::Data(from)) {
                Ok(start) => start,
                Err(Errno::NXIO) => return Ok(runs),
                Err(errno) => return Err(errno.into()),
            };
            let end = seek(&self.file, SeekFrom::Hole(start))?;
            runs.push((start, end - start));
            from = end;
        }
    }

    /// Copies the contents of an object of `bytes` bytes.
    fn copy_data(mut self, pid: i32, bytes: u64, deadline: &Deadline) -> Result<SharedCopy, CaptureError> {
        let failed = |source| CaptureError::Read { pid, what: "shared memory".to_owned(), source };
        if self.is_immutable && !self.buffers.is_empty() {
            return Ok(SharedCopy { bytes, runs: self.buffers });
        }
        let mut prepared = std::mem::take(&mut self.buffers).into_iter().peekable();
        let mut runs = Vec::new();
        for (offset, bytes) in self.data_ranges().map_err(failed)? {
            while prepared.next_if(|run| run.offset < offset).is_some() {}
            let ready = prepared.next_if(|run| run.offset == offset);
            let mut buffer = ready.map(|run| run.bytes).unwrap_or_default();
            buffer.resize(bytes as usize, 0);
            for (index, chunk) in buffer.chunks_mut(COPY_CHUNK_BYTES).enumerate() {
                if deadline.is_over() {
                    return Err(CaptureError::TimedOut {
                        pid,
                        limit: deadline.limit(),
                        phase: "copying its shared memory",
                    });
                }
                self.file.read_exact_at(chunk, offset + (index * COPY_CHUNK_BYTES) as u64).map_err(failed)?;
            }
            runs.push(DataRun { offset, bytes: buffer });
        }
        Ok(SharedCopy { bytes, runs })
    }
}

/// Opens a file so that reading it does not change its st_atime, if that is allowed.
fn open_noatime(path: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags | OFlags::NOATIME, Mode::empty());
    Ok(opened.or_else(|_| rustix::fs::open(path, flags, Mode::empty()))?.into())
}

fn file_status(metadata: &Metadata) -> FileStatus {
    FileStatus { mode: metadata.mode() & PERMISSIONS, uid: metadata.uid(), gid: metadata.gid() }
}

fn file_times(metadata: &Metadata) -> FileTimes {
    const SECOND_NS: i64 = 1_000_000_000;
    let ns = |seconds: i64, rest: i64| seconds.saturating_mul(SECOND_NS).saturating_add(rest);
    FileTimes {
        accessed_ns: ns(metadata.atime(), metadata.atime_nsec()),
        modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
    }
}

/// Replaces mode and owner by the present ones.
fn set_status(kind: SharedObjectKind, now: FileStatus) -> SharedObjectKind {
    match kind {
        SharedObjectKind::MemFd(_) => SharedObjectKind::MemFd(now),
        SharedObjectKind::DeletedFile(_) => SharedObjectKind::DeletedFile(now),
        SharedObjectKind::PosixShm { path, .. } => SharedObjectKind::PosixShm { path, status: now },
        SharedObjectKind::Anonymous | SharedObjectKind::SystemV { .. } => kind,
    }
}

/// The shared objects of a process, copied.
#[derive(Debug, Default)]
pub(super) struct SharedCopies {
    keys: Vec<ObjectKey>,
    attributes: Vec<SharedAttributes>,
    copies: Vec<SharedCopy>,
    sysv_ipc: sysv_sem_msg::IpcCopies,
}

/// Attributes of a shared object.
#[derive(Debug)]
struct SharedAttributes {
    name: String,
    /// F_GET_SEALS.
    seals: Option<u32>,
    kind: SharedObjectKind,
    times: FileTimes,
}

/// The shared objects of a descriptor.
pub(super) struct SharedObjectTable {
    pub(super) objects: Vec<SharedObject>,
    /// The extents that the objects refer to, and no others.
    pub(super) extents: Vec<Extent>,
}

impl SharedCopies {
    /// Adds the copies of another process of the tree, unless an object is already known.
    pub(super) fn merge(&mut self, other: Self) {
        for ((key, named), copy) in other.keys.into_iter().zip(other.attributes).zip(other.copies) {
            if !self.keys.contains(&key) {
                self.keys.push(key);
                self.attributes.push(named);
                self.copies.push(copy);
            }
        }
    }

    /// Index of an object, by device and inode.
    pub(super) fn index_of(&self, device: u64, inode: u64) -> Option<u32> {
        self.keys.iter().position(|key| *key == (device, inode)).map(|index| index as u32)
    }

    /// Whether there are no objects.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Index of a process's executable, if it is one of the objects.
    pub(super) fn executable_index(&self, pid: i32) -> io::Result<Option<u32>> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let executed = std::fs::metadata(format!("/proc/{pid}/exe"))?;
        Ok(self.index_of(executed.dev(), executed.ino()))
    }

    /// Builds the objects of the descriptor.
    pub(super) fn build_objects(&self) -> SharedObjectTable {
        let (mut objects, mut extents) = (Vec::with_capacity(self.copies.len()), Vec::new());
        for (index, (copy, named)) in self.copies.iter().zip(&self.attributes).enumerate() {
            let extent = ExtentId(extents.len() as u32);
            extents.push(Extent {
                source: ExtentSource::SharedObject { object: index as u32 },
                bytes: copy.bytes.next_multiple_of(PAGE_SIZE),
                populated: copy.populated_pages(),
                inherited: Vec::new(),
            });
            objects.push(SharedObject {
                name: named.name.clone(),
                bytes: copy.bytes,
                seals: named.seals,
                kind: named.kind.clone(),
                times: named.times,
                extent,
            });
        }
        SharedObjectTable { objects, extents }
    }

    /// Takes the semaphores and message queues.
    pub(super) fn take_sysv_ipc(&mut self) -> (Vec<SemaphoreSet>, Vec<MessageQueue>) {
        let queues = std::mem::take(&mut self.sysv_ipc);
        (queues.sets, queues.queues)
    }

    /// The contents, in the order of the descriptor's objects.
    pub(super) fn into_copies(self) -> Vec<SharedCopy> {
        self.copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_read_as_zeroes() {
        let run = |offset, byte| DataRun { offset, bytes: vec![byte; 4096] };
        let copy = SharedCopy { bytes: 5 * 4096, runs: vec![run(4096, 1), run(3 * 4096, 3)] };
        let mut all = vec![9; 6 * 4096];
        copy.read_at(0, &mut all);
        let firsts: Vec<u8> = all.chunks(4096).map(|page| page[0]).collect();
        assert_eq!(firsts, [0, 1, 0, 3, 0, 0]);
        let mut across = [9; 4];
        copy.read_at(2 * 4096 - 2, &mut across);
        assert_eq!(across, [1, 1, 0, 0]);
        assert_eq!(copy.populated_pages(), [PageRun { first: 1, count: 1 }, PageRun { first: 3, count: 1 }]);
    }
}
