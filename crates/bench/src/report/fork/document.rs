//! The document of a run: one object a figure, with its key, its spread, and what it is compared with.

use serde_json::{Value, json};

use super::ForkReport;
use crate::figure::{By, Key};
use crate::machine::Machine;
use crate::plan::fork::Resumed;
use crate::reference;
use crate::samples::{self, Spread};

impl ForkReport {
    /// One document for scripts.
    pub fn document(&self) -> Value {
        let figures: Vec<Value> = self.samples.spreads().map(|(key, spread)| document_of(key, spread)).collect();
        json!({
            "benchmark": "fork",
            "version": env!("CARGO_PKG_VERSION"),
            "machine": Machine::this(),
            "load_average": self.load_before,
            "plan": {
                "mib": self.plan.sizes_mib,
                "runs": self.plan.runs,
                "time_max_s": self.plan.time_max.as_secs_f64(),
                "order": self.plan.order,
                "access": self.plan.access,
                "page_size": self.plan.page_size,
                "threads": self.plan.threads,
                "mappings": self.plan.mappings,
                "first": self.plan.resumed.is_first(),
                "foretold": self.plan.resumed == Resumed::Foretold,
                "fresh": self.plan.resumed == Resumed::Fresh,
                "encrypted": self.plan.encrypted,
            },
            "elapsed_s": self.elapsed.as_secs_f64(),
            "reference": reference::SOURCE,
            "figures": figures,
            "strategies": self.strategies,
            "notes": self.notes,
        })
    }
}

fn document_of(key: &Key, spread: Spread) -> Value {
    let reference = compared(key).then(|| reference::of(key.figure, key.mib)).flatten();
    let mut figure = samples::document(key, spread, None);
    figure["reference"] = json!(reference);
    figure["below_reference"] = json!(reference.map(|reference| spread.median < reference));
    figure
}

/// Only what farfork and its peers do is compared with the reference: floors do something else.
fn compared(key: &Key) -> bool {
    !matches!(key.by, By::LocalFork | By::Link)
}
