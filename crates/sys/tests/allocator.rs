//! Tests that run alone in their process, because the number of arenas is set once per process.
#![cfg(target_env = "gnu")]

use std::sync::Barrier;
use std::{ptr, slice, thread};

use farfork_sys::allocator;

/// More threads than the configured number of arenas.
const THREADS: usize = 24;

#[test]
fn threads_share_the_configured_number_of_arenas() {
    allocator::limit_arenas(3);
    let all_have_memory = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let memory = std::hint::black_box(vec![1_u8; 5000]);
                all_have_memory.wait();
                drop(memory);
            });
        }
    });
    assert_eq!(pools(), 3);
}

#[test]
fn free_pages_between_used_blocks_are_returned_to_the_kernel() {
    const BLOCKS: usize = 20_000;
    let blocks: Vec<_> = (0..BLOCKS).map(|block| vec![block as u8; 2000]).collect();
    let used: Vec<_> = blocks.into_iter().step_by(20).collect();
    let before = anonymous_kib();
    allocator::trim_heap();
    let freed_kib = before - anonymous_kib();
    // The blocks have 38 MiB in total, and one in twenty is still used. A page that overlaps a used block is kept.
    assert!(freed_kib > 25 << 10, "{freed_kib} KiB");
    assert!(used.iter().enumerate().all(|(at, block)| block.iter().all(|byte| *byte == (at * 20) as u8)));
}

fn anonymous_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Counts the arenas of the allocator: malloc_info(3) reports each as an element `heap`.
fn pools() -> usize {
    let (mut text, mut length) = (ptr::null_mut(), 0);
    // SAFETY: the stream writes into its own memory; on close it stores address and length in both variables.
    let report = unsafe {
        let stream = libc::open_memstream(&mut text, &mut length);
        assert_eq!(libc::malloc_info(0, stream), 0);
        libc::fclose(stream);
        slice::from_raw_parts(text.cast::<u8>(), length)
    };
    let count = String::from_utf8_lossy(report).matches("<heap nr=").count();
    // SAFETY: the report is not used after this.
    unsafe { libc::free(text.cast()) };
    count
}
