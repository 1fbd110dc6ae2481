//! `cargo xtask fuzz`: runs each fuzz target in `fuzz/` for a given time, starting from the corpus in the repository.
//!
//! The fuzzer is libFuzzer. cargo-fuzz needs a nightly compiler only for sanitizers, and the fuzzed code has no `unsafe`. So
//! the pinned compiler builds the targets, with the flags in this file. `target` runs one target and reports its result.

mod target;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::child;
use crate::terminal::print_line;
use crate::workspace::{Workspace, cargo_program};
use target::{Ended, FuzzPriority, Target};

/// Flags that make the compiler count executed edges, and report compared values to libFuzzer.
const FLAGS: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];

/// The target platform. With an explicit `--target`, cargo builds build scripts and macros without `FLAGS`.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Default time for each target, in seconds.
const SECONDS: u32 = 60;

/// Limit for the build, which is slow in the background of the tests.
const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Runs the named targets, or all. `--seconds N` sets the time for each.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let (seconds, named) = parse(arguments)?;
    let plan = Plan { seconds, priority: FuzzPriority::Normal, tell: &|line| print_line(line) };
    plan.run(workspace, &named, &AtomicBool::new(false)).map(print_line)
}

/// Runs all targets for `seconds` each, at the lowest priority and without output. When `is_over` is set, no further target
/// starts. Returns the report.
pub(crate) fn run_in_background(workspace: &Workspace, seconds: u32, is_over: &AtomicBool) -> Result<String> {
    let lines = Mutex::new(String::new());
    let tell = |line: String| {
        let mut lines = lines.lock().expect("no thread panics while it holds the lock");
        *lines += &line;
        *lines += "\n";
    };
    let report = Plan { seconds, priority: FuzzPriority::Background, tell: &tell }.run(workspace, &[], is_over)?;
    Ok(lines.into_inner().expect("no thread panics while it holds the lock") + &report)
}

/// The options of a run.
struct Plan<'a> {
    seconds: u32,
    priority: FuzzPriority,
    tell: &'a (dyn Fn(String) + Sync),
}

impl Plan<'_> {
    fn run(&self, workspace: &Workspace, named: &[String], is_over: &AtomicBool) -> Result<String> {
        let known = targets(workspace)?;
        if let Some(unknown) = named.iter().find(|name| !known.contains(name)) {
            bail!("there is no fuzz target `{unknown}`; there are: {}", known.join(", "));
        }
        let folder = workspace.root().join("fuzz");
        let products = products(workspace);
        build(&folder, &products, self.priority)?;
        let names = if named.is_empty() { known } else { named.to_vec() };
        let programs = products.join(PLATFORM).join("release");
        let target = |name: String| Target { program: programs.join(&name), name, folder: folder.clone() };
        self.side_by_side(names.into_iter().map(target).collect(), is_over)
    }

    /// Runs as many targets at once as there are cores. It runs all of them, even if one fails.
    fn side_by_side(&self, targets: Vec<Target>, is_over: &AtomicBool) -> Result<String> {
        let Self { seconds, priority, tell } = *self;
        let (count, at_once) = (targets.len(), thread::available_parallelism().map_or(1, usize::from));
        tell(format!("{count} fuzz targets, {seconds} s each, {at_once} at once"));
        let (waiting, ended) = (Mutex::new(targets.into_iter()), Mutex::new(Vec::<Ended>::new()));
        let next = || waiting.lock().expect("no thread panics while it holds the lock").next();
        thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some(target) = next().filter(|_| !is_over.load(Ordering::Relaxed)) {
                        let outcome = target.run(seconds, priority);
                        tell(outcome.to_string());
                        ended.lock().expect("no thread panics while it holds the lock").push(outcome);
                    }
                });
            }
        });
        let ended = ended.into_inner().expect("no thread panics while it holds the lock");
        let failed: Vec<String> = ended.iter().filter_map(Ended::failure).collect();
        ensure!(failed.is_empty(), "fuzz targets failed\n{}", failed.join("\n"));
        let inputs: u64 = ended.iter().map(Ended::inputs).sum();
        let skipped = match count - ended.len() {
            0 => String::new(),
            count => format!("; {count} targets were not run, because tests have failed"),
        };
        Ok(format!("fuzz: {} targets, {seconds} s each, {inputs} inputs, none failed{skipped}", ended.len()))
    }
}

fn parse(arguments: &[String]) -> Result<(u32, Vec<String>)> {
    let (mut seconds, mut named) = (SECONDS, Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--seconds" {
            let number = arguments.next().context("--seconds takes a number")?;
            seconds = number.parse().with_context(|| format!("`{number}` is not a number of seconds"))?;
        } else {
            named.push(argument.clone());
        }
    }
    Ok((seconds, named))
}

/// The names of the targets, sorted.
fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let folder = workspace.root().join("fuzz/targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("{} cannot be listed", folder.display()))? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// The directory for the build products of the targets, next to the other build products.
fn products(workspace: &Workspace) -> PathBuf {
    workspace.products().join("fuzz")
}

fn build(folder: &Path, products: &Path, priority: FuzzPriority) -> Result<()> {
    let mut command = priority.command(Path::new(&cargo_program()));
    command
        .current_dir(folder)
        .args(["build", "--release", "--target", PLATFORM])
        .args(matches!(priority, FuzzPriority::Background).then_some("--quiet"))
        .env("CARGO_TARGET_DIR", products)
        .env("RUSTFLAGS", FLAGS.join(" "));
    let status = child::status(&mut command, BUILD_LIMIT)?;
    ensure!(status.success(), "the fuzz targets cannot be built ({status})");
    Ok(())
}
