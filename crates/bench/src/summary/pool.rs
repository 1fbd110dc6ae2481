//! The summary of `farfork bench pool`: a table as text, and a JSON document for scripts.

use serde_json::{Value, json};

use super::table::{FigureTable, format_figure, format_median, format_spread};
use crate::error::BenchError;
use crate::figure::Pace;
use crate::machine::MachineState;
use crate::parameters::methods::{CreateMethod, PauseMethod};
use crate::parameters::pool::{PoolFigure, PoolMethod, PoolParameters, PoolSampleKey};
use crate::report::section::SectionSource as _;
use crate::samples::{Samples, Spread, figure_json};

/// The rows of the tables: the figures of creating and of pausing.
pub(super) const CREATE_FIGURES: [PoolFigure; 3] =
    [PoolFigure::Create, PoolFigure::CreateAnswered, PoolFigure::CreateInBurst];
pub(super) const PAUSE_FIGURES: [PoolFigure; 3] = [PoolFigure::Pause, PoolFigure::Unpause, PoolFigure::UnpauseToAnswer];

/// All figures of a run.
#[derive(Debug)]
pub struct PoolSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: PoolParameters,
    pub(super) samples: Samples<PoolSampleKey>,
}

impl PoolSummary {
    pub(crate) fn new(plan: &PoolParameters, mut samples: Samples<PoolSampleKey>) -> Result<Self, BenchError> {
        samples.flush()?;
        Ok(Self { machine_state: MachineState::detect(), plan: plan.clone(), samples })
    }

    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let figure = |(key, spread): (&PoolSampleKey, Spread)| figure_json(key, spread, Some("us"));
        json!({
            "benchmark": "pool",
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "plan": self.plan,
            "figures": self.samples.spreads().map(figure).collect::<Vec<_>>(),
            "section": self.section(),
        })
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        let PoolParameters { pool, mib, runs, .. } = &self.plan;
        let title =
            format!("Children of a parent of {mib} MiB, {pool} containers ready, µs: medians of {runs} (p10–p90)");
        let by = CreateMethod::ON_EVERY_MACHINE.map(PoolMethod::Create);
        let creating = self.table(&title, ["into namespaces", "fork()"], CREATE_FIGURES, by);
        let by = PauseMethod::REQUESTS_AND_FLOORS.map(PoolMethod::Pause);
        let pausing = self.table("A child that is warm, µs", ["bare freezer", "signals"], PAUSE_FIGURES, by);
        format!(
            "{}\n\n{creating}\n\n{pausing}\n\nidle: after 150 ms in which nothing happens. In a burst: {} at once, each. \
             ×: farfork's median ÷ theirs. No result\nwas wrong.\n",
            self.machine_state.describe(),
            pool * 4,
        )
    }

    fn table(&self, title: &str, names: [&str; 2], figures: [PoolFigure; 3], by: [PoolMethod; 3]) -> String {
        let mut table = FigureTable::new(title, &["", "", "farfork", names[0], "×", names[1], "×"]);
        for what in figures {
            for (pace, pace_text) in [(Pace::BackToBack, ""), (Pace::Idle, "idle")] {
                let of = |by| self.samples.spread(&PoolSampleKey { figure: what, by, pace });
                let [Some(farfork), floors @ ..] = by.map(of) else { continue };
                let mut row = vec![what.text().to_owned(), pace_text.to_owned(), format_spread(Some(farfork))];
                for floor in floors {
                    let ratio = floor.map_or("–".to_owned(), |floor| format_figure(farfork.median / floor.median));
                    row.extend([format_median(floor), ratio]);
                }
                table.add_row(row);
            }
        }
        table.render()
    }
}

impl PoolFigure {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Create => "call to result",
            Self::CreateAnswered => "the same, received",
            Self::CreateInBurst => "in a burst",
            Self::Pause => "pause",
            Self::Unpause => "unpause",
            Self::UnpauseToAnswer => "unpause to answer",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::COLUMNS_MAX;
    use super::{
        CreateMethod, Pace, PauseMethod, PoolFigure, PoolMethod, PoolParameters, PoolSampleKey, PoolSummary, Samples,
    };

    #[test]
    fn floors_are_shown_next_to_farfork() {
        let mut samples = Samples::new();
        let mut add = |figure, by, ms| samples.add(PoolSampleKey { figure, by, pace: Pace::Idle }, ms).unwrap();
        add(PoolFigure::Create, PoolMethod::Create(CreateMethod::Farfork), 1.5);
        add(PoolFigure::Create, PoolMethod::Create(CreateMethod::LocalFork), 0.5);
        add(PoolFigure::Pause, PoolMethod::Pause(PauseMethod::Farfork), 0.75);
        add(PoolFigure::Pause, PoolMethod::Pause(PauseMethod::Signals), 0.125);
        let plan = PoolParameters { pool: 8, mib: 16, runs: 20, samples_file: None };
        let report = PoolSummary::new(&plan, samples).unwrap();
        let (text, document) = (report.to_text(), report.to_json());
        assert!(text.contains("3.00") && text.contains("6.00"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX + 20), "{text}");
        assert_eq!(document["figures"].as_array().map(Vec::len), Some(4), "{document}");
        assert_eq!(document["figures"][0]["by"], "farfork", "{document}");
        assert_eq!((&document["figures"][0]["pace"], &document["plan"]["pool"]), (&"idle".into(), &8.into()));
    }
}
