//! What `farfork bench churn` found: a table for people, one document for scripts.

use serde_json::{Value, json};

use super::table::{Table, figure, spread};
use crate::figure::Place;
use crate::machine::{Machine, load_average};
use crate::plan::churn::{ChurnPlan, Key};
use crate::samples::{Samples, Spread, document};
use crate::workload::churn::Deed;

/// All figures of a run.
#[derive(Debug)]
pub struct ChurnReport {
    machine: Machine,
    load_average: f64,
    plan: ChurnPlan,
    samples: Samples<Key>,
}

impl ChurnReport {
    pub(crate) fn new(plan: &ChurnPlan, samples: Samples<Key>) -> Self {
        Self { machine: Machine::this(), load_average: load_average(), plan: plan.clone(), samples }
    }

    fn spread(&self, deed: Deed, node: Option<Place>) -> Option<Spread> {
        self.samples.spread(&Key { deed, node })
    }

    /// A child's median ÷ that of the program that was not forked.
    fn ratio(&self, deed: Deed, node: Option<Place>) -> Option<f64> {
        Some(self.spread(deed, node)?.median / self.spread(deed, None)?.median)
    }

    /// For scripts.
    pub fn document(&self) -> Value {
        let figure = |(key, spread): (&Key, Spread)| {
            let mut figure = document(key, spread, Some("us"));
            figure["unforked_ratio"] = json!(self.ratio(key.deed, key.node));
            figure
        };
        json!({
            "benchmark": "churn",
            "machine": self.machine,
            "load_average": self.load_average,
            "mib": self.plan.mib,
            "encrypted": self.plan.encrypted,
            "figures": self.samples.spreads().map(figure).collect::<Vec<_>>(),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let headings = ["ms", "n", "unforked", "own node", "×", "other node", "×"];
        let title = format!("Programs of {} MiB that change their memory hard while it comes", self.plan.mib);
        let mut table = Table::new(&title, &headings);
        let ms = |of: Option<Spread>| {
            let Some(Spread { median, p10, p90, count }) = of else { return "–".to_owned() };
            spread(Some(Spread { median: median / 1e3, p10: p10 / 1e3, p90: p90 / 1e3, count }))
        };
        for deed in Deed::ALL {
            let unforked = self.spread(deed, None);
            let count = unforked.map_or(0, |spread| spread.count).to_string();
            let mut row = vec![deed.text().to_owned(), count, ms(unforked)];
            for place in [Place::Own, Place::Other].map(Some) {
                row.extend([ms(self.spread(deed, place)), self.ratio(deed, place).map_or("–".to_owned(), figure)]);
            }
            table.row(row);
        }
        let link = if self.plan.encrypted { "encrypted" } else { "in clear" };
        format!(
            "{}, load {:.1}; farfork's link {link}\n\n{}\n\n×: a child's median ÷ that of the same program, unforked. No page was wrong.\n",
            self.machine.text(),
            self.load_average,
            table.text()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{ChurnPlan, ChurnReport, Deed, Key, Place, Samples};

    #[test]
    fn a_child_stands_beside_the_program_unforked() {
        let mut samples = Samples::new();
        let mut add = |deed, node, us| samples.add(Key { deed, node }, us).unwrap();
        add(Deed::Decay, None, 20_000.0);
        add(Deed::Decay, Some(Place::Other), 30_000.0);
        let report = ChurnReport::new(&ChurnPlan { mib: 64, runs: 1, encrypted: true }, samples);
        let document = report.document();
        let figures = document["figures"].as_array().unwrap();
        let other = figures.iter().find(|figure| figure["node"] == "other").unwrap();
        assert_eq!((&other["deed"], &other["unforked_ratio"]), (&"decay".into(), &1.5.into()), "{document}");
        assert!(report.text().contains("1.50") && report.text().contains("30.0"), "{}", report.text());
        assert!(report.text().lines().all(|line| line.chars().count() <= 110), "{}", report.text());
    }
}
