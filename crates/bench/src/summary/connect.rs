//! The summary of `farfork bench connect`: a table as text, and a JSON document for scripts. Both have published
//! figures for comparison.

use serde_json::{Value, json};

use super::table::{FigureTable, format_figure};
use crate::machine::MachineState;
use crate::parameters::connect::{
    ConnectCase, ConnectParameters, ConnectSampleKey, ConnectSeries, P50_US, P99_US, PER_S, PROTECTIONS,
};
use crate::parameters::protection::ConnectionSecurity;
use crate::reference::{ConnectReference, PUBLISHED_FIGURES};
use crate::report::section::SectionSource as _;
use crate::samples::{Samples, Spread};

/// Number of network cards of a node, which is also the number of paths between two nodes.
const NICS_PER_NODE: usize = 1;

/// All figures of a run.
#[derive(Debug)]
pub struct ConnectSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: ConnectParameters,
    server_threads: usize,
    samples: Samples<ConnectSampleKey>,
}

impl ConnectSummary {
    pub(crate) fn new(plan: &ConnectParameters, server_threads: usize, samples: Samples<ConnectSampleKey>) -> Self {
        Self { machine_state: MachineState::detect(), plan: plan.clone(), server_threads, samples }
    }

    pub(super) fn spread(&self, case: ConnectCase, made: ConnectSeries, figure: &'static str) -> Option<Spread> {
        self.samples.spread(&ConnectSampleKey { case, series: made, figure })
    }

    /// Each case with each protection.
    fn rows(&self) -> impl Iterator<Item = (ConnectCase, ConnectionSecurity)> {
        self.plan.cases.iter().flat_map(|case| PROTECTIONS.map(|protection| (*case, protection)))
    }

    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let cases: Vec<Value> = self.rows().map(|(case, protection)| self.case_json(case, protection)).collect();
        json!({
            "benchmark": "connect",
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "runs": self.plan.runs,
            "seconds": self.plan.seconds,
            "server_threads": self.server_threads,
            "reference": PUBLISHED_FIGURES.connect.source,
            "cases": cases,
            "section": self.section(),
        })
    }

    fn case_json(&self, case: ConnectCase, protection: ConnectionSecurity) -> Value {
        let own = |figure| self.spread(case, ConnectSeries::Connections(protection), figure);
        let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
        json!({
            "clients": case.clients,
            "threads": case.threads,
            "connections": case.connections(),
            "window": 1,
            "payload_bytes": 0,
            "checksum": false,
            "rails": NICS_PER_NODE,
            "authenticated": protection != ConnectionSecurity::None,
            "encrypted": protection == ConnectionSecurity::Encrypted,
            "per_s": median(own(PER_S)),
            "per_s_p10": own(PER_S).map(|spread| spread.p10),
            "per_s_p90": own(PER_S).map(|spread| spread.p90),
            "floor_per_s": median(self.spread(case, ConnectSeries::Floor, PER_S)),
            "latency_us": { "p50": median(own(P50_US)), "p99": median(own(P99_US)) },
            "reference_per_s": reference_per_s(case),
            "reference_latency_us": (case.connections() == 1).then_some(PUBLISHED_FIGURES.connect.latency_us),
        })
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        let headings =
            ["clients", "threads", "proved", "then", "1/s", "p50 µs", "p99 µs", "floor 1/s", "ratio", "ref. 1/s"];
        let mut table = FigureTable::new("Connections per second, and the time of each", &headings);
        for (case, protection) in self.rows() {
            table.add_row(self.row(case, protection));
        }
        let mut text = format!("{}\n\n{}\n", self.machine_state.describe(), table.render());
        text += "proved: both ends have authenticated; then: whether the data after that is encrypted\n";
        text += "floor: the same over bare TCP, same run; ratio: of farfork to it\n";
        let ConnectReference { source, latency_us, .. } = &PUBLISHED_FIGURES.connect;
        text += &format!("ref.: {source};\n");
        text += &format!("      with one thread a connection took {latency_us:.0} µs on average\n");
        text
    }

    fn row(&self, case: ConnectCase, protection: ConnectionSecurity) -> [String; 10] {
        let cell = |value: Option<f64>| value.map_or("–".to_owned(), format_figure);
        let own = |name| self.spread(case, ConnectSeries::Connections(protection), name).map(|spread| spread.median);
        let floor = self.spread(case, ConnectSeries::Floor, PER_S).map(|spread| spread.median);
        let (proved, then) = match protection {
            ConnectionSecurity::None => ("–", "clear"),
            ConnectionSecurity::Authenticated => ("both", "clear"),
            ConnectionSecurity::Encrypted => ("both", "encrypted"),
        };
        [
            case.clients.to_string(),
            case.threads.to_string(),
            proved.to_owned(),
            then.to_owned(),
            cell(own(PER_S)),
            cell(own(P50_US)),
            cell(own(P99_US)),
            cell(floor),
            cell(own(PER_S).zip(floor).map(|(own, floor)| own / floor)),
            cell(reference_per_s(case)),
        ]
    }
}

pub(super) fn reference_per_s(case: ConnectCase) -> Option<f64> {
    let ConnectReference { per_s_by_threads, per_s_by_clients, .. } = &PUBLISHED_FIGURES.connect;
    match case {
        ConnectCase { clients: 1, threads } => per_s_by_threads.find(threads as u64),
        ConnectCase { clients, threads: 2 } => per_s_by_clients.find(clients as u64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ConnectCase, ConnectParameters, ConnectSampleKey, ConnectSeries, ConnectSummary, ConnectionSecurity, P50_US,
        P99_US, PER_S,
    };
    use super::{Samples, reference_per_s};

    #[test]
    fn only_comparable_cases_have_a_reference() {
        let of = |clients, threads| reference_per_s(ConnectCase { clients, threads });
        assert_eq!([of(1, 1), of(1, 12), of(8, 2)], [Some(172.6), Some(400.0), Some(391.2)]);
        assert_eq!([of(1, 3), of(2, 1), of(3, 2)], [None; 3]);
        assert!(ConnectParameters::default_cases().into_iter().all(|case| reference_per_s(case).is_some()));
    }

    #[test]
    fn each_case_has_a_row_of_figures() {
        let (mut samples, case) = (Samples::new(), ConnectCase { clients: 2, threads: 3 });
        let mut add =
            |made, figure, value| samples.add(ConnectSampleKey { case, series: made, figure }, value).unwrap();
        let encrypted = ConnectSeries::Connections(ConnectionSecurity::Encrypted);
        add(ConnectSeries::Floor, PER_S, 16_000.0);
        for (figure, value) in [(PER_S, 4_000.0), (P50_US, 250.0), (P99_US, 900.0)] {
            add(encrypted, figure, value);
        }
        let plan = ConnectParameters { cases: vec![case], runs: 1, seconds: 1.0, samples_file: None };
        let report = ConnectSummary::new(&plan, 2, samples);
        let document = report.to_json();
        let cases = document["cases"].as_array().unwrap();
        let found = cases.iter().find(|case| case["encrypted"] == true).unwrap();
        assert_eq!((cases.len(), &found["connections"], &found["rails"]), (3, &6.into(), &1.into()));
        assert_eq!((&found["per_s"], &found["floor_per_s"]), (&4_000.0.into(), &16_000.0.into()));
        assert_eq!(found["latency_us"], serde_json::json!({ "p50": 250.0, "p99": 900.0 }));
        assert!(report.to_text().contains("0.25"), "{}", report.to_text());
        assert!(report.to_text().lines().all(|line| line.chars().count() <= 100), "{}", report.to_text());
    }
}
