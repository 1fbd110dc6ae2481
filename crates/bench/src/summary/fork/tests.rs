//! Tests of widths, verdicts and keys of a `ForkSummary`, with artificial samples.

use std::time::Duration;

use super::ForkSummary;
use crate::figure::{ChildPlace, ForkFigure, ForkSampleKey, ForkSystem, Pace};
use crate::machine::MachineState;
use crate::parameters::fork::{ForkParameters, PeerSystem};
use crate::parameters::strategies::{StrategyChildFigures, StrategyFigures};
use crate::reference::SIZES_MIB;
use crate::samples::Samples;
use crate::summary::table::COLUMNS_MAX;

/// A summary with a sample of about `scale_ms` per MiB for each figure of each size.
fn report(sizes_mib: &[u64], scale_ms: f64) -> ForkSummary {
    let mut samples = Samples::new();
    for &mib in sizes_mib {
        let figures = [
            ForkFigure::Checkpoint,
            ForkFigure::CheckpointPause,
            ForkFigure::Prepare,
            ForkFigure::PrepareOnNode,
            ForkFigure::Pause,
            ForkFigure::Resume,
            ForkFigure::Execution,
        ];
        for figure in figures {
            for pace in [Pace::BackToBack, Pace::Idle] {
                for key in [
                    ForkSampleKey::for_farfork(mib, figure).with_pace(pace),
                    ForkSampleKey::for_farfork(mib, figure).with_place(ChildPlace::Own).with_pace(pace),
                    ForkSampleKey::for_farfork(mib, figure).with_place(ChildPlace::Other).with_pace(pace),
                    ForkSampleKey::new(mib, ForkSystem::LocalFork, figure),
                    ForkSampleKey::new(mib, ForkSystem::LocalFork, ForkFigure::ExecutionWriting),
                    ForkSampleKey::new(mib, ForkSystem::Link, figure),
                    ForkSampleKey::new(mib, ForkSystem::CriuEager, figure),
                    ForkSampleKey::new(mib, ForkSystem::CriuEager, figure).with_place(ChildPlace::Own),
                ] {
                    [0.9, 1.0, 1.2].iter().for_each(|x| samples.add(key, x * scale_ms * mib as f64).unwrap());
                }
            }
        }
    }
    let plan =
        ForkParameters { sizes_mib: sizes_mib.to_vec(), peer: Some(PeerSystem::Criu), ..ForkParameters::default() };
    let child =
        StrategyChildFigures { samples: 5, whole_ms: scale_ms, network_bytes: 1e9, ..StrategyChildFigures::default() };
    let of_size = |mib: &u64| StrategyFigures {
        mib: *mib,
        strategy: "prefetch,cache".to_owned(),
        first: child.clone(),
        second: child.clone(),
    };
    let strategies = sizes_mib.iter().map(of_size).collect();
    let machine_state = MachineState { load_average: 0.5, ..MachineState::detect() };
    ForkSummary { plan, samples, strategies, notes: Vec::new(), elapsed: Duration::from_secs(240), machine_state }
}

#[test]
fn no_line_is_wider_than_a_terminal() {
    for scale_ms in [0.001, 1.0, 5.0] {
        let text = report(&SIZES_MIB, scale_ms).to_text();
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= COLUMNS_MAX, "{}: {widest}", widest.chars().count());
    }
}

#[test]
fn a_row_is_below_the_reference_only_if_all_its_samples_are() {
    let mut report = report(&[1], 1.0);
    let idle = ForkSampleKey::for_farfork(1, ForkFigure::Resume).with_place(ChildPlace::Own).with_pace(Pace::Idle);
    (0..9).for_each(|_| report.samples.add(idle, 29.18).unwrap());
    let text = report.to_text();
    let rows: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("1 ")).collect();
    // Rows without a reference belong to strategies. The last rows belong to the peer: eager clones, and lazy ones that
    // were not measured.
    let ends = [
        "0.65  1.54 above",
        "1.00 (0.90–1.20)  0.65",
        "2.92  10.0 mixed",
        "1.07  0.93 below",
        "954   0.00",
        "954   0.00",
        "0.00     0.00    0.00",
        "0.00     0.00    0.00",
        "3.00      –      –    –      –",
    ];
    assert_eq!(rows.len(), ends.len(), "{text}");
    for (row, end) in rows.iter().zip(ends) {
        assert!(row.trim_end().ends_with(end), "{row}");
    }
}

#[test]
fn the_document_has_each_figure_with_its_reference() {
    let document = report(&[1, 3], 1.0).to_json();
    let figures = document["figures"].as_array().unwrap();
    let find = |mib: u64, by: &str, figure: &str, node: Option<&str>| {
        let is = |f: &&serde_json::Value| {
            f["mib"] == mib
                && f["by"] == by
                && f["figure"] == figure
                && f["node"].as_str() == node
                && f["pace"] == "back_to_back"
        };
        figures.iter().find(is).unwrap()
    };
    let prepare = find(1, "farfork", "prepare", None);
    assert_eq!(find(1, "farfork", "checkpoint", None)["reference"], prepare["reference"]);
    assert_eq!((&prepare["reference"], &prepare["below_reference"]), (&0.648.into(), &false.into()));
    assert_eq!((&prepare["unit"], &prepare["samples"]), (&"ms".into(), &3.into()));
    assert!(find(3, "farfork", "resume", Some("other"))["reference"].is_null());
    assert!(find(1, "link", "execution", None)["below_reference"].is_null());
}
