//! The tables and plots of `farfork bench peak`.

use super::{
    CLIENT_MEDIAN, CLIENT_P99, CLIENT_RATE, CLIENTS, HOST_MEDIAN, HOST_P99, HOST_RATE, INTERVAL_RATE, LOCAL_FORK_RATE,
    PeakCase,
};
use crate::experiment::fork_load::FORK_INTERVAL_S;
use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
use crate::report::stable_interval::StableInterval;
use crate::report::table::{BetterDirection, HOST_COLUMN, ReportCell, ReportFigure, ReportTable, with_sum_row};
use crate::samples::FigureSamples;

/// The part of the run in which the rate hardly changes.
pub(super) fn stable_interval(case: &PeakCase, samples: &FigureSamples<PeakCase>) -> Option<StableInterval> {
    StableInterval::find(samples.values(case, INTERVAL_RATE), FORK_INTERVAL_S)
}

pub(super) fn rate_table(cases: &[PeakCase], samples: &FigureSamples<PeakCase>) -> ReportTable {
    let columns =
        ["workload", "zygotes", "strategy", CLIENTS.name, INTERVAL_RATE.name, CLIENT_RATE.name, LOCAL_FORK_RATE.name];
    let mut table = ReportTable::new("rate", "Children per second", &columns);
    for case in cases {
        let stable = stable_interval(case, samples)
            .map(|stable| ReportFigure::single(stable.mean, INTERVAL_RATE.unit, BetterDirection::Higher));
        let of_client = samples.figure(case, CLIENT_RATE);
        let published = case.published(|reference| reference.per_client_s);
        table.add_row(case.cells().into_iter().chain([
            samples.cell(case, CLIENTS),
            stable.into(),
            of_client.map(|rate| rate.with_reference(published)).into(),
            samples.cell(case, LOCAL_FORK_RATE),
        ]));
    }
    table
}

/// The children of each host with clients, and their sum.
pub(super) fn hosts_table(cases: &[PeakCase], hosts: &[String], samples: &FigureSamples<PeakCase>) -> ReportTable {
    let columns = ["workload", "strategy", HOST_COLUMN, HOST_RATE.name, HOST_MEDIAN.name, HOST_P99.name];
    let mut table = ReportTable::new("hosts", "Children per second by hosts", &columns);
    for case in cases {
        let rows = hosts.iter().map(|host| (host.as_str(), case.of_host(host)));
        for (name, of) in with_sum_row(rows, case.clone()) {
            let figures = [HOST_RATE, HOST_MEDIAN, HOST_P99].map(|figure| samples.cell(&of, figure));
            let key = [&case.workload, case.strategy_text(), name].map(ReportCell::text);
            table.add_row(key.into_iter().chain(figures));
        }
    }
    table
}

pub(super) fn latency_table(cases: &[PeakCase], samples: &FigureSamples<PeakCase>) -> ReportTable {
    let columns = ["workload", "zygotes", "strategy", CLIENT_MEDIAN.name, CLIENT_P99.name];
    let title = "From the request for a child until its result was checked, of each client";
    let mut table = ReportTable::new("latency", title, &columns);
    for case in cases {
        let published = case.published(|reference| reference.latency_ms);
        let median = samples.figure(case, CLIENT_MEDIAN).map(|median| median.with_reference(published));
        table.add_row(case.cells().into_iter().chain([median.into(), samples.cell(case, CLIENT_P99)]));
    }
    table
}

pub(super) fn throughput_plot(case: &PeakCase, samples: &FigureSamples<PeakCase>) -> ReportPlot {
    let points = samples.values(case, INTERVAL_RATE).iter().enumerate();
    let points = points.map(|(index, rate)| PlotPoint::new((index as f64 + 0.5) * FORK_INTERVAL_S, *rate));
    let name = format!("{}, zygotes {}, {} strategy", case.workload, case.zygotes_text(), case.strategy_text());
    let (x, y) = (PlotAxis::new("time", "s"), PlotAxis::new("children", "1/s"));
    let plot = ReportPlot::new(PlotKind::OverTime, &name.replace(", ", "-").replace(' ', "-"), &name, x, y);
    let plot = plot.with_series("all clients", SeriesRole::Measured, points);
    ReportPlot { stable: stable_interval(case, samples), ..plot }
}
