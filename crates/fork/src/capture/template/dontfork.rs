//! MADV_DONTFORK memory: fork(2) omits it, but a seed, as a copy of the process, includes it (decision 014).
//!
//! A program such as Node.js, whose heap is marked so, cannot run without it. A clone that lacks memory is smaller than
//! the process, which `/proc/PID/statm` shows at once. Only then are the two maps compared, and the leader clones itself
//! again. If the kernel forbids MADV_DOFORK (mappings of drivers), a mapping stays absent.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use farfork_sys::process::{self, MapEntry};
use farfork_wire::PAGE_SIZE;

use crate::capture::error::{CaptureError, Refusal};
use crate::capture::injection::injector::InjectedCall;
use crate::capture::injection::pages::SLOTS_BYTES_MIN;
use crate::capture::injection::script::{self, ENTRY_BYTES, TRAILER_ENTRIES};
use crate::capture::injection::script_runner::{InjectionTarget, ScriptRunner};
use crate::capture::memory;
use crate::capture::template::clone_call;

/// Maximum number of runs: as many as fit into one script, with two calls each. With several scripts, marks would be lost if
/// this process died between two of them.
const RUNS_MAX: usize = (SLOTS_BYTES_MIN as usize / ENTRY_BYTES - TRAILER_ENTRIES - 1) / 2;

/// Memory that fork(2) omits and a seed includes.
pub(in crate::capture) struct DontforkMemory {
    /// One range per mapping, ascending.
    pub(in crate::capture) ranges: Vec<Range<u64>>,
    runs: Vec<MappingRun>,
}

/// The result of a second clone.
pub(in crate::capture) struct SecondClone {
    /// Id of the clone in the leader's pid namespace.
    pub(in crate::capture) inner_pid: u64,
    /// Whether all marks of the leader's memory were restored.
    pub(in crate::capture) remark_result: Result<(), CaptureError>,
    /// Contents of the leader's slots before the script. The clone's slots contain the script.
    pub(in crate::capture) saved_slots: Vec<u8>,
}

/// Mappings without other mappings between them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MappingRun {
    range: Range<u64>,
    has_holes: bool,
}

impl DontforkMemory {
    /// Finds the memory of a stopped process that its clone lacks. `mapped`: size of the process's mappings, in bytes.
    /// `None` if the clone lacks nothing.
    pub(in crate::capture) fn find(pid: i32, mapped: u64, clone: i32) -> Result<Option<Self>, CaptureError> {
        if mapped == address_space_bytes(clone)? {
            return Ok(None);
        }
        let map = |pid: i32| process::read_maps(pid).map_err(CaptureError::reading(pid, "the memory map"));
        let (own, cloned) = (map(pid)?, map(clone)?);
        let has: BTreeSet<u64> = cloned.iter().map(|entry| entry.start).collect();
        let is_wanted = |entry: &MapEntry| !has.contains(&entry.start) && memory::is_private_anonymous(entry);
        let (areas, runs) = (own.iter().filter(|entry| is_wanted(entry)), merge_mappings(&own, is_wanted));
        let areas: Vec<Range<u64>> = areas.map(|entry| entry.start..entry.end).collect();
        if runs.len() > RUNS_MAX {
            let reason =
                format!("it excludes memory from fork(2) (MADV_DONTFORK) at {} places, {RUNS_MAX} at most", runs.len());
            return Err(CaptureError::refused(pid, vec![Refusal::new(format!("pid {pid}"), reason)]));
        }
        Ok((!areas.is_empty()).then_some(Self { ranges: areas, runs }))
    }

    /// Makes the leader clone itself with all of this memory.
    pub(in crate::capture) async fn clone_again(
        &self,
        leader: &InjectionTarget<'_>,
        runner: &mut ScriptRunner<'_, '_>,
    ) -> Result<SecondClone, CaptureError> {
        let (calls, pages, mem) = (self.script_calls(), runner.pages, leader.mem);
        let failed = |operation| CaptureError::tracing(operation, leader.pid);
        let saved_slots = pages.save_slots(mem).map_err(failed("read the calls of"))?;
        let mut running = vec![leader.start_script(&calls, runner)?];
        runner.injector.wait_scripts(&mut running, |_| true).await?;
        let mut slot = vec![0; calls.len() * ENTRY_BYTES];
        mem.read_exact_at(&mut slot, pages.slot_address(0)).map_err(failed("read the calls of"))?;
        pages.restore_slots(&saved_slots, mem).map_err(failed("write the calls of"))?;
        let (at, marked) = (self.runs.len(), self.check_marks(leader.pid, &calls, &slot));
        let inner_pid = calls[at].check_result(leader.pid, script::result_of(&slot, at))?;
        Ok(SecondClone { inner_pid, remark_result: marked, saved_slots })
    }

    // One script, so that the leader has its marks as before even if the tracer dies: it runs the script to its end.
    //
    //  madvise(MADV_DOFORK) of each run ─ clone ─ madvise(MADV_DONTFORK) of each run
    fn script_calls(&self) -> Vec<InjectedCall> {
        const MADVISE: u64 = 28;
        const MADV_DONTFORK: u64 = 10;
        const MADV_DOFORK: u64 = 11;
        let advise = |name, advice| {
            move |run: &MappingRun| {
                InjectedCall::new(name, MADVISE, [run.range.start, run.range.end - run.range.start, advice])
            }
        };
        let before = self.runs.iter().map(advise("madvise(MADV_DOFORK)", MADV_DOFORK));
        let after = self.runs.iter().map(advise("madvise(MADV_DONTFORK)", MADV_DONTFORK));
        before.chain([clone_call()]).chain(after).collect()
    }

    /// Checks that all marks were set again. If MADV_DOFORK fails for a mapping, the mapping only stays absent.
    fn check_marks(&self, tid: i32, calls: &[InjectedCall], slot: &[u8]) -> Result<(), CaptureError> {
        for (index, run) in self.runs.iter().enumerate() {
            let result = script::result_of(slot, self.runs.len() + 1 + index);
            if !(run.has_holes && result == UNMAPPED_RESULT) {
                calls[self.runs.len() + 1 + index].check_result(tid, result)?;
            }
        }
        Ok(())
    }
}

/// The result of madvise(2) if it has advised all mappings, and some addresses were unmapped (ENOMEM).
const UNMAPPED_RESULT: u64 = (rustix::io::Errno::NOMEM.raw_os_error() as u64).wrapping_neg();

/// Merges wanted mappings into as few runs as possible.
fn merge_mappings(map: &[MapEntry], is_wanted: impl Fn(&MapEntry) -> bool) -> Vec<MappingRun> {
    let mut runs: Vec<MappingRun> = Vec::new();
    let mut goes_on = false;
    for entry in map {
        let is_next = is_wanted(entry);
        match runs.last_mut() {
            Some(run) if is_next && goes_on => {
                run.has_holes |= run.range.end != entry.start;
                run.range.end = entry.end;
            }
            _ if is_next => runs.push(MappingRun { range: entry.start..entry.end, has_holes: false }),
            _ => {}
        }
        goes_on = is_next;
    }
    runs
}

/// Size of a process's address space, in bytes.
pub(in crate::capture) fn address_space_bytes(pid: i32) -> Result<u64, CaptureError> {
    let line = process::read_line(&format!("/proc/{pid}/statm")).map_err(CaptureError::reading(pid, "statm"))?;
    Ok(line.split_whitespace().next().and_then(|pages| pages.parse().ok()).map_or(0, |pages: u64| pages * PAGE_SIZE))
}
