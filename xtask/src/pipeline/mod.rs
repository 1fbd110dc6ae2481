//! `cargo xtask test`, `check`, `test-long`, `test-fresh`, `e2e` and `bench`: the steps of a test run, each with a heading
//! and its time.
//!
//! Every step runs, even after a failed one, unless the tests do not build. The last lines name each failure, its reason and
//! its log. All steps build with one profile and one set of features, so that nothing is compiled twice.

mod cargo;
mod end_to_end;
mod fresh;
mod log_directory;
mod output;
mod summary;
mod volume_variants;

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::terminal::{self, print_line};
use crate::workspace::Workspace;
use crate::{child, deny, fuzz, tidy};
use end_to_end::TEST_SET;
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

/// Limit for the long tests. Each of them has a limit of its own.
const LONG_TESTS_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Options of the runner of the end-to-end tests with which it runs none.
const QUERIES: [&str; 4] = ["--list", "--help", "-h", "--version"];

/// Runs everything that CI runs.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    let integration = integration_tests(workspace)?;
    let mut summary = RunSummary::new(&log_directory::create(workspace)?);
    check_sources(workspace, &mut summary);
    summary.check("licences, bans, sources", || deny::run(workspace, deny::Scope::Offline));
    if build(workspace, &mut summary) {
        run_next_to_fuzz_targets(workspace, &mut summary, |summary, has_failed| {
            has_failed.store(!run_integration(workspace, summary, &integration), Ordering::Relaxed);
            run_fresh(workspace, summary);
            let mut end_to_end = cargo::command(workspace, &END_TO_END_TESTS);
            end_to_end::run(summary, &mut end_to_end, end_to_end::LIMIT);
        });
    }
    summary.finish()
}

/// Runs a subset that takes minutes instead of a quarter of an hour, for use between commits.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let mut summary = RunSummary::new(&log_directory::create(workspace)?);
    check_sources(workspace, &mut summary);
    if build(workspace, &mut summary) {
        summary.command("unit tests", &mut cargo::command(workspace, &UNIT_TESTS), UNIT_TESTS_LIMIT);
        let mut end_to_end = cargo::command(workspace, &END_TO_END_TESTS);
        end_to_end::run(&mut summary, end_to_end.env(TEST_SET, "check"), end_to_end::LIMIT);
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
    let mut summary = RunSummary::new(&log_directory::create(workspace)?);
    if build(workspace, &mut summary) {
        let unit = [unit_tests(integration.iter().map(String::as_str)), arguments.clone()].concat();
        summary.command("long unit and integration tests", &mut cargo::command(workspace, &unit), LONG_TESTS_LIMIT);
        summary.check("fuzz targets", || fuzz::run(workspace, &[]));
        if filters.is_empty() {
            run_volume_variants(workspace, &mut summary);
        }
        let end_to_end = [&END_TO_END_TESTS[..], &arguments].concat();
        let run_count = end_to_end::run(&mut summary, &mut cargo::command(workspace, &end_to_end), LONG_TESTS_LIMIT);
        // The filters may select only unit tests.
        if run_count == Some(0) && summary.has_no_results() {
            end_to_end::fail_without_tests(&mut summary, filters);
        }
    }
    summary.finish()
}

fn run_volume_variants(workspace: &Workspace, summary: &mut RunSummary) {
    let scratch = summary.logs().to_owned();
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
    let mut tests = cargo::command(workspace, &arguments);
    if filters.iter().any(|filter| QUERIES.contains(&filter.as_str())) {
        return succeed(&mut tests, BUILD_LIMIT);
    }
    let mut summary = RunSummary::new(&log_directory::create(workspace)?);
    if summary.command("build of the programs", &mut cargo::command(workspace, &PROGRAMS), BUILD_LIMIT) {
        // The filters may name long tests.
        let run_count = end_to_end::run(&mut summary, &mut tests, LONG_TESTS_LIMIT);
        if run_count == Some(0) {
            end_to_end::fail_without_tests(&mut summary, filters);
        }
    }
    summary.finish()
}

/// Runs the tests that depend most on the contents of /run, /tmp, /var/lib and the home directory, as on a freshly installed
/// machine. Also runs the end-to-end tests that `filters` name, or the set of [`check`].
pub(crate) fn test_fresh(workspace: &Workspace, filters: &[String]) -> Result<()> {
    let mut summary = RunSummary::new(&log_directory::create(workspace)?);
    if build(workspace, &mut summary) {
        run_fresh(workspace, &mut summary);
        let names = filters.iter().map(String::as_str);
        let arguments: Vec<&str> = END_TO_END_TESTS.into_iter().chain(["--"]).chain(names).collect();
        let mut command = fresh::command(workspace, &arguments);
        if filters.is_empty() {
            command.env(TEST_SET, "check");
        }
        // The filters do not apply to the tests before.
        if end_to_end::run(&mut summary, &mut command, end_to_end::LIMIT) == Some(0) {
            end_to_end::fail_without_tests(&mut summary, filters);
        }
    }
    summary.finish()
}

/// Runs the benchmark of a fork with a release build; `options` are passed to it.
pub(crate) fn bench(workspace: &Workspace, options: &[String]) -> Result<()> {
    let build = ["build", "--quiet", "--release", "--bin", "farfork", "--bin", "farfork-bench"];
    succeed(&mut cargo::command(workspace, &build), BUILD_LIMIT)?;
    let mut arguments = vec!["run", "--quiet", "--release", "--bin", "farfork", "--", "bench", "fork"];
    arguments.extend(options.iter().map(String::as_str));
    terminal::flush(None);
    // It replaces this process, and so gets the signals and the terminal.
    Err(cargo::command(workspace, &arguments).exec()).context("cargo cannot be started")
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

/// Runs a command that writes to the terminal itself.
fn succeed(command: &mut Command, limit: Duration) -> Result<()> {
    let status = child::status(command, limit)?;
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    ensure!(status.success(), "`cargo {}` failed ({status})", arguments.join(" "));
    Ok(())
}
