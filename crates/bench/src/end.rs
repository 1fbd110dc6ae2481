//! One end of a connection that is measured: a process of its own, in its own network namespace. It is this program,
//! started again with a specification, and says what came of it, a line for each interval and one at the end:
//!
//! ```text
//!   server   listening PORT                                         ends with its input
//!   client   ready      then, a letter starts it
//!            interval ANSWERS NS ERRORS DAMAGED                     once each interval
//!            done ANSWERS NS ERRORS DAMAGED COUNT P50 P90 P99 P999 MAX    latencies in ns
//!   acceptor  as a server
//!   connector as a client, without intervals:
//!            done CONNECTIONS NS P50 P99
//! ```

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farfork_fabric::{Secured, Security};
use farfork_trust::{Credentials, Directory, Encryption};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::{peer, workload};

/// Longest latency that is told apart, in ns.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// What answers, and what asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum System {
    /// farfork's own calls.
    Farfork,
    /// Messages with nothing but a length, on tokio.
    Tokio,
    /// gRPC, a request for each call.
    TonicUnary,
    /// gRPC, all calls on one stream.
    TonicStream,
    /// tarpc over TCP.
    Tarpc,
}

impl System {
    /// Its name in a table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Farfork => "farfork",
            Self::Tokio => "tokio echo",
            Self::TonicUnary => "tonic unary",
            Self::TonicStream => "tonic stream",
            Self::Tarpc => "tarpc",
        }
    }
}

/// What an end is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) system: System,
    pub(crate) side: Side,
    /// Whether to look for work for a while before sleeping, where the system has that.
    pub(crate) spins: bool,
    /// Who it is, where both ends prove that.
    pub(crate) identity: Option<Identity>,
    /// The processors that its threads may use; all if empty.
    pub(crate) processors: Vec<usize>,
}

/// A member of a cluster that the benchmark made for itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Where its credentials are.
    pub(crate) directory: PathBuf,
    pub(crate) encrypted: bool,
}

impl Identity {
    fn credentials(&self) -> io::Result<Credentials> {
        let encryption = if self.encrypted { Encryption::On } else { Encryption::Off };
        let directory = Directory::new(self.directory.clone());
        Credentials::open(&directory, encryption).map_err(io::Error::other)
    }
}

/// Which side.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Side {
    /// It ends after so many seconds, whoever still asks.
    Server {
        ip: IpAddr,
        threads: usize,
        seconds: f64,
    },
    Client {
        to: SocketAddr,
        load: Load,
    },
    /// Accepts connections, and nothing more; as a server otherwise.
    Acceptor {
        ip: IpAddr,
        threads: usize,
        seconds: f64,
    },
    /// Connects and closes, over and over.
    Connector {
        to: SocketAddr,
        threads: usize,
        seconds: f64,
    },
}

/// What a client node does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) threads: usize,
    /// Connections of each thread.
    pub(crate) connections: usize,
    /// Sessions on each connection.
    pub(crate) sessions: usize,
    /// Requests in flight on each session.
    pub(crate) window: usize,
    /// Random bytes of each answer, checked; 0: empty answers.
    pub(crate) payload_bytes: usize,
    pub(crate) seconds: f64,
    pub(crate) interval_seconds: f64,
}

/// How a client of farfork's asks.
#[derive(Debug, Clone)]
pub(crate) struct Manner {
    pub(crate) spins: bool,
    pub(crate) security: Option<Arc<dyn Security>>,
}

/// What is counted while it runs, by one thread.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) answers: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) stop: AtomicBool,
}

/// Latencies of one thread.
pub(crate) type Latencies = Histogram<u64>;

/// An empty histogram: two significant digits, to a minute.
pub(crate) fn new_latencies() -> Latencies {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2).expect("the bounds are right")
}

/// Is the end that the specification asks for.
///
/// # Errors
/// It cannot listen, connect or speak.
pub fn be_end(specification: &str) -> io::Result<()> {
    let end: End = serde_json::from_str(specification)?;
    pin(&end.processors)?;
    let credentials = end.identity.as_ref().map(Identity::credentials).transpose()?;
    let security = || credentials.clone().map(|credentials| Arc::new(Secured::new(credentials)) as Arc<dyn Security>);
    match &end.side {
        Side::Server { ip, threads, seconds } => {
            end_after(*seconds);
            match end.system {
                System::Farfork => workload::calls::serve(*ip, *threads, end.spins, security()),
                other => peer::serve(other, *ip),
            }
        }
        Side::Client { to, load } => drive(end.system, *to, load, &Manner { spins: end.spins, security: security() }),
        Side::Acceptor { ip, threads, seconds } => {
            end_after(*seconds);
            workload::handshakes::serve(*ip, *threads, credentials.as_ref())
        }
        Side::Connector { to, threads, seconds } => {
            let run = Duration::from_secs_f64(*seconds);
            workload::handshakes::drive(*to, *threads, run, credentials.as_ref())
        }
    }
}

fn end_after(seconds: f64) {
    thread::spawn(move || {
        thread::sleep(Duration::from_secs_f64(seconds));
        std::process::exit(0);
    });
}

fn pin(processors: &[usize]) -> io::Result<()> {
    if processors.is_empty() {
        return Ok(());
    }
    let mut set = rustix::thread::CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Says a line at once.
pub(crate) fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Says where a server listens, and waits until its input ends.
pub(crate) fn listening(port: u16) -> io::Result<()> {
    say(&format!("listening {port}"))?;
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}

fn drive(system: System, to: SocketAddr, load: &Load, manner: &Manner) -> io::Result<()> {
    let (latencies, load) = (Arc::new(Mutex::new(new_latencies())), *load);
    let gate = Arc::new(std::sync::Barrier::new(load.threads + 1));
    let threads: Vec<_> = (0..load.threads)
        .map(|_| {
            let (counts, gate, latencies) = (Arc::<Counts>::default(), Arc::clone(&gate), Arc::clone(&latencies));
            let (counted, manner) = (Arc::clone(&counts), manner.clone());
            let thread = thread::spawn(move || {
                let run = || gate.wait();
                let own = match system {
                    System::Farfork => workload::calls::drive(to, &load, &manner, &counted, run),
                    other => peer::drive(other, to, &load, &counted, run),
                }?;
                latencies.lock().expect("no thread panics with it").add(own).map_err(io::Error::other)
            });
            (counts, thread)
        })
        .collect();
    say("ready")?;
    io::stdin().read_exact(&mut [0])?;
    gate.wait();
    let began = Instant::now();
    let total =
        |of: fn(&Counts) -> &AtomicU64| threads.iter().map(|(counts, _)| of(counts).load(Ordering::Relaxed)).sum();
    let line = |word: &str, before: u64, elapsed: Duration| {
        let answers: u64 = total(|counts| &counts.answers);
        let (errors, damaged): (u64, u64) = (total(|counts| &counts.errors), total(|counts| &counts.damaged));
        (answers, format!("{word} {} {} {errors} {damaged}", answers - before, elapsed.as_nanos()))
    };
    let (mut before, mut mark) = (0, began);
    for interval in 1..=load.intervals() {
        let until = began + Duration::from_secs_f64(load.interval_seconds) * interval;
        thread::sleep(until.saturating_duration_since(Instant::now()));
        let (answers, text) = line("interval", before, mark.elapsed());
        (before, mark) = (answers, Instant::now());
        say(&text)?;
    }
    let (_, text) = line("done", 0, began.elapsed());
    threads.iter().for_each(|(counts, _)| counts.stop.store(true, Ordering::Relaxed));
    for (_, thread) in threads {
        thread.join().map_err(|_| io::Error::other("a client's thread panicked"))??;
    }
    let latencies = latencies.lock().expect("all threads have ended");
    let quantiles = [0.5, 0.9, 0.99, 0.999].map(|quantile| latencies.value_at_quantile(quantile).to_string());
    say(&format!("{text} {} {} {}", latencies.len(), quantiles.join(" "), latencies.max()))
}

impl Load {
    /// Intervals that are reported.
    pub(crate) fn intervals(&self) -> u32 {
        (self.seconds / self.interval_seconds).round().max(1.0) as u32
    }
}
