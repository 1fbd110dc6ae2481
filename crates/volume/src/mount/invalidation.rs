//! The kernel's caches, after another node has changed the volume. Two threads invalidate: one inodes, one entries.
//!
//! An invalidated entry needs the lock of its directory, which a program may hold while it waits for this client. So nothing
//! waits for entries. An invalidated inode may have pages of a shared mapping to write first, which become requests to this
//! client. So nothing that serves requests waits for inodes.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use fuser::{INodeNo, Notifier};

use crate::record::{EntryKey, InodeNumber};

/// The queues of both threads.
#[derive(Debug)]
pub(super) struct KernelCaches {
    inodes: Sender<InodeNumber>,
    entries: Sender<EntryKey>,
    progress: Arc<InodeProgress>,
}

/// How many inodes were queued, and are invalidated.
#[derive(Debug, Default)]
struct InodeProgress {
    counts: Mutex<InodeCounts>,
    advanced: Condvar,
}

#[derive(Debug, Default)]
struct InodeCounts {
    queued: u64,
    invalidated: u64,
}

impl KernelCaches {
    /// Starts the threads.
    pub(super) fn start(notifier: Notifier) -> io::Result<Self> {
        let (inodes, queued_inodes) = channel();
        let (entries, queued_entries) = channel();
        let progress = Arc::new(InodeProgress::default());
        let (inode_notifier, inode_progress) = (notifier.clone(), Arc::clone(&progress));
        thread::Builder::new()
            .name("inval-inode".to_owned())
            .spawn(move || invalidate_inodes(&inode_notifier, &queued_inodes, &inode_progress))?;
        thread::Builder::new()
            .name("inval-entry".to_owned())
            .spawn(move || invalidate_entries(&notifier, &queued_entries))?;
        Ok(Self { inodes, entries, progress })
    }

    /// Queues an inode: its attributes and data.
    pub(super) fn invalidate_inode(&self, inode: InodeNumber) {
        self.progress.counts.lock().unwrap_or_else(PoisonError::into_inner).queued += 1;
        // The thread lives as long as this process.
        let _ = self.inodes.send(inode);
    }

    /// Queues an entry.
    pub(super) fn invalidate_entry(&self, entry: EntryKey) {
        let _ = self.entries.send(entry);
    }

    /// Waits until every inode is invalidated that is queued now. Not in a thread that serves requests.
    pub(super) fn wait_inodes(&self) {
        let mut counts = self.progress.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let queued = counts.queued;
        while counts.invalidated < queued {
            counts = self.progress.advanced.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn invalidate_inodes(notifier: &Notifier, queue: &Receiver<InodeNumber>, progress: &InodeProgress) {
    while let Ok(inode) = queue.recv() {
        // An error means that the kernel does not know the inode.
        let _ = notifier.inval_inode(INodeNo(inode.0), 0, 0);
        progress.counts.lock().unwrap_or_else(PoisonError::into_inner).invalidated += 1;
        progress.advanced.notify_all();
    }
}

fn invalidate_entries(notifier: &Notifier, queue: &Receiver<EntryKey>) {
    while let Ok(EntryKey { parent, name }) = queue.recv() {
        let _ = notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name.as_bytes()));
    }
}
