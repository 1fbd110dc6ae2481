//! Drops inodes that no entry leads to and that the kernel has forgotten. A thread of its own does this, because the write
//! permission may be at another node, and threads that serve requests must not wait for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::client::VolumeClient;
use crate::record::{EFFECTS_MAX, InodeNumber, RecordEffect};
use crate::view::VolumeNamespace;

/// Time to wait for the write permission before it is requested: a program of this node may soon need it anyway.
const PERMISSION_WAIT: Duration = Duration::from_secs(1);

/// Time before the next attempt to drop inodes that could not be dropped, for example because the disk of a replica was
/// full.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// The queue of the thread that drops inodes.
#[derive(Debug, Default)]
pub(super) struct UnusedInodes {
    queue: Mutex<Vec<InodeNumber>>,
    /// Whether an attempt to drop queued inodes has failed.
    has_failed: AtomicBool,
    added: Condvar,
}

impl UnusedInodes {
    fn add(&self, inodes: &[InodeNumber]) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(inodes);
        self.added.notify_one();
    }

    fn add_failed(&self, inodes: &[InodeNumber]) {
        self.has_failed.store(true, Ordering::Relaxed);
        self.add(inodes);
    }

    fn take(&self) -> Vec<InodeNumber> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut queue = self.added.wait_while(queue, |queue| queue.is_empty()).unwrap_or_else(PoisonError::into_inner);
        let taken = std::mem::take(&mut *queue);
        drop(queue);
        if self.has_failed.swap(false, Ordering::Relaxed) {
            thread::sleep(RETRY_WAIT);
        }
        taken
    }
}

impl VolumeClient {
    /// Removes `count` references of the kernel to an inode. Queues the inode if it is unused now.
    pub(super) fn forget(&self, inode: InodeNumber, count: u64) {
        let mut state = self.lock();
        let is_forgotten = state.namespace.forget(inode, count);
        let is_unused = state.namespace.plan_drop(inode).is_some();
        drop(state);
        if is_forgotten && let Some(caches) = self.kernel_caches.get() {
            caches.stale_sizes.remove(inode);
        }
        if is_unused {
            self.unused.add(&[inode]);
        }
    }

    /// Queues inodes that an earlier client of the volume had open when it died. No client has them open now.
    pub fn add_unlinked(&self, inodes: &[InodeNumber]) {
        self.unused.add(inodes);
    }

    /// Drops unused inodes until the process ends.
    pub fn drop_unused_inodes(&self) -> ! {
        loop {
            let unused = self.unused.take();
            self.wait_for_permission(PERMISSION_WAIT);
            for inodes in unused.chunks(EFFECTS_MAX) {
                let (queue, failed, inodes) = (Arc::clone(&self.unused), inodes.to_vec(), inodes.to_vec());
                self.change(
                    None,
                    move |namespace| Ok(plan_drops(namespace, &inodes)),
                    move |dropped| {
                        if let Err(error) = dropped {
                            tracing::debug!(%error, "unlinked inodes are dropped later");
                            queue.add_failed(&failed);
                        }
                    },
                );
            }
        }
    }
}

/// Plans to drop the inodes that are still unused. An inode of an earlier client is not in the namespace, because no entry
/// leads to it.
fn plan_drops(namespace: &VolumeNamespace, inodes: &[InodeNumber]) -> Vec<RecordEffect> {
    let is_unused = |inode: InodeNumber| namespace.inode(inode).is_err() || namespace.plan_drop(inode).is_some();
    let unused = inodes.iter().copied().filter(|inode| is_unused(*inode));
    unused.map(|inode| RecordEffect::DropInode { inode }).collect()
}
