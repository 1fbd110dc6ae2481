//! Private memory in huge pages of hugetlbfs, which a clone must not keep: while it shared them, a write of the parent would take a
//! huge page more, and where none is free, the kernel takes the page from the clone, or ends the parent where it has reserved none.
//!
//! So the clone gets ordinary memory in their place while the parent still stands, and the contents are copied:
//!
//! ```text
//!  clone   mmap(MAP_FIXED) over each area ─ madvise(MADV_HUGEPAGE) ─ contents, from the parent
//! ```
//!
//! First all areas, then all contents: from the first moment that could fail, nothing is shared.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use farfork_sys::hugetlbfs;
use farfork_sys::memory::{read_process_exact, write_process_exact};
use farfork_sys::pagemap::{Detail, PageTables, Region};
use farfork_sys::process::{self, MapEntry};
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::USER_SPACE_END;

use crate::capture::calls::inject::{Call, Injector};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::survey::Survey;
use crate::capture::template::Clone;
use crate::capture::tracer::deadline::Deadline;
use crate::capture::{memory, open_memory};

/// Bytes copied between two looks at the clock: one huge page, as most are.
const CHUNK_BYTES: usize = 2 << 20;

const MMAP: u64 = 9;
const MUNMAP: u64 = 11;
const MADVISE: u64 = 28;

/// Replaces such memory of a clone of a process that stands, with so much mapped and this lifeline; `outdone` is a clone before it,
/// which loses it.
pub(in crate::capture) async fn replace(
    (survey, mem): (&Survey, &File),
    (mapped_bytes, lifeline): (u64, Range<u64>),
    (clone, outdone): (&Clone, Option<&Clone>),
    injector: &mut Injector<'_>,
) -> Result<(), CaptureError> {
    if !has_any(survey, (mapped_bytes, lifeline)) {
        return Ok(());
    }
    let mut maps = process::maps(clone.pid).map_err(CaptureError::read(survey.pid, "the memory map"))?;
    survey.file_systems.clone().mark(survey.pid, &mut maps);
    let areas: Vec<&MapEntry> = maps.iter().filter(|entry| memory::is_private_huge(entry)).collect();
    for area in &areas {
        let replaced = injector.call(clone.pid, &clone.registers, ordinary(area)).await;
        replaced.map_err(|error| named(survey.pid, area, error))?;
        if let Some(outdone) = outdone {
            let unmap = Call::new("munmap", MUNMAP, [area.start, area.bytes()]);
            injector.call(outdone.pid, &outdone.registers, unmap).await?;
        }
    }
    for (area, advice) in areas.iter().flat_map(|area| advices(survey, area).map(move |advice| (area, advice))) {
        let call = Call::new("madvise", MADVISE, [area.start, area.bytes(), advice]);
        match injector.call(clone.pid, &clone.registers, call).await {
            // A kernel without transparent huge pages.
            Ok(_) | Err(CaptureError::Call { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let mut copy = Copy::new((survey.pid, mem), clone.pid, injector.deadline())?;
    areas.into_iter().try_for_each(|area| copy.area(area))
}

/// Whether there may be such memory: there was some when the process was looked at, or it has mapped or unmapped something since.
fn has_any(survey: &Survey, (mapped_bytes, lifeline): (u64, Range<u64>)) -> bool {
    let own = survey.maps.iter().filter(|entry| entry.start < USER_SPACE_END);
    let surveyed: u64 = own.map(MapEntry::bytes).sum();
    !survey.huge.is_empty() || surveyed + (lifeline.end - lifeline.start) != mapped_bytes
}

/// What the kernel is told of the ordinary memory in the place of an area.
fn advices(survey: &Survey, area: &MapEntry) -> impl Iterator<Item = u64> {
    const MADV_HUGEPAGE: u64 = 14;
    const SAID: [(&str, u64); 3] = [("dd", 16), ("sr", 2), ("rr", 1)];
    let before = survey.huge.iter().find(|before| before.start <= area.start && area.end <= before.end);
    let again = SAID.into_iter().filter(move |(flag, _)| before.is_some_and(|before| before.has_flag(flag)));
    std::iter::once(MADV_HUGEPAGE).chain(again.map(|(_, advice)| advice))
}

/// The call that maps ordinary memory over an area. Nothing is reserved for what the area may never hold.
fn ordinary(area: &MapEntry) -> Call {
    const MAP_PRIVATE: u64 = 0x02;
    const MAP_FIXED: u64 = 0x10;
    const MAP_ANONYMOUS: u64 = 0x20;
    const MAP_NORESERVE: u64 = 0x4000;
    let flags = MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE;
    Call::new("mmap", MMAP, [area.start, area.bytes(), u64::from(area.protection), flags, u64::MAX, 0])
}

/// A sealed area, for one, cannot be replaced.
fn named(pid: i32, area: &MapEntry, error: CaptureError) -> CaptureError {
    let CaptureError::Call { source, .. } = error else { return error };
    let object =
        format!("pid {pid}, mapping {:#x}-{:#x} {}", area.start, area.end, String::from_utf8_lossy(&area.path));
    let reason =
        format!("it is in huge pages of hugetlbfs, in whose place its copy can have no ordinary ones: {source}");
    CaptureError::refused(pid, vec![Refusal::new(object, reason)])
}

/// The copying of areas of a process that stands to its clone.
struct Copy<'a> {
    pid: i32,
    mem: &'a File,
    tables: PageTables,
    clone: i32,
    clone_mem: File,
    deadline: &'a Deadline,
    chunk: Vec<u8>,
}

impl<'a> Copy<'a> {
    fn new((pid, mem): (i32, &'a File), clone: i32, deadline: &'a Deadline) -> Result<Self, CaptureError> {
        let tables = PageTables::open(pid).map_err(CaptureError::read(pid, "the page map"))?;
        Ok(Self { pid, mem, tables, clone, clone_mem: open_memory(clone)?, deadline, chunk: vec![0; CHUNK_BYTES] })
    }

    /// Copies what the process has touched of an area, and what else its file has. Of what is neither, nothing must be read: that
    /// would take huge pages.
    fn area(&mut self, area: &MapEntry) -> Result<(), CaptureError> {
        let mut touched = Vec::<Region>::new();
        let found = self.tables.populated(area.start, area.end, Detail::Populated, &mut touched);
        found.map_err(CaptureError::read(self.pid, "the page map"))?;
        for at in touched.iter().flat_map(|region| chunks(region.start..region.end)) {
            self.in_time()?;
            let read = self.read(at.clone());
            read.and_then(|()| self.write(&at)).map_err(self.failed())?;
        }
        let file = self.file(area).map_err(self.failed())?;
        let is_touched = |at: u64| touched.iter().any(|region| (region.start..region.end).contains(&at));
        let parts = file.data.iter().filter_map(|part| memory::mapped_part(area, part)).flat_map(chunks);
        for at in parts.filter(|at| !is_touched(at.start)) {
            self.in_time()?;
            let chunk = &mut self.chunk[..(at.end - at.start) as usize];
            let read = file.file.read_exact_at(chunk, area.offset + at.start - area.start);
            read.and_then(|()| self.write(&at)).map_err(self.failed())?;
        }
        Ok(())
    }

    fn in_time(&self) -> Result<(), CaptureError> {
        let (pid, limit, phase) = (self.pid, self.deadline.limit(), "copying its memory in huge pages of hugetlbfs");
        if self.deadline.is_over() { Err(CaptureError::TimedOut { pid, limit, phase }) } else { Ok(()) }
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> CaptureError + use<> {
        CaptureError::read(self.pid, "its memory in huge pages of hugetlbfs")
    }

    /// Of a page that the process shares with a child of its own, process_vm_readv(2) would have the kernel make a copy first.
    fn read(&mut self, at: Range<u64>) -> io::Result<()> {
        let chunk = &mut self.chunk[..(at.end - at.start) as usize];
        if self.tables.are_shared(at.start, at.start + PAGE_SIZE)? {
            return self.mem.read_exact_at(chunk, at.start);
        }
        read_process_exact(self.pid, self.mem, at.start, chunk)
    }

    fn write(&self, at: &Range<u64>) -> io::Result<()> {
        write_process_exact(self.clone, &self.clone_mem, at.start, &self.chunk[..(at.end - at.start) as usize])
    }

    fn file(&self, area: &MapEntry) -> io::Result<Mapped> {
        let file = File::open(format!("/proc/{}/map_files/{}", self.pid, area.range_name()))?;
        Ok(Mapped { data: hugetlbfs::data(&file)?, file })
    }
}

/// A file, and where it has data.
struct Mapped {
    file: File,
    data: Vec<Range<u64>>,
}

fn chunks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    range.clone().step_by(CHUNK_BYTES).map(move |at| at..range.end.min(at + CHUNK_BYTES as u64))
}
