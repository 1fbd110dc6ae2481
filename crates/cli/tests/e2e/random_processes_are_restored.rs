//! A program makes five or more resources that follow from a number, prints their state as a statement, and is forked
//! to another node. Child and parent print the statement again, and both statements must equal the first one. At the
//! end, parent and child each use up their resources and print the contents.
//!
//! `FARFORK_RANDOM_CASES` sets the number of cases (400). `FARFORK_RANDOM_SEED` repeats the case that failed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::scratch::TestDirectory;
use crate::harness::{Cluster, Farfork, LineProgram, Program, scratch};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("first_quarter", |cluster| check(cluster, 0)).within(limit),
    Test::shared("second_quarter", |cluster| check(cluster, 1)).within(limit),
    Test::shared("third_quarter", |cluster| check(cluster, 2)).within(limit),
    Test::shared("fourth_quarter", |cluster| check(cluster, 3)).within(limit),
    Test::shared("ten_thousand_cases", |cluster| {
        check_seeds(cluster, &(CASES_DEFAULT..CASES_LONG).collect::<Vec<_>>())
    })
    .long(),
    Test::shared("check_and_prepare_agree", check_and_prepare_agree).within(limit),
];

const QUARTERS: u64 = 4;

/// Default number of cases, in all quarters together. Enough that each resource appears at least once.
const CASES_DEFAULT: u64 = 400;

/// End of the range of seeds in the long campaign. The range begins at `CASES_DEFAULT`.
const CASES_LONG: u64 = 11_000;

/// Number of cases for each case that tests that check and prepare agree.
const CASES_TO_AGREE: u64 = 20;

/// Number of concurrent cases. While commands of one case wait, children of another case run. Suits a machine with two
/// CPUs.
const AT_ONCE: usize = 4;

/// Time limit of one case: far more than a case takes, even on a busy machine.
const CASE_LIMIT: Duration = Duration::from_secs(100);

/// Average time limit of the cases of a quarter. Most cases take a small part of it.
const CASE_LIMIT_ON_AVERAGE: Duration = Duration::from_secs(2);

/// Number of seeds that are dropped at once: each seed holds a process.
const DROPPED_AT_ONCE: usize = 16;

/// Maximum number of printed reports. Further reports would repeat the same differences.
const REPORTS_MAX: usize = 8;

/// Tolerance for remaining times, in milliseconds: parent and child read them at different times.
const NEAR_MS: u64 = 60_000;

const STRATEGIES: [&str; 3] = ["cow", "prefetch", "eager"];

/// Number of cases for each case whose parent ends before its child starts.
const ENDED_PARENTS: u64 = 8;

fn number_of(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not `{text}`")))
}

fn cases() -> u64 {
    number_of("FARFORK_RANDOM_CASES").unwrap_or(CASES_DEFAULT)
}

fn limit() -> Duration {
    CASE_LIMIT + CASE_LIMIT_ON_AVERAGE * u32::try_from(cases() / QUARTERS).expect("the number of cases fits")
}

fn seeds(quarter: u64) -> Vec<u64> {
    match number_of("FARFORK_RANDOM_SEED") {
        Some(seed) => vec![seed],
        None => (0..cases()).filter(|seed| seed % QUARTERS == quarter).collect(),
    }
}

fn check(cluster: &Cluster, quarter: u64) {
    check_seeds(cluster, &seeds(quarter));
}

fn check_seeds(cluster: &Cluster, seeds: &[u64]) {
    let (next, reports) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    // Compile the program once, before the cases start.
    Program::Random.command();
    let work = || {
        let mut prepared = Vec::new();
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(report) = case(cluster, *seed, &mut prepared) {
                reports.lock().expect("no thread panics with the lock held").insert(*seed, report);
            }
            if prepared.len() >= DROPPED_AT_ONCE {
                drop_seeds(cluster, &mut prepared);
            }
        }
        drop_seeds(cluster, &mut prepared);
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let reports = reports.into_inner().expect("no thread panics with the lock held");
    let told: Vec<String> = reports.values().take(REPORTS_MAX).cloned().collect();
    assert!(
        reports.is_empty(),
        "{} cases of {} differ: {:?}\n{}",
        reports.len(),
        seeds.len(),
        reports.keys(),
        told.concat()
    );
}

fn drop_seeds(cluster: &Cluster, prepared: &mut Vec<String>) {
    if !prepared.is_empty() {
        let ids: Vec<&str> = prepared.iter().map(String::as_str).collect();
        cluster.first().json(&[&["drop", "--force"], &ids[..]].concat());
        prepared.clear();
    }
}

/// Lines that a process prints about its state. After a line with a colon, it prints the state that reading consumes.
type Statement = Vec<String>;

/// Runs one process and its child. Returns their differences, and a command that repeats the case.
fn case(cluster: &Cluster, seed: u64, prepared: &mut Vec<String>) -> Result<(), String> {
    let mut made = String::new();
    let outcome = RandomProcess::start(seed, &[]).and_then(|mut parent| {
        made = parent.made.join(", ");
        compare(cluster, seed, &mut parent, prepared)
    });
    let sentence = module_path!().rsplit("::").next().unwrap_or_default();
    let again = format!("FARFORK_RANDOM_SEED={seed} cargo xtask e2e {sentence}::first_quarter");
    outcome.map_err(|error| format!("seed {seed}, which {made}: {error}again: {again}\n"))
}

/// Runs processes that may have state that is not carried. Prepare must refuse the same as check, and nothing else. If
/// prepare succeeds, children must start.
fn check_and_prepare_agree(cluster: &Cluster) {
    let seeds =
        number_of("FARFORK_RANDOM_SEED").map_or_else(|| (0..cases() / CASES_TO_AGREE).collect(), |seed| vec![seed]);
    let outcomes = seeds.into_iter().map(|seed: u64| (seed, compare_check_with_prepare(cluster, seed)));
    let failed: Vec<_> = outcomes.filter_map(|(seed, outcome)| Some((seed, outcome.err()?))).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn compare_check_with_prepare(cluster: &Cluster, seed: u64) -> Result<(), String> {
    let mut parent = RandomProcess::start(seed, &["refused"])?;
    let pid = parent.talker.pid_text();
    let refusals = refusals_of_check(cluster.first(), &pid);
    let prepared = prepare(cluster, &parent);
    require_agreement(&refusals, &prepared)?;
    if let Ok(id) = prepared {
        let started = cluster.first().run_within(CASE_LIMIT, &["fork", &id, "--to", cluster.name(1), "--detach"]);
        if !started.status.success() {
            return Err(format!("it was prepared, but no child was restored: {}", started.stderr));
        }
        // `kill` fails if the child has ended.
        cluster.first().run(&["kill", "--signal", "KILL", started.stdout.trim()]);
        cluster.first().json(&["drop", "--force", &id]);
    }
    // Read only the statement of the parent: refused state need not be used up.
    parent.talker.write_input("\n")?;
    require_same("the parent's state has changed", &parent.before, &parent.talker.read_until(":", CASE_LIMIT)?)
}

/// Returns the refusals of check for a process, in prepare's format.
pub(crate) fn refusals_of_check(farfork: &Farfork, pid: &str) -> Vec<String> {
    let checked = farfork.json_ignoring_status(&["check", pid]);
    checked["refusals"].as_array().into_iter().flatten().map(|refusal| named(pid, refusal)).collect()
}

/// Requires that prepare refuses only what check refuses.
pub(crate) fn require_agreement(refusals: &[String], prepared: &Result<String, String>) -> Result<(), String> {
    match (prepared, refusals.is_empty()) {
        (Ok(_), true) => Ok(()),
        (Ok(_), false) => Err(format!("check refuses {refusals:?}, and prepare does not")),
        (Err(error), true) => Err(format!("check refuses nothing, and prepare does: {error}")),
        (Err(error), false) => {
            // Prepare may stop at the first refusal. All refusals that it names must be among those of check.
            let message = error.split_once("cannot be carried: ").map_or(&**error, |(_, refused)| refused).to_owned();
            let rest = refusals.iter().fold(message, |rest, refusal| rest.replace(refusal, ""));
            if rest.chars().any(char::is_alphabetic) {
                return Err(format!("prepare names more than check, which refuses {refusals:?}: {rest}"));
            }
            Ok(())
        }
    }
}

/// Formats a refusal as prepare does, which names the process once.
fn named(pid: &str, refusal: &serde_json::Value) -> String {
    let text = |field: &str| refusal[field].as_str().unwrap_or_default().to_owned();
    format!("{}: {}", text("object").replace(&format!("pid {pid}, "), ""), text("reason"))
}

fn compare(cluster: &Cluster, seed: u64, parent: &mut RandomProcess, prepared: &mut Vec<String>) -> Result<(), String> {
    let id = prepare(cluster, parent)?;
    prepared.push(id.clone());
    let has_ended = seed.is_multiple_of(ENDED_PARENTS);
    if has_ended {
        parent.talker.kill(CASE_LIMIT);
    }
    let (node, strategy) = (1 + seed as usize / 2 % 2, STRATEGIES[seed as usize % STRATEGIES.len()]);
    let payload = scratch::file("1");
    let payload = payload.path().to_string_lossy();
    let options = ["fork", &id, "--to", cluster.name(node), "--strategy", strategy, "--payload", &payload];
    let ended = cluster.first().run_within(CASE_LIMIT, &options);
    if !ended.status.success() {
        return Err(format!("the child: {}: {}\n", ended.status, ended.stderr));
    }
    let child: Statement = ended.stdout.lines().map(str::to_owned).collect();
    if has_ended {
        return require_same("the child's state is not the parent's at prepare", &parent.before, &until_colon(&child));
    }
    let after = parent.after()?;
    require_same("the parent's state has changed", &parent.before, &until_colon(&after))?;
    require_same("the child's state differs from the parent's", &after, &child)
}

/// Prepares a parent. Returns the id of its seed.
fn prepare(cluster: &Cluster, parent: &RandomProcess) -> Result<String, String> {
    prepare_process(cluster.first(), &parent.talker.pid_text())
}

/// Prepares a process. Returns the id of its seed, or the error that prepare printed.
pub(crate) fn prepare_process(farfork: &Farfork, pid: &str) -> Result<String, String> {
    let ended = farfork.run(&["prepare", pid, "--json"]);
    let said = serde_json::from_str::<serde_json::Value>(&ended.stdout).ok();
    let id = said.as_ref().and_then(|said| said["seed"].as_str());
    id.map(str::to_owned).ok_or_else(|| format!("prepare failed: {}", ended.stderr))
}

fn require_same(otherwise: &str, expected: &[String], found: &[String]) -> Result<(), String> {
    let differences = differences(expected, found);
    if differences.is_empty() { Ok(()) } else { Err(format!("{otherwise}\n{differences}")) }
}

fn until_colon(statement: &[String]) -> Statement {
    statement.iter().take_while(|line| *line != ":").cloned().collect()
}

/// Returns the lines that only one of the statements has, except times that are close. Also reports another order.
fn differences(expected: &[String], found: &[String]) -> String {
    let only_in = |one: &[String], other: &[String]| -> Vec<String> {
        one.iter().filter(|line| !other.iter().any(|known| is_near(line, known))).cloned().collect()
    };
    let mut text = String::new();
    for (word, lines) in [("expected", only_in(expected, found)), ("found   ", only_in(found, expected))] {
        lines.iter().for_each(|line| writeln!(text, "  {word} {line}").expect("text can be written"));
    }
    let is_same = expected.len() == found.len() && expected.iter().zip(found).all(|(one, other)| is_near(one, other));
    if text.is_empty() && !is_same {
        text.push_str("  the same lines in another order, or more of one\n");
    }
    text
}

fn is_near(expected: &str, found: &str) -> bool {
    let number = |word: &str| word.strip_prefix('~')?.parse::<u64>().ok();
    let is_same = |(expected, found): (&str, &str)| match (number(expected), number(found)) {
        (Some(expected), Some(found)) => (expected == 0) == (found == 0) && expected.abs_diff(found) < NEAR_MS,
        _ => expected == found,
    };
    expected == found
        || expected.split(' ').count() == found.split(' ').count()
            && expected.split(' ').zip(found.split(' ')).all(is_same)
}

/// A parent with random resources.
struct RandomProcess {
    talker: LineProgram,
    /// Names of its resources.
    made: Vec<String>,
    before: Statement,
    _files: TestDirectory,
}

impl RandomProcess {
    fn start(seed: u64, more: &[&str]) -> Result<Self, String> {
        let files = scratch::directory();
        let talker = LineProgram::start(Program::Random.command().arg(seed.to_string()).arg(files.path()).args(more))?;
        let said = talker.read_until(".", CASE_LIMIT)?.into_iter().filter(|line| !line.starts_with("ready "));
        let (made, before) = said.partition(|line| line.starts_with("has "));
        Ok(Self { talker, made, before, _files: files })
    }

    /// Makes the parent print its statement again, and use up its resources.
    fn after(&mut self) -> Result<Statement, String> {
        self.talker.write_input("\n")?;
        let mut statement = self.talker.read_until(".", CASE_LIMIT)?;
        statement.push(".".to_owned());
        Ok(statement)
    }
}
