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
use std::os::unix::fs::FileExt;

use farfork_sys::pagemap::{Detail, PageTables, Region};
use farfork_sys::process::{self, MapEntry};

use super::error::{CaptureError, Refusal};
use super::inject::{Call, Injector};
use super::survey::Survey;
use super::template::Clone;
use super::{memory, open_memory};

/// Bytes copied between two looks at the clock: one huge page, as most are.
const CHUNK_BYTES: usize = 2 << 20;

const MMAP: u64 = 9;
const MUNMAP: u64 = 11;
const MADVISE: u64 = 28;

/// Replaces such memory of a clone of a process that stands; `outdone` is a clone before it, which loses it.
pub(super) async fn replace(
    survey: &Survey,
    mem: &File,
    (clone, outdone): (&Clone, Option<&Clone>),
    injector: &mut Injector<'_>,
) -> Result<(), CaptureError> {
    if !survey.maps.iter().any(memory::is_private_huge) {
        return Ok(());
    }
    let maps = process::maps(clone.pid).map_err(CaptureError::read(survey.pid, "the memory map"))?;
    let areas: Vec<&MapEntry> = maps.iter().filter(|entry| memory::is_private_huge(entry)).collect();
    for area in &areas {
        let replaced = injector.call(clone.pid, &clone.registers, ordinary(area)).await;
        replaced.map_err(|error| named(survey.pid, area, error))?;
        if let Some(outdone) = outdone {
            let unmap = Call::new("munmap", MUNMAP, [area.start, area.bytes()]);
            injector.call(outdone.pid, &outdone.registers, unmap).await?;
        }
    }
    for area in &areas {
        match injector.call(clone.pid, &clone.registers, in_huge_pages(area)).await {
            // A kernel without transparent huge pages.
            Ok(_) | Err(CaptureError::Call { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    copy(survey.pid, mem, (clone.pid, &areas), injector)
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

fn in_huge_pages(area: &MapEntry) -> Call {
    const MADV_HUGEPAGE: u64 = 14;
    Call::new("madvise(MADV_HUGEPAGE)", MADVISE, [area.start, area.bytes(), MADV_HUGEPAGE])
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

/// Copies what the process has touched of the areas. What it has not must not be read: that would take huge pages.
fn copy(
    pid: i32,
    mem: &File,
    (clone, areas): (i32, &[&MapEntry]),
    injector: &Injector<'_>,
) -> Result<(), CaptureError> {
    let failed = |what| CaptureError::read(pid, what);
    let (mut tables, mut touched) = (PageTables::open(pid).map_err(failed("the page map"))?, Vec::<Region>::new());
    for area in areas {
        tables.populated(area.start, area.end, Detail::Populated, &mut touched).map_err(failed("the page map"))?;
    }
    let (to, mut buffer) = (open_memory(clone)?, vec![0; CHUNK_BYTES]);
    for region in &touched {
        for at in (region.start..region.end).step_by(CHUNK_BYTES) {
            let deadline = injector.deadline();
            if deadline.is_over() {
                let (limit, phase) = (deadline.limit(), "copying its memory in huge pages of hugetlbfs");
                return Err(CaptureError::TimedOut { pid, limit, phase });
            }
            let chunk = &mut buffer[..CHUNK_BYTES.min((region.end - at) as usize)];
            mem.read_exact_at(chunk, at).map_err(failed("its memory in huge pages of hugetlbfs"))?;
            to.write_all_at(chunk, at).map_err(CaptureError::trace("fill the memory of template", clone))?;
        }
    }
    Ok(())
}
