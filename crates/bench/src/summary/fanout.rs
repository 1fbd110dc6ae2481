//! The summary of `farfork bench fanout`: a table as text, and a JSON document for scripts.

use serde_json::{Value, json};

use super::table::{FigureTable, format_figure, format_spread};
use crate::baseline::container::BareContainerRefusal;
use crate::baseline::local_fanout::ChildNetwork;
use crate::error::BenchError;
use crate::machine::MachineState;
use crate::parameters::fanout::{FanoutFigure, FanoutParameters, FanoutSampleKey};
use crate::parameters::methods::CreateMethod;
use crate::report::section::SectionSource as _;
use crate::samples::{Samples, Spread, figure_json};

/// Figures of a fan-out, the most significant first.
pub(super) const FIGURES: [FanoutFigure; 7] = [
    FanoutFigure::ChildrenPerS,
    FanoutFigure::FirstResultMs,
    FanoutFigure::ResultMs,
    FanoutFigure::AnsweredMs,
    FanoutFigure::OwnKib,
    FanoutFigure::PageTablesKib,
    FanoutFigure::MemoryKib,
];

/// The floors of farfork, the closest first.
const FLOORS: [CreateMethod; 3] =
    [CreateMethod::BareContainer, CreateMethod::LocalForkIntoNamespaces, CreateMethod::LocalFork];

/// All figures of a run.
#[derive(Debug)]
pub struct FanoutSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: FanoutParameters,
    /// Why bare containers were not measured; `None` if they were.
    pub(super) refusal: Option<String>,
    pub(super) samples: Samples<FanoutSampleKey>,
}

impl FanoutSummary {
    pub(crate) fn new(
        plan: &FanoutParameters,
        refusal: Option<BareContainerRefusal>,
        mut samples: Samples<FanoutSampleKey>,
    ) -> Result<Self, BenchError> {
        samples.flush()?;
        let refusal = refusal.map(|refusal| refusal.to_string());
        Ok(Self { machine_state: MachineState::detect(), plan: plan.clone(), refusal, samples })
    }

    pub(super) fn spread(&self, by: CreateMethod, figure: FanoutFigure) -> Option<Spread> {
        self.samples.spread(&FanoutSampleKey { by, figure })
    }

    /// farfork's median ÷ the median of a floor.
    fn ratio_to_floor(&self, floor: CreateMethod, figure: FanoutFigure) -> Option<f64> {
        Some(self.spread(CreateMethod::Farfork, figure)?.median / self.spread(floor, figure)?.median)
    }

    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let figure = |(key, spread): (&FanoutSampleKey, Spread)| {
            let mut figure = figure_json(key, spread, None);
            figure["p99"] = json!(self.samples.percentile(key, 0.99));
            figure["max"] = json!(self.samples.percentile(key, 1.0));
            figure
        };
        json!({
            "benchmark": "fanout",
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "plan": self.plan,
            "bare_container_refused": self.refusal,
            "figures": self.samples.spreads().map(figure).collect::<Vec<_>>(),
            "section": self.section(),
        })
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        let FanoutParameters { children, nodes, mib, network, encrypted, .. } = &self.plan;
        let headings = ["", "farfork", "p99", "bare container", "×", "into namespaces", "×", "fork()", "×"];
        let network = network.text();
        let title = format!("{children} children of {mib} MiB, {network}, over {nodes} nodes, medians (p10–p90)");
        let mut table = FigureTable::new(&title, &headings);
        for what in FIGURES {
            let p99 = self.samples.percentile(&FanoutSampleKey { by: CreateMethod::Farfork, figure: what }, 0.99);
            let mut row = vec![what.text().to_owned(), format_spread(self.spread(CreateMethod::Farfork, what))];
            row.push(p99.map_or("–".to_owned(), format_figure));
            for floor in FLOORS {
                let ratio = self.ratio_to_floor(floor, what).map_or("–".to_owned(), format_figure);
                row.extend([super::table::format_median(self.spread(floor, what)), ratio]);
            }
            table.add_row(row);
        }
        let link = if *encrypted { "encrypted" } else { "in clear" };
        let refused =
            self.refusal.as_ref().map(|refusal| format!("No bare containers: {refusal}.\n")).unwrap_or_default();
        format!(
            "{}; farfork's link {link}\n\n{}\n\nbare container: just what the kernel must do for a child in one, two at once. \
             fork(): local forks that touch and say the\nsame; into namespaces: those of a container, made before. ×: farfork's median \
             ÷ theirs. No result was wrong.\n{refused}",
            self.machine_state.describe(),
            table.render()
        )
    }
}

impl ChildNetwork {
    /// The text for people.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Private => "a network each",
            Self::Shared => "a network for all of a node",
            Self::Host => "in their node's network",
        }
    }
}

impl CreateMethod {
    /// The text for people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Farfork => "farfork",
            Self::BareContainer => "bare containers",
            Self::LocalForkIntoNamespaces => "fork() into namespaces",
            Self::LocalFork => "fork()",
        }
    }
}

impl FanoutFigure {
    fn text(self) -> &'static str {
        match self {
            Self::ChildrenPerS => "children/s",
            Self::FirstResultMs => "first result, ms",
            Self::ResultMs => "a child's result, ms",
            Self::AnsweredMs => "the same, received",
            Self::OwnKib => "own memory, KiB",
            Self::PageTablesKib => "page tables, KiB",
            Self::MemoryKib => "both, KiB",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::COLUMNS_MAX;
    use super::{
        BareContainerRefusal, ChildNetwork, CreateMethod, FanoutFigure, FanoutParameters, FanoutSampleKey,
        FanoutSummary, Samples,
    };

    #[test]
    fn floors_are_shown_next_to_farfork() {
        let mut samples = Samples::new();
        for (by, value) in [
            (CreateMethod::Farfork, 500.0),
            (CreateMethod::LocalForkIntoNamespaces, 2000.0),
            (CreateMethod::LocalFork, 4000.0),
        ] {
            samples.add(FanoutSampleKey { by, figure: FanoutFigure::ChildrenPerS }, value).unwrap();
            samples.add(FanoutSampleKey { by, figure: FanoutFigure::ResultMs }, 1e6 / value).unwrap();
        }
        let plan = FanoutParameters {
            children: 100,
            nodes: 2,
            mib: 16,
            runs: 1,
            seconds: 0.0,
            pool: None,
            zygotes: None,
            network: ChildNetwork::Shared,
            encrypted: true,
            samples_file: None,
        };
        let report = FanoutSummary::new(&plan, Some(BareContainerRefusal::NoUnifiedHierarchy), samples).unwrap();
        assert_eq!(report.ratio_to_floor(CreateMethod::LocalFork, FanoutFigure::ChildrenPerS), Some(0.125));
        let (text, document) = (report.to_text(), report.to_json());
        assert!(text.contains("0.25") && text.contains("0.12"), "{text}");
        assert!(text.contains("No bare containers: there is no unified hierarchy"), "{text}");
        assert!(document["bare_container_refused"].is_string(), "{document}");
        assert!(text.contains("a network for all") && document["plan"]["network"] == "shared", "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX + 20), "{text}");
        assert_eq!(document["figures"].as_array().unwrap().len(), 6, "{document}");
        let mut samples = Samples::new();
        for (by, value) in [(CreateMethod::Farfork, 500.0), (CreateMethod::BareContainer, 1000.0)] {
            samples.add(FanoutSampleKey { by, figure: FanoutFigure::ChildrenPerS }, value).unwrap();
        }
        let beside = FanoutSummary::new(&plan, None, samples).unwrap();
        assert_eq!(beside.ratio_to_floor(CreateMethod::BareContainer, FanoutFigure::ChildrenPerS), Some(0.5));
        assert!(!beside.to_text().contains("No bare") && beside.to_json()["bare_container_refused"].is_null());
        assert_eq!(
            (&document["plan"]["children"], &document["plan"]["samples_file"]),
            (&100.into(), &serde_json::Value::Null)
        );
    }
}
