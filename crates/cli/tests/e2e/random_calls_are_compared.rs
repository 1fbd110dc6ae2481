//! Programs make state by every x86-64 system call that leaves state, and are forked to another node. The differ must
//! find only differences that its table permits. If prepare refuses a program, `check` must refuse it too.
//! `calls.c` has the actions that make the calls. Each round deals all actions to its programs in a new combination.
//! `FARFORK_RANDOM_SEED` repeats the program that failed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::programs::sources;
use crate::harness::{Cluster, LineProgram, Program, compare_with_parent, scratch, wait};
use crate::random_processes_are_restored::{prepare_process, refusals_of_check, require_agreement};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("each_system_call_is_covered_or_listed_as_left_out", require_coverage),
    Test::shared("in_programs_of_many_actions", |cluster| check_programs(cluster, 0..PROGRAMS_PER_ROUND)),
    Test::shared("in_programs_of_one_action", check_single_actions).long(),
    Test::shared("in_a_thousand_programs", |cluster| {
        check_programs(cluster, PROGRAMS_PER_ROUND..PROGRAMS_PER_ROUND * ROUNDS_LONG);
    })
    .long(),
];

/// The kernel's header with the names and numbers of all system calls.
const HEADER: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";

/// A CPU flag in /proc/cpuinfo. Without protection keys, pkey_alloc(2) fails.
const KEYS_FLAG: &str = " ospke";

const PROGRAMS_PER_ROUND: u64 = 24;
/// Number of programs of a round with actions that may be refused. All other programs must be carried.
const REFUSED_PER_ROUND: u64 = 5;
const ROUNDS_LONG: u64 = 42;
/// Maximum number of random actions in addition to a program's share of the round's actions.
const MORE_ACTIONS_MAX: u64 = 5;

/// Texts of refusals that depend on the node, not on the process: real-time threads.
const NODE_REFUSALS: [&str; 1] = ["a kernel with RT_GROUP_SCHED gives real-time threads of containers no time"];

/// Texts of refusals of pairs of actions that are refused only together: a seccomp filter and the loss of the capability
/// to install it; a file lease and a change of the user.
const REFUSALS_OF_TWO: [&str; 2] =
    ["seccomp filter that neither it nor a child may install again", "it has a lease (F_SETLEASE) on a file of user"];

const AT_ONCE: usize = 3;
const PROGRAM_LIMIT: Duration = Duration::from_secs(100);
/// Longest run of `calls coverage`, which traces more than two hundred actions call by call. Less than the time limit
/// of a test.
const COVERAGE_LIMIT: Duration = Duration::from_secs(280);
const REPORTS_MAX: usize = 30;

/// The actions of `calls.c`, in the order of its tables.
struct Actions {
    names: Vec<String>,
    /// Actions for which a process may be refused.
    refused: BTreeSet<String>,
}

impl Actions {
    fn read() -> Self {
        let text = output_of_calls(&["actions"]);
        let words = || text.lines().map(|line| line.split_once(' ').expect("a kind and a name"));
        Self {
            names: words().map(|(_, name)| name.to_owned()).collect(),
            refused: words().filter(|(kind, _)| *kind == "refused").map(|(_, name)| name.to_owned()).collect(),
        }
    }

    /// Returns the actions of a program, by its number: its share of the round's actions, and some more.
    fn of_program(&self, number: u64) -> Vec<&str> {
        let (round, place) = (number / PROGRAMS_PER_ROUND, number % PROGRAMS_PER_ROUND);
        let may_be_refused = place < REFUSED_PER_ROUND;
        let is_dealt = |name: &&String| self.refused.contains(*name) == may_be_refused;
        let mut dealt: Vec<&String> = self.names.iter().filter(is_dealt).collect();
        shuffle(&mut dealt, round);
        let (share, shares) = match may_be_refused {
            true => (place, REFUSED_PER_ROUND),
            false => (place - REFUSED_PER_ROUND, PROGRAMS_PER_ROUND - REFUSED_PER_ROUND),
        };
        let mut own: BTreeSet<&String> = dealt.iter().copied().skip(share as usize).step_by(shares as usize).collect();
        let mut more: Vec<&String> = self.names.iter().filter(|name| !self.refused.contains(*name)).collect();
        shuffle(&mut more, word_of(number));
        own.extend(&more[..(word_of(number) % (MORE_ACTIONS_MAX + 1)) as usize]);
        self.names.iter().filter(|name| own.contains(name)).map(String::as_str).collect()
    }
}

/// SplitMix64, as in the C programs.
fn word_of(index: u64) -> u64 {
    let z = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn shuffle<T>(all: &mut [T], seed: u64) {
    for last in (1..all.len()).rev() {
        let other = word_of(word_of(seed).wrapping_add(last as u64)) % (last as u64 + 1);
        all.swap(last, other as usize);
    }
}

fn output_of_calls(arguments: &[&str]) -> String {
    let mut command = Program::Calls.command();
    command.args(arguments).stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let ended = wait::wait_with_output(command.spawn().expect("it was compiled"), "calls", COVERAGE_LIMIT);
    assert!(ended.status.success(), "calls {arguments:?}: {}\n{}", ended.status, ended.stderr);
    ended.stdout
}

/// Requires that an action makes each call of the header, as seen by a tracer, or that the list of omitted calls has
/// the call with a reason.
fn require_coverage() {
    let header = fs::read_to_string(HEADER).unwrap_or_else(|error| panic!("{HEADER}: {error}: install linux-libc-dev"));
    let call = |line: &str| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((number.trim().parse::<u32>().ok()?, name.to_owned()))
    };
    let calls: BTreeMap<u32, String> = header.lines().filter_map(call).collect();
    let files = scratch::directory();
    let said = output_of_calls(&["coverage", &files.path().to_string_lossy()]);
    let made: BTreeSet<u32> = said.lines().filter_map(|line| line.strip_prefix("call ")?.parse().ok()).collect();
    let left_out = calls_left_out();
    let exercised = calls.iter().filter(|(_, name)| !left_out.contains_key(*name));
    let missing: Vec<&String> =
        exercised.clone().filter(|(number, _)| !made.contains(number)).map(|(_, name)| name).collect();
    let (all, count) = (calls.len(), exercised.count());
    println!("{count} of {all} system calls made by actions, {} omitted", all - count);
    assert!(missing.is_empty(), "neither made by an action of calls.c nor listed in calls_left_out.txt: {missing:?}");
}

/// Returns the omitted calls, each with the reason why no action makes it. Calls that depend on the machine are omitted
/// only if it lacks them.
fn calls_left_out() -> BTreeMap<String, String> {
    let path = sources().join("random/calls_left_out.txt");
    let text = fs::read_to_string(&path).expect("a source");
    let has_keys = fs::read_to_string("/proc/cpuinfo").expect("Linux").contains(KEYS_FLAG);
    let (mut reason, mut left_out) = ("", BTreeMap::new());
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(head) = line.strip_suffix(':') {
            reason = head;
        } else if !(has_keys && reason.contains("protection keys")) {
            for name in line.split(' ') {
                assert!(!reason.is_empty(), "{name} has no reason");
                let other = left_out.insert(name.to_owned(), reason.to_owned());
                assert_eq!(other, None, "{name} is listed twice");
            }
        }
    }
    left_out
}

fn check_programs(cluster: &Cluster, numbers: std::ops::Range<u64>) {
    let actions = Actions::read();
    let asked = std::env::var("FARFORK_RANDOM_SEED").ok().map(|text| text.parse().expect("a number"));
    let numbers = asked.map_or_else(|| numbers.collect(), |number| vec![number]);
    let programs = numbers.into_iter().map(|number| (number, actions.of_program(number))).collect();
    check_all(cluster, &actions, &programs);
}

fn check_single_actions(cluster: &Cluster) {
    let actions = Actions::read();
    let programs = actions.names.iter().enumerate().map(|(at, name)| (at as u64, vec![name.as_str()])).collect();
    check_all(cluster, &actions, &programs);
}

fn check_all(cluster: &Cluster, actions: &Actions, programs: &BTreeMap<u64, Vec<&str>>) {
    let (next, outcomes) = (AtomicU64::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some((number, names)) = programs.iter().nth(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let may_be_refused = names.iter().any(|name| actions.refused.contains(*name));
            let outcome = check_program(cluster, *number, names, may_be_refused);
            outcomes.lock().expect("no thread panics with the lock held").insert(*number, outcome);
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let outcomes = outcomes.into_inner().expect("no thread panics with the lock held");
    let compared = outcomes.values().filter(|outcome| **outcome == Ok(Judgement::Equal)).count();
    println!("{compared} of {} programs compared, {} refused", programs.len(), outcomes.len() - compared);
    let report = |(number, outcome): (&u64, &Result<Judgement, String>)| {
        let error = outcome.as_ref().err()?;
        Some(format!("seed {number}, {:?}: {error}\n", programs[number]))
    };
    let reports: Vec<String> = outcomes.iter().filter_map(report).collect();
    let again = "FARFORK_RANDOM_SEED=SEED cargo xtask e2e random_calls_are_compared::in_programs_of_many";
    let shown = reports.iter().take(REPORTS_MAX).cloned().collect::<String>();
    assert!(reports.is_empty(), "{} of {} programs; again: {again}\n{shown}", reports.len(), programs.len());
}

#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    /// The child equals its parent.
    Equal,
    /// Check and prepare refuse the process, or the node refuses it.
    Refused,
}

fn check_program(cluster: &Cluster, number: u64, names: &[&str], may_be_refused: bool) -> Result<Judgement, String> {
    let files = scratch::directory();
    let mut command = Program::Calls.command();
    command.arg("run").arg(number.to_string()).arg(files.path()).args(names);
    let parent = LineProgram::start(&mut command)?;
    parent.read_until(".", PROGRAM_LIMIT)?;
    let refusals = refusals_of_check(cluster.first(), &parent.pid_text());
    let prepared = prepare_process(cluster.first(), &parent.pid_text());
    require_agreement(&refusals, &prepared)?;
    let is_of_two = |refusal: &String| REFUSALS_OF_TWO.iter().any(|words| refusal.contains(words));
    let are_of_two = refusals.iter().all(is_of_two);
    let Ok(seed) = prepared else {
        return if may_be_refused || are_of_two {
            Ok(Judgement::Refused)
        } else {
            Err(format!("the program is refused: {refusals:?}"))
        };
    };
    let outcome = compare_child(cluster, &seed, number, parent.pid());
    let dropped = cluster.first().run(&["drop", "--force", &seed]);
    let judgement = outcome?;
    if dropped.status.success() {
        Ok(judgement)
    } else {
        Err(format!("its seed cannot be dropped: {}", dropped.stderr))
    }
}

/// Compares a child with its parent. Every second child is paused before its first instruction. The others show the
/// state of a program that continues.
fn compare_child(cluster: &Cluster, seed: &str, number: u64, parent: i32) -> Result<Judgement, String> {
    let node = cluster.name(1 + (number / 2 % 2) as usize);
    let options: &[&str] = if number.is_multiple_of(2) { &["--paused"] } else { &[] };
    let started = cluster.first().run(&[&["fork", seed, "--detach", "--to", node], options].concat());
    if !started.status.success() {
        let is_refused = NODE_REFUSALS.iter().any(|refusal| started.stderr.contains(refusal));
        let error = || format!("no child was restored: {}", started.stderr);
        return if is_refused { Ok(Judgement::Refused) } else { Err(error()) };
    }
    let child = started.stdout.trim();
    let outcome = compare_with_parent(cluster.first(), child, parent);
    cluster.first().run(&["kill", "--signal", "KILL", child]);
    outcome.map(|()| Judgement::Equal)
}
