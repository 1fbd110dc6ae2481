//! Client and server as a pair, without sockets, on a clock of the test's own: whatever becomes of the connections, each
//! request ends once, is executed at most once, and gives the right bytes.

mod hostile;
mod path;
mod world;

use world::World;

/// Runs a scenario for many seeds, as many as `FARFORK_SEEDS` says, or for the one that `FARFORK_SEED` names.
fn for_seeds(count: u64, scenario: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    match number("FARFORK_SEED") {
        Some(seed) => scenario(seed),
        None => (0..number("FARFORK_SEEDS").unwrap_or(count)).for_each(|seed| {
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scenario(seed)));
            assert!(ran.is_ok(), "seed {seed} fails: repeat with FARFORK_SEED={seed}");
        }),
    }
}

#[test]
fn each_request_ends_once_and_is_executed_at_most_once() {
    for_seeds(300, |seed| {
        let mut world = World::new(seed);
        for _ in 0..300 {
            world.step();
        }
        world.heal();
        world.check();
    });
}

#[test]
fn without_faults_every_request_is_answered() {
    for_seeds(50, |seed| {
        let mut world = World::new(seed);
        world.faults = false;
        for _ in 0..300 {
            world.step();
        }
        world.heal();
        world.check();
        world.check_all_answered();
    });
}
