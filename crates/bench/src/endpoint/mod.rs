//! One endpoint of a measured connection: a process on its own machine, which prints its results.
//!
//! `experiment` starts this program on a machine as `farfork bench process endpoint`, with an `EndpointSpec`. `workload` and `peer` make
//! and answer the calls.

pub(crate) mod clock;
pub(crate) mod latencies;
pub(crate) mod specification;

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farfork_fabric::{Security, TlsSecurity};

use crate::baseline::socket_chain;
use crate::{peer, workload};
use latencies::{new_latencies, print_latencies};
use specification::{ClientLoad, ClientOptions, EndpointIdentity, EndpointRole, EndpointSpec, RpcSystem};

// The output of each role, with latencies in ns:
//
// - server: `listening PORT`. It ends when its input ends.
// - client: `ready`. It waits for one letter, which starts it. Then it prints in each interval
//   `interval ANSWERS NS ERRORS DAMAGED`, and at its end `done ANSWERS NS ERRORS DAMAGED` and its latencies.
// - acceptor: like a server.
// - clock: like a server.
// - clock client: `offset NS ERROR_NS`.
// - connector: like a client. In each second `interval CONNECTIONS SUM_OF_TIMES`, and at its end
//   `done CONNECTIONS NS` and its latencies.

/// Runs the endpoint that the specification describes.
///
/// # Errors
/// The specification or the credentials are invalid, or the endpoint cannot listen, connect or print.
pub(crate) fn run_endpoint(specification: &str) -> io::Result<()> {
    let end: EndpointSpec = serde_json::from_str(specification)?;
    pin_to_processors(&end.processors)?;
    let credentials = end.identity.as_ref().map(EndpointIdentity::credentials).transpose()?;
    let security =
        || credentials.clone().map(|credentials| Arc::new(TlsSecurity::new(credentials)) as Arc<dyn Security>);
    match &end.role {
        EndpointRole::Server { ip, threads, seconds } => {
            exit_after(*seconds);
            match end.system {
                RpcSystem::Farfork => workload::rpc_load::serve(*ip, *threads, end.spins, security()),
                other => peer::serve(other, *ip),
            }
        }
        EndpointRole::Client { to, load } => {
            run_client(end.system, *to, load, &ClientOptions { spins: end.spins, security: security() })
        }
        EndpointRole::ChainHead { to, messages, message_bytes, streams } => {
            socket_chain::run_head(*to, *messages, *message_bytes, *streams)
        }
        EndpointRole::ChainFollower { ip, next, message_bytes } => {
            socket_chain::run_follower(*ip, *next, *message_bytes)
        }
        EndpointRole::Acceptor { ip, threads, seconds } => {
            exit_after(*seconds);
            workload::handshakes::serve(*ip, *threads, credentials.as_ref())
        }
        EndpointRole::Clock { ip } => clock::serve(*ip),
        EndpointRole::ClockClient { to } => clock::compare(*to),
        EndpointRole::Connector { to, threads, seconds } => {
            let run = Duration::from_secs_f64(*seconds);
            workload::handshakes::run_client(*to, *threads, run, credentials.as_ref())
        }
    }
}

fn exit_after(seconds: f64) {
    thread::spawn(move || {
        thread::sleep(Duration::from_secs_f64(seconds));
        std::process::exit(0);
    });
}

fn pin_to_processors(processors: &[usize]) -> io::Result<()> {
    if processors.is_empty() {
        return Ok(());
    }
    let mut set = rustix::thread::CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

fn run_client(system: RpcSystem, to: SocketAddr, load: &ClientLoad, client_options: &ClientOptions) -> io::Result<()> {
    let (latencies, load) = (Arc::new(Mutex::new(new_latencies())), *load);
    let gate = Arc::new(std::sync::Barrier::new(load.threads + 1));
    let threads: Vec<_> = (0..load.threads)
        .map(|_| {
            let (counts, gate, latencies) = (Arc::<CallCounts>::default(), Arc::clone(&gate), Arc::clone(&latencies));
            let (counted, client_options) = (Arc::clone(&counts), client_options.clone());
            let thread = thread::spawn(move || {
                let run = || gate.wait();
                let own = match system {
                    RpcSystem::Farfork => workload::rpc_load::run_client(to, &load, &client_options, &counted, run),
                    other => peer::run_client(other, to, &load, &counted, run),
                }?;
                latencies.lock().expect("no thread panics while it holds the lock").add(own).map_err(io::Error::other)
            });
            (counts, thread)
        })
        .collect();
    print_line("ready")?;
    io::stdin().read_exact(&mut [0])?;
    gate.wait();
    let began = Instant::now();
    let total =
        |of: fn(&CallCounts) -> &AtomicU64| threads.iter().map(|(counts, _)| of(counts).load(Ordering::Relaxed)).sum();
    let line = |word: &str, before: u64, elapsed: Duration| {
        let answers: u64 = total(|counts| &counts.answers);
        let (errors, damaged): (u64, u64) = (total(|counts| &counts.errors), total(|counts| &counts.damaged));
        (answers, format!("{word} {} {} {errors} {damaged}", answers - before, elapsed.as_nanos()))
    };
    let (mut before, mut mark) = (0, began);
    for interval in 1..=load.interval_count() {
        let until = began + Duration::from_secs_f64(load.interval_seconds) * interval;
        thread::sleep(until.saturating_duration_since(Instant::now()));
        let (answers, text) = line("interval", before, mark.elapsed());
        (before, mark) = (answers, Instant::now());
        print_line(&text)?;
    }
    let (_, text) = line("done", 0, began.elapsed());
    threads.iter().for_each(|(counts, _)| counts.stop.store(true, Ordering::Relaxed));
    for (_, thread) in threads {
        thread.join().map_err(|_| io::Error::other("a client's thread panicked"))??;
    }
    let latencies = latencies.lock().expect("no thread panicked while it held the lock");
    print_line(&text)?;
    print_latencies(&latencies)
}

/// The counters of one thread, and the flag that stops the thread.
#[derive(Debug, Default)]
pub(crate) struct CallCounts {
    pub(crate) answers: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) stop: AtomicBool,
}

/// Prints a line, and flushes it.
pub(crate) fn print_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Prints the port of a server, and waits until standard input ends.
pub(crate) fn announce_port(port: u16) -> io::Result<()> {
    print_line(&format!("listening {port}"))?;
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
