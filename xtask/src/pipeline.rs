//! `cargo xtask test`, `test-long`, `e2e` and `bench`: the steps of a test run, in order, each with a heading and its time.
//!
//! The steps fail fast, cheap ones first. All of them build with one profile and one choice of features, so that nothing
//! is compiled twice.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;
use crate::{deny, fuzz, tidy};

/// The integration test that needs root and starts nodes; it comes last and by itself.
const END_TO_END: &str = "e2e";

/// The whole workspace, though one crate has this test: another choice of crates would be another choice of features, and
/// build everything anew.
const END_TO_END_TESTS: [&str; 4] = ["test", "--workspace", "--test", END_TO_END];

/// Everything CI runs.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    let integration = integration_tests(workspace)?;
    let unit = unit_tests(&integration);

    let mut run = Run { times: Vec::new() };
    run.step("format", || cargo(workspace, &["fmt", "--all", "--check"]))?;
    run.step("tidy", || tidy::run(workspace))?;
    run.step("lints", || cargo(workspace, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run.step("licences, bans, sources", || deny::run(workspace, deny::Scope::Offline))?;
    run.step("unit and integration tests, fuzz targets behind them", || with_fuzz_targets_behind(workspace, &unit))?;
    run.summarise();
    run.last_step("end-to-end tests", || end_to_end(workspace, &[]))
}

/// The long tests, which `test` leaves out. A test is long when it is marked so: `#[ignore = "long: …"]` of a unit test,
/// `.long()` of an end-to-end test.
pub(crate) fn test_long(workspace: &Workspace, filters: &[String]) -> Result<()> {
    let integration = integration_tests(workspace)?;
    let filters = filters.iter().map(String::as_str);
    let arguments: Vec<&str> = ["--", "--ignored"].into_iter().chain(filters).collect();
    let mut run = Run { times: Vec::new() };
    run.step("long unit and integration tests", || {
        cargo(workspace, &[unit_tests(&integration), arguments.clone()].concat())
    })?;
    run.last_step("long end-to-end tests", || cargo(workspace, &[&END_TO_END_TESTS[..], &arguments].concat()))
}

/// Arguments of cargo for the tests that need no root; `integration` has the names of those in folders `tests`.
fn unit_tests(integration: &[String]) -> Vec<&str> {
    let mut arguments = vec!["test", "--workspace", "--lib", "--bins"];
    arguments.extend(integration.iter().flat_map(|name| ["--test", name.as_str()]));
    arguments
}

/// Many of the tests wait, for limits of time above all. The fuzz targets have the cores meanwhile.
fn with_fuzz_targets_behind(workspace: &Workspace, tests: &[&str]) -> Result<()> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let fuzz = scope.spawn(|| fuzz::run_behind(workspace, &is_over));
        let tested = cargo(workspace, tests);
        is_over.store(tested.is_err(), Ordering::Relaxed);
        let fuzzed = fuzz.join().expect("the fuzz targets' thread does not panic");
        tested?;
        fuzzed.map(|report| println!("\n{report}"))
    })
}

/// The end-to-end tests; `filters` go to their runner.
pub(crate) fn end_to_end(workspace: &Workspace, filters: &[String]) -> Result<()> {
    let mut arguments = [&END_TO_END_TESTS[..], &["--"]].concat();
    arguments.extend(filters.iter().map(String::as_str));
    cargo(workspace, &arguments)
}

/// The benchmark of a fork, of a release build; `options` go to it.
pub(crate) fn bench(workspace: &Workspace, options: &[String]) -> Result<()> {
    let mut arguments = vec!["run", "--quiet", "--release", "--bin", "farfork", "--", "bench", "fork"];
    arguments.extend(options.iter().map(String::as_str));
    cargo(workspace, &arguments)
}

/// Names of the integration tests that are not the end-to-end one.
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

fn cargo(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .current_dir(workspace.root())
        .args(arguments)
        .status()
        .context("cargo cannot be started")?;
    ensure!(status.success(), "`cargo {}` failed ({status})", arguments.join(" "));
    Ok(())
}

/// A test run: what each step took.
struct Run {
    times: Vec<(&'static str, Duration)>,
}

impl Run {
    fn step(&mut self, name: &'static str, action: impl FnOnce() -> Result<()>) -> Result<()> {
        let begin = Instant::now();
        self.last_step(name, action)?;
        let time = begin.elapsed();
        println!("== {name}: {}", seconds(time));
        self.times.push((name, time));
        Ok(())
    }

    /// Says nothing when it succeeds, so that the output ends with the summary of the tests' own runner.
    fn last_step(&mut self, name: &'static str, action: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("\n== {name}");
        action().with_context(|| format!("step `{name}`"))
    }

    fn summarise(&self) {
        println!("\n== so far");
        for (name, time) in &self.times {
            println!("{:>10}  {name}", seconds(*time));
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
