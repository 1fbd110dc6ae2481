//! What the node that restores reads: the reports of the stub, whose details name parts of the descriptor, and the
//! descriptor, which a memory plan is made of. No report panics, whatever the descriptor, and no descriptor that is valid
//! makes a plan that is none.
#![no_main]

use farfork_fork::pager::{MemoryPlan, decoders};
use farfork_fork::restore::understand_report;
use farfork_fuzz::script;
use farfork_wire::descriptor::decode;
use libfuzzer_sys::fuzz_target;

/// Size of a report, in bytes.
const REPORT_BYTES: usize = 72;

fuzz_target!(|input: &[u8]| {
    let (report, body) = input.split_at(input.len().min(REPORT_BYTES));
    let Ok(descriptor) = decode(&script::descriptor(body)) else { return };
    if let Ok(stands) = understand_report(report, &descriptor) {
        assert!(report.len() == REPORT_BYTES || !stands);
    }
    let plan = decoders::plan_of(&descriptor);
    let bytes = plan.encode().expect("it is within the limits");
    assert_eq!(MemoryPlan::decode(&bytes).as_ref(), Ok(&plan));
});
