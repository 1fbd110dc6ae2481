//! Memory budget of children. A start is refused when the limits of all running children would exceed the budget, or
//! when the machine has almost no memory left. Children without a limit do not count: what they will use is unknown.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_sys::system_memory::SystemMemory;
use tonic::Code;

use farfork_api::byte_size;
use farfork_api::failure::Failure;

/// How long a reading of the machine's memory is valid. Thousands of children may start each second.
const MEMORY_INFO_TTL: Duration = Duration::from_millis(50);

/// This fraction (1/64) of the machine's memory must stay free. With less, the OOM killer might end any process.
const RESERVE_DIVISOR: u64 = 64;

/// The memory that children may use.
#[derive(Debug)]
pub(crate) struct ChildBudget {
    /// Largest allowed sum of the limits, in bytes; `None` if the machine's memory is unknown.
    bytes_max: Option<u64>,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    /// Sum of the limits of children that are being started, in bytes.
    starting_bytes: u64,
    /// The last reading of the machine's memory, with its time; `None` before the first.
    memory_info: Option<(Instant, SystemMemory)>,
}

/// Memory reserved for a child that is being started. Dropping it ends the reservation.
#[derive(Debug)]
pub(crate) struct MemoryReservation<'a> {
    budget: &'a ChildBudget,
    bytes: u64,
}

impl ChildBudget {
    /// Creates a budget of `bytes_max`, or by default of the machine's memory.
    pub(crate) fn new(bytes_max: Option<u64>) -> Self {
        let machine = SystemMemory::read().ok().map(|memory| memory.total_bytes);
        Self { bytes_max: bytes_max.or(machine), state: Mutex::default() }
    }

    /// Reserves memory for a child with this limit. `living` returns the sum of the limits of live children.
    ///
    /// # Errors
    /// Too little memory is left. The failure contains the amounts.
    pub(crate) fn reserve(
        &self,
        object: &str,
        limit: Option<u64>,
        living: impl FnOnce() -> u64,
    ) -> Result<MemoryReservation<'_>, Failure> {
        let mut state = self.state();
        if let Some(SystemMemory { total_bytes, available_bytes }) = state.refresh_memory_info()
            && available_bytes < total_bytes / RESERVE_DIVISOR
        {
            let [left, all] = [available_bytes, total_bytes].map(byte_size::format_bytes);
            let cause = format!(
                "{left} of the machine's {all} of memory are left: the kernel might kill the child or another process"
            );
            return Err(refusal(object, cause));
        }
        let bytes = limit.unwrap_or(0);
        if let (Some(limit), Some(bytes_max)) = (limit, self.bytes_max) {
            let promised = living() + state.starting_bytes;
            if promised.saturating_add(limit) > bytes_max {
                let [limit, promised, all] = [limit, promised, bytes_max].map(byte_size::format_bytes);
                let cause = format!(
                    "its limit is {limit}, the limits of running children sum to {promised}, and all children may use {all}"
                );
                return Err(refusal(object, cause));
            }
        }
        state.starting_bytes += bytes;
        Ok(MemoryReservation { budget: self, bytes })
    }

    /// Returns the largest allowed sum of the limits, in bytes.
    pub(crate) fn bytes_max(&self) -> Option<u64> {
        self.bytes_max
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BudgetState {
    fn refresh_memory_info(&mut self) -> Option<SystemMemory> {
        let is_old = self.memory_info.is_none_or(|(when, _)| when.elapsed() >= MEMORY_INFO_TTL);
        if is_old {
            self.memory_info = SystemMemory::read().ok().map(|memory| (Instant::now(), memory));
        }
        self.memory_info.map(|(_, memory)| memory)
    }
}

impl Drop for MemoryReservation<'_> {
    fn drop(&mut self) {
        self.budget.state().starting_bytes -= self.bytes;
    }
}

fn refusal(object: &str, cause: String) -> Failure {
    let step = "wait until children have ended, give them less (`--memory`), or fork to other nodes (`--to`)";
    Failure::new(Code::ResourceExhausted, object, cause).with_next_step(step)
}

#[cfg(test)]
mod tests {
    use super::ChildBudget;

    #[test]
    fn memory_limits_of_starting_children_are_included() {
        let budget = ChildBudget::new(Some(100));
        let first = budget.reserve("a child", Some(40), || 20).unwrap();
        assert!(budget.reserve("a child", Some(41), || 20).unwrap_err().to_string().contains("a child"));
        let second = budget.reserve("a child", Some(40), || 20).unwrap();
        assert!(budget.reserve("a child", None, || 1000).is_ok(), "a child without a limit does not count");
        drop((first, second));
        assert!(budget.reserve("a child", Some(80), || 20).is_ok());
        assert!(budget.reserve("a child", Some(81), || 20).is_err());
    }

    #[test]
    fn limits_up_to_the_memory_of_the_machine_are_accepted() {
        let budget = ChildBudget::new(None);
        let all = budget.bytes_max().unwrap();
        assert!(budget.reserve("a child", Some(all), || 0).is_ok());
        assert!(budget.reserve("a child", Some(all), || 1).is_err());
    }
}
