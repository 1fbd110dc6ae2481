//! Peers: other RPC systems, measured in the same run with the same calls. Calls are empty, windows are equal, and each
//! side has one thread. Each system has one file. Only `farfork bench rpc` uses them.

mod tarpc;
mod tokio_echo;
mod tonic;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::endpoint::CallCounts;
use crate::endpoint::announce_port;
use crate::endpoint::latencies::{Latencies, new_latencies};
use crate::endpoint::specification::{ClientLoad, RpcSystem};

/// How often a client checks whether to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// One latency is recorded per this many requests.
const CALLS_PER_SAMPLE: u64 = 16;

/// The records of one task.
#[derive(Debug)]
struct CallRecorder<'a> {
    counts: &'a CallCounts,
    latencies: std::cell::RefCell<Latencies>,
}

impl CallRecorder<'_> {
    /// Records an answer to the request that was sent at `sent_at`.
    fn record_answer(&self, sent_at: Instant) {
        if self.counts.answers.fetch_add(1, Ordering::Relaxed).is_multiple_of(CALLS_PER_SAMPLE) {
            self.latencies.borrow_mut().saturating_record(sent_at.elapsed().as_nanos() as u64);
        }
    }

    /// Waits until the client is to stop.
    async fn wait_stop(&self) {
        while !self.counts.stop.load(Ordering::Relaxed) {
            tokio::time::sleep(STOP_POLL_INTERVAL).await;
        }
    }
}

/// Serves until standard input ends.
pub(crate) fn serve(system: RpcSystem, ip: IpAddr) -> io::Result<()> {
    let listener = std::net::TcpListener::bind((ip, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        if let Err(cause) = block_on(serve_on(system, listener)) {
            eprintln!("farfork: the server of {} ends: {cause}", system.name());
        }
    });
    announce_port(port)
}

async fn serve_on(system: RpcSystem, listener: std::net::TcpListener) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    match system {
        RpcSystem::Tokio => tokio_echo::serve(listener).await,
        RpcSystem::TonicUnary | RpcSystem::TonicStream => tonic::serve(listener).await,
        RpcSystem::Tarpc => tarpc::serve(listener).await,
        RpcSystem::Farfork => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Calls `run`, which waits for the common start. Then sends requests on one connection until the flag `stop` of
/// `counts` is set.
pub(crate) fn run_client<T>(
    system: RpcSystem,
    to: SocketAddr,
    load: &ClientLoad,
    counts: &CallCounts,
    run: impl FnOnce() -> T,
) -> io::Result<Latencies> {
    run();
    let tally = CallRecorder { counts, latencies: new_latencies().into() };
    block_on(async {
        let asking = async {
            match system {
                RpcSystem::Tokio => tokio_echo::run_client(to, load.window, &tally).await,
                RpcSystem::TonicUnary => tonic::run_unary_client(to, load.window, &tally).await,
                RpcSystem::TonicStream => tonic::run_stream_client(to, load.window, &tally).await,
                RpcSystem::Tarpc => tarpc::run_client(to, load.window, &tally).await,
                RpcSystem::Farfork => Err(io::ErrorKind::Unsupported.into()),
            }
        };
        tokio::select! {
            outcome = asking => outcome,
            () = tally.wait_stop() => Ok(()),
        }
    })?;
    Ok(tally.latencies.into_inner())
}

/// Runs `count` of these tasks on this thread, until all have ended or one fails.
async fn run_concurrently(count: usize, task: impl AsyncFn() -> io::Result<()>) -> io::Result<()> {
    let mut tasks: futures_util::stream::FuturesUnordered<_> = (0..count).map(|_| task()).collect();
    while let Some(outcome) = futures_util::StreamExt::next(&mut tasks).await {
        outcome?;
    }
    Ok(())
}

/// Runs a future on one thread, because all systems are measured with one thread.
fn block_on<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // A LocalSet keeps spawned tasks on this thread.
    tokio::task::LocalSet::new().block_on(&runtime, future)
}
