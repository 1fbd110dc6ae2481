//! Pages that a process offers for its own capture. They save the calls that map and unmap pages, two stops each.
//!
//! An offer is checked, not trusted: the pages must be private anonymous memory with exactly these permissions, the mark,
//! and no other code. Otherwise pages are mapped, as for any process. Pages are also mapped while a thread executes the
//! offered ones: an earlier tracer has died, and the offered pages restore the thread.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use farfork_sys::process::MapEntry;
use farfork_sys::ptrace::Registers;
use farfork_wire::PAGE_SIZE;

use super::{InjectionLayout, InjectionPages, SLOTS_BYTES_MIN};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::injection::script::{CODE, EndSignal};
use crate::capture::stop::stop_guard::ProcessSnapshot;

/// Protection of a mapping, as in [`MapEntry`].
const READ_WRITE: u8 = 3;
const READ_EXECUTE: u8 = 5;

//  ┌──────┬───────────────────────────────┬────────┬───┬─────────┬───
//  │ code │ mark, slot 0: script, answers │ slot 1 │ … │ frame 0 │ …        otherwise as in `InjectionPages`
//  └──────┴───────────────────────────────┴────────┴───┴─────────┴───
//    r-x    rw-
//
// The pages stay mapped. A child must have the same contents there as its parent: `InjectionPages::final_contents` returns
// the bytes that undo the changes of calls made in a template.
/// Pages that a process offers for injected calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedPages {
    /// Addresses of the pages.
    pub pages: Range<u64>,
    /// The bytes at the start of the second page, which show that it may be overwritten.
    pub mark: Vec<u8>,
    /// Inner id of the thread that has pinned itself to one CPU for the capture. At other times it may run on all CPUs.
    pub pinned_thread: Option<u32>,
}

impl OfferedPages {
    /// Whether the pages are usable for this layout, and no thread executes them. `maps` is the process's memory map at the
    /// survey.
    pub(in crate::capture) fn is_usable(
        &self,
        layout: InjectionLayout,
        snapshot: &ProcessSnapshot,
        maps: &[MapEntry],
        mem: &File,
    ) -> bool {
        self.has_usable_pages(layout.total_bytes, maps, mem) && !self.is_occupied(snapshot)
    }

    /// Whether the pages are usable, and have at least `bytes` bytes from the second page on.
    fn has_usable_pages(&self, bytes: u64, maps: &[MapEntry], mem: &File) -> bool {
        let Range { start, end } = self.pages;
        let is_whole = start.is_multiple_of(PAGE_SIZE) && end.is_multiple_of(PAGE_SIZE);
        let second = start.checked_add(PAGE_SIZE).filter(|second| is_whole && end.saturating_sub(*second) >= bytes);
        let Some(second) = second else { return false };
        let is_plain = |range: Range<u64>, protection: u8| {
            let holds = |entry: &&MapEntry| entry.start <= range.start && range.end <= entry.end;
            let is_own = |entry: &MapEntry| !entry.is_shared && entry.inode == 0 && entry.path.is_empty();
            maps.iter().find(holds).is_some_and(|entry| is_own(entry) && entry.protection == protection)
        };
        let is_mapped = is_plain(start..second, READ_EXECUTE) && is_plain(second..end, READ_WRITE);
        is_mapped && self.is_marked(second, mem) && is_code_page_usable(start, mem)
    }

    /// Whether a thread executes these pages, or has its stack there.
    fn is_occupied(&self, snapshot: &ProcessSnapshot) -> bool {
        let is_there = |one: &Registers| self.pages.contains(&one.rip) || self.pages.contains(&one.rsp);
        snapshot.threads.iter().any(|thread| is_there(&thread.registers))
    }

    fn is_marked(&self, page: u64, mem: &File) -> bool {
        let mut mark = vec![0; self.mark.len()];
        mem.read_exact_at(&mut mark, page).is_ok() && mark == self.mark
    }
}

impl InjectionPages {
    /// Uses pages that the process offers, and that are usable for this layout.
    pub(in crate::capture) fn from_offer(offer: &OfferedPages, layout: InjectionLayout, end: EndSignal) -> Self {
        let code = offer.pages.start;
        Self { code, base: code + PAGE_SIZE, layout, mapped_range: 0..0, end_signal: end }
    }

    /// Whether the pages already contain the code, from an earlier capture with the same pages.
    pub(super) fn has_code(&self, mem: &File) -> bool {
        !self.is_mapped() && read_code(self.code, mem) == Some(CODE)
    }

    /// Returns the bytes to write back to a template's slots at the end: the contents that the parent has there. Empty if
    /// the pages were mapped for the pause. `thread_slots` are the slots of the parent's threads; the other bytes are read
    /// from the template.
    pub(in crate::capture) fn final_contents(
        &self,
        thread_slots: &[(Vec<u8>, Vec<u8>)],
        pid: i32,
        mem: &File,
    ) -> Result<Vec<u8>, CaptureError> {
        if self.is_mapped() {
            return Ok(Vec::new());
        }
        if read_code(self.code, mem) != Some(CODE) {
            let reason = "the pages that it offers for a capture are not inherited (madvise); offer others";
            return Err(CaptureError::refused(pid, vec![Refusal::new(format!("pid {pid}"), reason)]));
        }
        let mut slots = self.save_slots(mem).map_err(CaptureError::reading(pid, "the pages that it offers"))?;
        let own: Vec<u8> =
            thread_slots.iter().flat_map(|(script, answers)| [script, answers]).flatten().copied().collect();
        slots.resize(slots.len().max(own.len()), 0);
        slots[..own.len()].copy_from_slice(&own);
        Ok(slots)
    }

    /// Saves the slots that a large script overwrites.
    pub(in crate::capture) fn save_slots(&self, mem: &File) -> io::Result<Vec<u8>> {
        let mut slots = if self.is_mapped() { Vec::new() } else { vec![0; SLOTS_BYTES_MIN as usize] };
        mem.read_exact_at(&mut slots, self.slot_address(0)).map(|()| slots)
    }

    /// Restores the slots.
    pub(in crate::capture) fn restore_slots(&self, slots: &[u8], mem: &File) -> io::Result<()> {
        mem.write_all_at(slots, self.slot_address(0))
    }
}

/// Whether a page starts with `CODE`, or with zeroes.
fn is_code_page_usable(page: u64, mem: &File) -> bool {
    read_code(page, mem).is_some_and(|code| code == CODE || code == [0; CODE.len()])
}

/// Reads the bytes at the place of the code.
fn read_code(page: u64, mem: &File) -> Option<[u8; CODE.len()]> {
    let mut code = [0; CODE.len()];
    mem.read_exact_at(&mut code, page).ok().map(|()| code)
}
