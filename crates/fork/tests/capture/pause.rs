//! Compares the pause with a fork() of the same process in the same run. It measures speed, so it is a long test:
//! `cargo test pause -- --ignored --nocapture` prints the table.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::Subscriber;
use tracing::span::Id;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use crate::harness::Parent;

const SAMPLES: usize = 15;

/// The most that a pause may take beyond fork() (the budget of `docs/specification.md`). `ROOM` is for other work of a test
/// machine.
const ABOVE_FORK: Duration = Duration::from_micros(300);
const ROOM: Duration = Duration::from_millis(10);

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

/// The tenth percentile: the duration without other work in between.
fn low(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 10]
}

/// Durations of each phase.
#[derive(Clone, Default)]
struct Phases(Arc<Mutex<BTreeMap<&'static str, Vec<Duration>>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Phases {
    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().replace(Instant::now());
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let now = Instant::now();
        let Some(span) = context.span(id) else { return };
        if let Some(entered_at) = span.extensions().get::<Instant>() {
            self.0.lock().unwrap().entry(span.name()).or_default().push(now - *entered_at);
        }
    }
}

#[test]
#[ignore = "long: a busy machine has no time for it"]
fn the_pause_is_little_longer_than_a_fork() {
    let phases = Phases::default();
    let subscriber = tracing_subscriber::registry().with(phases.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    println!("MiB threads  fork µs  pause µs  prepare µs  describe µs  phases µs");
    for (mebibytes, threads) in
        [("1", "0"), ("1", "3"), ("1", "9"), ("16", "0"), ("16", "3"), ("64", "3"), ("256", "3"), ("1024", "0")]
    {
        let mut parent = Parent::start("memory", &[mebibytes, threads]);
        let (mut forks, mut pauses, mut totals, mut rests) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        phases.0.lock().unwrap().clear();
        for _ in 0..SAMPLES {
            parent.write(b"fork\n");
            forks.push(Duration::from_nanos(parent.wait_for("fork")));
            let times = parent.capture().unwrap().times;
            pauses.push(times.pause);
            totals.push(times.total);
            rests.push(times.describe);
        }
        let (fork, pause) = (median(forks.clone()), median(pauses.clone()));
        println!(
            "{mebibytes:>3} {threads:>7} {:>8} {:>9} {:>11} {:>12}",
            low(forks).as_micros(),
            low(pauses).as_micros(),
            low(totals).as_micros(),
            low(rests).as_micros(),
        );
        let format_phase =
            |(name, samples): (&&str, &Vec<Duration>)| format!("{name} {}", low(samples.clone()).as_micros());
        println!("    {}", phases.0.lock().unwrap().iter().map(format_phase).collect::<Vec<_>>().join("  "));
        assert!(pause < fork * 2 + ABOVE_FORK + ROOM, "{mebibytes} MiB: pause {pause:?}, fork {fork:?}");
    }
}
