//! Working sets: the pagers' reports about children, and the set that an owner serves. No bytes panic, no report makes a set
//! exceed its limits, and a pager decodes a served set unchanged.
#![no_main]

use farfork_fork::pager::{SharedWorkingSet, decoders};
use farfork_wire::descriptor::ExtentId;
use libfuzzer_sys::fuzz_target;

/// The pages of the seed: more than a working set may have.
const EXTENTS: u32 = 3;
const PAGES: u64 = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 3 {
        0 => _ = decoders::count_set_body_pages(bytes),
        1 => learn(bytes),
        _ => check(&SharedWorkingSet::from_saved(bytes, has)),
    }
});

fn has(extent: ExtentId, page: u64) -> bool {
    extent.0 < EXTENTS && page < PAGES
}

/// The input: reports, each preceded by its length (u16).
fn learn(mut input: &[u8]) {
    let working_set = SharedWorkingSet::default();
    while let Some((length, rest)) = input.split_first_chunk() {
        let (bytes, behind) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
        if let Some(report) = decoders::decode_report(bytes) {
            working_set.apply_report(&report, has);
        }
        input = behind;
    }
    check(&working_set);
}

fn check(working_set: &SharedWorkingSet) {
    let mut served = vec![0; working_set.encoded_bytes().len() + 64];
    working_set.read(0, &mut served);
    assert!(working_set.page_count() <= decoders::SET_PAGES_MAX, "the set exceeds its limit");
    assert_eq!(
        decoders::count_set_pages(&served),
        working_set.page_count(),
        "the reader decodes what the owner serves"
    );
}
