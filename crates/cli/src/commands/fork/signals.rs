//! `SignalForwarder`: forwards the signals of this command to its children. It is started before the first child, so
//! that no signal can end the command and leave children running.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_api::client::{Client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::{KillRequest, StopForkRequest};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::signal::FORWARDED_SIGNALS;

pub(super) const SIGPIPE: u32 = 13;
pub(super) const SIGTERM: u32 = 15;
const SIGKILL: u32 = 9;

/// The number of terminating signals at the start of [`FORWARDED_SIGNALS`].
const TERMINATING_COUNT: usize = 4;

/// Maximum number of concurrent signal requests. More would only wait in the daemon's queue.
const CONCURRENT_SENDS_MAX: usize = 64;

/// A terminating signal that follows the same signal within this time is the same event: timeout(1) signals the command
/// and then its process group, and a closed terminal sends SIGHUP more than once.
const DUPLICATE_LIMIT: Duration = Duration::from_millis(200);

/// Time after a terminating signal in which the same signal again kills an attached child. A later one is forwarded: a
/// program may handle SIGINT and continue, like an interpreter that reads the next line.
const REPETITION_LIMIT: Duration = Duration::from_secs(5);

/// Interval between two requests to stop the starts: a node that has not received its part of the fork misses a request.
const STOP_INTERVAL: Duration = Duration::from_millis(200);

/// Time after a second terminating signal in which the starts must stop. Then this command ends without their outcome. Busy
/// nodes need seconds.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How the starts of the children ended.
pub(super) enum StartsEnd<T> {
    /// The starts have an outcome. These signals arrived before; the caller forwards them.
    Finished(T, Vec<ReceivedSignal>),
    /// A repeated terminating signal, this one first, ended this command before they had an outcome.
    Interrupted(u32),
}

/// A signal of this command, and when it arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceivedSignal {
    number: u32,
    at: Instant,
}

impl ReceivedSignal {
    /// Whether this signal is the same event as the previous signal of its number.
    fn is_duplicate_of(self, previous: Option<Self>) -> bool {
        is_terminating(self.number)
            && previous.is_some_and(|previous| self.at.duration_since(previous.at) < DUPLICATE_LIMIT)
    }
}

/// Receives the signals of this command, in order, without duplicates.
pub(super) struct SignalForwarder(mpsc::UnboundedReceiver<ReceivedSignal>);

impl SignalForwarder {
    /// Installs handlers for [`FORWARDED_SIGNALS`].
    pub(super) fn start() -> io::Result<Self> {
        let (sent, arrived) = mpsc::unbounded_channel();
        for number in FORWARDED_SIGNALS {
            let mut signals = signal(SignalKind::from_raw(number.cast_signed()))?;
            let sent = sent.clone();
            tokio::spawn(async move {
                let mut previous = None;
                while signals.recv().await.is_some() {
                    let received = ReceivedSignal { number, at: Instant::now() };
                    if received.is_duplicate_of(previous) {
                        continue;
                    }
                    previous = Some(received);
                    if sent.send(received).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self(arrived))
    }

    /// Waits for the start of the children. The first terminating signal stops the starts of `batch`. After a second one, the
    /// starts have [`STOP_TIMEOUT`] to end. A third one interrupts them at once.
    pub(super) async fn hold_during<T>(
        &mut self,
        client: &Client,
        batch: u64,
        start: impl Future<Output = Result<T, Failure>>,
    ) -> Result<StartsEnd<T>, Failure> {
        let mut start = std::pin::pin!(start);
        let mut stop = std::pin::pin!(stop_starts(client.clone(), batch));
        let mut kept: Vec<ReceivedSignal> = Vec::new();
        loop {
            let is_stopping = batch != 0 && first_terminating(&kept).is_some();
            let deadline = stop_deadline(&kept);
            tokio::select! {
                started = &mut start => return Ok(StartsEnd::Finished(started?, kept)),
                Some(received) = self.0.recv() => kept.push(received),
                () = &mut stop, if is_stopping => {}
                () = sleep_until(deadline), if deadline.is_some() => {
                    return Ok(StartsEnd::Interrupted(first_terminating(&kept).unwrap_or(SIGTERM)));
                }
            }
        }
    }

    /// Forwards the `kept` signals to the children, then each new signal, as [`SignalEscalation`] decides.
    pub(super) fn forward(
        mut self,
        client: &Client,
        children: &[String],
        kept: Vec<ReceivedSignal>,
        is_attached: bool,
    ) {
        let (client, children) = (client.clone(), children.to_vec());
        tokio::spawn(async move {
            let (mut kept, mut escalation) = (kept.into_iter(), SignalEscalation { is_attached, previous: None });
            loop {
                let next = match kept.next() {
                    None => self.0.recv().await,
                    kept => kept,
                };
                let Some(received) = next else { return };
                send_signal(&client, &children, escalation.choose_signal(received)).await;
            }
        });
    }
}

/// Decides which signal the children get for a signal of this command, so that a repeated terminating signal ends
/// children that ignore the first. A shell without job control starts background programs with SIGINT and SIGQUIT
/// ignored, and their children ignore them too.
struct SignalEscalation {
    is_attached: bool,
    /// The last terminating signal.
    previous: Option<ReceivedSignal>,
}

impl SignalEscalation {
    /// Returns the signal for the children.
    ///
    /// An attached child gets each signal unchanged, but SIGKILL if a terminating one is repeated soon. Children that
    /// are not attached get SIGTERM for the first terminating signal, and SIGKILL for each further one, because they may
    /// handle SIGHUP, SIGINT and SIGQUIT in different ways.
    fn choose_signal(&mut self, received: ReceivedSignal) -> u32 {
        let ReceivedSignal { number, at } = received;
        if !is_terminating(number) {
            return number;
        }
        let same = self.previous.filter(|previous| previous.number == number);
        let is_repeated = same.is_some_and(|previous| at.duration_since(previous.at) < REPETITION_LIMIT);
        let chosen = match (self.is_attached, self.previous) {
            (true, _) if is_repeated => SIGKILL,
            (true, _) => number,
            (false, None) => SIGTERM,
            (false, Some(_)) => SIGKILL,
        };
        self.previous = Some(received);
        chosen
    }
}

/// When repeated terminating signals interrupt the starts; `None` if no signal was repeated.
fn stop_deadline(signals: &[ReceivedSignal]) -> Option<Instant> {
    let mut repeated = signals.iter().filter(|received| is_terminating(received.number)).skip(1);
    let second = repeated.next()?;
    Some(repeated.next().map_or(second.at + STOP_TIMEOUT, |third| third.at))
}

async fn sleep_until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        tokio::time::sleep_until(deadline.into()).await;
    }
}

/// Returns the first terminating signal.
pub(super) fn first_terminating(signals: &[ReceivedSignal]) -> Option<u32> {
    signals.iter().map(|received| received.number).find(|number| is_terminating(*number))
}

/// Requests again and again that no further child of the batch is started. A daemon of an earlier release does not know
/// the request: then all children are started.
async fn stop_starts(mut client: Client, batch: u64) {
    loop {
        let _ = client.stop_fork(request_with_timeout(QUERY_TIMEOUT, StopForkRequest { batch })).await;
        tokio::time::sleep(STOP_INTERVAL).await;
    }
}

fn is_terminating(number: u32) -> bool {
    FORWARDED_SIGNALS[..TERMINATING_COUNT].contains(&number)
}

/// Sends a signal to each child in a separate request, so that a node that does not answer delays no other node. A
/// child that has just ended needs no signal, so errors are ignored.
pub(super) async fn send_signal(client: &Client, children: &[String], number: u32) {
    let turns = Arc::new(Semaphore::new(CONCURRENT_SENDS_MAX));
    let mut requests = JoinSet::new();
    for child in children {
        let (mut client, turns) = (client.clone(), Arc::clone(&turns));
        let request = KillRequest { child: child.clone(), signal: number, by_program: false };
        requests.spawn(async move {
            let _turn = turns.acquire_owned().await;
            let _ = client.kill(request_with_timeout(QUERY_TIMEOUT, request)).await;
        });
    }
    requests.join_all().await;
}

#[cfg(test)]
mod tests {
    use super::{ReceivedSignal, SIGKILL, SIGTERM, SignalEscalation};
    use std::time::{Duration, Instant};

    const SIGINT: u32 = 2;
    const SIGUSR1: u32 = 10;

    /// Returns the signals that the children get for signals of the command at these times, in milliseconds.
    fn chosen(is_attached: bool, signals: &[(u32, u64)]) -> Vec<u32> {
        let mut escalation = SignalEscalation { is_attached, previous: None };
        let start = Instant::now();
        let receive = |(number, at_ms): &(u32, u64)| {
            let at = start + Duration::from_millis(*at_ms);
            escalation.choose_signal(ReceivedSignal { number: *number, at })
        };
        signals.iter().map(receive).collect()
    }

    #[test]
    fn the_same_terminating_signal_again_kills_an_attached_child() {
        let soon = [(SIGINT, 0), (SIGUSR1, 500), (SIGINT, 1000)];
        assert_eq!(chosen(true, &soon), [SIGINT, SIGUSR1, SIGKILL]);
        assert_eq!(chosen(true, &[(SIGINT, 0), (SIGTERM, 1000)]), [SIGINT, SIGTERM]);
        let later = [(SIGINT, 0), (SIGINT, 6000), (SIGINT, 7000)];
        assert_eq!(chosen(true, &later), [SIGINT, SIGINT, SIGKILL]);
    }

    #[test]
    fn several_children_get_sigterm_then_sigkill() {
        assert_eq!(chosen(false, &[(SIGINT, 0), (SIGTERM, 9000)]), [SIGTERM, SIGKILL]);
        assert_eq!(chosen(false, &[(SIGUSR1, 0), (SIGINT, 1)]), [SIGUSR1, SIGTERM]);
    }

    #[test]
    fn equal_terminating_signals_in_quick_succession_are_one_event() {
        let first = |number| ReceivedSignal { number, at: Instant::now() };
        let later = |signal: ReceivedSignal, ms| ReceivedSignal { at: signal.at + Duration::from_millis(ms), ..signal };
        let terminating = first(SIGTERM);
        assert!(later(terminating, 150).is_duplicate_of(Some(terminating)));
        assert!(!later(terminating, 250).is_duplicate_of(Some(terminating)) && !terminating.is_duplicate_of(None));
        let other = first(SIGUSR1);
        assert!(!later(other, 1).is_duplicate_of(Some(other)));
    }
}
