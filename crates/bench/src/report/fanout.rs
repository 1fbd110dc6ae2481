//! What `farfork bench fanout` found: a table for people, one document for scripts.

use serde_json::{Value, json};

use super::table::{Table, figure, spread};
use crate::baseline::container::Refusal;
use crate::baseline::crowd::ChildNetwork;
use crate::error::BenchError;
use crate::machine::{Machine, load_average};
use crate::plan::by::Creator;
use crate::plan::fanout::{FanoutPlan, Figure, Key};
use crate::samples::{Samples, Spread, document};

/// Figures of a fan-out, the most telling first.
const FIGURES: [Figure; 7] = [
    Figure::ChildrenPerS,
    Figure::FirstResultMs,
    Figure::ResultMs,
    Figure::AnsweredMs,
    Figure::OwnKib,
    Figure::PageTablesKib,
    Figure::MemoryKib,
];

/// What farfork is compared with, what it can come nearest to first.
const FLOORS: [Creator; 3] = [Creator::BareContainer, Creator::LocalForkIntoNamespaces, Creator::LocalFork];

/// All figures of a run.
#[derive(Debug)]
pub struct FanoutReport {
    machine: Machine,
    load_average: f64,
    plan: FanoutPlan,
    /// Why there are no bare containers.
    refusal: Option<String>,
    samples: Samples<Key>,
}

impl FanoutReport {
    pub(crate) fn new(
        plan: &FanoutPlan,
        refusal: Option<Refusal>,
        mut samples: Samples<Key>,
    ) -> Result<Self, BenchError> {
        samples.flush()?;
        let refusal = refusal.map(|refusal| refusal.to_string());
        Ok(Self { machine: Machine::this(), load_average: load_average(), plan: plan.clone(), refusal, samples })
    }

    fn spread(&self, by: Creator, figure: Figure) -> Option<Spread> {
        self.samples.spread(&Key { by, figure })
    }

    /// farfork's median ÷ a floor's.
    fn ratio(&self, floor: Creator, figure: Figure) -> Option<f64> {
        Some(self.spread(Creator::Farfork, figure)?.median / self.spread(floor, figure)?.median)
    }

    /// For scripts.
    pub fn document(&self) -> Value {
        let figure = |(key, spread): (&Key, Spread)| {
            let mut figure = document(key, spread, None);
            figure["p99"] = json!(self.samples.percentile(key, 0.99));
            figure["max"] = json!(self.samples.percentile(key, 1.0));
            figure
        };
        json!({
            "benchmark": "fanout",
            "machine": self.machine,
            "load_average": self.load_average,
            "plan": self.plan,
            "bare_container_refused": self.refusal,
            "figures": self.samples.spreads().map(figure).collect::<Vec<_>>(),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let FanoutPlan { children, nodes, mib, network, encrypted, .. } = &self.plan;
        let headings = ["", "farfork", "p99", "bare container", "×", "into namespaces", "×", "fork()", "×"];
        let network = network.text();
        let title = format!("{children} children of {mib} MiB, {network}, over {nodes} nodes, medians (p10–p90)");
        let mut table = Table::new(&title, &headings);
        for what in FIGURES {
            let p99 = self.samples.percentile(&Key { by: Creator::Farfork, figure: what }, 0.99);
            let mut row = vec![what.text().to_owned(), spread(self.spread(Creator::Farfork, what))];
            row.push(p99.map_or("–".to_owned(), figure));
            for floor in FLOORS {
                let ratio = self.ratio(floor, what).map_or("–".to_owned(), figure);
                row.extend([super::table::median(self.spread(floor, what)), ratio]);
            }
            table.row(row);
        }
        let link = if *encrypted { "encrypted" } else { "in clear" };
        let refused =
            self.refusal.as_ref().map(|refusal| format!("No bare containers: {refusal}.\n")).unwrap_or_default();
        format!(
            "{}, load {:.1}; farfork's link {link}\n\n{}\n\nbare container: just what the kernel must do for a child in one, two at once. \
             fork(): local forks that touch and say the\nsame; into namespaces: those of a container, made before. ×: farfork's median \
             ÷ theirs. No result was wrong.\n{refused}",
            self.machine.text(),
            self.load_average,
            table.text()
        )
    }
}

impl ChildNetwork {
    /// As people read it.
    fn text(self) -> &'static str {
        match self {
            Self::Private => "a network each",
            Self::Shared => "a network for all of a node",
            Self::Host => "in their node's network",
        }
    }
}

impl Creator {
    /// As people read it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Farfork => "farfork",
            Self::BareContainer => "bare containers",
            Self::LocalForkIntoNamespaces => "fork() into namespaces",
            Self::LocalFork => "fork()",
        }
    }
}

impl Figure {
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
    use super::{ChildNetwork, Creator, FanoutPlan, FanoutReport, Figure, Key, Refusal, Samples};

    #[test]
    fn floors_stand_beside_farfork() {
        let mut samples = Samples::new();
        for (by, value) in
            [(Creator::Farfork, 500.0), (Creator::LocalForkIntoNamespaces, 2000.0), (Creator::LocalFork, 4000.0)]
        {
            samples.add(Key { by, figure: Figure::ChildrenPerS }, value).unwrap();
            samples.add(Key { by, figure: Figure::ResultMs }, 1e6 / value).unwrap();
        }
        let plan = FanoutPlan {
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
        let report = FanoutReport::new(&plan, Some(Refusal::NoUnifiedHierarchy), samples).unwrap();
        assert_eq!(report.ratio(Creator::LocalFork, Figure::ChildrenPerS), Some(0.125));
        let (text, document) = (report.text(), report.document());
        assert!(text.contains("0.25") && text.contains("0.12"), "{text}");
        assert!(text.contains("No bare containers: there is no unified hierarchy"), "{text}");
        assert!(document["bare_container_refused"].is_string(), "{document}");
        assert!(text.contains("a network for all") && document["plan"]["network"] == "shared", "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX + 20), "{text}");
        assert_eq!(document["figures"].as_array().unwrap().len(), 6, "{document}");
        let mut samples = Samples::new();
        for (by, value) in [(Creator::Farfork, 500.0), (Creator::BareContainer, 1000.0)] {
            samples.add(Key { by, figure: Figure::ChildrenPerS }, value).unwrap();
        }
        let beside = FanoutReport::new(&plan, None, samples).unwrap();
        assert_eq!(beside.ratio(Creator::BareContainer, Figure::ChildrenPerS), Some(0.5));
        assert!(!beside.text().contains("No bare") && beside.document()["bare_container_refused"].is_null());
        assert_eq!(
            (&document["plan"]["children"], &document["plan"]["samples_file"]),
            (&100.into(), &serde_json::Value::Null)
        );
    }
}
