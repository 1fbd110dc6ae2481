//! `Target`: one fuzz target, its process and its result.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::child;

/// Memory limit of a target, in MiB. An input that needs more is a failure.
const MEMORY_MIB_MAX: u32 = 1024;

/// Time limit for one input, in seconds. Without other load an input takes milliseconds.
const INPUT_SECONDS_MAX: u32 = 30;

/// Longest time of a target beyond the requested one: libFuzzer first runs the whole corpus, which is slow in the background.
const EXTRA_TIME_MAX: Duration = Duration::from_secs(30 * 60);

/// Executes a program at the lowest priority. A session with autogroups competes with the other sessions by a nice value of
/// its own (sched(7)). Kernels without them have no such file.
const BACKGROUND: &str = r#"{ echo 19 > /proc/self/autogroup; } 2> /dev/null; exec nice -n 19 "$0" "$@""#;

/// Number of lines shown of a failed target: the panic, its stack and the input.
const LINES_SHOWN: usize = 60;

/// libFuzzer prints this before the number of inputs that it tried.
const INPUTS_LABEL: &str = "stat::number_of_executed_units:";

/// The priority of targets and of their build.
#[derive(Debug, Clone, Copy)]
pub(super) enum FuzzPriority {
    /// The same as other programs.
    Normal,
    /// Lower than other programs, and in a session of its own: if it shared the session of the tests, this session would
    /// take all CPU time from the daemons (`docs/decisions/023-scheduling-stalls.md`).
    Background,
}

impl FuzzPriority {
    /// Returns a command that runs `program` with this priority.
    pub(super) fn command(self, program: &Path) -> Command {
        match self {
            Self::Normal => Command::new(program),
            Self::Background => {
                let mut shell = child::in_own_session("sh");
                shell.args(["-c", BACKGROUND]).arg(program);
                shell
            }
        }
    }
}

/// A built target.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) program: PathBuf,
    /// `fuzz/`, which contains the corpus.
    pub(super) folder: PathBuf,
}

/// A target that has run, and its result.
pub(super) struct Ended {
    name: String,
    outcome: Result<u64>,
}

impl Target {
    /// Runs the target. New inputs are stored in a directory that git ignores, and the next run also starts from them.
    pub(super) fn run(self, seconds: u32, priority: FuzzPriority) -> Ended {
        let outcome = self.count_inputs(seconds, priority);
        Ended { name: self.name, outcome }
    }

    fn count_inputs(&self, seconds: u32, priority: FuzzPriority) -> Result<u64> {
        let Self { name, program, folder } = self;
        let [found, failures, scratch] = ["found", "failures", "scratch"].map(|kind| folder.join(kind).join(name));
        for made in [&found, &failures, &scratch] {
            fs::create_dir_all(made).with_context(|| format!("{} cannot be created", made.display()))?;
        }
        let mut command = priority.command(program);
        command
            .current_dir(folder)
            .env("TMPDIR", &scratch)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg(format!("-artifact_prefix={}/", failures.display()))
            .args(["-print_final_stats=1", "-verbosity=0"])
            .arg(&found)
            .arg(folder.join("corpus").join(name));
        let ended = child::status_and_stderr(&mut command, Duration::from_secs(seconds.into()) + EXTRA_TIME_MAX);
        fs::remove_dir_all(&scratch).with_context(|| format!("{} cannot be removed", scratch.display()))?;
        let (status, stderr) = ended?;
        ensure!(
            status.success(),
            "{}\nfuzz target `{name}` failed ({status}); repeat it: {} {}/INPUT",
            last_lines(&stderr),
            program.display(),
            failures.display()
        );
        let inputs = stderr.lines().find_map(|line| line.strip_prefix(INPUTS_LABEL));
        let inputs = inputs.with_context(|| format!("fuzz target `{name}` printed no statistics"))?;
        Ok(inputs.trim().parse()?)
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
}

impl Ended {
    /// The failure, if there is one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_in_the_background_has_a_session_of_its_own_and_the_lowest_priority() {
        let script = "set -- $(cat /proc/$$/stat); echo session $6 of $$, nice ${19} >&2; exit 3";
        let mut command = FuzzPriority::Background.command(Path::new("sh"));
        let (status, stderr) = child::status_and_stderr(command.args(["-c", script]), Duration::from_secs(30)).unwrap();
        let (session, rest) = stderr.trim().strip_prefix("session ").unwrap().split_once(" of ").unwrap();
        assert_eq!(rest, format!("{session}, nice 19"));
        assert_eq!(status.code(), Some(3));
    }
}
