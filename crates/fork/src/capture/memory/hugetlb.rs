//! Replaces private hugetlbfs memory of a clone by ordinary memory with the same contents, while the parent is stopped.
//!
//! If the clone kept sharing this memory, each write of the parent would need one more huge page. If none is free, the
//! kernel takes the page from the clone, or kills the parent if it has no reservation. All mappings are replaced before any
//! contents are copied: a copy that fails leaves nothing shared.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use farfork_sys::hugetlbfs;
use farfork_sys::pagemap::{PageRegion, PageTables, ScanDetail};
use farfork_sys::process::{self, MapEntry};
use farfork_sys::process_memory::{read_process_exact, write_process_exact};
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::USER_SPACE_END;

use crate::capture::error::{CaptureError, Refusal};
use crate::capture::injection::injector::InjectedCall;
use crate::capture::injection::script_runner::ScriptRunner;
use crate::capture::pause::PreparedProcess;
use crate::capture::survey::Survey;
use crate::capture::template::TemplateClone;
use crate::capture::tracer::deadline::Deadline;
use crate::capture::{memory, open_memory};

/// Bytes copied between two checks of the deadline: one huge page of the usual size.
const CHUNK_BYTES: usize = 2 << 20;

const MMAP: u64 = 9;
const MUNMAP: u64 = 11;
const MADVISE: u64 = 28;

//  clone   mmap(MAP_FIXED) over each mapping ─ madvise(MADV_HUGEPAGE) ─ contents, from the parent
/// Replaces the private hugetlbfs memory of a clone. `mapped_bytes`: size of all mappings of the stopped process, including
/// the injection pages. In an earlier clone, `discarded`, only unmaps that memory.
pub(in crate::capture) async fn replace_hugetlb(
    process: &PreparedProcess,
    mapped_bytes: u64,
    clone: &TemplateClone,
    discarded: Option<&TemplateClone>,
    runner: &mut ScriptRunner<'_, '_>,
) -> Result<(), CaptureError> {
    let (survey, injector) = (&process.survey, &mut *runner.injector);
    if !may_have_hugetlb(survey, mapped_bytes, runner.pages.mapped_range()) {
        return Ok(());
    }
    let mut maps = process::read_maps(clone.pid).map_err(CaptureError::reading(survey.pid, "the memory map"))?;
    survey.file_systems.clone().mark_mappings(survey.pid, &mut maps);
    let mappings: Vec<&MapEntry> = maps.iter().filter(|entry| memory::is_private_hugetlb(entry)).collect();
    for mapping in &mappings {
        let replaced = injector.call(clone.pid, &clone.registers, map_anonymous_call(mapping)).await;
        replaced.map_err(|error| explain_failure(survey.pid, mapping, error))?;
        if let Some(discarded) = discarded {
            let unmap = InjectedCall::new("munmap", MUNMAP, [mapping.start, mapping.bytes()]);
            injector.call(discarded.pid, &discarded.registers, unmap).await?;
        }
    }
    for (mapping, advice) in
        mappings.iter().flat_map(|mapping| list_advice(survey, mapping).map(move |advice| (mapping, advice)))
    {
        let call = InjectedCall::new("madvise", MADVISE, [mapping.start, mapping.bytes(), advice]);
        match injector.call(clone.pid, &clone.registers, call).await {
            // An error means that the kernel has no transparent huge pages.
            Ok(_) | Err(CaptureError::InjectedCall { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let mut copy = HugePageCopier::new(survey.pid, &process.mem, clone.pid, injector.deadline())?;
    mappings.into_iter().try_for_each(|mapping| copy.copy_mapping(mapping))
}

/// Whether the process may have hugetlbfs memory: the survey found some, or mappings have changed since.
fn may_have_hugetlb(survey: &Survey, mapped_bytes: u64, injection_range: Range<u64>) -> bool {
    let own = survey.maps.iter().filter(|entry| entry.start < USER_SPACE_END);
    let surveyed: u64 = own.map(MapEntry::bytes).sum();
    !survey.hugetlb.is_empty() || surveyed + (injection_range.end - injection_range.start) != mapped_bytes
}

/// Returns the madvise(2) advice for the ordinary memory that replaces a mapping.
fn list_advice(survey: &Survey, mapping: &MapEntry) -> impl Iterator<Item = u64> {
    const MADV_HUGEPAGE: u64 = 14;
    const ADVICE_BY_FLAG: [(&str, u64); 3] = [("dd", 16), ("sr", 2), ("rr", 1)];
    let before = survey.hugetlb.iter().find(|before| before.start <= mapping.start && mapping.end <= before.end);
    let again = ADVICE_BY_FLAG.into_iter().filter(move |(flag, _)| before.is_some_and(|before| before.has_flag(flag)));
    std::iter::once(MADV_HUGEPAGE).chain(again.map(|(_, advice)| advice))
}

/// Returns the call that maps ordinary memory over a mapping. It reserves no memory, because the mapping may never be
/// filled.
fn map_anonymous_call(mapping: &MapEntry) -> InjectedCall {
    const MAP_PRIVATE: u64 = 0x02;
    const MAP_FIXED: u64 = 0x10;
    const MAP_ANONYMOUS: u64 = 0x20;
    const MAP_NORESERVE: u64 = 0x4000;
    let flags = MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE;
    InjectedCall::new("mmap", MMAP, [mapping.start, mapping.bytes(), u64::from(mapping.protection), flags, u64::MAX, 0])
}

/// Explains why a mapping cannot be replaced; it may be sealed, for example.
fn explain_failure(pid: i32, mapping: &MapEntry, error: CaptureError) -> CaptureError {
    let CaptureError::InjectedCall { source, .. } = error else { return error };
    let object = format!(
        "pid {pid}, mapping {:#x}-{:#x} {}",
        mapping.start,
        mapping.end,
        String::from_utf8_lossy(&mapping.path)
    );
    let reason = format!("its hugetlbfs pages cannot be replaced by ordinary ones in the copy: {source}");
    CaptureError::refused(pid, vec![Refusal::new(object, reason)])
}

/// Copies mappings of a stopped process to its clone.
struct HugePageCopier<'a> {
    pid: i32,
    mem: &'a File,
    tables: PageTables,
    clone_pid: i32,
    clone_mem: File,
    deadline: &'a Deadline,
    chunk: Vec<u8>,
}

impl<'a> HugePageCopier<'a> {
    fn new(pid: i32, mem: &'a File, clone: i32, deadline: &'a Deadline) -> Result<Self, CaptureError> {
        let tables = PageTables::open(pid).map_err(CaptureError::reading(pid, "the page map"))?;
        Ok(Self {
            pid,
            mem,
            tables,
            clone_pid: clone,
            clone_mem: open_memory(clone)?,
            deadline,
            chunk: vec![0; CHUNK_BYTES],
        })
    }

    /// Copies the pages of a mapping that the process has touched, and other data of its file. Other pages must not be read:
    /// reading would allocate huge pages.
    fn copy_mapping(&mut self, mapping: &MapEntry) -> Result<(), CaptureError> {
        let mut touched = Vec::<PageRegion>::new();
        let found = self.tables.scan_populated(mapping.start, mapping.end, ScanDetail::Populated, &mut touched);
        found.map_err(CaptureError::reading(self.pid, "the page map"))?;
        for at in touched.iter().flat_map(|region| split_chunks(region.start..region.end)) {
            self.check_deadline()?;
            let read = self.read_chunk(at.clone());
            read.and_then(|()| self.write_chunk(&at)).map_err(self.copy_error())?;
        }
        let file = self.open_file(mapping).map_err(self.copy_error())?;
        let is_touched = |at: u64| touched.iter().any(|region| (region.start..region.end).contains(&at));
        let parts = file.data.iter().filter_map(|part| memory::mapped_range_of(mapping, part)).flat_map(split_chunks);
        for at in parts.filter(|at| !is_touched(at.start)) {
            self.check_deadline()?;
            let chunk = &mut self.chunk[..(at.end - at.start) as usize];
            let read = file.file.read_exact_at(chunk, mapping.offset + at.start - mapping.start);
            read.and_then(|()| self.write_chunk(&at)).map_err(self.copy_error())?;
        }
        Ok(())
    }

    fn check_deadline(&self) -> Result<(), CaptureError> {
        let (pid, limit, phase) = (self.pid, self.deadline.limit(), "copying its memory in huge pages of hugetlbfs");
        if self.deadline.is_over() { Err(CaptureError::TimedOut { pid, limit, phase }) } else { Ok(()) }
    }

    fn copy_error(&self) -> impl FnOnce(io::Error) -> CaptureError + use<> {
        CaptureError::reading(self.pid, "its memory in huge pages of hugetlbfs")
    }

    /// Reads a chunk of the process's memory. Uses `/proc/PID/mem` if the process shares the page with a child of its own:
    /// process_vm_readv(2) would make the kernel copy the page.
    fn read_chunk(&mut self, at: Range<u64>) -> io::Result<()> {
        let chunk = &mut self.chunk[..(at.end - at.start) as usize];
        if self.tables.is_any_shared(at.start, at.start + PAGE_SIZE)? {
            return self.mem.read_exact_at(chunk, at.start);
        }
        read_process_exact(self.pid, self.mem, at.start, chunk)
    }

    fn write_chunk(&self, at: &Range<u64>) -> io::Result<()> {
        write_process_exact(self.clone_pid, &self.clone_mem, at.start, &self.chunk[..(at.end - at.start) as usize])
    }

    fn open_file(&self, mapping: &MapEntry) -> io::Result<SparseFile> {
        let file = File::open(format!("/proc/{}/map_files/{}", self.pid, mapping.range_name()))?;
        Ok(SparseFile { data: hugetlbfs::find_present_ranges(&file)?, file })
    }
}

/// A file, and the ranges of it that hold data.
struct SparseFile {
    file: File,
    data: Vec<Range<u64>>,
}

fn split_chunks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    range.clone().step_by(CHUNK_BYTES).map(move |at| at..range.end.min(at + CHUNK_BYTES as u64))
}
