//! `SharedWorkingSet`: a seed's working set for many threads. A reader never waits for an update: `LearnerThread` makes
//! the updates, which take a few milliseconds.

use std::fmt;
use std::io;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;

use farfork_wire::descriptor::ExtentId;

use super::codec::{AccessReport, decode_set};
use super::set::{EncodedSet, SetParts, WorkingSet};

/// Maximum number of reports that wait to be applied. Others are dropped: the next child's report will have the same
/// pages.
const REPORTS_MAX: usize = 64;

/// A seed's working set.
#[derive(Debug, Default)]
pub struct SharedWorkingSet {
    set: Mutex<WorkingSet>,
    /// The set as children read it.
    served: RwLock<EncodedSet>,
}

impl SharedWorkingSet {
    /// Updates the set from a child's report. Ignores pages that the seed does not have (`has`). Returns whether the
    /// encoded set changed.
    pub fn apply_report(&self, report: &AccessReport, has: impl Fn(ExtentId, u64) -> bool) -> bool {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        set.apply_report(report, has);
        self.publish(&mut set)
    }

    /// Restores a set from [`SharedWorkingSet::encoded_bytes`]. Ignores pages that the seed does not have (`has`).
    /// Trial counts are not stored, and start at zero.
    pub fn from_saved(saved: &[u8], has: impl Fn(ExtentId, u64) -> bool) -> Self {
        let found = Self::default();
        let mut set = found.set.lock().unwrap_or_else(PoisonError::into_inner);
        set.restore(&decode_set(saved), has);
        found.publish(&mut set);
        drop(set);
        found
    }

    /// Starts with the set of another seed of the same process. Children read this set at once; the first report merges
    /// it.
    pub(super) fn inherit(&self, known: SetParts) {
        let now = EncodedSet::from_parts(known.clone());
        self.set.lock().unwrap_or_else(PoisonError::into_inner).inherit(known);
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = now;
    }

    fn publish(&self, set: &mut WorkingSet) -> bool {
        let now = set.encode();
        let mut served = self.served.write().unwrap_or_else(PoisonError::into_inner);
        let is_another = *served != now;
        *served = now;
        is_another
    }

    fn published(&self) -> EncodedSet {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of pages.
    pub fn page_count(&self) -> u64 {
        self.published().pages
    }

    /// The set as children read it.
    pub fn encoded_bytes(&self) -> Arc<Vec<u8>> {
        self.published().bytes
    }

    /// Returns the touched pages and the pages that were only fetched, each in order.
    pub(super) fn parts(&self) -> SetParts {
        self.published().parts()
    }

    /// Fills `into` with the encoded set from `offset` on: its pages in order, with those on trial marked. The rest of
    /// `into` is filled with zeroes.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let set = self.encoded_bytes();
        let rest = usize::try_from(offset).ok().and_then(|offset| set.get(offset..)).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        into[count..].fill(0);
    }
}

type LearnJob = Box<dyn FnOnce() + Send>;

/// The thread that applies reports. After this value is dropped, the thread applies the queued reports and ends.
pub struct LearnerThread(Mutex<Option<SyncSender<LearnJob>>>);

impl LearnerThread {
    /// Creates a handle without a thread. The first job starts the thread.
    pub fn new() -> Self {
        Self(Mutex::default())
    }

    /// Queues a job for the thread. Returns false if the queue is full.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.is_none() {
            *sender = spawn_learner()
                .inspect_err(|error| tracing::warn!("the thread that updates working sets cannot be started: {error}"))
                .ok();
        }
        let Some(jobs) = &*sender else { return false };
        match jobs.try_send(Box::new(job)) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => false,
            // The thread has ended. The next job starts another.
            Err(TrySendError::Disconnected(_)) => {
                *sender = None;
                false
            }
        }
    }
}

impl Default for LearnerThread {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LearnerThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Learner")
    }
}

fn spawn_learner() -> io::Result<SyncSender<LearnJob>> {
    let (sender, jobs) = sync_channel::<LearnJob>(REPORTS_MAX);
    thread::Builder::new().name("working-sets".to_owned()).spawn(move || jobs.iter().for_each(|job| job()))?;
    Ok(sender)
}
