//! `SignalForwarder`: forwards the signals of this command to its children. It is started before the first child, so
//! that no signal can end the command and leave children running.

use std::io;
use std::sync::Arc;

use farfork_api::client::{Client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::KillRequest;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tonic::Code;

pub(super) const SIGPIPE: u32 = 13;
pub(super) const SIGTERM: u32 = 15;
const SIGKILL: u32 = 9;

/// The forwarded signals: those that users and supervisors send. The terminating signals are first.
const FORWARDED_SIGNALS: [u32; 7] = [
    1,       // SIGHUP
    2,       // SIGINT
    3,       // SIGQUIT
    SIGTERM, //
    10,      // SIGUSR1
    12,      // SIGUSR2
    18,      // SIGCONT
];

/// The number of terminating signals at the start of [`FORWARDED_SIGNALS`].
const TERMINATING_COUNT: usize = 4;

/// Maximum number of concurrent signal requests. More would only wait in the daemon's queue.
const CONCURRENT_SENDS_MAX: usize = 64;

/// Receives the signals of this command, in order.
pub(super) struct SignalForwarder(mpsc::UnboundedReceiver<u32>);

impl SignalForwarder {
    /// Installs handlers for [`FORWARDED_SIGNALS`].
    pub(super) fn start() -> io::Result<Self> {
        let (sent, arrived) = mpsc::unbounded_channel();
        for number in FORWARDED_SIGNALS {
            let mut signals = signal(SignalKind::from_raw(number.cast_signed()))?;
            let sent = sent.clone();
            tokio::spawn(async move { while signals.recv().await.is_some() && sent.send(number).is_ok() {} });
        }
        Ok(Self(arrived))
    }

    /// Waits for the start of the children. Returns the signals that arrived during the start; the caller forwards
    /// them. A second terminating signal ends this command.
    pub(super) async fn hold_during<T>(
        &mut self,
        seed: &str,
        start: impl Future<Output = Result<T, Failure>>,
    ) -> Result<(T, Vec<u32>), Failure> {
        let mut start = std::pin::pin!(start);
        let mut kept = Vec::new();
        loop {
            tokio::select! {
                started = &mut start => return Ok((started?, kept)),
                Some(number) = self.0.recv() => kept.push(number),
            }
            if kept.iter().copied().filter(is_terminating).count() > 1 {
                let cause = "interrupted while its children started";
                return Err(Failure::new(Code::Cancelled, format!("seed {seed}"), cause)
                    .with_next_step("the children that were started are ended"));
            }
        }
    }

    /// Forwards the `kept` signals to the children, then each new signal. An attached child gets each signal unchanged.
    /// Children that are not attached get SIGTERM instead of the first terminating signal, and SIGKILL instead of each
    /// further one. Children may handle SIGHUP, SIGINT and SIGQUIT in different ways.
    pub(super) fn forward(mut self, client: &Client, children: &[String], kept: Vec<u32>, is_attached: bool) {
        let (client, children) = (client.clone(), children.to_vec());
        tokio::spawn(async move {
            let (mut kept, mut ending) = (kept.into_iter(), [SIGTERM].into_iter());
            loop {
                let next = match kept.next() {
                    None => self.0.recv().await,
                    kept => kept,
                };
                match next {
                    None => return,
                    Some(number) if is_attached || !is_terminating(&number) => {
                        send_signal(&client, &children, number).await
                    }
                    Some(_) => send_signal(&client, &children, ending.next().unwrap_or(SIGKILL)).await,
                }
            }
        });
    }
}

fn is_terminating(number: &u32) -> bool {
    FORWARDED_SIGNALS[..TERMINATING_COUNT].contains(number)
}

/// Sends a signal to each child in a separate request, so that a node that does not answer delays no other node. A
/// child that has just ended needs no signal, so errors are ignored.
pub(super) async fn send_signal(client: &Client, children: &[String], number: u32) {
    let turns = Arc::new(Semaphore::new(CONCURRENT_SENDS_MAX));
    let mut requests = JoinSet::new();
    for child in children {
        let (mut client, turns) = (client.clone(), Arc::clone(&turns));
        let request = KillRequest { child: child.clone(), signal: number };
        requests.spawn(async move {
            let _turn = turns.acquire_owned().await;
            let _ = client.kill(request_with_timeout(QUERY_TIMEOUT, request)).await;
        });
    }
    requests.join_all().await;
}
