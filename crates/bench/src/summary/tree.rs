//! The summary of `farfork bench tree`: a table as text, and a JSON document for scripts.

use serde_json::{Value, json};

use super::table::{FigureTable, format_figure, format_median, format_spread};
use crate::error::BenchError;
use crate::machine::MachineState;
use crate::parameters::tree::{TreeFigure, TreeParameters, TreeSampleKey};
use crate::report::section::SectionSource as _;
use crate::samples::{Samples, Spread, figure_json};

/// All figures of a run.
#[derive(Debug)]
pub struct TreeSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: TreeParameters,
    samples: Samples<TreeSampleKey>,
}

impl TreeSummary {
    pub(crate) fn new(plan: &TreeParameters, mut samples: Samples<TreeSampleKey>) -> Result<Self, BenchError> {
        samples.flush()?;
        Ok(Self { machine_state: MachineState::detect(), plan: plan.clone(), samples })
    }

    pub(super) fn spread(&self, processes: u64, figure: TreeFigure) -> Option<Spread> {
        self.samples.spread(&TreeSampleKey { processes, figure })
    }

    /// The median pause minus the sum of the floors' medians, in ms.
    fn above_floor_ms(&self, processes: u64) -> Option<f64> {
        let median = |figure| self.spread(processes, figure).map(|spread| spread.median);
        Some(median(TreeFigure::Pause)? - median(TreeFigure::Forks)? - median(TreeFigure::Copy)?)
    }

    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let figure = |(key, spread): (&TreeSampleKey, Spread)| {
            let mut figure = figure_json(key, spread, Some("ms"));
            if key.figure == TreeFigure::Pause {
                figure["above_floor_ms"] = json!(self.above_floor_ms(key.processes));
            }
            figure
        };
        json!({
            "benchmark": "tree",
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "mib": self.plan.mib,
            "shared_mib": self.plan.shared_mib,
            "figures": self.samples.spreads().map(figure).collect::<Vec<_>>(),
            "section": self.section(),
        })
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        let TreeParameters { mib, shared_mib, .. } = self.plan;
        let title = format!("Trees of processes of {mib} MiB each that share {shared_mib} MiB, ms");
        let mut table =
            FigureTable::new(&title, &["processes", "n", "fork() of each", "copy", "pause", "above", "prepare"]);
        for processes in &self.plan.processes {
            let of = |figure| self.spread(*processes, figure);
            table.add_row([
                processes.to_string(),
                of(TreeFigure::Pause).map_or(0, |spread| spread.count).to_string(),
                format_spread(of(TreeFigure::Forks)),
                format_median(of(TreeFigure::Copy)),
                format_spread(of(TreeFigure::Pause)),
                self.above_floor_ms(*processes).map_or("–".to_owned(), format_figure),
                format_median(of(TreeFigure::Prepare)),
            ]);
        }
        format!(
            "{}\n\n{}\n\nabove: the median pause − the sum of fork() of each process − memcpy of the shared memory.\n",
            self.machine_state.describe(),
            table.render()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Samples, TreeFigure, TreeParameters, TreeSampleKey, TreeSummary};

    #[test]
    fn a_pause_is_shown_next_to_its_floors() {
        let mut samples = Samples::new();
        for (figure, ms) in
            [(TreeFigure::Forks, 4.0), (TreeFigure::Copy, 0.5), (TreeFigure::Pause, 6.0), (TreeFigure::Prepare, 9.0)]
        {
            samples.add(TreeSampleKey { processes: 16, figure }, ms).unwrap();
        }
        let plan = TreeParameters { processes: vec![16], mib: 4, shared_mib: 1, runs: 1, samples_file: None };
        let report = TreeSummary::new(&plan, samples).unwrap();
        let document = report.to_json();
        let figures = document["figures"].as_array().unwrap();
        let pause = figures.iter().find(|figure| figure["figure"] == "pause").unwrap();
        assert_eq!((&pause["processes"], &pause["above_floor_ms"]), (&16.into(), &1.5.into()), "{document}");
        assert!(report.to_text().contains("1.50"), "{}", report.to_text());
        assert!(report.to_text().lines().all(|line| line.chars().count() <= 110), "{}", report.to_text());
    }
}
