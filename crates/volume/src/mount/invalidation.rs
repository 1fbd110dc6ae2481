//! Invalidates the kernel's caches after the volume has changed: one thread for inodes, and one for entries.
//!
//! Invalidating an entry takes the lock of its directory, which a program may hold while it waits for this client. So no
//! request waits for entries. Invalidating an inode may first write back pages of a shared mapping, as requests to this
//! client. So no thread that serves requests waits for inodes.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use fuser::{INodeNo, Notifier};

use super::dropped_pages::{DropReason, DroppedPages};
use super::stale_entries::StaleEntries;
use super::stale_sizes::StaleSizes;
use crate::record::{EntryKey, InodeNumber, RecordEffect};
use crate::view::CachedObjects;

/// The offset of FUSE_NOTIFY_INVAL_INODE that invalidates attributes, but no data.
const ATTRIBUTES_ONLY: i64 = -1;

/// Sends the answer to a FUSE request, later and possibly in another thread.
pub(super) type DeferredAnswer = Box<dyn FnOnce() + Send>;

/// The queues of the two invalidating threads.
pub(super) struct KernelCaches {
    inodes: Sender<InodeTask>,
    entries: Sender<EntryKey>,
    /// Entries and permissions that are not invalidated yet.
    pub(super) stale_entries: Arc<StaleEntries>,
    /// Files of which the kernel may have an old size.
    pub(super) stale_sizes: Arc<StaleSizes>,
    /// Files whose pages the kernel drops.
    pub(super) dropped_pages: Arc<DroppedPages>,
    /// Number of unfinished tasks for inodes for which open(2) waits.
    pending_inodes: Arc<AtomicU64>,
    notifier: Notifier,
}

enum InodeTask {
    Invalidate(InodeNumber),
    /// Follows an operation of this node. No open(2) waits for it.
    InvalidateAttributes(InodeNumber),
    /// Ends `StaleEntries::add_permissions`: owner and mode of the inode are invalidated.
    ConfirmPermissions(InodeNumber),
    InvalidateData {
        inode: InodeNumber,
        offset: u64,
        bytes: u32,
    },
    Answer(DeferredAnswer),
}

impl fmt::Debug for KernelCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelCaches").field("pending_inodes", &self.pending_inodes).finish_non_exhaustive()
    }
}

impl KernelCaches {
    /// Starts the threads.
    pub(super) fn start(notifier: Notifier) -> io::Result<Self> {
        let (inodes, queued_inodes) = channel();
        let (entries, queued_entries) = channel();
        let (pending_inodes, stale_sizes) = (Arc::<AtomicU64>::default(), Arc::<StaleSizes>::default());
        let (stale_entries, dropped_pages) = (Arc::<StaleEntries>::default(), Arc::<DroppedPages>::default());
        let tasks = InodeTasks {
            notifier: notifier.clone(),
            pending: Arc::clone(&pending_inodes),
            stale_entries: Arc::clone(&stale_entries),
            stale_sizes: Arc::clone(&stale_sizes),
            dropped_pages: Arc::clone(&dropped_pages),
        };
        thread::Builder::new().name("inval-inode".to_owned()).spawn(move || tasks.run(&queued_inodes))?;
        let (entry_notifier, stale) = (notifier.clone(), Arc::clone(&stale_entries));
        thread::Builder::new()
            .name("inval-entry".to_owned())
            .spawn(move || invalidate_entries(&entry_notifier, &queued_entries, &stale))?;
        Ok(Self { inodes, entries, stale_entries, stale_sizes, dropped_pages, pending_inodes, notifier })
    }

    /// Queues the invalidation of entries, and of attributes and data of inodes. The caller has locked the view.
    pub(super) fn invalidate(&self, cached: CachedObjects) {
        cached.sizes.into_iter().for_each(|inode| self.stale_sizes.add(inode));
        for inode in cached.inodes {
            self.dropped_pages.begin(inode);
            self.queue(InodeTask::Invalidate(inode));
            if cached.permissions.contains(&inode) {
                self.stale_entries.add_permissions(inode);
                // The kernel then requests the attributes when it walks the path again. This includes the root, which it
                // never looks up.
                self.invalidate_attributes(inode);
                // The thread lives as long as this process.
                let _ = self.inodes.send(InodeTask::ConfirmPermissions(inode));
            }
        }
        for (entry, previous) in cached.entries {
            self.stale_entries.add(entry.clone(), previous);
            // The thread lives as long as this process.
            let _ = self.entries.send(entry);
        }
    }

    /// Queues the invalidation of a changed part of a file.
    pub(super) fn invalidate_data(&self, inode: InodeNumber, offset: u64, bytes: u32) {
        self.dropped_pages.begin(inode);
        self.queue(InodeTask::InvalidateData { inode, offset, bytes });
    }

    /// Invalidates attributes that an operation of this node has changed and that its answer does not contain. The caller
    /// may have locked the view.
    ///
    /// The kernel also invalidates these attributes when it receives the answer. It could later cache old attributes from a
    /// stat(2) of another thread, which this client answered before. After this invalidation, it drops attributes that were
    /// requested earlier (`attr_version` in fs/fuse/inode.c). Invalidating a directory never blocks, because a directory has
    /// no pages.
    pub(super) fn invalidate_changed(&self, effects: &[RecordEffect]) {
        let mut parents: Vec<InodeNumber> = effects.iter().filter_map(changed_directory).collect();
        // Only a rename changes two entries. After create, link and unlink, the kernel itself drops older attributes of the
        // inode.
        let is_rename = parents.len() > 1;
        let has_xattr = effects.iter().any(|effect| matches!(effect, RecordEffect::SetXattr { .. }));
        parents.dedup();
        if is_rename || has_xattr {
            for effect in effects {
                if let RecordEffect::SetAttributes { inode, .. } = effect
                    && !parents.contains(inode)
                {
                    // The thread lives as long as this process.
                    let _ = self.inodes.send(InodeTask::InvalidateAttributes(*inode));
                }
            }
        }
        parents.into_iter().for_each(|parent| self.invalidate_attributes(parent));
    }

    /// Calls `answer` when all inode tasks that are queued now are done.
    pub(super) fn answer_after_inodes(&self, answer: DeferredAnswer) {
        if self.pending_inodes.load(Ordering::Acquire) == 0 { answer() } else { self.queue(InodeTask::Answer(answer)) }
    }

    /// Invalidates the attributes of one inode in this thread. Never blocks, because the cached data stays.
    ///
    /// An earlier invalidation has no effect if the kernel did not know the inode yet, while old attributes were on their
    /// way to it.
    pub(super) fn invalidate_attributes(&self, inode: InodeNumber) {
        self.stale_sizes.invalidate(inode, || invalidate_attributes(&self.notifier, inode));
    }

    fn queue(&self, task: InodeTask) {
        self.pending_inodes.fetch_add(1, Ordering::AcqRel);
        let _ = self.inodes.send(task);
    }
}

fn invalidate_attributes(notifier: &Notifier, inode: InodeNumber) {
    // An error means that the kernel does not know the inode.
    let _ = notifier.inval_inode(INodeNo(inode.0), ATTRIBUTES_ONLY, 0);
}

fn changed_directory(effect: &RecordEffect) -> Option<InodeNumber> {
    match effect {
        RecordEffect::SetEntry { parent, .. } => Some(*parent),
        _ => None,
    }
}

/// The state of the thread that executes tasks for inodes.
struct InodeTasks {
    notifier: Notifier,
    /// As `KernelCaches::pending_inodes`.
    pending: Arc<AtomicU64>,
    stale_entries: Arc<StaleEntries>,
    stale_sizes: Arc<StaleSizes>,
    dropped_pages: Arc<DroppedPages>,
}

impl InodeTasks {
    fn run(&self, queue: &Receiver<InodeTask>) {
        while let Ok(task) = queue.recv() {
            match task {
                InodeTask::InvalidateAttributes(inode) => {
                    self.invalidate(inode, ATTRIBUTES_ONLY, 0);
                    continue;
                }
                InodeTask::ConfirmPermissions(inode) => {
                    self.stale_entries.remove_permissions(inode);
                    continue;
                }
                InodeTask::Invalidate(inode) => {
                    self.invalidate(inode, 0, 0);
                    self.dropped_pages.end(inode, DropReason::ChangedFile, Instant::now());
                }
                InodeTask::InvalidateData { inode, offset, bytes } => {
                    self.invalidate(inode, offset.cast_signed(), bytes.into());
                    self.dropped_pages.end(inode, DropReason::OwnWrite, Instant::now());
                }
                InodeTask::Answer(answer) => answer(),
            }
            self.pending.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Sends FUSE_NOTIFY_INVAL_INODE. An error means that the kernel does not know the inode.
    fn invalidate(&self, inode: InodeNumber, offset: i64, bytes: i64) {
        self.stale_sizes.wait_for_opens(inode);
        self.stale_sizes.invalidate(inode, || _ = self.notifier.inval_inode(INodeNo(inode.0), offset, bytes));
    }
}

fn invalidate_entries(notifier: &Notifier, queue: &Receiver<EntryKey>, stale_entries: &StaleEntries) {
    while let Ok(entry) = queue.recv() {
        // An error means that the kernel does not have the entry.
        let _ = notifier.inval_entry(INodeNo(entry.parent.0), OsStr::from_bytes(entry.name.as_bytes()));
        stale_entries.remove(&entry);
    }
}
