//! `cargo xtask fuzz`: runs the fuzz targets in `fuzz/`, each for a given time, from the corpus in the repository.
//!
//! The fuzzer is libFuzzer, guided by coverage. What cargo-fuzz adds needs a nightly compiler only for sanitizers, and
//! the code that is fuzzed has no `unsafe`: so the pinned compiler builds the targets, with the flags here.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::Workspace;

/// What makes the compiler count which edges ran, and tell libFuzzer what was compared.
const FLAGS: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];

/// Named, so that build scripts and macros are built without the flags.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// How long each target runs where nothing else is said.
const SECONDS: u32 = 60;

/// Most memory of a target, in MiB: no input may make it take more.
const MEMORY_MIB_MAX: u32 = 1024;

/// Longest time of one input, in seconds.
const INPUT_SECONDS_MAX: u32 = 10;

/// Runs the targets that are named, or all; `--seconds N` says how long each.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let (seconds, named) = parse(arguments)?;
    let known = targets(workspace)?;
    if let Some(unknown) = named.iter().find(|name| !known.contains(name)) {
        bail!("there is no fuzz target `{unknown}`; there are: {}", known.join(", "));
    }
    let folder = workspace.root().join("fuzz");
    let products = folder.join("target");
    build(&folder, &products)?;
    for target in if named.is_empty() { known } else { named } {
        println!("\n== fuzz {target}, {seconds} s");
        let program = products.join(PLATFORM).join("release").join(&target);
        fuzz(&folder, &program, &target, seconds)?;
    }
    Ok(())
}

fn parse(arguments: &[String]) -> Result<(u32, Vec<String>)> {
    let (mut seconds, mut named) = (SECONDS, Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--seconds" {
            let number = arguments.next().context("--seconds takes a number")?;
            seconds = number.parse().with_context(|| format!("`{number}` is no number of seconds"))?;
        } else {
            named.push(argument.clone());
        }
    }
    Ok((seconds, named))
}

/// The targets' names, in order.
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

fn build(folder: &Path, products: &Path) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .current_dir(folder)
        .args(["build", "--release", "--target", PLATFORM])
        .env("CARGO_TARGET_DIR", products)
        .env("RUSTFLAGS", FLAGS.join(" "))
        .status()
        .context("cargo cannot be started")?;
    ensure!(status.success(), "the fuzz targets cannot be built ({status})");
    Ok(())
}

/// What is found beyond the corpus in the repository goes to a folder that git ignores; `cargo xtask fuzz` begins there
/// the next time.
fn fuzz(folder: &Path, program: &Path, target: &str, seconds: u32) -> Result<()> {
    let (found, failures) = (folder.join("found").join(target), folder.join("failures").join(target));
    fs::create_dir_all(&found).with_context(|| format!("{} cannot be made", found.display()))?;
    fs::create_dir_all(&failures).with_context(|| format!("{} cannot be made", failures.display()))?;
    let status = Command::new(program)
        .current_dir(folder)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
        .arg(format!("-artifact_prefix={}/", failures.display()))
        .args(["-print_final_stats=1", "-verbosity=0"])
        .arg(&found)
        .arg(folder.join("corpus").join(target))
        .status()
        .with_context(|| format!("{} cannot be started", program.display()))?;
    ensure!(
        status.success(),
        "fuzz target `{target}` failed ({status}); repeat it: {} {}/INPUT",
        program.display(),
        failures.display()
    );
    Ok(())
}
