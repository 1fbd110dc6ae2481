//! Inputs of the restoring node: the reports of a stub, which refer to parts of the descriptor, and the descriptor, from
//! which the node makes a memory plan. No report panics with any descriptor. Each valid descriptor gives a valid plan.
#![no_main]

use farfork_fork::pager::{MemoryPlan, decoders};
use farfork_fork::restore::decode_report;
use farfork_fuzz::script;
use farfork_wire::descriptor::decode;
use libfuzzer_sys::fuzz_target;

/// Size of a report, in bytes.
const REPORT_BYTES: usize = 72;

fuzz_target!(|input: &[u8]| {
    let (report, body) = input.split_at(input.len().min(REPORT_BYTES));
    let Ok(descriptor) = decode(&script::descriptor(body)) else { return };
    if let Ok(is_restored) = decode_report(report, &descriptor) {
        assert!(report.len() == REPORT_BYTES || !is_restored);
    }
    let plan = decoders::plan_from_descriptor(&descriptor);
    let bytes = plan.encode().expect("it is within the limits");
    assert_eq!(MemoryPlan::decode(&bytes).as_ref(), Ok(&plan));
});
