//! What others make of the same calls, measured in the same run: empty ones, at the same windows, one thread on each side.
//! One file each. They are part of the benchmark, of nothing else.

mod tarpc;
mod tokio_echo;
mod tonic;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::end::counts::{Counts, Latencies, new_latencies};
use crate::end::lines::listening;
use crate::end::specification::{Load, System};

/// Between two looks whether to end.
const STOP_PAUSE: Duration = Duration::from_millis(20);

/// Latencies of so many requests are told by one of them.
const SAMPLED: u64 = 16;

/// What a task counts by itself.
#[derive(Debug)]
struct Tally<'a> {
    counts: &'a Counts,
    latencies: std::cell::RefCell<Latencies>,
}

impl Tally<'_> {
    /// An answer came to what was asked then.
    fn answered(&self, asked: Instant) {
        if self.counts.answers.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED) {
            self.latencies.borrow_mut().saturating_record(asked.elapsed().as_nanos() as u64);
        }
    }

    /// Waits until it is time to end.
    async fn stopped(&self) {
        while !self.counts.stop.load(Ordering::Relaxed) {
            tokio::time::sleep(STOP_PAUSE).await;
        }
    }
}

/// Serves until its input ends.
pub(crate) fn serve(system: System, ip: IpAddr) -> io::Result<()> {
    let listener = std::net::TcpListener::bind((ip, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        if let Err(cause) = block_on(serve_on(system, listener)) {
            eprintln!("farfork: the server of {} ends: {cause}", system.name());
        }
    });
    listening(port)
}

async fn serve_on(system: System, listener: std::net::TcpListener) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    match system {
        System::Tokio => tokio_echo::serve(listener).await,
        System::TonicUnary | System::TonicStream => tonic::serve(listener).await,
        System::Tarpc => tarpc::serve(listener).await,
        System::Farfork => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Asks from `run` on until it is told to stop, with one connection.
pub(crate) fn drive<T>(
    system: System,
    to: SocketAddr,
    load: &Load,
    counts: &Counts,
    run: impl FnOnce() -> T,
) -> io::Result<Latencies> {
    run();
    let tally = Tally { counts, latencies: new_latencies().into() };
    block_on(async {
        let asking = async {
            match system {
                System::Tokio => tokio_echo::drive(to, load.window, &tally).await,
                System::TonicUnary => tonic::drive_unary(to, load.window, &tally).await,
                System::TonicStream => tonic::drive_stream(to, load.window, &tally).await,
                System::Tarpc => tarpc::drive(to, load.window, &tally).await,
                System::Farfork => Err(io::ErrorKind::Unsupported.into()),
            }
        };
        tokio::select! {
            outcome = asking => outcome,
            () = tally.stopped() => Ok(()),
        }
    })?;
    Ok(tally.latencies.into_inner())
}

/// Runs so many of these at once, on this thread, until the first fails.
async fn together(count: usize, task: impl AsyncFn() -> io::Result<()>) -> io::Result<()> {
    let mut tasks: futures_util::stream::FuturesUnordered<_> = (0..count).map(|_| task()).collect();
    while let Some(outcome) = futures_util::StreamExt::next(&mut tasks).await {
        outcome?;
    }
    Ok(())
}

/// One thread, as everybody here has.
fn block_on<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Tasks that are spawned may stay on this thread.
    tokio::task::LocalSet::new().block_on(&runtime, future)
}
