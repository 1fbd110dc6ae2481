//! The summary of `farfork bench peak`: a table as text, and a JSON document for scripts. Both have published figures for
//! comparison.

use serde_json::{Value, json};

use super::failures::FunctionFailures;
use super::table::{FigureTable, format_figure, format_median, format_spread};
use crate::error::BenchError;
use crate::experiment::fork_load::FORK_INTERVAL_S;
use crate::machine::MachineState;
use crate::parameters::peak::{PeakCase, PeakFigure, PeakParameters, PeakSampleKey};
use crate::reference::{PUBLISHED_FIGURES, PeakReference};
use crate::report::section::SectionSource as _;
use crate::report::stable_interval::StableInterval;
use crate::samples::{Samples, Spread, figure_json};

/// All figures of a run.
#[derive(Debug)]
pub struct PeakSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: PeakParameters,
    samples: Samples<PeakSampleKey>,
    pub(super) failures: FunctionFailures,
}

impl PeakSummary {
    pub(crate) fn new(
        plan: &PeakParameters,
        mut samples: Samples<PeakSampleKey>,
        failures: FunctionFailures,
    ) -> Result<Self, BenchError> {
        samples.flush()?;
        Ok(Self { machine_state: MachineState::detect(), plan: plan.clone(), samples, failures })
    }

    /// Whether all functions were measured.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty()
    }

    pub(super) fn spread(&self, case: &PeakCase, figure: PeakFigure) -> Option<Spread> {
        self.samples.spread(&PeakSampleKey { case: case.clone(), figure })
    }

    /// The measured cases, in the order of the table.
    pub(super) fn cases(&self) -> Vec<PeakCase> {
        let mut cases = Vec::new();
        for workload in self.plan.workloads.iter().filter(|workload| !self.failures.contains(workload.name())) {
            for zygotes in self.plan.zygotes.iter().copied() {
                for strategy in &self.plan.strategies {
                    let (workload, strategy) = (workload.name().to_owned(), strategy.clone());
                    cases.push(PeakCase { workload, zygotes, strategy });
                }
            }
        }
        cases
    }

    /// Children of all clients in each second.
    pub(super) fn intervals(&self, case: &PeakCase) -> &[f64] {
        self.samples.values(&PeakSampleKey { case: case.clone(), figure: PeakFigure::IntervalPerS })
    }

    /// The part of the run in which the rate hardly changes.
    pub(super) fn stable_interval(&self, case: &PeakCase) -> Option<StableInterval> {
        StableInterval::find(self.intervals(case), FORK_INTERVAL_S)
    }

    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let figure = |(key, spread): (&PeakSampleKey, Spread)| figure_json(key, spread, None);
        let measured = self.samples.spreads().filter(|(key, _)| !self.failures.contains(&key.case.workload));
        let runs = self.cases().into_iter().map(|case| {
            let (intervals, stable) = (self.intervals(&case), self.stable_interval(&case));
            json!({ "case": case, "intervals_per_s": intervals, "stable": stable })
        });
        json!({
            "benchmark": "peak",
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "plan": self.plan,
            "figures": measured.map(figure).collect::<Vec<_>>(),
            "runs": runs.collect::<Vec<_>>(),
            "failures": self.failures.to_json(),
            "reference": PUBLISHED_FIGURES.peak.workloads,
            "section": self.section(),
        })
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        format!(
            "{}\n\n{}\n\nstable: children of all clients per second in the longest interval whose seconds are within a \
             tenth of their\nmiddle; a dash if there is none. per client, ref.: children of one client process per second \
             (p10–p90 of\nthe clients). zyg.: whether nodes keep zygotes. p50, p99: from the request until the result was checked, \
             medians of\nthe clients. os.fork(): children of the same process that call the function, one after another on one \
             processor.\nref.: {}.\n{}\n",
            self.machine_state.describe(),
            self.table().render(),
            PUBLISHED_FIGURES.peak.source,
            self.failures.sentences_or("No result was wrong.").join("\n"),
        )
    }

    fn table(&self) -> FigureTable {
        let title =
            format!("Peak throughput, {} child nodes, {} s for each row", self.plan.child_nodes, self.plan.seconds);
        let headings = [
            "workload",
            "zyg.",
            "strategy",
            "clients",
            "stable/s",
            "per client/s",
            "ref.",
            "p50, ms",
            "ref.",
            "p99, ms",
            "os.fork()/s",
        ];
        let mut table = FigureTable::new(&title, &headings);
        for case in self.cases() {
            let reference = PUBLISHED_FIGURES.peak.find(&case.workload);
            let of_reference = |value: fn(&PeakReference) -> f64| {
                reference.map_or("–".to_owned(), |reference| format_figure(value(reference)))
            };
            table.add_row([
                case.workload.clone(),
                if case.zygotes { "on" } else { "off" }.to_owned(),
                if case.strategy.is_empty() { "default".to_owned() } else { case.strategy.clone() },
                self.spread(&case, PeakFigure::Clients)
                    .map_or("–".to_owned(), |clients| format!("{:.0}", clients.median)),
                self.stable_interval(&case).map_or("–".to_owned(), |stable| format_figure(stable.mean)),
                format_spread(self.spread(&case, PeakFigure::ClientPerS)),
                of_reference(|reference| reference.per_client_s),
                format_median(self.spread(&case, PeakFigure::ClientP50Ms)),
                of_reference(|reference| reference.latency_ms),
                format_median(self.spread(&case, PeakFigure::ClientP99Ms)),
                format_median(self.spread(&case, PeakFigure::LocalForkPerS)),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::{FunctionFailures, PeakCase, PeakFigure, PeakParameters, PeakSampleKey, PeakSummary, Samples};
    use crate::workload::fork_workload::ForkWorkload;
    use crate::workload::functions::{FunctionOptions, FunctionSource};

    #[test]
    fn the_stable_interval_counts_next_to_the_reference() {
        let source = FunctionSource::parse("helloworld").unwrap();
        let plan = PeakParameters {
            workloads: vec![ForkWorkload::Function { source, payload: "{}".to_owned() }],
            child_nodes: 2,
            clients: 3,
            seconds: 5.0,
            zygotes: vec![true, false],
            strategies: vec![String::new()],
            function_options: FunctionOptions::default(),
            samples_file: None,
        };
        let case = |zygotes| PeakCase { workload: "helloworld".to_owned(), zygotes, strategy: String::new() };
        let mut samples = Samples::new();
        for (zygotes, intervals) in [(true, [10.0, 400.0, 402.0, 404.0, 90.0]), (false, [1.0, 50.0, 7.0, 90.0, 2.0])] {
            for per_s in intervals {
                samples.add(PeakSampleKey { case: case(zygotes), figure: PeakFigure::IntervalPerS }, per_s).unwrap();
            }
        }
        samples.add(PeakSampleKey { case: case(true), figure: PeakFigure::ClientPerS }, 67.5).unwrap();
        let summary = PeakSummary::new(&plan, samples, FunctionFailures::default()).unwrap();
        let stable = |zygotes| summary.stable_interval(&case(zygotes)).map(|stable| stable.mean);
        assert_eq!((stable(true), stable(false)), (Some(402.0), None));
        let (text, document) = (summary.to_text(), summary.to_json());
        assert!(text.contains("402") && text.contains("50.5") && text.contains("67.5"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        assert_eq!(document["runs"][0]["stable"]["from_s"], 1.0);
        assert_eq!(document["runs"][1]["stable"], serde_json::Value::Null);
    }
}
