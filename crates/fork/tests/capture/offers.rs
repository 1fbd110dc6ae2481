//! Pages that a process offers for its capture are used, and have the same contents in template and parent afterwards. Pages
//! that fail the checks are left unchanged.

use std::ops::Range;

use farfork_fork::capture::{self, CaptureError, CaptureOptions, CapturedTree, OfferedPages};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::harness::{Parent, known, mapping_at, offer, options, word};

const PAGE: u64 = 4096;

fn pages(parent: &Parent) -> Range<u64> {
    offer(parent.reported("pages")).pages
}

fn capture_with(parent: &Parent, offer: OfferedPages) -> Result<CapturedTree, CaptureError> {
    capture::capture_blocking(parent.pid(), CaptureOptions { offered_pages: Some(offer), ..options() })
}

fn memory(pid: i32, range: &Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let read = farfork_sys::process_memory::read_process(pid, range.start, &mut bytes);
    assert_eq!(read.expect("it can be read"), bytes.len());
    bytes
}

fn still_runs(parent: &mut Parent) {
    parent.write(b"?\n");
    parent.wait_for("runs");
}

/// One of the numbers is larger than one page of slots has room for.
#[test]
fn offered_pages_are_used_and_hold_the_same_in_parent_and_template() {
    for threads in ["0", "3", "30"] {
        let mut parent = Parent::start("offers", &["plain", threads]);
        let range = pages(&parent);
        let mut kept = Vec::new();
        for round in 0..3 {
            let captured = capture_with(&parent, offer(range.start)).unwrap();
            let (own, copied) = (memory(parent.pid(), &range), memory(captured.template.pid(), &range));
            assert_ne!(own[..8], [0; 8], "the pages contain code, so they were used");
            assert!(own == copied, "{threads} threads, round {round}");
            let last = range.end - 512;
            assert!(word(parent.pid(), last + 64) == known(last + 64 - range.start), "unused bytes stay unchanged");
            let code = mapping_at(&captured.descriptor, range.start);
            assert_eq!(code.start, range.start, "a child has the pages");
            still_runs(&mut parent);
            // The second capture runs while the first template exists, the third without another template.
            kept.push(captured);
            kept.truncate(usize::from(round == 0));
        }
    }
}

#[test]
fn unusable_offered_pages_are_not_changed() {
    for what in ["unmarked", "shared", "writable", "used", "occupied"] {
        let mut parent = Parent::start("offers", &[what]);
        let range = pages(&parent);
        let before = memory(parent.pid(), &range);
        let captured = capture_with(&parent, offer(range.start)).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(memory(parent.pid(), &range) == before, "{what}: pages were written to");
        drop(captured);
        still_runs(&mut parent);
    }
    let mut parent = Parent::start("offers", &["plain"]);
    let range = pages(&parent);
    let before = memory(parent.pid(), &range);
    let (start, end) = (range.start, range.end);
    let wrong = [
        start..start + 2 * PAGE,
        start + 8..end + 8,
        start..end + (1 << 30),
        0..PAGE,
        end..start,
        u64::MAX - 5..u64::MAX,
    ];
    for pages in wrong {
        let range_text = format!("{pages:x?}");
        capture_with(&parent, OfferedPages { pages, ..offer(range.start) })
            .unwrap_or_else(|error| panic!("{range_text}: {error}"));
        assert!(memory(parent.pid(), &range) == before, "{range_text}: pages were written to");
        still_runs(&mut parent);
    }
}

/// A clone would have zeroes instead of the code (MADV_WIPEONFORK), so it could make no calls.
#[test]
fn offered_pages_that_a_fork_wipes_are_refused() {
    let mut parent = Parent::start("offers", &["wiped"]);
    let error = capture_with(&parent, offer(parent.reported("pages"))).unwrap_err();
    assert!(error.to_string().contains("pages that it offers"), "{error}");
    still_runs(&mut parent);
    parent.capture().unwrap();
}

/// The second clone has these pages (MADV_DONTFORK).
#[test]
fn offered_pages_that_a_fork_does_not_copy_are_used() {
    let mut parent = Parent::start("offers", &["absent"]);
    capture_with(&parent, offer(parent.reported("pages"))).unwrap();
    still_runs(&mut parent);
}

/// A capture contains a CPU affinity that a thread has chosen. It does not contain an affinity that pins a thread only
/// while the thread waits for its reply.
#[test]
fn the_affinity_of_a_thread_pinned_for_capture_is_not_captured() {
    let parent = Parent::start("offers", &["plain", "1"]);
    let (pid, start) = (Pid::from_raw(parent.pid()), parent.reported("pages"));
    let cpus = sched_getaffinity(pid).unwrap();
    if cpus.count() < 2 {
        return;
    }
    let mut first = CpuSet::new();
    first.set((0..CpuSet::MAX_CPU).find(|cpu| cpus.is_set(*cpu)).unwrap());
    sched_setaffinity(pid, &first).unwrap();
    let chosen = |kept_thread| {
        let captured = capture_with(&parent, OfferedPages { pinned_thread: kept_thread, ..offer(start) }).unwrap();
        captured.descriptor.threads.iter().map(|thread| thread.cpus.is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(chosen(None), [false, true]);
    assert_eq!(chosen(Some(parent.pid().unsigned_abs())), [true, true]);
    assert_eq!(sched_getaffinity(pid).unwrap(), first, "the capture does not change the process's affinity");
}

/// The parent may not have memory that is both writable and executable (PR_SET_MDWE), so no pages can be mapped in it.
#[test]
fn a_process_that_denies_executable_pages_is_captured_with_offered_ones() {
    let mut parent = Parent::start("offers", &["strict", "2"]);
    let error = parent.capture().unwrap_err();
    assert!(error.to_string().contains("PR_SET_MDWE"), "{error}");
    let captured = capture_with(&parent, offer(parent.reported("pages"))).unwrap();
    assert_eq!(captured.descriptor.threads.len(), 3);
    still_runs(&mut parent);
}
