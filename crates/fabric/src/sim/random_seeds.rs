//! Runs one test with many random seeds in parallel, and prints the command that repeats a failed seed.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::World;

/// The environment variable that selects a single seed.
const SEED_VARIABLE: &str = "FARFORK_SIM_SEED";

/// Number of seeds that run at the same time. Each needs a thread, and other tests run in parallel.
const PARALLEL_RUNS: usize = 2;

/// Runs a test with each seed below `count`, or with the seed in `FARFORK_SIM_SEED`. Returns the number of seeds, and the
/// sum of the test's results.
///
/// # Panics
/// If the test panics, or if the variable is not a number.
pub fn run_random_seeds(count: u64, test: impl Fn(u64) -> usize + Sync) -> (u64, u64) {
    let seeds = seed_from_env().map_or(0..count, |seed| seed..seed + 1);
    let (next, sum) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                return;
            }
            sum.fetch_add(test(seed) as u64, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| (0..PARALLEL_RUNS).for_each(|_| _ = scope.spawn(work)));
    let Range { start, end } = seeds;
    (end - start, sum.into_inner())
}

/// Runs the scenario of one seed. If the scenario panics, prints the world's trace, and the command that repeats the
/// scenario: `cargo test` with the arguments `tests`.
///
/// # Panics
/// If the scenario panics.
pub fn run_scenario(world: &World, seed: u64, tests: &str, scenario: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(scenario)) {
        eprintln!("{}", world.format_trace());
        eprintln!("repeat it: {SEED_VARIABLE}={seed} cargo test {tests}");
        resume_unwind(panic);
    }
}

/// Reads the seed from the environment.
fn seed_from_env() -> Option<u64> {
    let text = std::env::var(SEED_VARIABLE).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE} is a number")))
}
