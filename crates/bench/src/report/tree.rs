//! What `farfork bench tree` found: a table for people, one document for scripts.

use serde_json::{Value, json};

use super::table::{Table, figure, median, spread};
use crate::machine::{Machine, load_average};
use crate::plan::tree::{Figure, Key, TreePlan};
use crate::samples::{Samples, Spread, document};

/// All figures of a run.
#[derive(Debug)]
pub struct TreeReport {
    machine: Machine,
    load_average: f64,
    plan: TreePlan,
    samples: Samples<Key>,
}

impl TreeReport {
    pub(crate) fn new(plan: &TreePlan, samples: Samples<Key>) -> Self {
        Self { machine: Machine::this(), load_average: load_average(), plan: plan.clone(), samples }
    }

    fn spread(&self, processes: u64, figure: Figure) -> Option<Spread> {
        self.samples.spread(&Key { processes, figure })
    }

    /// What the median pause is above the sum of the floors' medians, in ms.
    fn above_floor_ms(&self, processes: u64) -> Option<f64> {
        let median = |figure| self.spread(processes, figure).map(|spread| spread.median);
        Some(median(Figure::Pause)? - median(Figure::Forks)? - median(Figure::Copy)?)
    }

    /// For scripts.
    pub fn document(&self) -> Value {
        let figure = |(key, spread): (&Key, Spread)| {
            let mut figure = document(key, spread, Some("ms"));
            if key.figure == Figure::Pause {
                figure["above_floor_ms"] = json!(self.above_floor_ms(key.processes));
            }
            figure
        };
        json!({
            "benchmark": "tree",
            "machine": self.machine,
            "load_average": self.load_average,
            "mib": self.plan.mib,
            "shared_mib": self.plan.shared_mib,
            "figures": self.samples.spreads().map(figure).collect::<Vec<_>>(),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let TreePlan { mib, shared_mib, .. } = self.plan;
        let title = format!("Trees of processes of {mib} MiB each that share {shared_mib} MiB, ms");
        let mut table = Table::new(&title, &["processes", "n", "fork() of each", "copy", "pause", "above", "prepare"]);
        for processes in &self.plan.processes {
            let of = |figure| self.spread(*processes, figure);
            table.row([
                processes.to_string(),
                of(Figure::Pause).map_or(0, |spread| spread.count).to_string(),
                spread(of(Figure::Forks)),
                median(of(Figure::Copy)),
                spread(of(Figure::Pause)),
                self.above_floor_ms(*processes).map_or("–".to_owned(), figure),
                median(of(Figure::Prepare)),
            ]);
        }
        format!(
            "{}, load {:.1}\n\n{}\n\nabove: the median pause − fork() of each process, summed up, − memcpy of what they share.\n",
            self.machine.text(),
            self.load_average,
            table.text()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Figure, Key, Samples, TreePlan, TreeReport};

    #[test]
    fn a_pause_stands_beside_its_floors() {
        let mut samples = Samples::new();
        for (figure, ms) in [(Figure::Forks, 4.0), (Figure::Copy, 0.5), (Figure::Pause, 6.0), (Figure::Prepare, 9.0)] {
            samples.add(Key { processes: 16, figure }, ms).unwrap();
        }
        let plan = TreePlan { processes: vec![16], mib: 4, shared_mib: 1, runs: 1 };
        let report = TreeReport::new(&plan, samples);
        let document = report.document();
        let figures = document["figures"].as_array().unwrap();
        let pause = figures.iter().find(|figure| figure["figure"] == "pause").unwrap();
        assert_eq!((&pause["processes"], &pause["above_floor_ms"]), (&16.into(), &1.5.into()), "{document}");
        assert!(report.text().contains("1.50"), "{}", report.text());
        assert!(report.text().lines().all(|line| line.chars().count() <= 110), "{}", report.text());
    }
}
