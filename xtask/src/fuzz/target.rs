//! `Target`: one fuzz target, its process and its result.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Most memory of a target, in MiB: no input may make it take more.
const MEMORY_MIB_MAX: u32 = 1024;

/// Longest time of one input, in seconds: what takes milliseconds where nobody else wants the cores.
const INPUT_SECONDS_MAX: u32 = 30;

/// Niceness of what runs in the background: a hundredth of a core where a test wants it.
const BACKGROUND: &str = "19";

/// Lines of a target that failed that are shown: the panic, its stack and the input.
const LINES_SHOWN: usize = 60;

/// What libFuzzer says before the number of inputs that it tried.
const INPUTS_LABEL: &str = "stat::number_of_executed_units:";

/// The priority of targets and of their build.
#[derive(Debug, Clone, Copy)]
pub(super) enum FuzzPriority {
    /// As other programs.
    Normal,
    /// Below other programs.
    Background,
}

impl FuzzPriority {
    /// A program with this priority.
    pub(super) fn command(self, program: &Path) -> Command {
        match self {
            Self::Normal => Command::new(program),
            Self::Background => {
                let mut nice = Command::new("nice");
                nice.args(["-n", BACKGROUND]).arg(program);
                nice
            }
        }
    }
}

/// A target that is built.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) program: PathBuf,
    /// `fuzz/`, where the corpus is.
    pub(super) folder: PathBuf,
}

/// A target that has run.
pub(super) struct Ended {
    name: String,
    outcome: Result<u64>,
}

impl Target {
    /// Runs it. What it finds beyond the corpus in the repository goes to a folder that git ignores, where it begins the
    /// next time.
    pub(super) fn run(self, seconds: u32, priority: FuzzPriority) -> Ended {
        let outcome = self.count_inputs(seconds, priority);
        Ended { name: self.name, outcome }
    }

    fn count_inputs(&self, seconds: u32, priority: FuzzPriority) -> Result<u64> {
        let Self { name, program, folder } = self;
        let [found, failures, scratch] = ["found", "failures", "scratch"].map(|kind| folder.join(kind).join(name));
        for made in [&found, &failures, &scratch] {
            fs::create_dir_all(made).with_context(|| format!("{} cannot be made", made.display()))?;
        }
        let output = priority
            .command(program)
            .current_dir(folder)
            .env("TMPDIR", &scratch)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg(format!("-artifact_prefix={}/", failures.display()))
            .args(["-print_final_stats=1", "-verbosity=0"])
            .arg(&found)
            .arg(folder.join("corpus").join(name))
            .output()
            .with_context(|| format!("{} cannot be started", program.display()));
        fs::remove_dir_all(&scratch).with_context(|| format!("{} cannot be removed", scratch.display()))?;
        let output = output?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{}\nfuzz target `{name}` failed ({}); repeat it: {} {}/INPUT",
            last_lines(&said),
            output.status,
            program.display(),
            failures.display()
        );
        let inputs = said.lines().find_map(|line| line.strip_prefix(INPUTS_LABEL));
        let inputs = inputs.with_context(|| format!("fuzz target `{name}` does not say what it did"))?;
        Ok(inputs.trim().parse()?)
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
}

impl Ended {
    /// What failed, if it did.
    pub(super) fn failure(&self) -> Option<String> {
        self.outcome.as_ref().err().map(|error| format!("{}: {error:#}", self.name))
    }

    pub(super) fn inputs(&self) -> u64 {
        *self.outcome.as_ref().unwrap_or(&0)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Ok(inputs) => write!(f, "  {:<14}{inputs:>12} inputs", self.name),
            Err(_) => write!(f, "  {:<14}{:>12}", self.name, "FAILED"),
        }
    }
}
