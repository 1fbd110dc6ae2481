//! The summary of `farfork bench warm-start`: a table as text, and a JSON document for scripts. Both have published
//! figures for comparison.

use serde_json::{Value, json};

use super::failures::FunctionFailures;
use super::table::{FigureTable, format_figure, format_median, format_spread};
use crate::error::BenchError;
use crate::machine::MachineState;
use crate::parameters::methods::PauseMethod;
use crate::parameters::warm_start::{WarmStartFigure, WarmStartParameters, WarmStartSampleKey};
use crate::reference::{PUBLISHED_FIGURES, PausedFunctionReference};
use crate::report::section::SectionSource as _;
use crate::samples::{Samples, Spread, figure_json};

/// All figures of a run.
#[derive(Debug)]
pub struct WarmStartSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: WarmStartParameters,
    /// The name of each program, and the numbers of its parallel children that were measured.
    pub(super) measured: Vec<(String, Vec<usize>)>,
    samples: Samples<WarmStartSampleKey>,
    pub(super) failures: FunctionFailures,
}

impl WarmStartSummary {
    pub(crate) fn new(
        plan: &WarmStartParameters,
        measured: Vec<(String, Vec<usize>)>,
        mut samples: Samples<WarmStartSampleKey>,
        failures: FunctionFailures,
    ) -> Result<Self, BenchError> {
        samples.flush()?;
        Ok(Self { machine_state: MachineState::detect(), plan: plan.clone(), measured, samples, failures })
    }

    /// Whether all functions were measured.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty()
    }

    pub(super) fn spread(
        &self,
        workload: &str,
        parallel: usize,
        by: PauseMethod,
        figure: WarmStartFigure,
    ) -> Option<Spread> {
        self.samples.spread(&WarmStartSampleKey { workload: workload.to_owned(), parallel, by, figure })
    }

    /// The number of parallel children with the highest rate, and that rate per second.
    pub(super) fn best_parallelism(&self, workload: &str, by: PauseMethod) -> Option<(usize, f64)> {
        let per_s = |parallel: &usize| {
            Some((*parallel, self.spread(workload, *parallel, by, WarmStartFigure::RunsPerS)?.median))
        };
        let (_, parallel) = self.measured.iter().find(|(name, _)| name == workload)?;
        parallel.iter().filter_map(per_s).max_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let figure = |(key, spread): (&WarmStartSampleKey, Spread)| figure_json(key, spread, None);
        let measured = self.samples.spreads().filter(|(key, _)| !self.failures.contains(&key.workload));
        let best = self.measured.iter().flat_map(|(workload, _)| {
            PauseMethod::ALL.iter().filter_map(move |by| {
                let (parallel, per_s) = self.best_parallelism(workload, *by)?;
                Some(json!({ "workload": workload, "by": by, "parallel": parallel, "runs_per_s": per_s }))
            })
        });
        let reference = PUBLISHED_FIGURES.warm_start.functions.iter().map(|PausedFunctionReference { name, parallel, runs_per_s }| {
            json!({ "function": name, "parallel": parallel, "runs_per_s": runs_per_s })
        });
        json!({
            "benchmark": "warm_start",
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "plan": self.plan,
            "figures": measured.map(figure).collect::<Vec<_>>(),
            "best": best.collect::<Vec<_>>(),
            "failures": self.failures.to_json(),
            "reference": reference.collect::<Vec<_>>(),
            "section": self.section(),
        })
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        let tables = self.measured.iter().map(|(workload, parallel)| {
            let table = self.table(workload, parallel).render();
            format!("{table}\n\nBest: {}.\n", self.best_text(workload))
        });
        format!(
            "{}\n\n{}\nruns/s: a client pauses and unpauses each child by its freezer. requests: the same by requests to the child's node.\n×: farfork's median ÷ the floor's, of local forks that are paused as many at once. Functions have one \
             floor.\nreference: {}.\n{}\n",
            self.machine_state.describe(),
            tables.collect::<Vec<_>>().join("\n"),
            PUBLISHED_FIGURES.warm_start.source,
            self.failures.sentences_or("No answer was wrong.").join("\n"),
        )
    }

    fn table(&self, workload: &str, parallel: &[usize]) -> FigureTable {
        let title =
            format!("{workload}: calls in children that are paused before and after, medians of {}", self.plan.runs);
        let headings = [
            "at once",
            "runs/s (p10–p90)",
            "answer, ms",
            "p99",
            "requests, /s",
            "freezer, /s",
            "×",
            "signals, /s",
            "×",
        ];
        let mut table = FigureTable::new(&title, &headings);
        for parallel in parallel.iter().copied() {
            let of = |by, figure| self.spread(workload, parallel, by, figure);
            let farfork = of(PauseMethod::FarforkHandle, WarmStartFigure::RunsPerS);
            let mut row = vec![parallel.to_string(), format_spread(farfork)];
            row.extend(
                [WarmStartFigure::AnswerMs, WarmStartFigure::AnswerP99Ms]
                    .map(|what| format_median(of(PauseMethod::FarforkHandle, what))),
            );
            row.push(format_median(of(PauseMethod::Farfork, WarmStartFigure::RunsPerS)));
            for floor in [PauseMethod::BareFreezer, PauseMethod::Signals].map(|by| of(by, WarmStartFigure::RunsPerS)) {
                let ratio = farfork.zip(floor).map(|(farfork, floor)| farfork.median / floor.median);
                row.extend([format_median(floor), ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.3}"))]);
            }
            table.add_row(row);
        }
        table
    }

    /// The best rate of each method, and the published one.
    fn best_text(&self, workload: &str) -> String {
        let best = PauseMethod::ALL.iter().filter_map(|by| {
            let (parallel, per_s) = self.best_parallelism(workload, *by)?;
            Some(format!("{} {} a second with {parallel} at once", by.text(), format_figure(per_s)))
        });
        let reference = PUBLISHED_FIGURES.warm_start.functions.iter().find(|reference| reference.name == workload);
        let published = reference.map(|PausedFunctionReference { parallel, runs_per_s, .. }| {
            format!("reference {} a second with {parallel} at once", format_figure(*runs_per_s))
        });
        best.chain(published).collect::<Vec<_>>().join(", ")
    }
}

impl PauseMethod {
    fn text(self) -> &'static str {
        match self {
            Self::Farfork => "farfork by requests",
            Self::FarforkHandle => "farfork",
            Self::BareFreezer => "a bare freezer",
            Self::Signals => "signals",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::COLUMNS_MAX;
    use super::{
        FunctionFailures, PauseMethod, Samples, WarmStartFigure, WarmStartParameters, WarmStartSampleKey,
        WarmStartSummary,
    };
    use crate::workload::functions::FunctionOptions;

    #[test]
    fn the_best_number_is_named_next_to_floors() {
        let mut samples = Samples::new();
        for (workload, parallel, by, per_s) in [
            ("steps", 1, PauseMethod::FarforkHandle, 1500.0),
            ("steps", 2, PauseMethod::FarforkHandle, 2500.0),
            ("steps", 4, PauseMethod::FarforkHandle, 2000.0),
            ("steps", 2, PauseMethod::Signals, 10_000.0),
            ("json", 8, PauseMethod::FarforkHandle, 150.0),
        ] {
            let (workload, figure) = (workload.to_owned(), WarmStartFigure::RunsPerS);
            samples.add(WarmStartSampleKey { workload, parallel, by, figure }, per_s).unwrap();
        }
        let (parallel, runs, seconds) = (vec![], 1, 0.25);
        let (workloads, function_options, samples_file) = (vec![], FunctionOptions::default(), None);
        let plan =
            WarmStartParameters { workloads, parallel, runs, seconds, root: None, function_options, samples_file };
        let measured = vec![("steps".to_owned(), vec![1, 2, 4]), ("json".to_owned(), vec![8])];
        let report = WarmStartSummary::new(&plan, measured, samples, FunctionFailures::default()).unwrap();
        let best = |by| report.best_parallelism("steps", by);
        assert_eq!((best(PauseMethod::FarforkHandle), best(PauseMethod::BareFreezer)), (Some((2, 2500.0)), None));
        let (text, document) = (report.to_text(), report.to_json());
        assert!(text.contains("0.250") && text.contains("farfork 2500 a second with 2 at once"), "{text}");
        assert!(
            text.contains("farfork 150 a second with 8 at once, reference 1651 a second with 24 at once"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX + 20), "{text}");
        assert_eq!((&document["best"][0]["parallel"], &document["best"][1]["by"]), (&2.into(), &"signals".into()));
        assert_eq!(document["best"][2]["workload"], "json");
    }
}
