//! Working sets: what pagers report of children, and the set that an owner answers with. No bytes panic, a set stays within its
//! bounds whatever is reported, and what an owner serves is read by a pager as it was meant.
#![no_main]

use farfork_fork::pager::{Remembered, decoders};
use farfork_wire::descriptor::ExtentId;
use libfuzzer_sys::fuzz_target;

/// What the seed has: as much as a set may have, and more.
const EXTENTS: u32 = 3;
const PAGES: u64 = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 3 {
        0 => _ = decoders::set_pages(bytes),
        1 => learn(bytes),
        _ => check(&Remembered::found(bytes, has)),
    }
});

fn has(extent: ExtentId, page: u64) -> bool {
    extent.0 < EXTENTS && page < PAGES
}

/// The input: reports, each behind its length (u16).
fn learn(mut input: &[u8]) {
    let remembered = Remembered::default();
    while let Some((length, rest)) = input.split_first_chunk() {
        let (bytes, behind) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
        if let Some(report) = decoders::report(bytes) {
            remembered.learn(&report, has);
        }
        input = behind;
    }
    check(&remembered);
}

fn check(remembered: &Remembered) {
    let mut served = vec![0; remembered.bytes().len() + 64];
    remembered.read(0, &mut served);
    assert!(remembered.pages() <= decoders::SET_PAGES_MAX, "a set has its bounds");
    assert_eq!(decoders::pages_of_set(&served), remembered.pages(), "what is served is what is read");
}
