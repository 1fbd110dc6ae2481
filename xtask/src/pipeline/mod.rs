//! `cargo xtask test`, `check`, `test-long`, `test-fresh`, `e2e` and `bench`: the steps of a test run, each with a heading
//! and its time.
//!
//! Every step runs, even after a failed one, unless the tests do not build. The last lines name each failure, its reason and
//! its log. All steps build with one profile and one set of features, so that nothing is compiled twice.

mod cargo;
mod fresh;
mod hang;
mod output;
mod summary;
mod volume_variants;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::terminal::print_line;
use crate::workspace::Workspace;
use crate::{deny, fuzz, tidy};
pub(crate) use summary::RunFailed;
use summary::RunSummary;
use volume_variants::VARIANTS;

/// The integration test that needs root and starts nodes. It runs last and alone.
const END_TO_END: &str = "e2e";

/// Tests in the same crate as the tested code.
const UNIT_TESTS: [&str; 5] = ["test", "--workspace", "--no-fail-fast", "--lib", "--bins"];

/// The end-to-end tests. All crates are selected, although only one has these tests: a subset would select other features
/// and rebuild everything.
const END_TO_END_TESTS: [&str; 4] = ["test", "--workspace", "--test", END_TO_END];

/// Builds `farfork`, and `farfork-bench`, which `farfork` executes. The end-to-end test is included so that the features
/// equal those of the tests.
const PROGRAMS: [&str; 5] = ["build", "--workspace", "--bins", "--test", END_TO_END];

/// Integration tests that run in parallel to the others because they mostly wait, for time limits and for each other.
const LANES: [(&str, &[&str]); 2] =
    [("tests that wait", &["daemon", "fabric", "tcp"]), ("tests of mounted volumes", &["mount"])];

/// Number of tests of one program that run at once. It exceeds the number of cores because many tests wait.
const TEST_THREADS: &str = "4";

/// Time for each fuzz target next to the other tests, in seconds. About a quarter of it is CPU time. The main purpose
/// is to replay the corpus. For a long campaign, use `cargo xtask fuzz --seconds N`.
const FUZZ_SECONDS: u32 = 40;

/// Limit for a complete build on a slow machine.
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);

/// Limit for the unit and integration tests, which take three minutes. A hang is reported long before continuous integration
/// gives up.
const UNIT_TESTS_LIMIT: Duration = Duration::from_secs(20 * 60);

/// Limit for the end-to-end tests. Their runner has a shorter limit of its own.
const END_TO_END_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Limit for the long tests. Each of them has a limit of its own.
const LONG_TESTS_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// The environment variable that selects a subset of the end-to-end tests.
const TEST_SET: &str = "FARFORK_TEST_SET";

/// Runs everything that CI runs.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    let integration = integration_tests(workspace)?;
    let mut summary = RunSummary::new(&logs(workspace));
    check_sources(workspace, &mut summary);
    summary.check("licences, bans, sources", || deny::run(workspace, deny::Scope::Offline));
    if build(workspace, &mut summary) {
        run_next_to_fuzz_targets(workspace, &mut summary, |summary, has_failed| {
            has_failed.store(!run_integration(workspace, summary, &integration), Ordering::Relaxed);
            run_fresh(workspace, summary);
            let mut end_to_end = cargo::command(workspace, &END_TO_END_TESTS);
            run_end_to_end(summary, &mut end_to_end, END_TO_END_LIMIT);
        });
    }
    summary.finish()
}

/// Runs a subset that takes minutes instead of a quarter of an hour, for use between commits.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let mut summary = RunSummary::new(&logs(workspace));
    check_sources(workspace, &mut summary);
    if build(workspace, &mut summary) {
        summary.command("unit tests", &mut cargo::command(workspace, &UNIT_TESTS), UNIT_TESTS_LIMIT);
        let mut end_to_end = cargo::command(workspace, &END_TO_END_TESTS);
        run_end_to_end(&mut summary, end_to_end.env(TEST_SET, "check"), END_TO_END_LIMIT);
    }
    summary.finish()
}

/// Runs the long tests, which `test` omits. Without filters, also runs the tests of mounted volumes with each option. A long
/// test is marked: `#[ignore = "long: …"]` of a unit test, `with_ignored_flag` of a test of a mounted volume, `.long()` of
/// an end-to-end test.
pub(crate) fn test_long(workspace: &Workspace, filters: &[String]) -> Result<()> {
    let integration = integration_tests(workspace)?;
    let names = filters.iter().map(String::as_str);
    let arguments: Vec<&str> = ["--", "--ignored"].into_iter().chain(names).collect();
    let mut summary = RunSummary::new(&logs(workspace));
    if build(workspace, &mut summary) {
        let unit = [unit_tests(integration.iter().map(String::as_str)), arguments.clone()].concat();
        summary.command("long unit and integration tests", &mut cargo::command(workspace, &unit), LONG_TESTS_LIMIT);
        summary.check("fuzz targets", || fuzz::run(workspace, &[]));
        if filters.is_empty() {
            run_volume_variants(workspace, &mut summary);
        }
        let end_to_end = [&END_TO_END_TESTS[..], &arguments].concat();
        run_end_to_end(&mut summary, &mut cargo::command(workspace, &end_to_end), LONG_TESTS_LIMIT);
    }
    summary.finish()
}

fn run_volume_variants(workspace: &Workspace, summary: &mut RunSummary) {
    let scratch = logs(workspace);
    for variant in VARIANTS {
        let mut suite = variant.suite_command(workspace, &scratch);
        summary.command(variant.suite, suite.env("RUST_TEST_THREADS", TEST_THREADS), LONG_TESTS_LIMIT);
        let mut crash_matrix = variant.crash_matrix_command(workspace, &scratch);
        summary.command(variant.crash_matrix, &mut crash_matrix, LONG_TESTS_LIMIT);
    }
}

/// Runs the end-to-end tests; `filters` are passed to their runner.
pub(crate) fn end_to_end(workspace: &Workspace, filters: &[String]) -> Result<()> {
    let mut arguments = [&END_TO_END_TESTS[..], &["--"]].concat();
    arguments.extend(filters.iter().map(String::as_str));
    succeed(&mut cargo::command(workspace, &PROGRAMS))?;
    succeed(&mut cargo::command(workspace, &arguments))
}

/// Runs the tests that depend most on the contents of /run, /tmp, /var/lib and the home directory, as on a freshly installed
/// machine. Also runs the end-to-end tests that `filters` name, or the set of [`check`].
pub(crate) fn test_fresh(workspace: &Workspace, filters: &[String]) -> Result<()> {
    let mut summary = RunSummary::new(&logs(workspace));
    if build(workspace, &mut summary) {
        run_fresh(workspace, &mut summary);
        let filters = filters.iter().map(String::as_str);
        let arguments: Vec<&str> = END_TO_END_TESTS.into_iter().chain(["--"]).chain(filters).collect();
        let mut end_to_end = fresh::command(workspace, &arguments);
        if arguments.last() == Some(&"--") {
            end_to_end.env(TEST_SET, "check");
        }
        run_end_to_end(&mut summary, &mut end_to_end, END_TO_END_LIMIT);
    }
    summary.finish()
}

/// Runs the benchmark of a fork with a release build; `options` are passed to it.
pub(crate) fn bench(workspace: &Workspace, options: &[String]) -> Result<()> {
    succeed(&mut cargo::command(
        workspace,
        &["build", "--quiet", "--release", "--bin", "farfork", "--bin", "farfork-bench"],
    ))?;
    let mut arguments = vec!["run", "--quiet", "--release", "--bin", "farfork", "--", "bench", "fork"];
    arguments.extend(options.iter().map(String::as_str));
    succeed(&mut cargo::command(workspace, &arguments))
}

fn check_sources(workspace: &Workspace, summary: &mut RunSummary) {
    summary.command("format", &mut cargo::command(workspace, &["fmt", "--all", "--check"]), BUILD_LIMIT);
    summary.check("tidy", || tidy::run(workspace));
    let lints = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    summary.command("lints", &mut cargo::command(workspace, &lints), BUILD_LIMIT);
}

/// Builds all tests and programs. Returns whether that succeeded: otherwise no test can run.
fn build(workspace: &Workspace, summary: &mut RunSummary) -> bool {
    let arguments = ["test", "--workspace", "--no-run", "--lib", "--bins", "--tests"];
    summary.command("build of the tests", &mut cargo::command(workspace, &arguments), BUILD_LIMIT)
        && summary.command("build of the programs", &mut cargo::command(workspace, &PROGRAMS), BUILD_LIMIT)
}

/// Cargo's arguments for the unit tests and for integration tests with these names.
fn unit_tests<'a>(integration: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut arguments = UNIT_TESTS.to_vec();
    arguments.extend(named_tests(integration));
    arguments
}

fn named_tests<'a>(names: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    names.into_iter().flat_map(|name| ["--test", name])
}

/// Runs tests, and at the same time the fuzz targets at a lower priority: the targets use the CPU while tests wait.
/// `run_tests` sets the flag when tests have failed; then no further target is started.
fn run_next_to_fuzz_targets(
    workspace: &Workspace,
    summary: &mut RunSummary,
    run_tests: impl FnOnce(&mut RunSummary, &AtomicBool),
) {
    let has_failed = AtomicBool::new(false);
    let fuzzed = thread::scope(|scope| {
        let fuzz = scope.spawn(|| fuzz::run_in_background(workspace, FUZZ_SECONDS, &has_failed));
        run_tests(summary, &has_failed);
        fuzz.join().expect("the fuzz targets' thread does not panic")
    });
    match fuzzed {
        Ok(report) => print_line(format_args!("\n{report}")),
        Err(error) => summary.fail("fuzz targets", format!("{error:#}"), None),
    }
}

/// Runs the unit and integration tests in lanes. Returns whether they passed.
fn run_integration(workspace: &Workspace, summary: &mut RunSummary, integration: &[String]) -> bool {
    let lane = |arguments: &[&str]| {
        let mut command = cargo::isolated_command(workspace, arguments);
        command.env("RUST_TEST_THREADS", TEST_THREADS);
        command
    };
    let is_in_lane = |name: &str| LANES.iter().any(|(_, tests)| tests.contains(&name));
    let others = integration.iter().map(String::as_str).filter(|name| !is_in_lane(name));
    let mut lanes = vec![("unit and integration tests", lane(&unit_tests(others)))];
    for (name, tests) in LANES {
        let arguments = ["test", "--workspace", "--no-fail-fast"].into_iter().chain(named_tests(tests.iter().copied()));
        lanes.push((name, lane(&arguments.collect::<Vec<_>>())));
    }
    summary.commands("unit and integration tests", lanes, UNIT_TESTS_LIMIT)
}

/// Runs the tests of containers and clusters as on a freshly installed machine. This shows whether a test depends on files
/// that another test left on the machine. It is part of every test run, because it takes only seconds.
fn run_fresh(workspace: &Workspace, summary: &mut RunSummary) {
    const TESTS: [&str; 7] =
        ["test", "--workspace", "--no-fail-fast", "--test", "container", "--test", "local_cluster"];
    summary.command("tests on a fresh machine", &mut fresh::command(workspace, &TESTS), UNIT_TESTS_LIMIT);
}

/// Runs the end-to-end tests. Their runner decides which tests failed, because it repeats a test that timed out. It writes
/// counts and failures to two files.
fn run_end_to_end(summary: &mut RunSummary, command: &mut Command, limit: Duration) {
    const NAME: &str = "end-to-end tests";
    let [failures, counts] = ["failures", "counts"].map(|name| summary.log_of(NAME).with_extension(name));
    for path in [&failures, &counts] {
        // The file may not exist.
        let _ = fs::remove_file(path);
    }
    command.env("FARFORK_FAILURES", &failures).env("FARFORK_COUNTS", &counts);
    let Some(completion) = summary.run(NAME, command, limit) else { return };
    match fs::read_to_string(&counts) {
        Ok(counts) => summary.record_judged(completion, &counts, &fs::read_to_string(&failures).unwrap_or_default()),
        // The runner ended before it wrote its result.
        Err(_) => drop(summary.record(NAME, completion)),
    }
}

/// Names of the integration tests, without the end-to-end test.
fn integration_tests(workspace: &Workspace) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for member in workspace.members()? {
        let Ok(entries) = fs::read_dir(workspace.root().join(&member.folder).join("tests")) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            let is_test = path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists();
            let name = path.file_stem().map(|n| n.to_string_lossy().into_owned());
            names.extend(name.filter(|n| is_test && n != END_TO_END));
        }
    }
    names.sort();
    Ok(names)
}

/// The directory of a run's logs. It is next to the build products, so that the logs survive a checkout.
fn logs(workspace: &Workspace) -> PathBuf {
    let products = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.root().join("target"), PathBuf::from);
    Path::new(&products).join("test-logs")
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().context("cargo cannot be started")?;
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    ensure!(status.success(), "`cargo {}` failed ({status})", arguments.join(" "));
    Ok(())
}
