//! A lock for tracing a process, which has at most one tracer. Without the lock, two captures of one process, or a capture
//! and the reaping of an older template, would take each other for a debugger.
//!
//! Callers get the lock in the order of their requests. Otherwise, captures in a loop would keep it from the reaping of
//! their templates, which would stay zombies of the process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::capture::error::CaptureError;

/// The tickets of each process, in the order of the requests. The first one has the lock.
static QUEUES: Mutex<TicketQueues> = Mutex::new(TicketQueues { next_ticket: 0, by_pid: BTreeMap::new() });
static LOCK_RELEASED: Condvar = Condvar::new();

struct TicketQueues {
    next_ticket: u64,
    by_pid: BTreeMap<i32, VecDeque<u64>>,
}

impl TicketQueues {
    fn add(&mut self, pid: i32) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.by_pid.entry(pid).or_default().push_back(ticket);
        ticket
    }

    fn is_first(&self, pid: i32, ticket: u64) -> bool {
        self.by_pid.get(&pid).and_then(VecDeque::front) == Some(&ticket)
    }

    fn remove(&mut self, pid: i32, ticket: u64) {
        if let Some(tickets) = self.by_pid.get_mut(&pid) {
            tickets.retain(|other| *other != ticket);
            if tickets.is_empty() {
                self.by_pid.remove(&pid);
            }
        }
    }
}

fn lock_queues() -> MutexGuard<'static, TicketQueues> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to trace a process, until this value is dropped.
#[derive(Debug)]
pub(in crate::capture) struct TraceLock {
    pid: i32,
    ticket: u64,
}

impl TraceLock {
    /// Waits for the lock, at most `limit`.
    ///
    /// # Errors
    /// [`CaptureError::TimedOut`]: another capture, or the reaping of a template, still traces the process.
    pub(in crate::capture) fn acquire(pid: i32, limit: Duration) -> Result<Self, CaptureError> {
        let mut queues = lock_queues();
        let ticket = queues.add(pid);
        let (mut queues, _) = LOCK_RELEASED
            .wait_timeout_while(queues, limit, |queues| !queues.is_first(pid, ticket))
            .unwrap_or_else(PoisonError::into_inner);
        if queues.is_first(pid, ticket) {
            return Ok(Self { pid, ticket });
        }
        queues.remove(pid, ticket);
        Err(CaptureError::TimedOut { pid, limit, phase: "waiting for another capture of it" })
    }
}

impl Drop for TraceLock {
    fn drop(&mut self) {
        lock_queues().remove(self.pid, self.ticket);
        LOCK_RELEASED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_lock_excludes_only_the_same_process() {
        let one = TraceLock::acquire(-7, Duration::ZERO).unwrap();
        assert!(TraceLock::acquire(-7, Duration::from_millis(1)).is_err());
        assert!(TraceLock::acquire(-8, Duration::ZERO).is_ok());
        drop(one);
        assert!(TraceLock::acquire(-7, Duration::ZERO).is_ok());
    }
    #[test]
    fn a_trace_lock_is_given_in_the_order_of_requests() {
        const PID: i32 = -9;
        let queued = || lock_queues().by_pid.get(&PID).map_or(0, VecDeque::len);
        let first = TraceLock::acquire(PID, Duration::ZERO).unwrap();
        let (acquired, order) = std::sync::mpsc::channel();
        let waiters: Vec<_> = (0..4)
            .map(|number| {
                let acquired = acquired.clone();
                let waiter = std::thread::spawn(move || {
                    let lock = TraceLock::acquire(PID, Duration::from_secs(30)).unwrap();
                    acquired.send(number).unwrap();
                    drop(lock);
                });
                while queued() < number + 2 {
                    std::thread::yield_now();
                }
                waiter
            })
            .collect();
        drop(first);
        assert!(TraceLock::acquire(PID, Duration::from_secs(30)).is_ok(), "the last ticket");
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(queued(), 0);
    }
}
