//! Runs one test with many random seeds in parallel, and prints how to repeat a seed that failed.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::World;

/// Names a single seed, to be run in place of all.
const SEED_VARIABLE: &str = "FARFORK_SIM_SEED";

/// Seeds that run at the same time: each takes a thread, and tests run beside other tests.
const PARALLEL_RUNS: usize = 2;

/// Runs a test with each seed below `count`, or with the one that `FARFORK_SIM_SEED` names. Gives how many seeds that were,
/// and the sum of what the test counted.
///
/// # Panics
/// As the test does; where the variable is no number.
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

/// Runs the course of one seed. Where it fails, the world's story is told, and how it is repeated: `tests` is what follows
/// `cargo test`.
///
/// # Panics
/// As the course does.
pub fn run_scenario(world: &World, seed: u64, tests: &str, scenario: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(scenario)) {
        eprintln!("{}", world.format_trace());
        eprintln!("repeat it: {SEED_VARIABLE}={seed} cargo test {tests}");
        resume_unwind(panic);
    }
}

/// The seed that the caller names.
fn seed_from_env() -> Option<u64> {
    let text = std::env::var(SEED_VARIABLE).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE} is a number")))
}
