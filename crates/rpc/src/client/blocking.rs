//! Blocking use of a client: waits for the client's socket, or for the reply to one call.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::connection::Client;
use super::protocol::SessionHandle;
use super::request::{CallError, Completion, OutgoingRequest, RequestPayload, SubmitError};

/// Longest sleep: a safeguard if an event or timeout is missed.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Longest time that a call spins for its reply before it sleeps: a few hops of a fast network.
const ANSWER_SPIN_LIMIT: Duration = Duration::from_micros(300);

/// Why a blocking call has no reply.
#[derive(Debug, thiserror::Error)]
pub enum BlockingCallError {
    /// The request was not accepted.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The request ended without a reply.
    #[error(transparent)]
    Call(#[from] CallError),
    /// poll(2) failed.
    #[error("cannot wait for the connection: {0}")]
    Wait(#[from] io::Error),
}

impl Client {
    /// Waits until [`Client::poll`] has something to do, or until `until`. While the client spins, yields the CPU once
    /// and returns. Returns at once if the last poll may have left data.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait_ready(&mut self, now: Instant, until: Option<Instant>) -> io::Result<()> {
        if self.has_more {
            return Ok(());
        }
        if self.spin.as_ref().is_some_and(|spin| spin.should_spin(now)) {
            std::thread::yield_now();
            return Ok(());
        }
        let until = [until, self.next_timeout(), Some(now + SLEEP_MAX)].into_iter().flatten().min();
        let sleep = until.map_or(SLEEP_MAX, |until| until.saturating_duration_since(now));
        let timeout = Timespec { tv_sec: sleep.as_secs() as i64, tv_nsec: i64::from(sleep.subsec_nanos()) };
        let Some(socket) = self.socket() else {
            std::thread::sleep(sleep.min(self.retry_delay));
            return Ok(());
        };
        let events = if self.has_unsent() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        match rustix::event::poll(&mut [PollFd::new(&socket, events)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends a request and waits for its reply. `others` gets the completions of other requests that end during the
    /// wait.
    ///
    /// # Errors
    /// [`BlockingCallError`]: the reason why there is no reply.
    pub fn call_blocking(
        &mut self,
        session: SessionHandle,
        call: &OutgoingRequest,
        body: RequestPayload<'_>,
        mut others: impl FnMut(Completion<'_>),
    ) -> Result<Vec<u8>, BlockingCallError> {
        let mut now = Instant::now();
        self.submit(now, session, call, body)?;
        if let Some(spin) = &mut self.spin {
            spin.start_wait(now);
        }
        let mut result = None;
        loop {
            self.poll(now, |completion| {
                if completion.tag == call.tag {
                    result = Some(completion.result.map(crate::ReceivedPayload::into_vec));
                } else {
                    others(completion);
                }
            });
            if let Some(result) = result {
                return Ok(result?);
            }
            self.wait_answer(now)?;
            now = Instant::now();
        }
    }

    /// Waits until [`Client::poll`] has something to do. Spins longer before it sleeps, because a reply is due.
    fn wait_answer(&mut self, now: Instant) -> io::Result<()> {
        match self.spin.as_mut().filter(|spin| spin.should_spin_for(now, ANSWER_SPIN_LIMIT)) {
            Some(spin) => {
                spin.yield_cpu();
                Ok(())
            }
            None => self.wait_ready(now, None),
        }
    }
}
