//! The handlers of the tests, and a record of the requests that they executed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfork_fabric::sim::World;
use farfork_rpc::{DeferredReply, HandlerTable};

/// Handler that replies before it returns.
pub(crate) const AT_ONCE: u32 = 1;
/// Handler that replies later.
pub(crate) const LATER: u32 = 2;
/// Handler that replies with a long payload, which is moved.
pub(crate) const LONG: u32 = 3;

/// The requests that were executed, by any server and thread.
#[derive(Default)]
struct Done {
    executed: HashMap<u64, u32>,
    later: Vec<(DeferredReply, u64)>,
}

/// The record of all handlers.
#[derive(Clone, Default)]
pub(crate) struct Works(Arc<Mutex<Done>>);

impl Works {
    fn lock(&self) -> MutexGuard<'_, Done> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the handlers of one thread.
    pub(crate) fn handlers(&self) -> HandlerTable {
        let mut handlers = HandlerTable::default();
        let works = self.clone();
        handlers.add_handler(AT_ONCE, move |payload, reply| reply.write(&answer_to(works.execute(payload), AT_ONCE)));
        let works = self.clone();
        handlers.add_handler(LONG, move |payload, reply| reply.set_payload(answer_to(works.execute(payload), LONG)));
        let works = self.clone();
        handlers.add_deferred_handler(LATER, move |payload, deferred| {
            let number = works.execute(&payload);
            works.lock().later.push((deferred, number));
        });
        handlers
    }

    fn execute(&self, payload: &[u8]) -> u64 {
        let number = u64::from_le_bytes(*payload.first_chunk().expect("a request has its number"));
        assert_eq!(payload, body_of(number), "a request's bytes arrive");
        let mut done = self.lock();
        let times = done.executed.entry(number).or_default();
        *times += 1;
        assert_eq!(*times, 1, "request {number} is executed again");
        number
    }

    /// Whether a request was executed.
    pub(crate) fn has_executed(&self, number: u64) -> bool {
        self.lock().executed.contains_key(&number)
    }

    /// Number of deferred replies that are not sent yet.
    pub(crate) fn later(&self) -> usize {
        self.lock().later.len()
    }

    /// Sends one of the deferred replies, or drops it.
    pub(crate) fn finish_one(&self, world: &World, may_give_up: bool) {
        let count = self.later() as u64;
        if count == 0 {
            return;
        }
        let index = world.random_below(count) as usize;
        let (deferred, number) = self.lock().later.swap_remove(index);
        if may_give_up && world.random_bool(0.05) {
            drop(deferred);
        } else {
            deferred.answer(answer_to(number, LATER));
        }
    }
}

/// Returns the payload of a request. Most payloads are short.
pub(crate) fn body_of(number: u64) -> Vec<u8> {
    let bytes = if number.is_multiple_of(31) { 40_000 } else { number as usize % 600 };
    [&number.to_le_bytes()[..], &pattern(7, number, bytes)].concat()
}

/// Returns the payload of the reply to a request.
pub(crate) fn answer_to(number: u64, handler: u32) -> Vec<u8> {
    pattern(13, number, if handler == LONG { 40_000 } else { number as usize % 900 })
}

fn pattern(step: u64, number: u64, bytes: usize) -> Vec<u8> {
    let period: [u8; 256] = std::array::from_fn(|at| (at as u64 * step + number) as u8);
    let mut pattern = period.repeat(bytes.div_ceil(period.len()));
    pattern.truncate(bytes);
    pattern
}
