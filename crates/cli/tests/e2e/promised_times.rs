//! Promised times: the parent's pause beside a fork(2) of the same process, resume, and the cost of a page, each flat in
//! the size of the memory.
//!
//! Others may use the machine meanwhile, and what they add is never negative: each figure is the lower quartile of many,
//! and a promise is broken when it is broken in each of a few attempts.

use std::thread;
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("the_pause_is_that_of_a_fork", pause),
    Test::shared("resume_is_short_and_flat", resume),
    Test::shared("a_page_costs_the_same_in_any_size", page),
];

const ATTEMPTS: usize = 3;
const ROUNDS: usize = 12;
/// Prepare may stop a parent so much longer than fork(2) does.
const PAUSE_OVER_FORK_US: u64 = 500;
/// From the request to the child's first instruction, its container included.
const RESUME_US_MAX: u64 = 3000;
/// How much larger a resume may be for the large process than for the small one.
const RESUME_PERCENT_MAX: u64 = 150;
/// The same for a page. What is not farfork's is not flat: 16 MiB and their page tables fit into caches, and a machine that
/// is virtual itself has to ask its host for a gibibyte.
const PAGE_PERCENT_MAX: u64 = 200;
/// Between rounds, so that daemons have done what they put off.
const REST: Duration = Duration::from_millis(20);

fn start(mib: &str) -> Parent {
    Parent::start(Program::Situation("measured"), &[mib])
}

fn pause(cluster: &Cluster) {
    for mib in ["1", "64", "256"] {
        keep_promise(|| {
            let parent = start(mib);
            let pause_us = rounds(ROUNDS, || Seed::of(cluster.first(), &parent).pause().as_micros() as u64);
            // Measured meanwhile, so that both had the same machine.
            let fork_us = lower_quartile(parent.forks_us());
            let is_kept = pause_us <= fork_us + PAUSE_OVER_FORK_US;
            (is_kept, format!("{mib} MiB: a pause of {pause_us} µs, a fork of {fork_us} µs"))
        });
    }
}

fn resume(cluster: &Cluster) {
    keep_promise(|| {
        let [small_us, large_us] = ["1", "1024"].map(|mib| {
            let parent = start(mib);
            let seed = Seed::of(cluster.first(), &parent);
            rounds(ROUNDS, || {
                let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
                cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
                child.resume_us
            })
        });
        let is_flat = large_us * 100 <= small_us * RESUME_PERCENT_MAX;
        let is_kept = small_us.max(large_us) <= RESUME_US_MAX && is_flat;
        (is_kept, format!("resume takes {small_us} µs with 1 MiB, {large_us} µs with 1 GiB"))
    });
}

fn page(cluster: &Cluster) {
    keep_promise(|| {
        let [small_ns, large_ns] = [("16", ROUNDS), ("1024", 3)].map(|(mib, count)| {
            let parent = start(mib);
            let seed = Seed::of(cluster.first(), &parent);
            rounds(count, || {
                let ended = seed.fork_attached("1", &["--to", cluster.name(1)]);
                assert_eq!(ended.status.code(), Some(42), "{}", ended.stderr);
                let figure = ended.stdout.lines().find_map(|line| line.strip_prefix("touched "));
                figure.and_then(|text| text.parse().ok()).expect("the child says what a page cost")
            })
        });
        let is_kept = large_ns * 100 <= small_ns * PAGE_PERCENT_MAX;
        (is_kept, format!("a page: {small_ns} ns of 16 MiB, {large_ns} ns of 1 GiB"))
    });
}

/// Measures until the promise is kept, a few times at most. What was measured is said either way.
fn keep_promise(measure: impl Fn() -> (bool, String)) {
    let mut broken = Vec::new();
    for _ in 0..ATTEMPTS {
        let (is_kept, figures) = measure();
        if is_kept {
            // Not among the lines of the runner, which others read.
            eprintln!("  {figures}");
            return;
        }
        broken.push(figures);
    }
    panic!("broken in each attempt: {broken:#?}");
}

fn rounds(count: usize, mut measure: impl FnMut() -> u64) -> u64 {
    let figures = (0..count).map(|_| {
        thread::sleep(REST);
        measure()
    });
    lower_quartile(figures.collect())
}

fn lower_quartile(mut figures: Vec<u64>) -> u64 {
    figures.sort_unstable();
    figures[figures.len() / 4]
}
