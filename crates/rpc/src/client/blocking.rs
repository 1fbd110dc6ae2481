//! Blocking use of a client, for threads that wait: for the client's socket, or for the answer to one call.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::connection::Client;
use super::protocol::SessionHandle;
use super::request::{CallError, Completion, OutgoingRequest, RequestPayload, SubmitError};

/// Longest sleep. It is a safeguard, not a schedule.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// How long a call spins for its answer before it sleeps: a few hops of a fast network.
const ANSWER_SPIN_LIMIT: Duration = Duration::from_micros(300);

/// Why a blocking call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum BlockingCallError {
    /// The request was not accepted.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The request ended without an answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// poll(2) failed.
    #[error("cannot wait for the connection: {0}")]
    Wait(#[from] io::Error),
}

impl Client {
    /// Waits until a poll has something to do, or until `until`. It spins for a while before it sleeps. It returns at once
    /// if the last poll may have left data.
    ///
    /// # Errors
    /// When poll(2) fails.
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

    /// Sends a request and waits for its answer. `others` gets the requests that end in the meantime.
    ///
    /// # Errors
    /// Why there is no answer.
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

    /// Waits until a poll has something to do. It spins longer before it sleeps, because an answer is due.
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
