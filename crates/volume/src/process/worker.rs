//! The host worker of a node: applies the change sets that the offload process sends, to the shared tree of any volume.
//! Holds the lock of all shared trees.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use super::channel::{MessageChannel, listen};
use super::message::{PublishRequest, WorkerAnswer};
use super::store::VolumeStore;
use crate::log::{LogFile, LogStorage as _, file_offset};
use crate::publish::{CallBudget, LogData, PublishedMark, Publisher};

/// The name of the lock. Only the process that holds it changes the shared trees.
pub(super) const WORKER: &str = "worker";

impl LogData for LogFile {
    fn load_data(&self, position: u64, into: &mut [u8]) {
        self.load(file_offset(position, self.header().ring_bytes), into);
    }
}

/// The publishers of the volumes. One that failed is opened again, because the state on disk is then unknown.
pub(super) struct PublisherTable<'s> {
    store: &'s VolumeStore,
    volumes: HashMap<String, OpenVolume>,
}

/// The publisher of one volume, and the logs that it copies from.
struct OpenVolume {
    id: u64,
    /// Inode number of the shared tree's directory: a replica that catches up replaces the tree.
    tree: u64,
    publisher: Publisher,
    logs: HashMap<u16, LogFile>,
}

impl<'s> PublisherTable<'s> {
    pub(super) fn new(store: &'s VolumeStore) -> Self {
        Self { store, volumes: HashMap::new() }
    }

    /// Applies a change set.
    pub(super) fn publish(&mut self, request: &PublishRequest) -> io::Result<PublishedMark> {
        let result = self.try_publish(request);
        if result.is_err() {
            self.volumes.remove(&request.volume);
        }
        result
    }

    fn try_publish(&mut self, request: &PublishRequest) -> io::Result<PublishedMark> {
        let directory = self.store.volume(&request.volume);
        let tree = fs::metadata(directory.shared_path())?.ino();
        // Another volume may have had the name.
        let is_open = |open: &OpenVolume| open.id == request.volume_id && open.tree == tree;
        if !self.volumes.get(&request.volume).is_some_and(is_open) {
            let id = directory.id()?;
            if id != request.volume_id {
                return Err(io::Error::other("the volume was created anew"));
            }
            let publisher = Publisher::open(directory.open_shared()?, request.durability, CallBudget::default());
            let publisher = publisher.map_err(io::Error::other)?;
            self.volumes.insert(request.volume.clone(), OpenVolume { id, tree, publisher, logs: HashMap::new() });
        }
        let volume = self.volumes.get_mut(&request.volume).expect("it was opened above");
        let log = match volume.logs.entry(request.client) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(directory.open_log(request.client).map_err(io::Error::other)?),
        };
        let published = volume.publisher.publish(request.client, &request.changes, log);
        published.map_err(io::Error::other)
    }
}

/// Runs the host worker of a node until it is killed.
///
/// # Errors
/// When the store cannot be used.
pub fn run_worker(store: &VolumeStore) -> io::Result<()> {
    let _lock = store.lock(WORKER)?;
    let listener = listen(&store.worker_socket())?;
    loop {
        let mut channel = MessageChannel::accept(&listener)?;
        let mut publishers = PublisherTable::new(store);
        while let Ok(request) = channel.receive::<PublishRequest>() {
            let answer = match publishers.publish(&request) {
                Ok(mark) => WorkerAnswer::Done(mark),
                Err(error) => {
                    tracing::error!(%error, volume = request.volume, "a change set is not published yet");
                    WorkerAnswer::Failed(error.to_string())
                }
            };
            if channel.send(&answer).is_err() {
                break;
            }
        }
    }
}
