//! `farfork bench rpc` and `farfork stress rpc`.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{RUN_LIMIT, run_benchmark};
use crate::harness::{BINARY, scratch, wait};

/// The time of a call is measured, although a poll returns fewer answers than there are between two recorded times.
pub(super) fn measures_times() {
    let arguments = ["--runs", "1", "--client-seconds", "0.5", "--clients", "2", "--threads", "1", "--window", "8"];
    let document = run_benchmark("rpc", &[&arguments[..], &["--no-floors"]].concat());
    let case = &document["cases"][0];
    let times = ["p50", "p90", "p99", "p999", "max"].map(|name| case["latency_us"][name].as_f64().expect("a number"));
    assert!(times[0] > 0.0 && times.is_sorted() && case["per_s"].as_f64() > Some(0.0), "{document}");
}

/// Calls pass without the kernel's log. With `--strict`, they fail. In the mount namespace of the test, that log is a file that
/// cannot be opened.
pub(super) fn names_unread_logs() {
    const HIDE_KERNEL_LOG: &str =
        "mknod \"$1/device\" c 0 0 && mount --bind \"$1/device\" /dev/kmsg && shift && exec \"$@\"";
    let scratch = scratch::directory();
    for strict in [false, true] {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", HIDE_KERNEL_LOG, "sh"]).arg(scratch.path().join(strict.to_string()));
        fs::create_dir(scratch.path().join(strict.to_string())).expect("a directory");
        command.args([
            BINARY,
            "stress",
            "rpc",
            "--clients",
            "1",
            "--threads",
            "2",
            "--seconds",
            "2",
            "--floor",
            "0",
            "--json",
        ]);
        command.args(strict.then_some("--strict")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("unshare(1)");
        let ended = wait::wait_with_output(child, "farfork stress rpc", RUN_LIMIT);
        let document: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.stderr));
        assert_eq!((ended.status.success(), &document["passed"]), (!strict, &(!strict).into()), "{document}");
        let unread = &document["outcome"]["unread_logs"];
        assert!(
            unread[0].as_str().is_some_and(|log| log.starts_with("the kernel's log cannot be read: ")),
            "{document}"
        );
        let faults = document["outcome"]["faults"].as_array().expect("a list");
        assert_eq!(faults.contains(&unread[0]), strict, "{document}");
    }
}
