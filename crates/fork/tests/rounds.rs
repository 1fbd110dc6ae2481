//! A thousand captures leak nothing. This is a separate test program, because it measures the resources of its own
//! process.

#[allow(dead_code, reason = "the tests of capture use the rest")]
#[path = "capture/harness.rs"]
mod harness;

use std::time::{Duration, Instant};

use harness::{Parent, children};

const ROUNDS: usize = 1000;
const ENDING_MAX: usize = 4;

/// Longest wait until the last templates are reaped.
const REAPED_LIMIT: Duration = Duration::from_secs(90);

/// Resources of this process that could leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holdings {
    files: usize,
    threads: usize,
    resident_pages: u64,
}

fn ours() -> Holdings {
    let count = |directory: &str| std::fs::read_dir(directory).unwrap().count();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident_pages = statm.split(' ').nth(1).unwrap().parse().unwrap();
    Holdings { files: count("/proc/self/fd"), threads: count("/proc/self/task"), resident_pages }
}

#[test]
fn a_thousand_rounds_leave_nothing() {
    // Shows why a template was not reaped.
    let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).try_init();
    let mut parent = Parent::start("threads", &[]);
    let resident = || farfork_sys::process::ProcStatus::read(parent.pid()).unwrap().resident_bytes;
    for _ in 0..ROUNDS / 10 {
        drop(parent.capture().unwrap());
    }
    let (before, parents_before) = (ours(), resident());
    for _ in 0..ROUNDS {
        drop(parent.capture().unwrap());
    }
    let (after, parents_after) = (ours(), resident());
    // One or two tracers may still be ending. A leak in each round would be a thousand files.
    assert!(after.files <= before.files + ENDING_MAX, "{before:?} {after:?}");
    assert!(after.threads <= before.threads + ENDING_MAX, "{before:?} {after:?}");
    // The allocator may keep some freed memory.
    assert!(after.resident_pages < before.resident_pages + 1024, "{before:?} {after:?}");
    assert!(parents_after < parents_before + (1 << 20), "{parents_before} {parents_after}");
    // On a busy machine, the last templates may be reaped late.
    let deadline = Instant::now() + REAPED_LIMIT;
    while !children(parent.pid()).is_empty() {
        assert!(Instant::now() < deadline, "zombies are left: {:?}", children(parent.pid()));
        std::thread::sleep(Duration::from_millis(100));
    }
    parent.wait_for("round");
}
