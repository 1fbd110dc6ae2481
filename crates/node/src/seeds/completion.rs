//! Completion of a seed: whether it can be forked yet. The reply to prepare is sent as soon as the capture can no
//! longer be refused and the process runs again. The descriptor is completed while the reply travels. A fork that
//! arrives earlier waits for the completion.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farfork_fork::seed::Seed;
use tokio::sync::Notify;

use farfork_api::failure::Failure;

/// The state of a seed's completion.
///
/// ```text
///  listed ─▶ underway ─┬─▶ ready
///                      └─▶ failed: each fork reports why, until the seed is dropped
/// ```
#[derive(Debug, Default)]
pub(super) struct SeedCompletion {
    state: Mutex<CompletionState>,
    completed: Condvar,
    /// Wakes asynchronous tasks that wait; `completed` wakes threads.
    completed_async: Notify,
}

#[derive(Debug, Default)]
struct CompletionState {
    /// `None` while in progress.
    outcome: Option<Result<(), Failure>>,
    /// The seed, if it was unlisted before it was complete. The thread that drops the seed takes it from here.
    dropped_seed: Option<Seed>,
}

impl SeedCompletion {
    /// Records the outcome, and wakes all waiting tasks and threads.
    pub(super) fn complete(&self, outcome: Result<(), Failure>) {
        self.state().outcome = Some(outcome);
        self.completed.notify_all();
        self.completed_async.notify_waiters();
    }

    /// Marks the seed as complete. `unlisted` is the seed if it was unlisted before it was complete.
    pub(super) fn complete_with(&self, unlisted: Option<Seed>) {
        self.state().dropped_seed = unlisted;
        self.complete(Ok(()));
    }

    /// Returns the outcome; `None` while the completion is in progress.
    pub(super) fn outcome(&self) -> Option<Result<(), Failure>> {
        self.state().outcome.clone()
    }

    /// Waits for the outcome, at most `limit`; `None` on timeout.
    pub(super) async fn wait(&self, limit: Duration) -> Option<Result<(), Failure>> {
        // Register before the check, so that no notification is lost.
        let completed = self.completed_async.notified();
        if let Some(outcome) = self.outcome() {
            return Some(outcome);
        }
        let _ = tokio::time::timeout(limit, completed).await;
        self.outcome()
    }

    /// Blocks until there is an outcome, at most `limit`. Returns the seed if it was unlisted before it was complete.
    pub(super) fn wait_dropped_seed(&self, limit: Duration) -> Option<Seed> {
        let waited = self.completed.wait_timeout_while(self.state(), limit, |state| state.outcome.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.dropped_seed.take()
    }

    fn state(&self) -> MutexGuard<'_, CompletionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_waiter_gets_the_outcome_of_a_seed() {
        let seed_completion = Arc::new(SeedCompletion::default());
        assert_eq!(seed_completion.wait(Duration::from_millis(1)).await, None);
        let waiting = seed_completion.clone();
        let waiter = tokio::spawn(async move { waiting.wait(Duration::from_secs(60)).await });
        tokio::task::yield_now().await;
        let completer = seed_completion.clone();
        std::thread::spawn(move || completer.complete(Ok(()))).join().unwrap();
        assert_eq!(waiter.await.unwrap(), Some(Ok(())));
        assert_eq!(seed_completion.wait(Duration::ZERO).await, Some(Ok(())));
    }
}
