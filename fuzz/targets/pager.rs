//! The pager's inputs: its control socket, and the plan and journal in a child's directory. No bytes panic, and an
//! accepted plan encodes and decodes unchanged.
#![no_main]

use std::sync::LazyLock;

use farfork_fork::pager::{MemoryPlan, decoders};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

/// A child's directory.
static CHILD: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a directory"));

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 4 {
        0 => _ = decoders::is_request(bytes),
        1 => _ = decoders::is_reply(bytes),
        2 => plan(bytes),
        _ => journal(bytes),
    }
});

fn plan(bytes: &[u8]) {
    let Ok(plan) = decoders::decode_plan(bytes) else { return };
    let _ = plan.populated_bytes();
    let again = plan.encode().expect("it was decoded");
    assert_eq!(MemoryPlan::decode(&again).as_ref(), Ok(&plan));
}

/// The input: the length of the snapshot (u16), the snapshot, then the contents of the journal after its magic.
fn journal(input: &[u8]) {
    let Some((length, rest)) = input.split_first_chunk() else { return };
    let (snapshot, fixed) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
    let _ = decoders::count_replayed_spaces(CHILD.path(), snapshot, fixed).expect("the directory is there");
}
