//! The summary of `farfork bench churn`: a table as text, and a JSON document for scripts.

use serde_json::{Value, json};

use super::table::{FigureTable, format_figure, format_spread};
use crate::error::BenchError;
use crate::figure::ChildPlace;
use crate::machine::MachineState;
use crate::parameters::churn::{ChurnParameters, ChurnSampleKey};
use crate::report::section::SectionSource as _;
use crate::samples::{Samples, Spread, figure_json};
use crate::workload::churn::ChurnOperation;

/// All figures of a run.
#[derive(Debug)]
pub struct ChurnSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: ChurnParameters,
    samples: Samples<ChurnSampleKey>,
}

impl ChurnSummary {
    pub(crate) fn new(plan: &ChurnParameters, mut samples: Samples<ChurnSampleKey>) -> Result<Self, BenchError> {
        samples.flush()?;
        Ok(Self { machine_state: MachineState::detect(), plan: plan.clone(), samples })
    }

    pub(super) fn spread(&self, churn_operation: ChurnOperation, node: Option<ChildPlace>) -> Option<Spread> {
        self.samples.spread(&ChurnSampleKey { deed: churn_operation, node })
    }

    /// A child's median ÷ the median of the program without a fork.
    fn ratio_to_unforked(&self, churn_operation: ChurnOperation, node: Option<ChildPlace>) -> Option<f64> {
        Some(self.spread(churn_operation, node)?.median / self.spread(churn_operation, None)?.median)
    }

    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let figure = |(key, spread): (&ChurnSampleKey, Spread)| {
            let mut figure = figure_json(key, spread, Some("us"));
            figure["unforked_ratio"] = json!(self.ratio_to_unforked(key.deed, key.node));
            figure
        };
        json!({
            "benchmark": "churn",
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "mib": self.plan.mib,
            "encrypted": self.plan.encrypted,
            "figures": self.samples.spreads().map(figure).collect::<Vec<_>>(),
            "section": self.section(),
        })
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        let headings = ["ms", "n", "unforked", "own node", "×", "other node", "×"];
        let title = format!("Programs of {} MiB that change their memory while it arrives", self.plan.mib);
        let mut table = FigureTable::new(&title, &headings);
        let ms = |of: Option<Spread>| {
            let Some(Spread { median, p10, p90, count }) = of else { return "–".to_owned() };
            format_spread(Some(Spread { median: median / 1e3, p10: p10 / 1e3, p90: p90 / 1e3, count }))
        };
        for churn_operation in ChurnOperation::ALL {
            let unforked = self.spread(churn_operation, None);
            let count = unforked.map_or(0, |spread| spread.count).to_string();
            let mut row = vec![churn_operation.text().to_owned(), count, ms(unforked)];
            for place in [ChildPlace::Own, ChildPlace::Other].map(Some) {
                row.extend([
                    ms(self.spread(churn_operation, place)),
                    self.ratio_to_unforked(churn_operation, place).map_or("–".to_owned(), format_figure),
                ]);
            }
            table.add_row(row);
        }
        let link = if self.plan.encrypted { "encrypted" } else { "in clear" };
        format!(
            "{}; farfork's link {link}\n\n{}\n\n×: a child's median ÷ that of the same program, unforked. No page was wrong.\n",
            self.machine_state.describe(),
            table.render()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{ChildPlace, ChurnOperation, ChurnParameters, ChurnSampleKey, ChurnSummary, Samples};

    #[test]
    fn a_child_is_compared_with_the_unforked_program() {
        let mut samples = Samples::new();
        let mut add = |deed, node, us| samples.add(ChurnSampleKey { deed, node }, us).unwrap();
        add(ChurnOperation::Decay, None, 20_000.0);
        add(ChurnOperation::Decay, Some(ChildPlace::Other), 30_000.0);
        let plan = ChurnParameters { mib: 64, runs: 1, encrypted: true, samples_file: None };
        let report = ChurnSummary::new(&plan, samples).unwrap();
        let document = report.to_json();
        let figures = document["figures"].as_array().unwrap();
        let other = figures.iter().find(|figure| figure["node"] == "other").unwrap();
        assert_eq!((&other["deed"], &other["unforked_ratio"]), (&"decay".into(), &1.5.into()), "{document}");
        assert!(report.to_text().contains("1.50") && report.to_text().contains("30.0"), "{}", report.to_text());
        assert!(report.to_text().lines().all(|line| line.chars().count() <= 110), "{}", report.to_text());
    }
}
