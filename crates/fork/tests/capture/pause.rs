//! The pause, beside a fork() of the same process in the same run. `cargo test pause -- --nocapture` prints the table.

use std::time::Duration;

use crate::harness::Parent;

const SAMPLES: usize = 15;

/// Above fork(), what a pause may take (the budget of `docs/specification.md`), and room for what a test machine's
/// other work adds.
const ABOVE_FORK: Duration = Duration::from_micros(500);
const ROOM: Duration = Duration::from_millis(10);

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

#[test]
fn the_pause_is_that_of_a_fork_and_little_more() {
    println!("MiB threads  fork µs  pause µs  (stop registers ask shared clone)  prepare µs");
    for (mebibytes, threads) in [("1", "0"), ("1", "3"), ("1", "9"), ("16", "3"), ("64", "3"), ("256", "3")] {
        let mut parent = Parent::start("memory", &[mebibytes, threads]);
        let (mut forks, mut pauses, mut totals, mut phases) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..SAMPLES {
            parent.write(b"fork\n");
            forks.push(Duration::from_nanos(parent.wait_for("fork")));
            let times = parent.capture().unwrap().times;
            pauses.push(times.pause);
            totals.push(times.total);
            phases.push(times);
        }
        let (fork, pause) = (median(forks), median(pauses));
        let phase = |pick: fn(&farfork_fork::capture::CaptureTimes) -> Duration| {
            median(phases.iter().map(pick).collect()).as_micros()
        };
        println!(
            "{mebibytes:>3} {threads:>7} {:>8} {:>9}  ({} {} {} {} {}) {:>11}",
            fork.as_micros(),
            pause.as_micros(),
            phase(|times| times.stop),
            phase(|times| times.registers),
            phase(|times| times.ask),
            phase(|times| times.shared),
            phase(|times| times.clone),
            median(totals).as_micros(),
        );
        assert!(pause < fork * 2 + ABOVE_FORK + ROOM, "{mebibytes} MiB: pause {pause:?}, fork {fork:?}");
    }
}
