//! What children may use of the node's memory: one is refused where the limits of all that run come to more than there is, or
//! where the machine has next to nothing left. What those without a limit will use nobody knows.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_sys::memory_info::MemoryInfo;
use tonic::Code;

use crate::amount;
use crate::failure::Failure;

/// For so long what was read of the machine's memory is believed: children may come by the thousand a second.
const BELIEVED: Duration = Duration::from_millis(50);

/// The part of the machine's memory that is left to it: with less, anything might be killed for a child's next page.
const RESERVE_PART: u64 = 64;

/// What children may use.
#[derive(Debug)]
pub(crate) struct ChildBudget {
    /// All limits summed up; none where the machine does not say what it has.
    bytes_max: Option<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Limits of children that are being started.
    starting_bytes: u64,
    /// How much was left, and when; none before the first look.
    seen: Option<(Instant, MemoryInfo)>,
}

/// Room for a child that is being started, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    budget: &'a ChildBudget,
    bytes: u64,
}

impl ChildBudget {
    /// Children's limits may come to so much, or to all that the machine has.
    pub(crate) fn new(bytes_max: Option<u64>) -> Self {
        let machine = MemoryInfo::read().ok().map(|memory| memory.total_bytes);
        Self { bytes_max: bytes_max.or(machine), state: Mutex::default() }
    }

    /// Makes room for a child with that limit, beside those that live, whose limits come to `living`.
    ///
    /// # Errors
    /// There is none; the failure says why.
    pub(crate) fn admit(
        &self,
        object: &str,
        limit: Option<u64>,
        living: impl FnOnce() -> u64,
    ) -> Result<Room<'_>, Failure> {
        let mut state = self.state();
        if let Some(MemoryInfo { total_bytes, available_bytes }) = state.look()
            && available_bytes < total_bytes / RESERVE_PART
        {
            let [left, all] = [available_bytes, total_bytes].map(amount::bytes);
            let cause =
                format!("{left} of the machine's {all} of memory are left: it might be killed, or others for it");
            return Err(refused(object, cause));
        }
        let bytes = limit.unwrap_or(0);
        if let (Some(limit), Some(bytes_max)) = (limit, self.bytes_max) {
            let promised = living() + state.starting_bytes;
            if promised.saturating_add(limit) > bytes_max {
                let [limit, promised, all] = [limit, promised, bytes_max].map(amount::bytes);
                let cause = format!("it may use {limit}, others that run may use {promised}, and all children {all}");
                return Err(refused(object, cause));
            }
        }
        state.starting_bytes += bytes;
        Ok(Room { budget: self, bytes })
    }

    /// What all limits may come to.
    pub(crate) fn bytes_max(&self) -> Option<u64> {
        self.bytes_max
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn look(&mut self) -> Option<MemoryInfo> {
        let is_old = self.seen.is_none_or(|(when, _)| when.elapsed() >= BELIEVED);
        if is_old {
            self.seen = MemoryInfo::read().ok().map(|memory| (Instant::now(), memory));
        }
        self.seen.map(|(_, memory)| memory)
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.budget.state().starting_bytes -= self.bytes;
    }
}

fn refused(object: &str, cause: String) -> Failure {
    let step = "wait until children have ended, give them less (`--memory`), or fork to other nodes (`--to`)";
    Failure::new(Code::ResourceExhausted, object, cause).with_next_step(step)
}

#[cfg(test)]
mod tests {
    use super::ChildBudget;

    #[test]
    fn limits_are_summed_up_with_those_of_children_that_start() {
        let budget = ChildBudget::new(Some(100));
        let first = budget.admit("a child", Some(40), || 20).unwrap();
        assert!(budget.admit("a child", Some(41), || 20).unwrap_err().to_string().contains("a child"));
        let second = budget.admit("a child", Some(40), || 20).unwrap();
        assert!(budget.admit("a child", None, || 1000).is_ok(), "nobody knows what it will use");
        drop((first, second));
        assert!(budget.admit("a child", Some(80), || 20).is_ok());
        assert!(budget.admit("a child", Some(81), || 20).is_err());
    }

    #[test]
    fn all_of_the_machine_may_be_promised_and_no_more() {
        let budget = ChildBudget::new(None);
        let all = budget.bytes_max().unwrap();
        assert!(budget.admit("a child", Some(all), || 0).is_ok());
        assert!(budget.admit("a child", Some(all), || 1).is_err());
    }
}
