//! The summary of `farfork bench warm-start`: a table as text, and a JSON document for scripts. Both have published
//! figures for comparison.

use serde_json::{Value, json};

use super::table::{FigureTable, format_median, format_spread};
use crate::error::BenchError;
use crate::machine::{Machine, load_average};
use crate::parameters::methods::PauseMethod;
use crate::parameters::warm_start::{WarmStartFigure, WarmStartParameters, WarmStartSampleKey};
use crate::reference::{PUBLISHED_FIGURES, PausedFunctionReference};
use crate::samples::{Samples, Spread, figure_json};

/// All figures of a run.
#[derive(Debug)]
pub struct WarmStartSummary {
    machine: Machine,
    load_average: f64,
    plan: WarmStartParameters,
    /// How many at once were measured.
    parallel: Vec<usize>,
    samples: Samples<WarmStartSampleKey>,
}

impl WarmStartSummary {
    pub(crate) fn new(
        plan: &WarmStartParameters,
        parallel: Vec<usize>,
        mut samples: Samples<WarmStartSampleKey>,
    ) -> Result<Self, BenchError> {
        samples.flush()?;
        Ok(Self { machine: Machine::detect(), load_average: load_average(), plan: plan.clone(), parallel, samples })
    }

    fn spread(&self, parallel: usize, by: PauseMethod, figure: WarmStartFigure) -> Option<Spread> {
        self.samples.spread(&WarmStartSampleKey { parallel, by, figure })
    }

    /// With how many at once most functions ran a second, and how many.
    fn best_parallelism(&self, by: PauseMethod) -> Option<(usize, f64)> {
        let per_s = |parallel: &usize| Some((*parallel, self.spread(*parallel, by, WarmStartFigure::RunsPerS)?.median));
        self.parallel.iter().filter_map(per_s).max_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        let figure = |(key, spread): (&WarmStartSampleKey, Spread)| figure_json(key, spread, None);
        let best = PauseMethod::ALL.iter().filter_map(|by| {
            let (parallel, per_s) = self.best_parallelism(*by)?;
            Some(json!({ "by": by, "parallel": parallel, "runs_per_s": per_s }))
        });
        let reference = PUBLISHED_FIGURES.warm_start.functions.iter().map(|PausedFunctionReference { name, parallel, runs_per_s }| {
            json!({ "function": name, "parallel": parallel, "runs_per_s": runs_per_s })
        });
        json!({
            "benchmark": "warm_start",
            "machine": self.machine,
            "load_average": self.load_average,
            "plan": self.plan,
            "figures": self.samples.spreads().map(figure).collect::<Vec<_>>(),
            "best": best.collect::<Vec<_>>(),
            "reference": reference.collect::<Vec<_>>(),
        })
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let WarmStartParameters { steps, runs, .. } = &self.plan;
        let title = format!(
            "Functions of {steps} steps, each run by a child that is paused before and after: medians of {runs}"
        );
        let headings = ["at once", "runs/s (p10–p90)", "answer, ms", "p99", "freezer, /s", "×", "signals, /s", "×"];
        let mut table = FigureTable::new(&title, &headings);
        for parallel in self.parallel.iter().copied() {
            let of = |by, figure| self.spread(parallel, by, figure);
            let farfork = of(PauseMethod::Farfork, WarmStartFigure::RunsPerS);
            let mut row = vec![parallel.to_string(), format_spread(farfork)];
            row.extend(
                [WarmStartFigure::AnswerMs, WarmStartFigure::AnswerP99Ms]
                    .map(|what| format_median(of(PauseMethod::Farfork, what))),
            );
            for floor in [PauseMethod::BareFreezer, PauseMethod::Signals].map(|by| of(by, WarmStartFigure::RunsPerS)) {
                let ratio = farfork.zip(floor).map(|(farfork, floor)| farfork.median / floor.median);
                row.extend([format_median(floor), ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.3}"))]);
            }
            table.add_row(row);
        }
        let best = PauseMethod::ALL.iter().filter_map(|by| {
            let (parallel, per_s) = self.best_parallelism(*by)?;
            Some(format!("{} {per_s:.0} a second with {parallel} at once", by.text()))
        });
        let PausedFunctionReference { name, parallel, runs_per_s } = &PUBLISHED_FIGURES.warm_start.functions[0];
        format!(
            "{}, load {:.1}\n\n{}\n\nBest: {}.\nA published reference, on another machine: {runs_per_s:.0} a second with {parallel} at once ({name}). ×: farfork's \
             median ÷ the\nfloor's, of local forks that are paused as many at once. No answer was wrong.\n",
            self.machine.describe(),
            self.load_average,
            table.render(),
            best.collect::<Vec<_>>().join(", "),
        )
    }
}

impl PauseMethod {
    fn text(self) -> &'static str {
        match self {
            Self::Farfork => "farfork",
            Self::BareFreezer => "a bare freezer",
            Self::Signals => "signals",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::COLUMNS_MAX;
    use super::{PauseMethod, Samples, WarmStartFigure, WarmStartParameters, WarmStartSampleKey, WarmStartSummary};

    #[test]
    fn the_best_number_is_named_beside_floors() {
        let mut samples = Samples::new();
        for (parallel, by, per_s) in [
            (1, PauseMethod::Farfork, 1500.0),
            (2, PauseMethod::Farfork, 2500.0),
            (4, PauseMethod::Farfork, 2000.0),
            (2, PauseMethod::Signals, 10_000.0),
        ] {
            samples.add(WarmStartSampleKey { parallel, by, figure: WarmStartFigure::RunsPerS }, per_s).unwrap();
        }
        let (parallel, steps, mib, runs) = (vec![], 0, 1, 1);
        let plan = WarmStartParameters { parallel, steps, mib, runs, seconds: 0.25, samples_file: None };
        let report = WarmStartSummary::new(&plan, vec![1, 2, 4], samples).unwrap();
        assert_eq!(
            (report.best_parallelism(PauseMethod::Farfork), report.best_parallelism(PauseMethod::BareFreezer)),
            (Some((2, 2500.0)), None)
        );
        let (text, document) = (report.to_text(), report.to_json());
        assert!(text.contains("0.250") && text.contains("farfork 2500 a second with 2 at once"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX + 20), "{text}");
        assert_eq!((&document["best"][0]["parallel"], &document["best"][1]["by"]), (&2.into(), &"signals".into()));
    }
}
