//! The results of `farfork bench rpc`: calls per second, by client machines and by load, next to floors and peers.

use serde_json::{Value, json};

use super::case::RpcCase;
use super::{
    BenchResults, BenchRpc, ConnectionSecurity, FigureSamples, MEDIAN, RATE, RpcRunOutcome, RpcSampleCase, RpcSeries,
};
use crate::endpoint::specification::RpcSystem;
use crate::reference::PUBLISHED_FIGURES;
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::table::{HOST_COLUMN, ReportCell, ReportFigure, ReportTable, with_sum_row};
use crate::samples::Spread;

/// Minimum rate of an echo over veth, in messages per second. A slower echo was disturbed by other load, and is not a
/// floor.
const ECHO_PER_S_MIN: f64 = 1_500_000.0;

/// Threads of each client machine in the published runs.
const MACHINE_THREADS: usize = 12;

/// Names of the percentiles of a run's latencies.
const PERCENTILES: [&str; 5] = ["p50", "p90", "p99", "p99.9", "slowest"];

/// The samples of all cases.
struct RpcResults<'a> {
    cases: Vec<RpcCase>,
    samples: &'a FigureSamples<RpcSampleCase>,
    outcomes: &'a [(RpcCase, RpcRunOutcome)],
}

impl BenchRpc {
    pub(super) fn results(
        &self,
        cases: Vec<RpcCase>,
        samples: &FigureSamples<RpcSampleCase>,
        outcomes: &[(RpcCase, RpcRunOutcome)],
    ) -> BenchResults {
        let results = RpcResults { cases, samples, outcomes };
        let errors: u64 = outcomes.iter().map(|(_, outcome)| outcome.errors).sum();
        let damaged: u64 = outcomes.iter().map(|(_, outcome)| outcome.damaged).sum();
        let is_checked = results.cases.iter().all(|case| case.payload_bytes > 0);
        let title = if is_checked { "Calls with a checksum" } else { "Calls" };
        let question = "How many calls do nodes make per second, and how long does each take?";
        let source = &PUBLISHED_FIGURES.rpc.source;
        let section = ReportSection::new("rpc", title, question)
            .with_table(results.machines_table())
            .with_table(results.loads_table())
            .with_table(results.peers_table())
            .with_table(results.hosts_table())
            .with_plot(results.machines_plot())
            .with_plot(results.latency_plot())
            .with_note(format!("{errors} requests failed, and {damaged} answers were damaged."))
            .with_note(
                "Floor: a bare echo of the same messages. Only empty, unencrypted calls of one thread on each side have one. \
                 Echo and peers have neither checksums nor TLS.",
            )
            .with_note(format!("Reference: {source}."));
        let document = json!({
            "runs": self.runs,
            "client_seconds": self.client_seconds,
            "reference": source,
            "errors": errors,
            "damaged": damaged,
            "cases": results.cases.iter().map(|case| results.case_json(case)).collect::<Vec<_>>(),
        });
        BenchResults { is_complete: (errors, damaged) == (0, 0), ..BenchResults::new(section, document) }
    }
}

impl RpcResults<'_> {
    fn rate(&self, case: &RpcCase, series: RpcSeries) -> Option<Spread> {
        self.samples.spread(&RpcSampleCase::new(*case, series), RATE)
    }

    fn farfork_rate(&self, case: &RpcCase) -> Option<Spread> {
        self.rate(case, RpcSeries::Calls(RpcSystem::Farfork))
    }

    fn runs(&self, case: &RpcCase) -> impl Iterator<Item = &RpcRunOutcome> {
        self.outcomes.iter().filter(move |(of, _)| of == case).map(|(_, outcome)| outcome)
    }

    fn case_json(&self, case: &RpcCase) -> Value {
        let (own, floor) = (self.farfork_rate(case), self.rate(case, RpcSeries::Floor));
        let peer = |&system: &RpcSystem| {
            let per_s = self.rate(case, RpcSeries::Calls(system))?.median;
            Some(json!({ "system": system, "per_s": per_s }))
        };
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
            "hosts": self.hosts(case).iter().map(|host| self.host_json(case, host)).collect::<Vec<_>>(),
            "clients_per_s": self.runs(case).map(|run| &run.clients_per_s).collect::<Vec<_>>(),
            "floor_per_s": floor.map(|spread| spread.median),
            "floor_valid": floor.map(|spread| is_credible(case, spread.median)),
            "peers": RpcSystem::PEERS.iter().filter_map(peer).collect::<Vec<_>>(),
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

    fn machine_cases(&self) -> impl Iterator<Item = &RpcCase> {
        self.cases.iter().filter(|case| is_machine_case(case))
    }

    fn machines_table(&self) -> ReportTable {
        let title = format!("Empty calls per second, by client machines of {MACHINE_THREADS} synchronous threads");
        let columns = ["client machines", RATE.name, MEDIAN.name, "time, p99"];
        let mut table = ReportTable::new("machines", title, &columns);
        for case in self.machine_cases() {
            table.add_row([ReportCell::text(case.clients)].into_iter().chain(self.case_cells(case)));
        }
        table
    }

    fn loads_table(&self) -> ReportTable {
        let columns = ["load", RATE.name, MEDIAN.name, "time, p99"];
        let mut table = ReportTable::new("loads", "Calls per second, by load", &columns);
        for case in self.cases.iter().filter(|case| !is_machine_case(case)) {
            table.add_row([ReportCell::text(load_text(case))].into_iter().chain(self.case_cells(case)));
        }
        table
    }

    fn peers_table(&self) -> ReportTable {
        let systems = [&[RpcSystem::Farfork][..], &RpcSystem::PEERS].concat();
        let columns: Vec<_> = ["in flight"].into_iter().chain(systems.iter().map(|system| system.name())).collect();
        let mut table = ReportTable::new("peers", "Other RPC systems, on one connection", &columns);
        for case in self.cases.iter().filter(|case| case.has_peers()) {
            let rates = systems
                .iter()
                .map(|&system| self.samples.cell(&RpcSampleCase::new(*case, RpcSeries::Calls(system)), RATE));
            table.add_row([ReportCell::text(case.window)].into_iter().chain(rates));
        }
        table
    }

    /// The client hosts of a case; none on one machine.
    fn hosts(&self, case: &RpcCase) -> Vec<&str> {
        self.runs(case).next().into_iter().flat_map(|run| &run.hosts).map(|calls| calls.host.as_str()).collect()
    }

    fn host_json(&self, case: &RpcCase, host: &str) -> Value {
        let of_host = RpcSampleCase::of_host(*case, host);
        let median = |figure| self.samples.median(&of_host, figure);
        json!({ "host": host, "per_s": median(RATE), "p50_us": median(MEDIAN) })
    }

    /// The calls of each client host, and their sum.
    fn hosts_table(&self) -> ReportTable {
        let columns = ["load", HOST_COLUMN, RATE.name, MEDIAN.name];
        let mut table = ReportTable::new("hosts", "Calls by client hosts", &columns);
        for case in &self.cases {
            let rows = self.hosts(case).into_iter().map(|host| (host, RpcSampleCase::of_host(*case, host)));
            let sum = RpcSampleCase::new(*case, RpcSeries::Calls(RpcSystem::Farfork));
            for (name, sample_case) in with_sum_row(rows, sum) {
                let figures = [RATE, MEDIAN].map(|figure| self.samples.cell(&sample_case, figure));
                table.add_row([ReportCell::text(load_text(case)), ReportCell::text(name)].into_iter().chain(figures));
            }
        }
        table
    }

    /// The rate, and the median and the 99th percentile of the time.
    fn case_cells(&self, case: &RpcCase) -> [ReportCell; 3] {
        let floor = self.rate(case, RpcSeries::Floor).map(|floor| floor.median);
        let floor = floor.filter(|floor| is_credible(case, *floor));
        let rate = self.farfork_rate(case).map(|spread| ReportFigure::of(RATE, spread));
        let rate = rate.map(|rate| rate.with_floor(floor).with_reference(comparable_per_s(case)));
        let [p50, _, p99, ..] = self.latency_spreads(case);
        let time = |spread: Option<Spread>| ReportCell::from(spread.map(|spread| ReportFigure::of(MEDIAN, spread)));
        [rate.into(), time(p50), time(p99)]
    }

    /// The percentiles of latencies in the runs of a case. Each has a spread over the runs.
    fn latency_spreads(&self, case: &RpcCase) -> [Option<Spread>; PERCENTILES.len()] {
        std::array::from_fn(|index| {
            let samples: Vec<f64> = self.runs(case).map(|run| run.latency_us[index]).collect();
            Spread::from_samples(&samples)
        })
    }

    fn machines_plot(&self) -> ReportPlot {
        let (x, y) = (PlotAxis::new("client machines", ""), PlotAxis::new("calls", "1/s"));
        let title = "Empty calls by client machines";
        let plot = ReportPlot::new(PlotKind::Scaling, "machines", title, x, y);
        let measured = |case: &RpcCase| Some(PlotPoint::of_spread(case.clients as f64, self.farfork_rate(case)?));
        let published = |case: &RpcCase| Some(PlotPoint::new(case.clients as f64, published_per_s(case)?));
        plot.with_series("farfork", SeriesRole::Measured, self.machine_cases().filter_map(measured)).with_series(
            "reference",
            SeriesRole::Reference,
            self.machine_cases().filter_map(published),
        )
    }

    fn latency_plot(&self) -> ReportPlot {
        let (x, y) = (PlotAxis::new("percentile of a run", ""), PlotAxis::new("time", "µs"));
        let plot = ReportPlot::new(PlotKind::Percentiles, "latency", "The time of a call", x, y);
        let plot = plot.with_categories(PERCENTILES.map(str::to_owned));
        let shown = self.cases.iter().filter(|case| !is_machine_case(case)).take(LATENCY_CASES_MAX);
        shown.fold(plot, |plot, case| {
            let spreads = self.latency_spreads(case).into_iter().enumerate();
            let points = spreads.filter_map(|(index, spread)| Some(PlotPoint::of_spread(index as f64, spread?)));
            plot.with_series(&load_text(case), SeriesRole::Measured, points)
        })
    }
}

/// Maximum number of lines of a latency plot. More lines are hard to distinguish.
const LATENCY_CASES_MAX: usize = 5;

/// Whether a case is one of the published series by client machines.
fn is_machine_case(case: &RpcCase) -> bool {
    *case == RpcCase { clients: case.clients, threads: MACHINE_THREADS, ..RpcCase::SINGLE_CONNECTION }
}

/// The published figure for the same load. For answers with a checksum, figures were published for synchronous threads
/// only.
fn comparable_per_s(case: &RpcCase) -> Option<f64> {
    let is_synchronous = case.threads == MACHINE_THREADS && case.window == 1;
    published_per_s(case).filter(|_| case.payload_bytes == 0 || is_synchronous)
}

/// Describes how a case differs from a single synchronous connection.
fn load_text(case: &RpcCase) -> String {
    let connections = case.connections();
    let mut parts = vec![match connections {
        1 => "1 connection".to_owned(),
        _ if case.clients * case.threads == 1 => format!("{connections} connections"),
        _ if case.clients == 1 => format!("{} threads, {connections} connections", case.threads),
        _ => format!("{} × {} threads, {connections} connections", case.clients, case.threads),
    }];
    parts.push(match case.window * case.sessions {
        1 => "synchronous".to_owned(),
        in_flight => format!("{in_flight} in flight"),
    });
    let mut add = |is_so: bool, text: String| parts.extend(is_so.then_some(text));
    add(case.payload_bytes > 0, format!("{} bytes and a checksum", case.payload_bytes));
    add(case.server_threads > 1, format!("{} server threads", case.server_threads));
    add(!case.spins, "no polling".to_owned());
    add(case.protection == ConnectionSecurity::Authenticated, "authenticated".to_owned());
    add(case.protection == ConnectionSecurity::Encrypted, "encrypted".to_owned());
    parts.join(", ")
}

/// Whether an echo is plausible as a floor. With many messages in flight, it must reach the usual rate of an echo over
/// veth.
fn is_credible(case: &RpcCase, floor_per_s: f64) -> bool {
    case.connections() * case.window < 1024 || floor_per_s >= ECHO_PER_S_MIN
}

fn published_per_s(case: &RpcCase) -> Option<f64> {
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
    use std::collections::BTreeSet;

    use super::super::default_cases;
    use super::{
        BenchRpc, ConnectionSecurity, FigureSamples, RATE, RpcCase, RpcRunOutcome, RpcSampleCase, RpcSeries, RpcSystem,
        is_credible, is_machine_case, load_text, published_per_s,
    };
    use crate::options::{SamplesOption, parse_arguments};

    #[test]
    fn each_default_case_has_a_text_of_its_own() {
        let cases = default_cases();
        let (machines, loads): (Vec<_>, Vec<_>) = cases.iter().partition(|case| is_machine_case(case));
        assert_eq!(machines.len(), 5);
        let count = loads.len();
        let texts: BTreeSet<_> = loads.into_iter().map(load_text).collect();
        assert_eq!(texts.len(), count, "{texts:?}");
        let encrypted = RpcCase { protection: ConnectionSecurity::Encrypted, ..RpcCase::SINGLE_CONNECTION };
        assert_eq!(load_text(&encrypted), "1 connection, synchronous, encrypted");
    }

    #[test]
    fn only_comparable_cases_have_a_reference() {
        let published = published_per_s(&RpcCase { threads: 12, clients: 10, ..RpcCase::SINGLE_CONNECTION });
        assert_eq!(published, Some(1_261_974.0));
        assert_eq!(published_per_s(&RpcCase::SINGLE_CONNECTION), Some(239_952.0));
        assert_eq!(published_per_s(&RpcCase { window: 64, ..RpcCase::SINGLE_CONNECTION }), None);
        let many = RpcCase { connections_per_thread: 16, window: 64, ..RpcCase::SINGLE_CONNECTION };
        assert!(is_credible(&many, 2e6) && !is_credible(&many, 1e6) && is_credible(&RpcCase::SINGLE_CONNECTION, 1e4));
    }

    #[test]
    fn each_case_has_a_row_of_figures() {
        let plan: BenchRpc = parse_arguments(&["--window", "64"]);
        let case = RpcCase { window: 64, ..RpcCase::SINGLE_CONNECTION };
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for (series, per_s) in [(RpcSeries::Calls(RpcSystem::Farfork), 3e6), (RpcSeries::Floor, 4e6)] {
            samples.add(&RpcSampleCase::new(case, series), RATE, per_s).unwrap();
        }
        let outcome = RpcRunOutcome { per_s: 3e6, latency_us: [1.0, 2.0, 3.0, 4.0, 5.0], ..RpcRunOutcome::default() };
        let results = plan.results(plan.cases(), &samples, &[(case, outcome)]);
        let (text, document) = (results.to_text(), results.to_json());
        let found = &document["cases"][0];
        assert_eq!((found["per_s"].as_f64(), found["floor_per_s"].as_f64()), (Some(3e6), Some(4e6)));
        assert_eq!((found["connections"].as_u64(), found["latency_us"]["p99"].as_f64()), (Some(1), Some(3.0)));
        assert!(text.contains("0.75"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    }

    #[test]
    fn each_published_row_has_its_reference() {
        let plan: BenchRpc = parse_arguments(&[]);
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for case in plan.cases() {
            let series = RpcSeries::Calls(RpcSystem::Farfork);
            samples.add(&RpcSampleCase::new(case, series), RATE, 1e6).unwrap();
        }
        plan.results(plan.cases(), &samples, &[]).section.require_published_rows();
    }
}
