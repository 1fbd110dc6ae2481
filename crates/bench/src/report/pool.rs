//! What `farfork bench pool` found: a table for people, one document for scripts.

use serde_json::{Value, json};

use super::table::{Table, figure, median, spread};
use crate::error::BenchError;
use crate::figure::Pace;
use crate::machine::{Machine, load_average};
use crate::plan::by::{Creator, Pauser};
use crate::plan::pool::{By, Figure, Key, PoolPlan};
use crate::samples::{Samples, Spread, document};

/// The rows of the table: what children are created by, and what they are paused by.
const CREATING: [Figure; 3] = [Figure::Create, Figure::CreateAnswered, Figure::CreateInBurst];
const PAUSING: [Figure; 3] = [Figure::Pause, Figure::Unpause, Figure::UnpauseToAnswer];

/// All figures of a run.
#[derive(Debug)]
pub struct PoolReport {
    machine: Machine,
    load_average: f64,
    plan: PoolPlan,
    samples: Samples<Key>,
}

impl PoolReport {
    pub(crate) fn new(plan: &PoolPlan, mut samples: Samples<Key>) -> Result<Self, BenchError> {
        samples.flush()?;
        Ok(Self { machine: Machine::this(), load_average: load_average(), plan: plan.clone(), samples })
    }

    /// For scripts.
    pub fn document(&self) -> Value {
        let figure = |(key, spread): (&Key, Spread)| document(key, spread, Some("us"));
        json!({
            "benchmark": "pool",
            "machine": self.machine,
            "load_average": self.load_average,
            "plan": self.plan,
            "figures": self.samples.spreads().map(figure).collect::<Vec<_>>(),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let PoolPlan { pool, mib, runs, .. } = &self.plan;
        let title =
            format!("Children of a parent of {mib} MiB, {pool} containers ready, µs: medians of {runs} (p10–p90)");
        let by = Creator::EVERYWHERE.map(By::Creating);
        let creating = self.table(&title, ["into namespaces", "fork()"], CREATING, by);
        let by = Pauser::ALL.map(By::Pausing);
        let pausing = self.table("A child that is warm, µs", ["bare freezer", "signals"], PAUSING, by);
        format!(
            "{}, load {:.1}\n\n{creating}\n\n{pausing}\n\nidle: after 150 ms in which nothing happens. In a burst: {} at once, each. \
             ×: farfork's median ÷ theirs. No result\nwas wrong.\n",
            self.machine.text(),
            self.load_average,
            pool * 4,
        )
    }

    fn table(&self, title: &str, names: [&str; 2], figures: [Figure; 3], by: [By; 3]) -> String {
        let mut table = Table::new(title, &["", "", "farfork", names[0], "×", names[1], "×"]);
        for what in figures {
            for (pace, pace_text) in [(Pace::BackToBack, ""), (Pace::Idle, "idle")] {
                let of = |by| self.samples.spread(&Key { figure: what, by, pace });
                let [Some(farfork), floors @ ..] = by.map(of) else { continue };
                let mut row = vec![what.text().to_owned(), pace_text.to_owned(), spread(Some(farfork))];
                for floor in floors {
                    let ratio = floor.map_or("–".to_owned(), |floor| figure(farfork.median / floor.median));
                    row.extend([median(floor), ratio]);
                }
                table.row(row);
            }
        }
        table.text()
    }
}

impl Figure {
    fn text(self) -> &'static str {
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
    use super::{By, Creator, Figure, Key, Pace, Pauser, PoolPlan, PoolReport, Samples};

    #[test]
    fn floors_stand_beside_farfork() {
        let mut samples = Samples::new();
        let mut add = |figure, by, ms| samples.add(Key { figure, by, pace: Pace::Idle }, ms).unwrap();
        add(Figure::Create, By::Creating(Creator::Farfork), 1.5);
        add(Figure::Create, By::Creating(Creator::LocalFork), 0.5);
        add(Figure::Pause, By::Pausing(Pauser::Farfork), 0.75);
        add(Figure::Pause, By::Pausing(Pauser::Signals), 0.125);
        let plan = PoolPlan { pool: 8, mib: 16, runs: 20, samples_file: None };
        let report = PoolReport::new(&plan, samples).unwrap();
        let (text, document) = (report.text(), report.document());
        assert!(text.contains("3.00") && text.contains("6.00"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX + 20), "{text}");
        assert_eq!(document["figures"].as_array().map(Vec::len), Some(4), "{document}");
        assert_eq!(document["figures"][0]["by"], "farfork", "{document}");
        assert_eq!((&document["figures"][0]["pace"], &document["plan"]["pool"]), (&"idle".into(), &8.into()));
    }
}
