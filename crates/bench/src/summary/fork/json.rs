//! The JSON document of `farfork bench fork`: for each figure its key, its spread, and its reference.

use serde_json::{Value, json};

use super::ForkSummary;
use crate::figure::{ForkSampleKey, ForkSystem};
use crate::parameters::fork::ResumeCase;
use crate::reference::PUBLISHED_FIGURES;
use crate::report::section::SectionSource as _;
use crate::samples::{self, Spread};

impl ForkSummary {
    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let figures: Vec<Value> = self.samples.spreads().map(|(key, spread)| figure_json(key, spread)).collect();
        json!({
            "benchmark": "fork",
            "version": env!("CARGO_PKG_VERSION"),
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "plan": {
                "mib": self.plan.sizes_mib,
                "runs": self.plan.runs,
                "time_max_s": self.plan.time_max.as_secs_f64(),
                "order": self.plan.order,
                "access": self.plan.access,
                "page_size": self.plan.page_size,
                "threads": self.plan.threads,
                "mappings": self.plan.mappings,
                "first": self.plan.resume_case.is_first(),
                "foretold": self.plan.resume_case == ResumeCase::Speculative,
                "fresh": self.plan.resume_case == ResumeCase::Fresh,
                "encrypted": self.plan.encrypted,
            },
            "elapsed_s": self.elapsed.as_secs_f64(),
            "reference": PUBLISHED_FIGURES.fork.source,
            "figures": figures,
            "strategies": self.strategies,
            "notes": self.notes,
            "section": self.section(),
        })
    }
}

fn figure_json(key: &ForkSampleKey, spread: Spread) -> Value {
    let reference = has_reference(key).then(|| PUBLISHED_FIGURES.fork.published_ms(key.figure, key.mib)).flatten();
    let mut figure = samples::figure_json(key, spread, None);
    figure["reference"] = json!(reference);
    figure["below_reference"] = json!(reference.map(|reference| spread.median < reference));
    figure
}

/// Only farfork and its peers are compared with the reference, because floors do other work.
fn has_reference(key: &ForkSampleKey) -> bool {
    !matches!(key.by, ForkSystem::LocalFork | ForkSystem::Link)
}
