//! The host worker: applies the change sets that the offload process sends. Holds the lock of the shared tree.

use std::io;

use super::channel::{MessageChannel, listen};
use super::message::{WorkerAnswer, WorkerRequest};
use super::volume_directory::VolumeDirectory;
use crate::log::{LogFile, LogFileError, LogStorage as _, file_offset};
use crate::publish::{CallBudget, Durability, LogData, PublishError, PublishedMark, Publisher};

/// The name of the lock and of the socket. Only the process that holds the lock changes the shared tree.
pub(super) const WORKER: &str = "worker";

impl LogData for LogFile {
    fn load_data(&self, position: u64, into: &mut [u8]) {
        self.load(file_offset(position, self.header().ring_bytes), into);
    }
}

/// A publisher and the log that it copies from. Opened again after an error, because the state on disk is then unknown.
pub(super) struct PublishingState {
    log: LogFile,
    publisher: Publisher,
}

impl PublishingState {
    pub(super) fn open(volume: &VolumeDirectory, durability: Durability) -> io::Result<Self> {
        let log = volume.open_log().map_err(io::Error::other)?;
        let publisher = Publisher::open(volume.open_shared()?, durability, CallBudget::default());
        Ok(Self { log, publisher: publisher.map_err(io::Error::other)? })
    }

    pub(super) fn execute(&mut self, request: &WorkerRequest) -> Result<PublishedMark, PublishError> {
        match request {
            WorkerRequest::Publish(changes) => self.publisher.publish(changes, &self.log),
            WorkerRequest::DropUnlinked => {
                self.publisher.drop_unlinked_inodes()?;
                Ok(self.publisher.mark())
            }
        }
    }
}

/// Runs the host worker of a volume until it is killed.
///
/// # Errors
/// When the volume cannot be opened.
pub fn run_worker(volume: &VolumeDirectory, durability: Durability) -> Result<(), LogFileError> {
    let _lock = volume.lock(WORKER)?;
    let listener = listen(&volume.socket_path(WORKER))?;
    let mut state = PublishingState::open(volume, durability)?;
    loop {
        let mut channel = MessageChannel::accept(&listener)?;
        while let Ok(request) = channel.receive::<WorkerRequest>() {
            let answer = match state.execute(&request) {
                Ok(mark) => WorkerAnswer::Done(mark),
                Err(error) => {
                    tracing::error!(%error, "a change set is not published yet");
                    state = PublishingState::open(volume, durability)?;
                    WorkerAnswer::Failed(error.to_string())
                }
            };
            if channel.send(&answer).is_err() {
                break;
            }
        }
    }
}
