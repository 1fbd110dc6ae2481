//! The client process: has the log published to its end, reads the namespace, mounts, and serves until it is unmounted.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Config, Session, SessionACL};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::channel::MessageChannel;
use super::message::{ClientMessage, OffloadMessage};
use super::offload::OFFLOAD;
use super::volume_directory::VolumeDirectory;
use crate::log::{LogFileError, LogPoint};
use crate::mount::{ClientError, ClientOptions, VolumeClient, VolumeFilesystem, mount_volume};
use crate::publish::{PublishedMark, load_namespace};

/// The name of the lock.
const CLIENT: &str = "client";
/// A client that was killed releases its lock within this.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The offload process is started at the same time, or again after it died.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_RETRY: Duration = Duration::from_millis(5);
/// Least time between two hints that the log has grown. It finds records by itself while it works.
const HINT_INTERVAL: Duration = Duration::from_millis(1);
/// How soon the thread that sends hints sees that its connection has ended.
const IDLE_CHECK: Duration = Duration::from_millis(100);
/// Threads that read requests: some wait for the disk or for room in the log.
const REQUEST_THREADS: usize = 4;

/// Why a mount failed or ended.
#[derive(Debug, thiserror::Error)]
pub enum ClientRunError {
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogFileError),
    /// The client cannot start.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The lock cannot be taken.
    #[error("cannot lock the volume for a client: {0}")]
    Lock(#[source] io::Error),
    /// Another client has the volume mounted.
    #[error("the volume is mounted already: unmount it first")]
    IsMounted,
    /// The log cannot be published.
    #[error("cannot recover the volume: {0}")]
    Recovery(#[source] io::Error),
    /// The shared tree cannot be read.
    #[error("cannot read the shared tree: {0}")]
    SharedTree(#[source] io::Error),
    /// The file system cannot be mounted.
    #[error("cannot mount at {path}: {source}")]
    Mount {
        /// The mount point.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// Mounts a volume and serves it until it is unmounted. `ready` is called when the mount is usable.
///
/// # Errors
/// As [`ClientRunError`]: before the mount, or at its end.
pub fn run_client(
    volume: &VolumeDirectory,
    mount_point: &Path,
    options: ClientOptions,
    ready: impl FnOnce(),
) -> Result<(), ClientRunError> {
    let _lock = lock_volume(volume)?;
    raise_file_limit();
    let (channel, mark) = recover(volume).map_err(ClientRunError::Recovery)?;
    let shared = volume.open_shared().map_err(ClientRunError::SharedTree)?;
    let namespace = load_namespace(&shared, mark.inode_max).map_err(ClientRunError::SharedTree)?;
    let client = Arc::new(VolumeClient::start(shared, namespace, volume.open_log()?, mark, options)?);
    start_offload_threads(&client, channel, volume.clone()).map_err(ClientRunError::Recovery)?;

    let failed = |source| ClientRunError::Mount { path: mount_point.display().to_string(), source };
    let name = volume.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (device, _mount) = mount_volume(&name, mount_point).map_err(failed)?;
    let mut config = Config::default();
    config.n_threads = Some(REQUEST_THREADS);
    config.clone_fd = true;
    config.acl = SessionACL::All;
    let filesystem = VolumeFilesystem::new(client);
    let session = Session::from_fd(filesystem, device, SessionACL::All, config).map_err(failed)?;
    ready();
    session.run().map_err(failed)
}

/// The client before may be about to end.
fn lock_volume(volume: &VolumeDirectory) -> Result<File, ClientRunError> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match volume.try_lock(CLIENT).map_err(ClientRunError::Lock)? {
            Some(lock) => return Ok(lock),
            None if Instant::now() >= deadline => return Err(ClientRunError::IsMounted),
            None => thread::sleep(CONNECT_RETRY),
        }
    }
}

/// An open file of the mount may take one descriptor of this process.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!(%error, "few files can be open in the mount at a time");
    }
}

/// Has everything in the log published, and inodes dropped that an earlier client had open.
fn recover(volume: &VolumeDirectory) -> io::Result<(MessageChannel, PublishedMark)> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match try_recover(volume) {
            Ok(recovered) => return Ok(recovered),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => thread::sleep(CONNECT_RETRY),
        }
    }
}

fn try_recover(volume: &VolumeDirectory) -> io::Result<(MessageChannel, PublishedMark)> {
    let mut channel = MessageChannel::connect(&volume.socket_path(OFFLOAD))?;
    channel.send(&ClientMessage::Recover)?;
    loop {
        if let OffloadMessage::Recovered(mark) = channel.receive()? {
            return Ok((channel, mark));
        }
    }
}

/// One thread receives marks, and connects again when the offload process has died; another one sends hints.
fn start_offload_threads(
    client: &Arc<VolumeClient>,
    channel: MessageChannel,
    volume: VolumeDirectory,
) -> io::Result<()> {
    let receiver = Arc::clone(client);
    thread::Builder::new().name("published".to_owned()).spawn(move || {
        let mut channel = channel;
        loop {
            let hints = channel.try_clone();
            let (sender, is_open) = (Arc::clone(&receiver), Arc::new(AtomicBool::new(true)));
            let is_open_for_sender = Arc::clone(&is_open);
            let sending = hints.map(|hints| thread::spawn(move || send_hints(&sender, hints, &is_open_for_sender)));
            while let Ok(message) = channel.receive::<OffloadMessage>() {
                let (OffloadMessage::Published(mark) | OffloadMessage::Recovered(mark)) = message;
                receiver.advance_published(mark.point);
            }
            is_open.store(false, Ordering::Relaxed);
            if let Ok(sending) = sending {
                let _ = sending.join();
            }
            channel = connect_again(&volume);
        }
    })?;
    Ok(())
}

/// Ends when the connection does.
fn send_hints(client: &VolumeClient, mut channel: MessageChannel, is_open: &AtomicBool) {
    let mut hinted: Option<LogPoint> = None;
    while is_open.load(Ordering::Relaxed) {
        let Some(head) = client.wait_unpublished(IDLE_CHECK) else { continue };
        if hinted != Some(head) && channel.send(&ClientMessage::Appended).is_err() {
            return;
        }
        hinted = Some(head);
        thread::sleep(HINT_INTERVAL);
    }
}

fn connect_again(volume: &VolumeDirectory) -> MessageChannel {
    loop {
        match MessageChannel::connect(&volume.socket_path(OFFLOAD)) {
            Ok(channel) => return channel,
            Err(_) => thread::sleep(CONNECT_RETRY),
        }
    }
}
