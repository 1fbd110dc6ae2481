//! The summary of `farfork bench rpc`: a table as text, and a JSON document for scripts. Both have published figures
//! for comparison.

use serde_json::{Value, json};

use super::table::{FigureTable, format_figure};
use crate::endpoint::specification::RpcSystem;
use crate::machine::MachineState;
use crate::parameters::protection::ConnectionSecurity;
use crate::parameters::rpc::{RpcCase, RpcParameters, RpcRunOutcome, RpcSampleKey, RpcSeries};
use crate::reference::PUBLISHED_FIGURES;
use crate::report::section::SectionSource as _;
use crate::samples::{Samples, Spread};

/// Minimum rate of an echo over veth, in messages per second. A slower echo was disturbed by other load, and is not a
/// floor.
const ECHO_PER_S_MIN: f64 = 1_500_000.0;

/// All figures of a run.
#[derive(Debug)]
pub struct RpcSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: RpcParameters,
    samples: Samples<RpcSampleKey>,
    outcomes: Vec<(RpcCase, RpcRunOutcome)>,
}

impl RpcSummary {
    pub(crate) fn new(
        plan: &RpcParameters,
        samples: Samples<RpcSampleKey>,
        outcomes: Vec<(RpcCase, RpcRunOutcome)>,
    ) -> Self {
        Self { machine_state: MachineState::detect(), plan: plan.clone(), samples, outcomes }
    }

    pub(super) fn per_s(&self, case: &RpcCase, measured: RpcSeries) -> Option<Spread> {
        self.samples.spread(&RpcSampleKey { case: *case, series: measured, figure: "per_s" })
    }

    pub(super) fn farfork_per_s(&self, case: &RpcCase) -> Option<Spread> {
        self.per_s(case, RpcSeries::Calls(RpcSystem::Farfork))
    }

    pub(super) fn runs(&self, case: &RpcCase) -> impl Iterator<Item = &RpcRunOutcome> {
        self.outcomes.iter().filter(move |(of, _)| of == case).map(|(_, outcome)| outcome)
    }

    /// The numbers of failed requests and of damaged answers.
    pub fn failures(&self) -> (u64, u64) {
        let each = self.outcomes.iter().map(|(_, outcome)| (outcome.errors, outcome.damaged));
        each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let cases: Vec<Value> = self.plan.cases.iter().map(|case| self.case_json(case)).collect();
        let (errors, damaged) = self.failures();
        json!({
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "runs": self.plan.runs,
            "client_seconds": self.plan.client_seconds,
            "reference": PUBLISHED_FIGURES.rpc.source,
            "errors": errors,
            "damaged": damaged,
            "cases": cases,
            "section": self.section(),
        })
    }

    fn case_json(&self, case: &RpcCase) -> Value {
        let own = self.farfork_per_s(case);
        let floor = self.per_s(case, RpcSeries::Floor);
        let systems = [RpcSystem::Tokio, RpcSystem::TonicStream, RpcSystem::Tarpc, RpcSystem::TonicUnary];
        let peer = |system| Some((system, self.per_s(case, RpcSeries::Calls(system))?.median));
        let peers: Vec<Value> = systems
            .into_iter()
            .filter_map(peer)
            .map(|(system, per_s)| json!({ "system": system, "per_s": per_s }))
            .collect();
        json!({
            "clients": case.clients,
            "threads": case.threads,
            "connections": case.connections(),
            "sessions": case.sessions,
            "window": case.window,
            "payload_bytes": case.payload_bytes,
            "checksum": case.payload_bytes > 0,
            "server_threads": case.server_threads,
            "spins": case.spins,
            "authenticated": case.protection != ConnectionSecurity::None,
            "encrypted": case.protection == ConnectionSecurity::Encrypted,
            "per_s": own.map(|spread| spread.median),
            "per_s_p10": own.map(|spread| spread.p10),
            "per_s_p90": own.map(|spread| spread.p90),
            "floor_per_s": floor.map(|spread| spread.median),
            "floor_valid": floor.map(|spread| is_credible(case, spread.median)),
            "peers": peers,
            "reference_per_s": published_per_s(case),
            "latency_us": self.latencies(case),
        })
    }

    /// The latencies of the median run.
    fn latencies(&self, case: &RpcCase) -> Value {
        let mut runs: Vec<_> = self.runs(case).collect();
        runs.sort_by(|left, right| left.latency_us[0].total_cmp(&right.latency_us[0]));
        let Some(run) = runs.get(runs.len() / 2) else { return Value::Null };
        let [p50, p90, p99, p999, max] = run.latency_us;
        json!({ "p50": p50, "p90": p90, "p99": p99, "p999": p999, "max": max })
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        let headings = [
            "clients", "threads", "conns", "window", "bytes", "sleep", "TLS", "1000/s", "p50 µs", "p99 µs", "floor",
            "ratio", "ref.",
        ];
        let mut table = FigureTable::new("Calls: thousands of answers a second", &headings);
        for case in &self.plan.cases {
            table.add_row(self.row(case));
        }
        let mut text = format!("{}\n\n{}\n", self.machine_state.describe(), table.render());
        text += "floor: a bare echo of the same messages, same run; ratio: of farfork to it. Echo and peers have\n";
        text += "one thread on each side, and neither checksums nor TLS: only such cases have them\n";
        text += &format!("ref.: {}\n", PUBLISHED_FIGURES.rpc.source);
        text += &self.peers_table();
        let (errors, damaged) = self.failures();
        text += &format!("\n{errors} requests failed, {damaged} answers were damaged\n");
        text
    }

    fn row(&self, case: &RpcCase) -> [String; 13] {
        let (own, floor) = (self.farfork_per_s(case), self.per_s(case, RpcSeries::Floor));
        let thousands = |per_s: Option<f64>| per_s.map_or("–".to_owned(), |per_s| format_figure(per_s / 1e3));
        let latency = |name| self.latencies(case)[name].as_f64().map_or("–".to_owned(), format_figure);
        let ratio = own.zip(floor).map(|(own, floor)| (own.median / floor.median, is_credible(case, floor.median)));
        let ratio = ratio
            .map_or("–".to_owned(), |(ratio, credible)| format!("{ratio:.2}{}", if credible { "" } else { "?" }));
        [
            case.clients.to_string(),
            case.threads.to_string(),
            case.connections().to_string(),
            case.window.to_string(),
            case.payload_bytes.to_string(),
            if case.spins { "late" } else { "at once" }.to_owned(),
            match case.protection {
                ConnectionSecurity::None => "–",
                ConnectionSecurity::Authenticated => "clear",
                ConnectionSecurity::Encrypted => "on",
            }
            .to_owned(),
            thousands(own.map(|own| own.median)),
            latency("p50"),
            latency("p99"),
            thousands(floor.map(|floor| floor.median)),
            ratio,
            thousands(published_per_s(case)),
        ]
    }

    fn peers_table(&self) -> String {
        let headings = ["window", "farfork", "tokio echo", "tonic stream", "tarpc", "tonic unary"];
        let mut table = FigureTable::new("\nPeers on one connection: thousands of answers a second", &headings);
        let systems =
            [RpcSystem::Farfork, RpcSystem::Tokio, RpcSystem::TonicStream, RpcSystem::Tarpc, RpcSystem::TonicUnary];
        let mut rows = 0;
        for case in &self.plan.cases {
            let each =
                systems.map(|system| self.per_s(case, RpcSeries::Calls(system)).map(|spread| spread.median / 1e3));
            if each[1].is_some() {
                let cells = each.map(|per_s| per_s.map_or("–".to_owned(), format_figure));
                table.add_row(std::iter::once(case.window.to_string()).chain(cells));
                rows += 1;
            }
        }
        if rows > 0 { format!("{}\n", table.render()) } else { String::new() }
    }
}

/// Whether an echo is plausible as a floor. With many messages in flight, it must reach the usual rate of an echo over
/// veth.
pub(super) fn is_credible(case: &RpcCase, floor_per_s: f64) -> bool {
    case.connections() * case.window < 1024 || floor_per_s >= ECHO_PER_S_MIN
}

pub(super) fn published_per_s(case: &RpcCase) -> Option<f64> {
    if case.payload_bytes == 2048 && case.clients == 1 {
        return Some(PUBLISHED_FIGURES.rpc.checksum_per_s);
    }
    let is_plain = case.window == 1 && case.payload_bytes == 0 && case.server_threads == 1;
    match case.threads {
        12 if is_plain => PUBLISHED_FIGURES.rpc.requests_per_s_by_clients.find(case.clients as u64),
        1 if is_plain && case.connections() == 1 => Some(PUBLISHED_FIGURES.rpc.one_thread_per_s),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{RpcCase, RpcParameters, RpcRunOutcome, RpcSummary, is_credible, published_per_s};
    use crate::endpoint::specification::RpcSystem;
    use crate::parameters::rpc::{RpcSampleKey, RpcSeries};
    use crate::samples::Samples;

    fn plan(cases: Vec<RpcCase>) -> RpcParameters {
        let seconds = 1.0;
        let (client_seconds, server_seconds, interval_seconds) = (seconds, seconds, seconds);
        RpcParameters {
            cases,
            runs: 1,
            client_seconds,
            server_seconds,
            interval_seconds,
            floors: true,
            samples_file: None,
        }
    }

    #[test]
    fn only_comparable_cases_have_a_reference() {
        assert_eq!(
            published_per_s(&RpcCase { threads: 12, clients: 10, ..RpcCase::SINGLE_CONNECTION }),
            Some(1_261_974.0)
        );
        assert_eq!(published_per_s(&RpcCase::SINGLE_CONNECTION), Some(239_952.0));
        assert_eq!(published_per_s(&RpcCase { window: 64, ..RpcCase::SINGLE_CONNECTION }), None);
        let many = RpcCase { connections_per_thread: 16, window: 64, ..RpcCase::SINGLE_CONNECTION };
        assert!(is_credible(&many, 2e6) && !is_credible(&many, 1e6) && is_credible(&RpcCase::SINGLE_CONNECTION, 1e4));
    }

    #[test]
    fn each_case_has_a_row_of_figures() {
        let (mut samples, case) = (Samples::new(), RpcCase { window: 64, ..RpcCase::SINGLE_CONNECTION });
        for (measured, value) in [(RpcSeries::Calls(RpcSystem::Farfork), 3e6), (RpcSeries::Floor, 4e6)] {
            samples.add(RpcSampleKey { case, series: measured, figure: "per_s" }, value).unwrap();
        }
        let outcome = RpcRunOutcome { per_s: 3e6, latency_us: [1.0, 2.0, 3.0, 4.0, 5.0], ..RpcRunOutcome::default() };
        let report = RpcSummary::new(&plan(vec![case]), samples, vec![(case, outcome)]);
        let document = report.to_json();
        let found = &document["cases"][0];
        assert_eq!((found["per_s"].as_f64(), found["floor_per_s"].as_f64()), (Some(3e6), Some(4e6)));
        assert_eq!((found["connections"].as_u64(), found["latency_us"]["p99"].as_f64()), (Some(1), Some(3.0)));
        assert!(report.to_text().contains("0.75"), "{}", report.to_text());
        assert!(report.to_text().lines().all(|line| line.chars().count() <= 100), "{}", report.to_text());
    }
}
