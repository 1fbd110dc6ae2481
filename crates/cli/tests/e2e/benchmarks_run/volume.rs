//! `farfork bench volume`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::run_benchmark;
use crate::harness::Farfork;

/// The size is refused before anything starts: three replicas in memory would fill the machine.
pub(super) fn refuses_large_sizes() {
    let farfork = Farfork::at(Path::new("/nonexistent"));
    for (experiment, option) in [("throughput", "--mib"), ("latency", "--operations")] {
        let refused = farfork.run_failing(&["bench", "volume", experiment, option, "1048576", "--bytes", "1048576"]);
        refused.require_mentions(&["1048576 MiB", "free memory", option]);
    }
    let refused = farfork.run_failing(&["bench", "volume", "leveldb", "--entries", "100000000"]);
    refused.require_mentions(&["390625 MiB", "free memory", "--entries"]);
}

/// Measures volumes, sockets and local file systems. A simulated mail server continues through each fault. Another node reads the
/// same files.
pub(super) fn prints_every_figure() {
    let sizes = ["--operations", "50", "--mib", "4", "--processes", "2", "--log-mib", "16", "--runs", "1"];
    let counts = ["--files", "50", "--points", "300", "--entries", "100", "--replicas", "busy"];
    let times = ["--seconds", "0.5", "--period", "2", "--offload", "both", "--copy-methods", "event,none", "--pin"];
    let peers = ["--gluster", "off"];
    let document = run_benchmark("volume", &[&sizes[..], &counts, &times, &peers].concat());
    let figures = document["figures"].as_array().expect("a list of figures");
    let keys = |figure: &Value| {
        ["experiment", "copy_method", "processes", "system", "figure"].map(|key| figure[key].to_string())
    };
    let found: BTreeSet<_> = figures.iter().map(keys).collect();
    // Five times of five systems, and the time of a sync for four. The rate of five systems. Two loops and six database
    // workloads on four systems. Five figures of a neighbour for two systems. Three figures of each of two copy
    // methods.
    let expected = 5 * 5 + 4 + 5 + (2 + 6) * 4 + 5 * 2 + 3 * 2;
    assert_eq!((found.len(), figures.len()), (expected, expected), "{document}");
    assert!(figures.iter().all(|figure| figure["p50"].as_f64() > Some(0.0)), "{document}");
    let run = &document["availability"];
    let list = |key: &str| {
        let values = run[key].as_array().expect("a list").iter();
        values.map(|value| value.as_f64().expect("a number")).collect::<Vec<_>>()
    };
    let (rates, longest_ms) = (list("per_s"), list("longest_ms"));
    // One period without a fault, and seven with one, of two seconds each. An operation may end after the last second.
    assert!(rates.len() >= 16 && run["faults"].as_array().map(Vec::len) == Some(7), "{document}");
    let verified = &document["verified"];
    assert!(verified["files"].as_u64() > Some(100) && verified["bytes"].as_u64() > Some(4 << 20), "{verified}");
    assert_eq!(document["gluster"].as_array().map(Vec::len), Some(0), "{document}");
    // The mail server ends with an operation after the last second, so it continued through all faults.
    assert!(rates.iter().sum::<f64>() > 0.0, "{document}");
    let mut idle_seconds = 0;
    // On a slow machine, the first operation may come late.
    for (rate, longest_ms) in rates.iter().zip(longest_ms).skip_while(|(rate, _)| **rate == 0.0) {
        if *rate == 0.0 {
            idle_seconds += 1;
            continue;
        }
        // No operation ends in a second if one lasts longer. The mail server may be late by a part of that time.
        let lasting_ms = f64::from(idle_seconds) * 500.0;
        assert!(longest_ms >= lasting_ms, "{idle_seconds} seconds without an operation: {document}");
        idle_seconds = 0;
    }
}

/// Measures GlusterFS if it is installed, and reports its package if not. Nothing of it outlives the run.
pub(super) fn measures_gluster() {
    let sizes = ["--operations", "20", "--mib", "4", "--processes", "1", "--log-mib", "16", "--runs", "1"];
    let others = ["--replicas", "idle", "--files", "50", "--seconds", "0.5", "--gluster", "on"];
    let experiments = ["latency", "throughput", "filebench"];
    let document = run_benchmark("volume", &[&experiments[..], &sizes, &others].concat());
    let notes = document["gluster"].to_string();
    let figures = document["figures"].as_array().expect("a list of figures");
    let of_gluster: Vec<_> = figures.iter().filter(|figure| figure["system"] == "gluster").collect();
    if Command::new("glusterd").arg("--version").output().is_err() {
        assert!(notes.contains("not installed") && notes.contains("glusterfs-server"), "{notes}");
        assert!(of_gluster.is_empty(), "{document}");
        return;
    }
    assert!(notes.contains("replicate 1 x 3 = 3 bricks") && notes.contains("transport tcp"), "{notes}");
    // Five times and the time of a sync, a rate, and two loops.
    assert_eq!(of_gluster.len(), 6 + 1 + 2, "{document}");
    assert!(of_gluster.iter().all(|figure| figure["p50"].as_f64() > Some(0.0)), "{document}");
    let processes = Command::new("pgrep").args(["--full", "gluster.*farfork-bench"]).output().expect("pgrep(1)");
    assert_eq!(String::from_utf8_lossy(&processes.stdout), "", "processes of GlusterFS have outlived the run");
}
