//! Compares the memory of two processes: every page that the first process can read, except memory that the kernel
//! writes itself (vvar, vDSO and the rseq area of each thread). Also counts huge pages.

use std::fs;
use std::ops::Range;

use farfork_sys::process::{MapEntry, read_maps, thread_ids};
use farfork_sys::process_memory::read_process;

/// Number of bytes to read at once.
const CHUNK_BYTES: usize = 1 << 20;

const PAGE_BYTES: usize = 4096;

/// Size and alignment of `struct rseq`. The kernel writes its first 28 bytes whenever a thread moves to another CPU.
const RSEQ_BYTES: usize = 32;

/// PROT_READ.
const READABLE: u8 = 1;

/// Mappings that the kernel makes in each process. They are not compared.
const KERNEL_MAPPINGS: [&[u8]; 4] = [b"[vvar]", b"[vvar_vclock]", b"[vdso]", b"[vsyscall]"];

/// The result of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) pages: usize,
    /// Number of pages whose only difference is one aligned block of the size of `struct rseq`.
    pub(crate) pages_with_rseq: usize,
}

impl Comparison {
    /// Compares the page at `address` in the mapping `name`. Panics if it differs in more than an rseq area.
    pub(crate) fn add(&mut self, name: &str, address: u64, expected: &[u8], found: &[u8]) {
        self.pages += 1;
        if expected != found {
            assert!(
                differs_in_one_rseq_only(expected, found),
                "{name}: page {address:#x} differs: {}",
                describe(expected, found)
            );
            self.pages_with_rseq += 1;
        }
    }

    /// Requires that no more pages differ in an rseq area than `child` has threads.
    pub(crate) fn require_only_rseq(&self, child: i32) {
        let threads_count = thread_ids(child).expect("the child's threads can be listed").len();
        let count = self.pages_with_rseq;
        assert!(
            count <= threads_count,
            "{count} pages differ in an rseq area, but there are only {threads_count} threads"
        );
    }
}

/// Compares all readable memory of `template` with the same addresses of `child`.
pub(crate) fn compare_memory(template: i32, child: i32) -> Comparison {
    compare_mappings_of(template, template, child)
}

/// As [`compare_memory`], but only in the mappings of process `of`: paused children also have the restorer's mappings.
pub(crate) fn compare_mappings_of(of: i32, template: i32, child: i32) -> Comparison {
    let mut all = Comparison::default();
    for entry in read_maps(of).expect("the template can be read").iter().filter(|entry| is_comparable(entry)) {
        let mut start = entry.start;
        while start < entry.end {
            let end = entry.end.min(start + CHUNK_BYTES as u64);
            compare_range(template, child, start..end, &name_of(entry), &mut all);
            start = end;
        }
    }
    all.require_only_rseq(child);
    all
}

fn is_comparable(entry: &MapEntry) -> bool {
    entry.protection & READABLE != 0 && !KERNEL_MAPPINGS.contains(&entry.path.as_slice())
}

fn name_of(entry: &MapEntry) -> String {
    format!("{} {}", entry.range_name(), String::from_utf8_lossy(&entry.path))
}

fn compare_range(template: i32, child: i32, range: Range<u64>, name: &str, into: &mut Comparison) {
    let expected = read(template, &range, name, "template");
    let found = read(child, &range, name, "child");
    for (page, (expected, found)) in expected.chunks(PAGE_BYTES).zip(found.chunks(PAGE_BYTES)).enumerate() {
        into.add(name, range.start + (page * PAGE_BYTES) as u64, expected, found);
    }
}

fn read(pid: i32, range: &Range<u64>, name: &str, whose: &str) -> Vec<u8> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let count = read_process(pid, range.start, &mut bytes).unwrap_or_else(|e| panic!("{name} of the {whose}: {e}"));
    assert_eq!(
        count,
        bytes.len(),
        "{name}: the {whose} (process {pid}) cannot be read from {:#x}",
        range.start + count as u64
    );
    bytes
}

fn differs_in_one_rseq_only(expected: &[u8], found: &[u8]) -> bool {
    let blocks = expected.chunks(RSEQ_BYTES).zip(found.chunks(RSEQ_BYTES));
    blocks.filter(|(expected, found)| expected != found).count() == 1
}

fn describe(expected: &[u8], found: &[u8]) -> String {
    let differing: Vec<usize> = (0..expected.len()).filter(|at| expected[*at] != found[*at]).collect();
    let kind = if found.iter().all(|byte| *byte == 0) { "all zero in the child" } else { "other data in the child" };
    format!("{} bytes, offsets {:#x} to {:#x}, {kind}", differing.len(), differing[0], differing[differing.len() - 1])
}

/// Returns the size of a process's memory that is in huge pages, in KiB.
pub(crate) fn huge_kb(pid: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
