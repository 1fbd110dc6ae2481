//! Tests of sections, with artificial samples: each section has the rows of its published tables, and compares like
//! with like.

use std::time::Duration;

use crate::endpoint::specification::RpcSystem;
use crate::experiment::stress_fork::{StressForkOutcome, StressForkParameters};
use crate::figure::{ChildPlace, ForkFigure, ForkSampleKey, ForkSystem};
use crate::machine::MachineState;
use crate::parameters::connect::{ConnectParameters, ConnectSampleKey, ConnectSeries, P50_US, PER_S};
use crate::parameters::fork::ForkParameters;
use crate::parameters::function::{FunctionFigure, FunctionParameters, FunctionSampleKey};
use crate::parameters::methods::PauseMethod;
use crate::parameters::peak::{PeakCase, PeakFigure, PeakParameters, PeakSampleKey};
use crate::parameters::protection::ConnectionSecurity;
use crate::parameters::rpc::{RpcParameters, RpcSampleKey, RpcSeries};
use crate::parameters::warm_start::{WarmStartFigure, WarmStartParameters, WarmStartSampleKey};
use crate::reference::PUBLISHED_FIGURES;
use crate::report::coverage::PUBLISHED_TABLES;
use crate::report::plot::SeriesRole;
use crate::report::results::{NamedSection, ResultDirectory};
use crate::report::section::{ReportSection, SectionSource as _};
use crate::report::table::ReportFigure;
use crate::samples::Samples;
use crate::summary::connect::ConnectSummary;
use crate::summary::failures::FunctionFailures;
use crate::summary::fork::ForkSummary;
use crate::summary::function::FunctionSummary;
use crate::summary::peak::PeakSummary;
use crate::summary::rpc::RpcSummary;
use crate::summary::warm_start::WarmStartSummary;
use crate::workload::fork_workload::ForkWorkload;
use crate::workload::functions::{FunctionOptions, FunctionSource};
use crate::workload::micro::TouchOrder;

fn fork_section(order: TouchOrder) -> ReportSection {
    let plan = ForkParameters { order, ..ForkParameters::default() };
    let mut samples = Samples::new();
    for &mib in &plan.sizes_mib {
        let of = |figure| ForkSampleKey::for_farfork(mib, figure);
        for (key, ms) in [
            (of(ForkFigure::Checkpoint), 1.0),
            (of(ForkFigure::Resume).with_place(ChildPlace::Other), 2.0),
            (of(ForkFigure::Execution).with_place(ChildPlace::Own), 30.0),
            (ForkSampleKey::new(mib, ForkSystem::LocalFork, ForkFigure::Execution), 10.0),
            (ForkSampleKey::new(mib, ForkSystem::LocalFork, ForkFigure::Pause), 0.5),
        ] {
            samples.add(key, ms).unwrap();
        }
    }
    let (strategies, notes, elapsed) = (Vec::new(), Vec::new(), Duration::ZERO);
    let machine_state = MachineState::detect();
    ForkSummary { plan, samples, strategies, notes, elapsed, machine_state }.section()
}

fn function_section() -> ReportSection {
    let mut samples = Samples::new();
    let functions = FunctionSource::embedded();
    for FunctionSource { name, .. } in &functions {
        for (figure, ms) in [
            (FunctionFigure::Prepare, 1.0),
            (FunctionFigure::LocalFork, 0.5),
            (FunctionFigure::Resume(ChildPlace::Own), 1.5),
            (FunctionFigure::Resume(ChildPlace::Other), 2.0),
            (FunctionFigure::Execution(ChildPlace::Own), 6.0),
            (FunctionFigure::LocalExecution, 4.0),
        ] {
            samples.add(FunctionSampleKey { function: name.clone(), figure }, ms).unwrap();
        }
    }
    let (payload, function_options, samples_file) = ("{}".to_owned(), FunctionOptions::default(), None);
    let plan = FunctionParameters { functions, payload, runs: 1, profile: false, function_options, samples_file };
    FunctionSummary::new(&plan, samples, Vec::new(), FunctionFailures::default()).unwrap().section()
}

fn connect_section() -> ReportSection {
    let cases = ConnectParameters::default_cases();
    let mut samples = Samples::new();
    for case in &cases {
        let series = ConnectSeries::Connections(ConnectionSecurity::Authenticated);
        for (series, figure, value) in
            [(ConnectSeries::Floor, PER_S, 9000.0), (series, PER_S, 3000.0), (series, P50_US, 300.0)]
        {
            samples.add(ConnectSampleKey { case: *case, series, figure }, value).unwrap();
        }
    }
    let plan = ConnectParameters { cases, runs: 1, seconds: 1.0, samples_file: None };
    ConnectSummary::new(&plan, 2, samples).section()
}

fn rpc_section() -> ReportSection {
    let cases = RpcParameters::default_cases();
    let mut samples = Samples::new();
    for case in &cases {
        let series = RpcSeries::Calls(RpcSystem::Farfork);
        samples.add(RpcSampleKey { case: *case, series, figure: "per_s" }, 1e6).unwrap();
    }
    let (runs, client_seconds, server_seconds, interval_seconds) = (1, 1.0, 2.0, 1.0);
    let (floors, samples_file) = (true, None);
    let plan = RpcParameters { cases, runs, client_seconds, server_seconds, interval_seconds, floors, samples_file };
    RpcSummary::new(&plan, samples, Vec::new()).section()
}

fn helloworld() -> FunctionSource {
    FunctionSource::parse("helloworld").unwrap()
}

fn peak_section() -> ReportSection {
    let payload = "{}".to_owned();
    let workloads = vec![ForkWorkload::Sparse { mib: 16 }, ForkWorkload::Function { source: helloworld(), payload }];
    let (strategies, zygotes) = (vec![String::new()], vec![true]);
    let plan = PeakParameters {
        workloads,
        child_nodes: 2,
        clients: 2,
        seconds: 5.0,
        zygotes,
        strategies,
        function_options: FunctionOptions::default(),
        samples_file: None,
    };
    let mut samples = Samples::new();
    let case = PeakCase { workload: "helloworld".to_owned(), zygotes: true, strategy: String::new() };
    for (figure, value) in [
        (PeakFigure::IntervalPerS, 20.0),
        (PeakFigure::IntervalPerS, 200.0),
        (PeakFigure::IntervalPerS, 202.0),
        (PeakFigure::IntervalPerS, 204.0),
        (PeakFigure::ClientPerS, 50.0),
        (PeakFigure::ClientP50Ms, 19.0),
    ] {
        samples.add(PeakSampleKey { case: case.clone(), figure }, value).unwrap();
    }
    PeakSummary::new(&plan, samples, FunctionFailures::default()).unwrap().section()
}

fn warm_start_section() -> ReportSection {
    let mut samples = Samples::new();
    let functions = &PUBLISHED_FIGURES.warm_start.functions;
    for (reference, parallel) in functions.iter().flat_map(|reference| [(reference, 1), (reference, 4)]) {
        let (workload, figure) = (reference.name.clone(), WarmStartFigure::RunsPerS);
        for (by, per_s) in [(PauseMethod::FarforkHandle, 100.0), (PauseMethod::BareFreezer, 400.0)] {
            let key = WarmStartSampleKey { workload: workload.clone(), parallel, by, figure };
            samples.add(key, per_s * parallel as f64).unwrap();
        }
    }
    let (workloads, parallel, runs, seconds) = (vec![], vec![1, 4], 1, 0.1);
    let (function_options, samples_file) = (FunctionOptions::default(), None);
    let plan = WarmStartParameters { workloads, parallel, runs, seconds, root: None, function_options, samples_file };
    let measured = functions.iter().map(|reference| (reference.name.clone(), vec![1, 4])).collect();
    WarmStartSummary::new(&plan, measured, samples, FunctionFailures::default()).unwrap().section()
}

fn stress_plan(workload: ForkWorkload) -> StressForkParameters {
    let (nodes, parent_nodes, clients, seconds) = (3, 0, 2, 5.0);
    let (floor_per_s, pool, zygotes, encrypted) = (0.1, None, None, true);
    let (function_options, strategy) = (FunctionOptions::default(), String::new());
    StressForkParameters {
        nodes,
        parent_nodes,
        clients,
        workload,
        function_options,
        strategy,
        seconds,
        floor_per_s,
        pool,
        zygotes,
        encrypted,
    }
}

fn stress_section(workload: ForkWorkload) -> ReportSection {
    let intervals_per_s = vec![100.0, 590.0, 600.0, 610.0, 600.0];
    let outcome = StressForkOutcome { intervals_per_s, per_s: 600.0, ..StressForkOutcome::default() };
    serde_json::from_value(StressForkOutcome::section_json(&[(&stress_plan(workload), outcome)])).unwrap()
}

/// The figure in this row and column of a table.
fn figure<'a>(section: &'a ReportSection, table: &str, row: &str, column: &str) -> &'a ReportFigure {
    let table = section.tables.iter().find(|found| found.id == table).expect("a table");
    let index = table.columns.iter().position(|name| name == column).expect("a column");
    let row = table.rows.iter().find(|cells| cells[0].as_text() == Some(row)).expect("a row");
    row[index].figure().expect("a figure")
}

#[test]
fn each_published_row_has_its_reference() {
    let function = ForkWorkload::Function { source: helloworld(), payload: "{}".to_owned() };
    let sections = [
        fork_section(TouchOrder::Random),
        function_section(),
        peak_section(),
        warm_start_section(),
        connect_section(),
        rpc_section(),
        stress_section(ForkWorkload::Sparse { mib: 16 }),
        stress_section(function),
    ];
    let measured: Vec<String> = sections.iter().map(|section| section.id.clone()).collect();
    let named = sections.map(|section| NamedSection { name: section.id.clone(), section });
    let results = ResultDirectory { sections: named.into(), suite: None };
    let mut counted = 0;
    for table in PUBLISHED_TABLES.iter().filter(|table| measured.iter().any(|id| table.is_of(id))) {
        let rows = table.find_coverage(&results).map(|coverage| coverage.rows);
        assert_eq!(rows, Some(table.rows), "{}", table.title);
        counted += 1;
    }
    assert_eq!(counted, 15);
}

#[test]
fn an_execution_is_compared_with_the_same_touches_of_a_local_fork() {
    let section = fork_section(TouchOrder::Random);
    let execution = figure(&section, "execution", "64", "own node");
    assert_eq!((execution.floor_ratio(), execution.reference), (Some(3.0), Some(75.376)));
    assert_eq!(figure(&section, "checkpoint", "64", "prepare").floor, Some(0.5));
    let sequential = fork_section(TouchOrder::Sequential);
    assert_eq!(figure(&sequential, "execution", "64", "own node").reference, None);
    assert_ne!(section.title, sequential.title);
    let plot = section.plots.iter().find(|plot| plot.id == "execution").unwrap();
    let reference = plot.series.iter().find(|series| series.role == SeriesRole::Reference).unwrap();
    let last = reference.points.last().unwrap();
    assert_eq!((reference.points.len(), last.x, last.y), (10, 1024.0, 1246.94));
}

#[test]
fn a_function_is_compared_with_a_child_of_os_fork() {
    let section = function_section();
    let json = figure(&section, "execution", "json", "own node");
    assert_eq!((json.floor_ratio(), json.reference), (Some(1.5), Some(17.52)));
    assert_eq!(figure(&section, "ratio", "json", "own node").median, 1.5);
    assert_eq!(figure(&section, "start", "json", "resume, own node").floor, Some(0.5));
}

#[test]
fn a_reference_is_taken_from_the_table_of_its_row() {
    let section = connect_section();
    let of = |table, row| figure(&section, table, row, "authenticated").reference;
    assert_eq!((of("threads", "2"), of("machines", "1")), (Some(375.9), Some(397.3)));
    assert_eq!(figure(&section, "machines", "8", "authenticated").floor, Some(9000.0));
}

#[test]
fn a_stress_test_has_its_stable_interval_and_the_rate_of_each_client() {
    let section = stress_section(ForkWorkload::Sparse { mib: 16 });
    let stable = figure(&section, "rates", "stable interval", "of each client");
    assert_eq!((stable.median, stable.reference), (100.0, Some(120.4)));
    let interval = section.plots[0].stable.unwrap();
    assert_eq!((interval.from_s, interval.until_s, interval.mean), (1.0, 5.0, 600.0));
    assert!(section.notes.iter().any(|note| note == "Verdict: passed."), "{:?}", section.notes);
}

#[test]
fn a_peak_is_measured_in_the_stable_interval() {
    let section = peak_section();
    let stable = figure(&section, "rate", "helloworld", "stable interval");
    assert_eq!((stable.median, section.plots.len()), (202.0, 1));
    let latency = figure(&section, "latency", "helloworld", "median");
    assert_eq!((latency.median, latency.reference), (19.0, Some(19.8)));
}

#[test]
fn the_best_warm_start_has_the_floor_of_equal_concurrency() {
    let section = warm_start_section();
    let json = figure(&section, "best", "json", "rate");
    assert_eq!((json.median, json.floor, json.reference), (400.0, Some(1600.0), Some(1651.0)));
}
