//! The offload process: reads the log, validates it, folds change sets, and has them published in order.
//!
//! While the host worker does not run, this process takes the lock of the shared tree and publishes by itself.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::channel::{MessageChannel, listen};
use super::message::{ClientMessage, OffloadMessage, WorkerAnswer, WorkerRequest};
use super::volume_directory::VolumeDirectory;
use super::worker::{PublishingState, WORKER};
use crate::change::ChangeSet;
use crate::log::{LogFile, LogFileError, LogPoint};
use crate::publish::{Durability, PublishedMark};
use crate::replay::{LogReplay, ReplayEnd};

/// The name of the lock and of the socket.
pub(super) const OFFLOAD: &str = "offload";
/// Looks at the log at least so often: a hint of the client may be lost with a connection.
const IDLE_WAIT: Duration = Duration::from_millis(100);
/// Waits so long for more records before it publishes a small change set: folding then saves work.
const FOLD_WAIT: Duration = Duration::from_millis(2);
/// A worker that has not answered for so long is taken for stopped. Publishing a change set takes milliseconds, with
/// `Durability::Disk` as long as syncfs(2).
const WORKER_SILENCE_MAX: Duration = Duration::from_secs(10);
/// A record that is invalid for so long is damaged, or the end of a client that was killed while it appended.
const DAMAGE_REPORT_WAIT: Duration = Duration::from_secs(2);
/// Before a refused change set is tried again.
const RETRY_WAIT: Duration = Duration::from_millis(200);
/// A change set of one of these sizes is published without waiting for more, so that the log has room soon.
const RECORDS_MAX: usize = 8192;
const DATA_BYTES_MAX: u64 = 8 << 20;

struct OffloadProcess<'v> {
    volume: &'v VolumeDirectory,
    durability: Durability,
    log: LogFile,
    log_file: std::fs::File,
    replay: LogReplay,
    mark: PublishedMark,
    worker: Option<MessageChannel>,
    client: Option<MessageChannel>,
    damage: Option<DamagedRecord>,
}

/// A record that was begun and is not valid. While the client appends, this lasts for microseconds.
struct DamagedRecord {
    point: LogPoint,
    since: Instant,
    is_reported: bool,
}

/// How much of the log becomes one change set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FoldExtent {
    /// Up to the limits.
    Part,
    /// Up to the end of the valid prefix. After a crash the shared tree may have any part of it.
    Everything,
}

/// Runs the offload process of a volume until it is killed.
///
/// # Errors
/// When the volume cannot be opened.
pub fn run_offload(volume: &VolumeDirectory, durability: Durability) -> Result<(), LogFileError> {
    let _lock = volume.lock(OFFLOAD)?;
    let listener = listen(&volume.socket_path(OFFLOAD))?;
    listener.set_nonblocking(true)?;
    let log = volume.open_log()?;
    let log_file = log.try_clone_file()?;
    let mark = volume.open_shared()?.open_mark()?.mark();
    let replay = LogReplay::new(log.header().ring_bytes, mark.point, mark.epoch);
    let (worker, client, damage) = (None, None, None);
    let mut process = OffloadProcess { volume, durability, log, log_file, replay, mark, worker, client, damage };
    // A worker that was killed may have published a part of anything that the log has now.
    process.publish(FoldExtent::Everything);
    loop {
        process.accept_client(&listener);
        process.receive_hints(&listener)?;
        if !process.publish(FoldExtent::Part) {
            process.wait(&listener)?;
        }
    }
}

impl OffloadProcess<'_> {
    fn accept_client(&mut self, listener: &UnixListener) {
        if let Ok(channel) = MessageChannel::accept(listener) {
            self.client = Some(channel);
            // The client may have missed the last mark.
            self.send(OffloadMessage::Published(self.mark));
        }
    }

    /// Takes all messages that have arrived.
    fn receive_hints(&mut self, listener: &UnixListener) -> io::Result<()> {
        while let Some(client) = &mut self.client {
            if !is_readable(&[client.as_fd()], Duration::ZERO)? {
                return Ok(());
            }
            match client.receive::<ClientMessage>() {
                Ok(ClientMessage::Appended) => {}
                Ok(ClientMessage::Recover) => {
                    self.publish(FoldExtent::Everything);
                    self.request_worker(&WorkerRequest::DropUnlinked);
                    self.send(OffloadMessage::Recovered(self.mark));
                }
                Err(_) => {
                    self.client = None;
                    self.accept_client(listener);
                }
            }
        }
        Ok(())
    }

    fn wait(&self, listener: &UnixListener) -> io::Result<()> {
        let mut fds = vec![listener.as_fd()];
        fds.extend(self.client.as_ref().map(|client| client.as_fd()));
        is_readable(&fds, IDLE_WAIT).map(|_| ())
    }

    /// Publishes the next part of the log. Whether there was one.
    fn publish(&mut self, extent: FoldExtent) -> bool {
        let changes = self.fold(extent);
        if changes.record_count() == 0 {
            return false;
        }
        self.request_worker(&WorkerRequest::Publish(Box::new(changes)));
        self.send(OffloadMessage::Published(self.mark));
        true
    }

    /// Folds validated records. The shared tree is never ahead of what the log has on the disk.
    fn fold(&mut self, extent: FoldExtent) -> ChangeSet {
        let mut changes = ChangeSet::new(self.mark.point, self.mark.epoch);
        let started = Instant::now();
        loop {
            match self.replay.read_record(&self.log) {
                Ok(record) => changes.fold(record),
                Err(end) if changes.record_count() == 0 => {
                    self.watch_damage(&end);
                    break;
                }
                Err(_) if extent == FoldExtent::Everything || started.elapsed() >= FOLD_WAIT => break,
                Err(_) => thread::sleep(FOLD_WAIT),
            }
            let is_large = changes.record_count() >= RECORDS_MAX || changes.data_bytes() >= DATA_BYTES_MAX;
            if is_large && extent == FoldExtent::Part {
                break;
            }
        }
        if changes.record_count() > 0 && self.durability == Durability::Disk {
            self.flush_log();
        }
        changes
    }

    /// Reports a record that stays invalid: nothing after it is published, and the log fills up.
    fn watch_damage(&mut self, end: &ReplayEnd) {
        let ReplayEnd::Invalid(error) = end else {
            self.damage = None;
            return;
        };
        let point = self.replay.next_point();
        let damage = self.damage.get_or_insert(DamagedRecord { point, since: Instant::now(), is_reported: false });
        if damage.point != point {
            *damage = DamagedRecord { point, since: Instant::now(), is_reported: false };
        }
        if damage.since.elapsed() > DAMAGE_REPORT_WAIT && !damage.is_reported {
            damage.is_reported = true;
            tracing::error!(%error, ?point, "the log has a damaged record, nothing after it is published");
        }
    }

    fn flush_log(&self) {
        while let Err(error) = self.log_file.sync_data() {
            tracing::error!(%error, "the log cannot be flushed, nothing is published");
            thread::sleep(RETRY_WAIT);
        }
    }

    /// Has a request executed, however long it takes: by the worker, or here while there is none.
    fn request_worker(&mut self, request: &WorkerRequest) {
        loop {
            match self.try_request(request) {
                Ok(mark) => {
                    self.move_to(mark);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "publishing is tried again");
                    self.worker = None;
                    thread::sleep(RETRY_WAIT);
                }
            }
        }
    }

    /// The worker may be ahead: it finished a change set of an offload process that has died.
    fn move_to(&mut self, mark: PublishedMark) {
        self.mark = mark;
        if mark.point > self.replay.next_point() {
            self.replay = LogReplay::new(self.log.header().ring_bytes, mark.point, mark.epoch);
        }
    }

    fn try_request(&mut self, request: &WorkerRequest) -> io::Result<PublishedMark> {
        if self.worker.is_none() {
            self.worker = MessageChannel::connect(&self.volume.socket_path(WORKER)).ok();
        }
        if let Some(worker) = &mut self.worker {
            worker.set_receive_timeout(Some(WORKER_SILENCE_MAX))?;
            let answer = worker.send(request).and_then(|()| worker.receive());
            match answer {
                Ok(WorkerAnswer::Done(mark)) => return Ok(mark),
                Ok(WorkerAnswer::Failed(text)) => return Err(io::Error::other(text)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.kill_silent_worker()?,
                Err(error) => tracing::warn!(%error, "the worker has died"),
            }
            self.worker = None;
        }
        self.execute_here(request)
    }

    /// A worker that does not answer might go on later, with an old change set: it must end first. It has the lock that
    /// this process needs, so the process that listens is the one that is killed.
    fn kill_silent_worker(&self) -> io::Result<()> {
        let Some(worker) = &self.worker else { return Ok(()) };
        let listener = rustix::net::sockopt::socket_peercred(worker.as_fd())?;
        let pidfd = farfork_sys::pidfd::open(listener.pid.as_raw_nonzero().get())?;
        if self.volume.try_lock(WORKER)?.is_none() {
            tracing::warn!(pid = listener.pid.as_raw_nonzero(), "the worker does not answer and is killed");
            farfork_sys::pidfd::send_signal(&pidfd, Signal::KILL.as_raw())?;
            farfork_sys::pidfd::wait_exit(&pidfd, WORKER_SILENCE_MAX)?;
        }
        Ok(())
    }

    /// Publishes without the worker. Holding its lock, so that a new worker waits.
    fn execute_here(&self, request: &WorkerRequest) -> io::Result<PublishedMark> {
        let Some(_lock) = self.volume.try_lock(WORKER)? else {
            return Err(io::Error::other("the worker starts"));
        };
        let mut state = PublishingState::open(self.volume, self.durability)?;
        state.execute(request).map_err(io::Error::other)
    }

    fn send(&mut self, message: OffloadMessage) {
        if let Some(client) = &mut self.client
            && client.send(&message).is_err()
        {
            self.client = None;
        }
    }
}

fn is_readable(fds: &[std::os::fd::BorrowedFd<'_>], limit: Duration) -> io::Result<bool> {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    match poll(&mut polled, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
