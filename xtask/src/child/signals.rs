//! Ends this program after a signal: forwards the signal to the running processes, and waits until they have ended.

use std::fs;
use std::future;
use std::io;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tokio_signal::runtime::{Builder, Runtime};
use tokio_signal::signal::unix::{Signal, SignalKind, signal};

use super::{POLL_INTERVAL, lock_running, tree};
use crate::terminal::{self, print_line};

/// Longest time for the running processes to end. The end-to-end tests remove everything that they have started. If they
/// are killed before that, their janitor does it.
const END_LIMIT: Duration = Duration::from_secs(120);

/// Time for the last output to be logged and printed. Longer only if nothing reads the output.
const OUTPUT_TIME: Duration = Duration::from_millis(500);

/// Time after the first signal in which further ones have no effect: timeout(1) and shells send the same signal twice.
const REPEAT_TIME: Duration = Duration::from_secs(1);

/// The signals that end a run, with their names for kill(1). SIGINT and SIGQUIT are here because the terminal sends them
/// only to the process group of this program, and not to those of the running processes.
const SIGNALS: [EndSignal; 4] = [
    EndSignal { name: "INT", kind: SignalKind::interrupt() },
    EndSignal { name: "TERM", kind: SignalKind::terminate() },
    EndSignal { name: "HUP", kind: SignalKind::hangup() },
    EndSignal { name: "QUIT", kind: SignalKind::quit() },
];

/// A signal that ends a run.
#[derive(Clone, Copy)]
struct EndSignal {
    name: &'static str,
    kind: SignalKind,
}

/// Starts a thread that waits for a signal, and ends this program then. A second signal kills the running processes. Signals
/// that this program ignores, as nohup(1) sets, stay ignored.
pub(crate) fn end_run_by_signal() -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let ignored = ignored_signals()?;
    let mut streams = Vec::new();
    for each in SIGNALS {
        if ignored & (1 << (each.kind.as_raw_value() - 1)) == 0 {
            streams.push((each, signal(each.kind)?));
        }
    }
    drop(guard);
    thread::spawn(move || {
        static IS_REPEATED: AtomicBool = AtomicBool::new(false);
        let first = next(&runtime, &mut streams);
        let begin = Instant::now();
        thread::spawn(move || end(first, &IS_REPEATED));
        while begin.elapsed() < REPEAT_TIME {
            next(&runtime, &mut streams);
        }
        IS_REPEATED.store(true, Ordering::Relaxed);
        // The next signals have no effect.
        runtime.block_on(future::pending::<()>());
    });
    Ok(())
}

/// Returns the set of ignored signals; bit N−1 is signal N.
fn ignored_signals() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).ok_or(io::ErrorKind::InvalidData.into())
}

/// Waits for the next signal of any stream.
fn next(runtime: &Runtime, streams: &mut [(EndSignal, Signal)]) -> EndSignal {
    runtime.block_on(future::poll_fn(|context| {
        for (each, stream) in streams.iter_mut() {
            if stream.poll_recv(context).is_ready() {
                return Poll::Ready(*each);
            }
        }
        Poll::Pending
    }))
}

/// Ends the running processes and this program.
fn end(EndSignal { name, kind }: EndSignal, is_repeated: &AtomicBool) -> ! {
    // Never released: the steps that run must not end as failed ones, and no further process may start.
    let running = lock_running();
    print_line(format_args!("\n== ended by SIG{name}"));
    let descendants = tree::DescendantSnapshot::of(&running);
    tree::signal_groups(name, &running);
    // A stopped process gets the signal only when it continues.
    tree::signal_groups("CONT", &running);
    let deadline = Instant::now() + END_LIMIT;
    while tree::is_any_group_alive(&running) {
        if is_repeated.load(Ordering::Relaxed) || Instant::now() >= deadline {
            print_line("== the processes that are left are killed");
            tree::signal_groups("KILL", &running);
            break;
        }
        thread::sleep(POLL_INTERVAL);
    }
    // Descendants in other groups did not get the signal.
    descendants.kill();
    thread::sleep(OUTPUT_TIME);
    terminal::flush(Some(OUTPUT_TIME));
    // The status that shells report for a process that a signal has killed.
    process::exit(128 + kind.as_raw_value());
}
