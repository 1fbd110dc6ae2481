//! The results of `farfork bench connect`: connections per second and their times, next to floors and references.

use serde_json::{Value, json};

use super::{
    BenchConnect, BenchResults, ConnectCase, ConnectSampleCase, ConnectSeries, ConnectionSecurity, FigureSamples,
    MACHINE_THREADS, MEAN, MEDIAN, P99, PROTECTION_COLUMNS, RATE,
};
use crate::reference::{ConnectReference, PUBLISHED_FIGURES};
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::section::ReportSection;
use crate::report::table::{HOST_COLUMN, ReportCell, ReportTable, with_sum_row};

/// Number of network cards of a node, which is also the number of paths between two nodes.
const NICS_PER_NODE: usize = 1;

/// The results of all cases.
struct ConnectResults<'a> {
    cases: Vec<ConnectCase>,
    /// The client hosts; none on one machine.
    hosts: &'a [String],
    samples: &'a FigureSamples<ConnectSampleCase>,
}

/// The tables and plots of a series of cases.
#[derive(Debug, Clone, Copy)]
struct CaseSeries {
    id: &'static str,
    is_wanted: fn(&ConnectCase) -> bool,
    /// The number that varies, and the published rate.
    varied: fn(ConnectCase) -> (usize, Option<f64>),
}

/// By threads of one client machine.
const BY_THREADS: CaseSeries = CaseSeries {
    id: "threads",
    is_wanted: |case| case.clients == 1,
    varied: |case| (case.threads, reference_per_s(case)),
};

/// By client machines with two threads each. One machine has another published rate here.
const BY_MACHINES: CaseSeries = CaseSeries {
    id: "machines",
    is_wanted: |case| case.threads == MACHINE_THREADS,
    varied: |case| (case.clients, PUBLISHED_FIGURES.connect.per_s_by_clients.find(case.clients as u64)),
};

const OTHERS: CaseSeries = CaseSeries {
    id: "others",
    is_wanted: |case| case.clients > 1 && case.threads != MACHINE_THREADS,
    varied: |case| (case.connections(), None),
};

impl BenchConnect {
    pub(super) fn results(
        &self,
        cases: Vec<ConnectCase>,
        hosts: &[String],
        server_threads: usize,
        samples: &FigureSamples<ConnectSampleCase>,
    ) -> BenchResults {
        let results = ConnectResults { cases, hosts, samples };
        let question = "How many connections do nodes make per second, and how long does each take?";
        let source = &PUBLISHED_FIGURES.connect.source;
        let section = ReportSection::new("connect", "Connections", question)
            .with_table(results.time_table(true))
            .with_table(results.rate_table(BY_THREADS, "Connections per second by threads of one client machine"))
            .with_table(results.rate_table(BY_MACHINES, "Connections per second by client machines of 2 threads"))
            .with_table(results.time_table(false))
            .with_table(results.rate_table(OTHERS, "Connections per second by connections at once"))
            .with_table(results.hosts_table())
            .with_plot(results.rate_plot(BY_THREADS, "Connections by threads of one client machine"))
            .with_plot(results.rate_plot(BY_MACHINES, "Connections by client machines of two threads"))
            .with_note("Floor: TCP connect and accept by two programs that do nothing else.")
            .with_note(format!("Reference: {source}."))
            .with_note("The published table of two network cards in each machine is not measured yet.");
        let document = json!({
            "runs": self.runs,
            "seconds": self.seconds,
            "server_threads": server_threads,
            "reference": source,
            "cases": results.to_json(),
        });
        BenchResults::new(section, document)
    }
}

impl ConnectResults<'_> {
    fn to_json(&self) -> Vec<Value> {
        self.protected_cases().map(|(case, (_, protection))| self.case_json(case, protection)).collect()
    }

    fn case_json(&self, case: ConnectCase, protection: ConnectionSecurity) -> Value {
        let connections = ConnectSampleCase::new(case, ConnectSeries::Connections(protection));
        let floor = ConnectSampleCase::new(case, ConnectSeries::Floor);
        let (rate, median) =
            (self.samples.spread(&connections, RATE), |figure| self.samples.median(&connections, figure));
        let host_json = |host: &String| {
            let of_host = connections.clone().of_host(host);
            let median = |figure| self.samples.median(&of_host, figure);
            json!({ "host": host, "per_s": median(RATE), "p50_us": median(MEDIAN), "p99_us": median(P99) })
        };
        json!({
            "clients": case.clients,
            "threads": case.threads,
            "hosts": self.case_hosts(case).iter().map(host_json).collect::<Vec<_>>(),
            "connections": case.connections(),
            "window": 1,
            "payload_bytes": 0,
            "checksum": false,
            "rails": NICS_PER_NODE,
            "authenticated": protection != ConnectionSecurity::None,
            "encrypted": protection == ConnectionSecurity::Encrypted,
            "per_s": median(RATE),
            "per_s_p10": rate.map(|spread| spread.p10),
            "per_s_p90": rate.map(|spread| spread.p90),
            "floor_per_s": self.samples.median(&floor, RATE),
            "latency_us": { "p50": median(MEDIAN), "p99": median(P99), "mean": median(MEAN) },
            "reference_per_s": reference_per_s(case),
            "reference_latency_us": (case.connections() == 1).then_some(PUBLISHED_FIGURES.connect.latency_us),
        })
    }

    /// The times of connections: of one thread alone, as published, or of several at once.
    fn time_table(&self, is_alone: bool) -> ReportTable {
        let (id, title, key) = match is_alone {
            true => ("latency", "The time of one connection, with one thread", &["connection"][..]),
            false => {
                ("times", "The time of one connection, with several threads", &["clients", "threads", "connection"][..])
            }
        };
        let mut table = ReportTable::new(id, title, &[key, &[MEAN.name, MEDIAN.name, P99.name]].concat());
        let cases = self.cases.iter().copied().filter(|case| (case.connections() == 1) == is_alone);
        for (case, (name, protection)) in cases.flat_map(|case| PROTECTION_COLUMNS.map(|column| (case, column))) {
            let connections = ConnectSampleCase::new(case, ConnectSeries::Connections(protection));
            let published_us = is_alone.then_some(PUBLISHED_FIGURES.connect.latency_us);
            let mean = self.samples.figure(&connections, MEAN).map(|mean| mean.with_reference(published_us));
            let key = [case.clients.to_string(), case.threads.to_string(), name.to_owned()];
            let key = key.into_iter().skip(if is_alone { 2 } else { 0 }).map(ReportCell::text);
            let [median, p99] = [MEDIAN, P99].map(|figure| self.samples.cell(&connections, figure));
            table.add_row(key.chain([mean.into(), median, p99]));
        }
        table
    }

    /// The connections of each client host, and their sum.
    fn hosts_table(&self) -> ReportTable {
        let columns = ["clients", "threads", "connection", HOST_COLUMN, RATE.name, MEDIAN.name, P99.name];
        let mut table = ReportTable::new("hosts", "Connections by client hosts", &columns);
        for (case, (protection_name, protection)) in self.protected_cases() {
            let all = ConnectSampleCase::new(case, ConnectSeries::Connections(protection));
            let rows = self.case_hosts(case).iter().map(|host| (host.as_str(), all.clone().of_host(host)));
            for (name, sample_case) in with_sum_row(rows, all.clone()) {
                let key =
                    [case.clients.to_string(), case.threads.to_string(), protection_name.to_owned(), name.to_owned()];
                let figures = [RATE, MEDIAN, P99].map(|figure| self.samples.cell(&sample_case, figure));
                table.add_row(key.into_iter().map(ReportCell::text).chain(figures));
            }
        }
        table
    }

    /// The client hosts of a case; none on one machine.
    fn case_hosts(&self, case: ConnectCase) -> &[String] {
        &self.hosts[..case.clients.min(self.hosts.len())]
    }

    /// Each case with each protection.
    fn protected_cases(&self) -> impl Iterator<Item = (ConnectCase, (&'static str, ConnectionSecurity))> {
        self.cases.iter().flat_map(|case| PROTECTION_COLUMNS.map(|column| (*case, column)))
    }

    fn rate_table(&self, CaseSeries { id, is_wanted, varied }: CaseSeries, title: &str) -> ReportTable {
        let columns = [id, PROTECTION_COLUMNS[0].0, PROTECTION_COLUMNS[1].0, PROTECTION_COLUMNS[2].0];
        let mut table = ReportTable::new(id, title, &columns);
        for &case in self.cases.iter().filter(|case| is_wanted(case)) {
            let (count, published) = varied(case);
            let floor = self.samples.median(&ConnectSampleCase::new(case, ConnectSeries::Floor), RATE);
            let rates = PROTECTION_COLUMNS.map(|(_, protection)| {
                let connections = ConnectSampleCase::new(case, ConnectSeries::Connections(protection));
                let rate = self.samples.figure(&connections, RATE);
                ReportCell::from(rate.map(|rate| rate.with_floor(floor).with_reference(published)))
            });
            table.add_row([ReportCell::text(count)].into_iter().chain(rates));
        }
        table
    }

    fn rate_plot(&self, CaseSeries { id, is_wanted, varied }: CaseSeries, title: &str) -> ReportPlot {
        let (x, y) = (PlotAxis::new(id, ""), PlotAxis::new(RATE.name, RATE.unit));
        let cases = || self.cases.iter().copied().filter(is_wanted);
        let points = |series| {
            let point =
                move |case| self.samples.point(varied(case).0 as f64, &ConnectSampleCase::new(case, series), RATE);
            cases().filter_map(point)
        };
        let plot = ReportPlot::new(PlotKind::Scaling, id, title, x, y);
        let plot = PROTECTION_COLUMNS.into_iter().fold(plot, |plot, (name, protection)| {
            plot.with_series(name, SeriesRole::Measured, points(ConnectSeries::Connections(protection)))
        });
        let published = cases().filter_map(|case| Some(PlotPoint::new(varied(case).0 as f64, varied(case).1?)));
        plot.with_series("bare TCP", SeriesRole::Floor, points(ConnectSeries::Floor)).with_series(
            "reference",
            SeriesRole::Reference,
            published,
        )
    }
}

fn reference_per_s(case: ConnectCase) -> Option<f64> {
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
        BenchConnect, ConnectCase, ConnectSampleCase, ConnectSeries, ConnectionSecurity, FigureSamples, MEAN, MEDIAN,
        P99, RATE, reference_per_s,
    };
    use crate::options::{SamplesOption, parse_arguments};

    #[test]
    fn only_comparable_cases_have_a_reference() {
        let of = |clients, threads| reference_per_s(ConnectCase { clients, threads });
        assert_eq!([of(1, 1), of(1, 12), of(8, 2)], [Some(172.6), Some(400.0), Some(391.2)]);
        assert_eq!([of(1, 3), of(2, 1), of(3, 2)], [None; 3]);
        let cases = parse_arguments::<BenchConnect>(&[]).cases();
        assert!(cases.len() == 8 && cases.into_iter().all(|case| reference_per_s(case).is_some()));
    }

    #[test]
    fn each_case_has_a_row_of_figures() {
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        let case = ConnectCase { clients: 2, threads: 3 };
        let mut add =
            |series, figure, value| samples.add(&ConnectSampleCase::new(case, series), figure, value).unwrap();
        let encrypted = ConnectSeries::Connections(ConnectionSecurity::Encrypted);
        add(ConnectSeries::Floor, RATE, 16_000.0);
        for (figure, value) in [(RATE, 4_000.0), (MEDIAN, 250.0), (P99, 900.0), (MEAN, 300.0)] {
            add(encrypted, figure, value);
        }
        let plan: BenchConnect = parse_arguments(&["--clients", "2", "--threads", "3"]);
        let results = plan.results(plan.cases(), &[], 2, &samples);
        let (text, document) = (results.to_text(), results.to_json());
        let cases = document["cases"].as_array().unwrap();
        let found = cases.iter().find(|case| case["encrypted"] == true).unwrap();
        assert_eq!((cases.len(), &found["connections"], &found["rails"]), (3, &6.into(), &1.into()));
        assert_eq!((&found["per_s"], &found["floor_per_s"]), (&4_000.0.into(), &16_000.0.into()));
        assert_eq!(found["latency_us"], serde_json::json!({ "p50": 250.0, "p99": 900.0, "mean": 300.0 }));
        assert!(text.contains("0.25"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    }

    #[test]
    fn a_reference_is_taken_from_the_table_of_its_row() {
        let plan: BenchConnect = parse_arguments(&[]);
        let mut samples = FigureSamples::create(&SamplesOption::default()).unwrap();
        for case in plan.cases() {
            let connections = ConnectSeries::Connections(ConnectionSecurity::Authenticated);
            for (series, figure, value) in
                [(ConnectSeries::Floor, RATE, 9000.0), (connections, RATE, 3000.0), (connections, MEAN, 300.0)]
            {
                samples.add(&ConnectSampleCase::new(case, series), figure, value).unwrap();
            }
        }
        let section = plan.results(plan.cases(), &[], 2, &samples).section;
        section.require_published_rows();
        let of = |table, row| section.figure(table, row, "authenticated").reference;
        assert_eq!((of("threads", "2"), of("machines", "1")), (Some(375.9), Some(397.3)));
        assert_eq!(section.figure("machines", "8", "authenticated").floor, Some(9000.0));
    }
}
