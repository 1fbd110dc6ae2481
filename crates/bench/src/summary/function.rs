//! The summary of `farfork bench function`: a table as text, and a JSON document for scripts. Both have published
//! figures for comparison.

use serde_json::{Value, json};

use super::failures::FunctionFailures;
use super::function_profile::{FunctionProfile, profile_text};
use super::table::{FigureTable, format_figure, format_median};
use crate::error::BenchError;
use crate::figure::ChildPlace;
use crate::machine::MachineState;
use crate::parameters::function::{FunctionFigure, FunctionParameters, FunctionSampleKey};
use crate::reference::{FunctionReference, PUBLISHED_FIGURES};
use crate::report::section::SectionSource as _;
use crate::samples::{Samples, Spread, figure_json};

/// All figures of a run.
#[derive(Debug)]
pub struct FunctionSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: FunctionParameters,
    samples: Samples<FunctionSampleKey>,
    profiles: Vec<FunctionProfile>,
    pub(super) failures: FunctionFailures,
}

impl FunctionSummary {
    pub(crate) fn new(
        plan: &FunctionParameters,
        mut samples: Samples<FunctionSampleKey>,
        profiles: Vec<FunctionProfile>,
        failures: FunctionFailures,
    ) -> Result<Self, BenchError> {
        samples.flush()?;
        Ok(Self { machine_state: MachineState::detect(), plan: plan.clone(), samples, profiles, failures })
    }

    /// Whether all functions were measured.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty()
    }

    /// The names of the measured functions, in the order of the parameters.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.plan.functions.iter().map(|source| source.name.as_str());
        names.filter(|name| !self.failures.contains(name))
    }

    pub(super) fn spread(&self, function: &str, figure: FunctionFigure) -> Option<Spread> {
        self.samples.spread(&FunctionSampleKey { function: function.to_owned(), figure })
    }

    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let figure = |(key, spread): (&FunctionSampleKey, Spread)| figure_json(key, spread, None);
        let measured = self.samples.spreads().filter(|(key, _)| !self.failures.contains(&key.function));
        let references = self.plan.functions.iter().filter_map(|source| find_reference(&source.name));
        json!({
            "benchmark": "function",
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "plan": self.plan,
            "figures": measured.map(figure).collect::<Vec<_>>(),
            "profiles": self.profiles,
            "failures": self.failures.to_json(),
            "reference": references.collect::<Vec<_>>(),
            "section": self.section(),
        })
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        format!(
            "{}\n\n{}\n\n{}\n\nown, other: the parent's node and another one. Each child is its seed's first on the node.\nos.fork(): \
             the floor: a child of the same process, in the same run. ÷: farfork's median ÷ the median of os.fork().\nref.: {}.\n{}{}\n",
            self.machine_state.describe(),
            self.start_table().render(),
            self.execution_table().render(),
            PUBLISHED_FIGURES.function.source,
            profile_text(&self.profiles),
            self.failures.sentences_or("No result was wrong.").join("\n"),
        )
    }

    /// The times from prepare to the children's first instructions.
    fn start_table(&self) -> FigureTable {
        let title = format!(
            "Prepare, and a child from the request to its first instruction, ms: medians of {}",
            self.plan.runs
        );
        let headings =
            ["function", "MiB", "prepare", "prepare, ref.", "pause", "own", "other", "resume, ref.", "os.fork()"];
        let mut table = FigureTable::new(&title, &headings);
        for name in self.names() {
            let of = |figure| format_median(self.spread(name, figure));
            let reference = find_reference(name);
            table.add_row([
                name.to_owned(),
                of(FunctionFigure::ResidentMib),
                of(FunctionFigure::Prepare),
                format_reference(reference.map(|reference| reference.prepare_ms)),
                of(FunctionFigure::Pause),
                of(FunctionFigure::Resume(ChildPlace::Own)),
                of(FunctionFigure::Resume(ChildPlace::Other)),
                format_reference(reference.map(|reference| reference.resume_ms)),
                of(FunctionFigure::LocalFork),
            ]);
        }
        table
    }

    /// The times of the function's calls.
    fn execution_table(&self) -> FigureTable {
        let title = "The function's first call in a child, ms; in the parent: its second call";
        let headings = ["function", "parent", "os.fork()", "own", "÷", "other", "÷", "ref."];
        let mut table = FigureTable::new(title, &headings);
        for name in self.names() {
            let local = self.spread(name, FunctionFigure::LocalExecution);
            let mut row =
                vec![name.to_owned(), format_median(self.spread(name, FunctionFigure::WarmCall)), format_median(local)];
            for place in [ChildPlace::Own, ChildPlace::Other] {
                let child = self.spread(name, FunctionFigure::Execution(place));
                let ratio = child.zip(local).map(|(child, local)| child.median / local.median);
                row.extend([format_median(child), format_reference(ratio)]);
            }
            row.push(format_reference(find_reference(name).map(|reference| reference.execution_ms)));
            table.add_row(row);
        }
        table
    }
}

pub(super) fn find_reference(name: &str) -> Option<&'static FunctionReference> {
    PUBLISHED_FIGURES.function.functions.iter().find(|reference| reference.name == name)
}

fn format_reference(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), format_figure)
}
