//! The client process: attaches to the offload process of its node, reads the namespace, mounts, and serves until the volume
//! is unmounted.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::{VolumeName, VolumeRecord, VolumeState};
use fuser::{Config, Session, SessionACL};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::channel::MessageChannel;
use super::control::{ControlAnswer, ControlRequest, send_control_request_within};
use super::message::{AttachedClient, ClientMessage, OffloadMessage};
use super::mount_holder::MountHolder;
use super::store::VolumeStore;
use super::supervisor::{TRY_AGAIN_STATUS, end_after_panic};
use crate::log::{LogFile, LogFileError, LogPoint};
use crate::mount::{MountOptions, OffloadLink, OffloadRequest, VolumeClient, VolumeFilesystem, mount_volume};
use crate::publish::load_namespace;
use crate::record::InodeNumber;

/// Longest wait for the client's lock: an earlier client that was killed may still hold it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the list of volumes, from which the client learns why it does not get its lock.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the offload process, which may be starting or restarting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a new offload process after the previous one has died. Then the client ends: the daemon is probably
/// dead, too, and calls in the mount would wait forever.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_RETRY: Duration = Duration::from_millis(5);
/// Minimum time between two hints that the log has grown. While the offload process works, it finds records without hints.
const HINT_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of hints between two messages of the offload process. A process that sends nothing probably reads nothing,
/// and finds the records later by itself. The socket has room for more messages, so hints do not block requests.
const HINTS_MAX: u32 = 64;
/// Time after which the thread that sends hints checks again whether the log has unpublished records. An append wakes it
/// earlier.
const HINT_WAIT: Duration = Duration::from_secs(1);
/// Interval between two renewals of the lease of the write permission.
const LEASE_INTERVAL: Duration = Duration::from_millis(100);
/// Number of threads that serve FUSE requests: some of them may wait for the disk.
const REQUEST_THREADS: usize = 8;

/// Why a mount failed or ended.
#[derive(Debug, thiserror::Error)]
pub enum ClientRunError {
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogFileError),
    /// The lock cannot be taken.
    #[error("cannot lock the volume for a client: {0}")]
    Lock(#[source] io::Error),
    /// Another client has the volume mounted.
    #[error("the volume is mounted on this node already{0}")]
    IsMounted(MountHolder),
    /// The offload process does not answer.
    #[error("the offload process of this node does not answer: {0}; it runs only while the daemon runs")]
    Connection(#[source] io::Error),
    /// The offload process refuses the client.
    #[error("{0}")]
    Refused(String),
    /// The shared tree cannot be read.
    #[error("cannot read the shared tree: {0}")]
    SharedTree(#[source] io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The file system cannot be mounted.
    #[error("cannot mount at {path}: {source}")]
    Mount {
        /// The mount point.
        path: String,
        /// The cause.
        source: io::Error,
    },
}

/// Mounts a volume and serves it until it is unmounted. Calls `ready` when the mount is usable. A panic of any thread ends the
/// process.
///
/// # Errors
/// As [`ClientRunError`]: before the mount, or at its end.
pub fn run_client(
    store: &VolumeStore,
    name: &str,
    mount_point: &Path,
    options: MountOptions,
    ready: impl FnOnce(),
) -> Result<(), ClientRunError> {
    end_after_panic();
    let volume = store.volume(name);
    let mut connection = OffloadConnection::open(store, name)?;
    let (channel, attached) = connection.attach()?;
    let Some(_lock) = connection.lock.take() else {
        return Err(ClientRunError::Refused(format!("volume {name} was created just now: mount it again")));
    };
    raise_file_limit();
    let AttachedClient { client: number, log_path, marks, unlinked, is_only_replica } = attached;
    let shared = volume.open_shared().map_err(ClientRunError::SharedTree)?;
    let inode_max = marks[usize::from(number)].inode_max;
    let namespace = load_namespace(&shared, number, inode_max).map_err(ClientRunError::SharedTree)?;
    connection.sender.send_message(&ClientMessage::Loaded);
    let link: Arc<dyn OffloadLink> = Arc::clone(&connection.sender) as Arc<dyn OffloadLink>;
    let sender = Arc::clone(&connection.sender);
    let log = LogFile::open(&log_path)?;
    let client = Arc::new(VolumeClient::start(number, shared, namespace, log, &marks, link, options));
    if is_only_replica {
        client.set_only_replica();
    }
    start_threads(&client, connection, channel, number, unlinked).map_err(ClientRunError::Thread)?;

    let failed = |source| ClientRunError::Mount { path: mount_point.display().to_string(), source };
    let (device, mount) = mount_volume(name, mount_point).map_err(failed)?;
    if let Err(error) = mount.device().and_then(|device| volume.save_mount_device(&device)) {
        tracing::warn!(%error, "a later error cannot name the process that keeps the volume mounted");
    }
    let mut config = Config::default();
    config.n_threads = Some(REQUEST_THREADS);
    config.clone_fd = true;
    config.acl = SessionACL::All;
    let filesystem = VolumeFilesystem::new(Arc::clone(&client));
    let session = Session::from_fd(filesystem, device, SessionACL::All, config).map_err(failed)?;
    client.watch_kernel_caches(session.notifier()).map_err(ClientRunError::Thread)?;
    sender.send_message(&ClientMessage::Mounted);
    ready();
    // After an error, the dead mount must stay: programs get ENOTCONN until the next client has mounted.
    mount.forget();
    session.run().map_err(failed)
}

/// Raises the limit of open files: each open file of the mount may need one descriptor of this process.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!(%error, "few files can be open in the mount at a time");
    }
}

/// The connection to the offload process. When that process dies, the client connects to the next one.
struct OffloadConnection {
    store: VolumeStore,
    volume: String,
    sender: Arc<MessageSender>,
    /// The client's lock, held until the process ends. None without a replica on this node: the offload process then refuses
    /// the client, with a text for the user.
    lock: Option<File>,
}

/// Sends messages from any thread. Without a connection, messages are lost. Requests that need a reply are repeated after
/// the next connection is made.
#[derive(Debug, Default)]
struct MessageSender {
    channel: Mutex<Option<MessageChannel>>,
    /// Number of hints that were sent since the last message arrived.
    hints: AtomicU32,
}

impl MessageSender {
    fn set_channel(&self, channel: Option<MessageChannel>) {
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = channel;
    }

    fn send_message(&self, message: &ClientMessage) {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        if channel.as_mut().is_some_and(|channel| channel.send(message).is_err()) {
            *channel = None;
        }
    }

    /// Sends a hint that the log has new records, unless the offload process seems to read no messages.
    fn send_hint(&self) {
        if self.hints.load(Ordering::Relaxed) < HINTS_MAX {
            self.hints.fetch_add(1, Ordering::Relaxed);
            self.send_message(&ClientMessage::Appended);
        }
    }

    /// Resets the number of hints: the offload process has sent a message, so it works.
    fn reset_hints(&self) {
        self.hints.store(0, Ordering::Relaxed);
    }
}

impl OffloadLink for MessageSender {
    fn send(&self, request: OffloadRequest) {
        self.send_message(&match request {
            OffloadRequest::AcquireWrite => ClientMessage::AcquireWrite,
            OffloadRequest::Released => ClientMessage::Released,
            OffloadRequest::Commit(point) => ClientMessage::Commit(point),
            OffloadRequest::CheckSpace(point) => ClientMessage::CheckSpace(point),
            OffloadRequest::Refresh(request) => ClientMessage::Refresh { request },
        });
    }
}

impl OffloadConnection {
    fn open(store: &VolumeStore, volume: &str) -> Result<Self, ClientRunError> {
        let lock = lock_volume(store, volume)?;
        let (store, volume) = (store.clone(), volume.to_owned());
        Ok(Self { store, volume, sender: Arc::default(), lock })
    }

    /// Attaches as a new client. Waits until the offload process runs.
    fn attach(&self) -> Result<(MessageChannel, AttachedClient), ClientRunError> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        loop {
            match self.try_attach() {
                Ok((channel, answer)) => return answer.map(|attached| (channel, *attached)),
                Err(error) if Instant::now() >= deadline => return Err(ClientRunError::Connection(error)),
                Err(_) => thread::sleep(CONNECT_RETRY),
            }
        }
    }

    fn try_attach(&self) -> io::Result<(MessageChannel, Result<Box<AttachedClient>, ClientRunError>)> {
        let mut channel = self.connect(&ClientMessage::Attach { volume: self.volume.clone() })?;
        let answer = match channel.receive()? {
            OffloadMessage::Attached(attached) => Ok(attached),
            OffloadMessage::Refused(reason) => Err(ClientRunError::Refused(reason)),
            _ => return Err(io::Error::other("the client is not attached")),
        };
        Ok((channel, answer))
    }

    /// Connects, and sends the first message before other threads can send theirs.
    fn connect(&self, first_message: &ClientMessage) -> io::Result<MessageChannel> {
        let mut channel = MessageChannel::connect(&self.store.offload_socket())?;
        channel.send(first_message)?;
        self.sender.set_channel(Some(channel.try_clone()?));
        Ok(channel)
    }

    /// Connects to the next offload process. The client continues with its namespace, or reads the namespace again. If no
    /// process answers in time, the client ends.
    fn reattach(&self, client: &VolumeClient, number: u16) -> MessageChannel {
        let deadline = Instant::now() + RECONNECT_TIMEOUT;
        loop {
            match self.try_reattach(client, number) {
                Ok(channel) => return channel,
                Err(error) if Instant::now() >= deadline => end_unanswered(&error),
                Err(_) => thread::sleep(CONNECT_RETRY),
            }
        }
    }

    fn try_reattach(&self, client: &VolumeClient, number: u16) -> io::Result<MessageChannel> {
        let (volume, term, tree) = (self.volume.clone(), client.term(), client.tree_identity()?);
        let applied = client.applied_points();
        let mut channel = self.connect(&ClientMessage::Reattach { volume, client: number, term, tree, applied })?;
        match channel.receive()? {
            OffloadMessage::Reattached(marks) => {
                client.advance_published(marks[usize::from(number)].point);
                if !client.has_applied(&marks) {
                    client.reload(&marks).map_err(|error| match error.kind() {
                        io::ErrorKind::InvalidInput => end_refused("another client has written meanwhile"),
                        _ => error,
                    })?;
                }
            }
            OffloadMessage::Refused(reason) => end_refused(&reason),
            _ => return Err(io::Error::other("the client is not attached")),
        }
        self.sender.send_message(&ClientMessage::Loaded);
        client.repeat_requests();
        Ok(channel)
    }
}

/// Takes the client's lock, and waits while an earlier client ends. None without a replica on this node.
fn lock_volume(store: &VolumeStore, volume: &str) -> Result<Option<File>, ClientRunError> {
    match store.volume(volume).lock_client(LOCK_TIMEOUT) {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => Err(locked_reason(store, volume)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ClientRunError::Lock(error)),
    }
}

/// Why the client's lock of a volume stays taken.
pub(super) fn locked_reason(store: &VolumeStore, volume: &str) -> ClientRunError {
    let listed = send_control_request_within(store.path(), &ControlRequest::List, LIST_TIMEOUT);
    let is_dropping =
        |(name, record): (&VolumeName, &VolumeRecord)| name.as_str() == volume && record.state == VolumeState::Dropping;
    match listed {
        Ok(ControlAnswer::Volumes(list)) if list.volumes.iter().any(is_dropping) => {
            ClientRunError::Refused(format!("volume {volume} is being dropped"))
        }
        _ => ClientRunError::IsMounted(MountHolder::find(store, volume)),
    }
}

/// Ends this process after a refusal. Its supervisor starts the next client. Records that the chain lacks were never
/// acknowledged.
fn end_refused(reason: &str) -> ! {
    tracing::error!(reason, "this client ends, and the volume is mounted again");
    std::process::exit(TRY_AGAIN_STATUS);
}

/// Ends this process, so that programs get errors, and the volume can be unmounted.
fn end_unanswered(error: &io::Error) -> ! {
    let limit_s = RECONNECT_TIMEOUT.as_secs();
    tracing::error!(%error, limit_s, "the offload process of this node does not answer: this client ends; start the daemon again");
    std::process::exit(1);
}

/// Starts five threads. One receives messages, one sends hints, one renews the lease, one drops unused inodes, and one ends
/// the calls of killed programs.
fn start_threads(
    client: &Arc<VolumeClient>,
    connection: OffloadConnection,
    channel: MessageChannel,
    number: u16,
    unlinked: Vec<InodeNumber>,
) -> io::Result<()> {
    let (hinting, sender) = (Arc::clone(client), Arc::clone(&connection.sender));
    thread::Builder::new().name("hints".to_owned()).spawn(move || send_hints(&hinting, &sender))?;
    let receiving = Arc::clone(client);
    thread::Builder::new().name("receiver".to_owned()).spawn(move || {
        let mut channel = channel;
        loop {
            while let Ok(message) = channel.receive::<OffloadMessage>() {
                connection.sender.reset_hints();
                handle_message(&receiving, message);
            }
            connection.sender.set_channel(None);
            channel = connection.reattach(&receiving, number);
            connection.sender.reset_hints();
        }
    })?;
    let renewing = Arc::clone(client);
    thread::Builder::new().name("lease".to_owned()).spawn(move || {
        loop {
            renewing.renew_lease();
            thread::sleep(LEASE_INTERVAL);
        }
    })?;
    let interrupted = Arc::clone(client);
    thread::Builder::new().name("interrupts".to_owned()).spawn(move || interrupted.answer_killed())?;
    client.add_unlinked(&unlinked);
    let dropping = Arc::clone(client);
    thread::Builder::new().name("drop-inodes".to_owned()).spawn(move || dropping.drop_unused_inodes())?;
    Ok(())
}

fn handle_message(client: &VolumeClient, message: OffloadMessage) {
    match message {
        OffloadMessage::Published { mark, space } => {
            client.report_space(space);
            client.advance_published(mark.point);
        }
        OffloadMessage::SpaceChecked(space) => client.answer_space_check(space),
        OffloadMessage::Changed(change) => client.apply_foreign(change.client, &change.changes),
        OffloadMessage::Committed(point) => client.acknowledge_commit(point),
        OffloadMessage::WriteGranted { term, space } => client.grant_write(term, space),
        OffloadMessage::DiskFull => client.refuse_waiting(),
        OffloadMessage::GrantDelayed => client.delay_grant(),
        OffloadMessage::ReleaseWrite => client.recall_write(),
        OffloadMessage::Refreshed { request } => client.acknowledge_refresh(request),
        OffloadMessage::RefreshDelayed { request } => client.delay_refresh(request),
        OffloadMessage::Refused(reason) => end_refused(&reason),
        OffloadMessage::Attached(_) | OffloadMessage::Reattached(_) => {}
    }
}

fn send_hints(client: &VolumeClient, sender: &MessageSender) {
    let mut hinted: Option<LogPoint> = None;
    loop {
        let Some(head) = client.wait_unpublished(HINT_WAIT) else { continue };
        thread::sleep(HINT_INTERVAL);
        // Records that were committed during the sleep, by fsync(2), need no hint.
        if hinted != Some(head) && client.committed() < head {
            sender.send_hint();
            hinted = Some(head);
        }
    }
}
