//! Copies one log along its path: `LogReader` reads and validates records that the client or the predecessor has written,
//! `LogSender` sends them to the successor. Records are acknowledged when all later members have them.
//!
//! Each of the two has a thread, so that a slow successor does not delay the validation of records from the predecessor. If
//! the log is idle and the work is short, the thread of a request does it instead: each switch between threads delays a write
//! by about ten microseconds.

mod reader;
mod sender;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use reader::LogReader;
use sender::LogSender;

use farfork_cluster::catalog::VolumeRecord;

use super::volume::{LogProgress, ReplicaState, ReplicatedVolume, WaitingThread};
use crate::chain::{ChainLog, membership};
use crate::log::{LogFile, LogHeader, LogPoint};
use crate::process::open_tree::FileIdentity;
use crate::publish::{PublishedMark, is_damaged_mark};
use crate::replay::LogReplay;

/// Longest sleep of a thread of a log. A safeguard: changes of the state wake the thread earlier.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Maximum number of new bytes that the thread of a request copies. Validating more bytes takes longer than waking the log's
/// own thread.
const SHORT_BYTES_MAX: u64 = 256 << 10;

/// The copier of one log. One thread at a time uses each part.
pub(super) struct LogCopier {
    reader: Mutex<LogReader>,
    sender: Mutex<LogSender>,
}

/// A part of a copier, with work that is due after changes of the replica's state.
trait CopierPart {
    type Task;
    const THREAD: fn(u16) -> WaitingThread;

    /// Returns the work that is due now. If there is none, `wake_at` becomes the time when some may be due.
    fn task_of(&self, state: &mut ReplicaState, wake_at: &mut Instant) -> Option<Self::Task>;

    /// Whether the thread of a request may execute a task. With `may_wait`, it may wait for a successor that has not failed.
    fn is_short(&self, task: &Self::Task, may_wait: bool) -> bool;

    fn execute(&mut self, task: &Self::Task);

    /// Continues after a task that the thread of this part has executed.
    fn finish_task(&self, _copier: &LogCopier) {}

    /// The time at which the thread of the part wakes up by itself.
    fn wakes_at(log: &mut LogProgress) -> &mut Instant;
}

/// Opens the log of a client and starts its thread. Creates the log if it does not exist. Does nothing if the log is open.
pub(super) fn ensure_open(volume: &Arc<ReplicatedVolume>, client: u16) -> io::Result<()> {
    let _one_at_a_time = volume.opening_log.lock().unwrap_or_else(PoisonError::into_inner);
    let record = {
        let state = volume.lock();
        if state.is_closed {
            return Err(io::Error::other("the volume is closed"));
        }
        if state.logs.contains_key(&client) {
            return Ok(());
        }
        Arc::clone(&state.record)
    };
    // Read the mark before the log is created: after a crash or an error, the next attempt must still find the log missing.
    let mark = read_mark(volume, client)?;
    volume.directory.ensure_log(&LogHeader { volume: record.id, client, ring_bytes: record.log_bytes })?;
    let log = volume.directory.open_log(client).map_err(io::Error::other)?;
    let identity = FileIdentity::of(&log.file().metadata()?);
    let mut replay = LogReplay::new(log.header().ring_bytes, mark.point, mark.epoch);
    // A term ends after all its records are published. So unpublished records count only if they have the present term.
    // Others were written by a client that had lost its term, and were never acknowledged.
    let record = restore_term(volume, client, &log, replay.clone(), record)?;
    if record.writer == Some(client) {
        replay.require_epoch(record.term);
        reader::read_to_end(&mut replay, &log);
    }
    let stored = replay.next_point();
    let sent_log = log.map_again()?;
    let copier = Arc::new(LogCopier {
        reader: Mutex::new(LogReader::new(volume, client, log, replay)),
        sender: Mutex::new(LogSender::new(volume, client, sent_log)),
    });
    let progress = LogProgress::open(ChainLog::open(mark, stored), identity, Arc::clone(&copier));
    volume.lock().logs.insert(client, progress);
    let (reading, sending) = ((Arc::clone(volume), Arc::clone(&copier)), (Arc::clone(volume), copier));
    thread::Builder::new()
        .name(format!("log-{client}"))
        .spawn(move || run(&reading.0, client, &reading.1, &reading.1.reader))?;
    thread::Builder::new()
        .name(format!("send-{client}"))
        .spawn(move || run(&sending.0, client, &sending.1, &sending.1.sender))?;
    Ok(())
}

/// Restores a term that the catalog lacks because it was restored to an earlier state: the log has unpublished records of it, which
/// may be acknowledged. The head publishes them, and ends the term. Returns the record of the volume.
fn restore_term(
    volume: &ReplicatedVolume,
    client: u16,
    log: &LogFile,
    mut unpublished: LogReplay,
    record: Arc<VolumeRecord>,
) -> io::Result<Arc<VolumeRecord>> {
    let published = unpublished.next_point();
    reader::read_to_end(&mut unpublished, log);
    let term = unpublished.epoch();
    if unpublished.next_point() == published || term <= record.term {
        return Ok(record);
    }
    let mut is_written = false;
    let restore = |record: &mut VolumeRecord| {
        is_written = membership::restore_term(record, client, term);
        is_written
    };
    let restored = volume.update_catalog(restore).map_err(io::Error::other)?;
    let volume = &volume.key.name;
    match (is_written, restored.term < term) {
        (true, _) => {
            tracing::warn!(%volume, client, term, "the catalog has an earlier record than the log, whose term is restored")
        }
        (false, true) => {
            tracing::error!(%volume, client, term, "the catalog has an earlier record than the log, and lacks its client")
        }
        (false, false) => {}
    }
    Ok(Arc::new(restored))
}

/// Returns the mark up to which a log is published. If the mark is damaged, or the log is missing, this node may lack
/// records. It then leaves the chain, and later copies a tree with its marks. The last live replica stays: it has no other
/// one to copy from.
fn read_mark(volume: &ReplicatedVolume, client: u16) -> io::Result<PublishedMark> {
    let shared = volume.directory.open_shared()?;
    shared.create_mark(client)?;
    match shared.open_mark(client) {
        Err(error) if is_damaged_mark(&error) => {
            tracing::error!(%error, volume = %volume.key.name, client, "a mark is damaged: the node leaves the chain");
            if volume.leave_chain().map_err(io::Error::other)? { shared.replace_mark(client) } else { Err(error) }
        }
        opened => {
            let mark = opened?.mark();
            if mark.point > LogPoint::START && !volume.directory.log_path(client).exists() {
                tracing::error!(volume = %volume.key.name, client, "a log is missing: the node leaves the chain");
                volume.leave_chain().map_err(io::Error::other)?;
            }
            Ok(mark)
        }
    }
}

/// Executes the work of a part of a copier until the volume is closed.
fn run<P: CopierPart>(volume: &ReplicatedVolume, client: u16, copier: &LogCopier, part: &Mutex<P>) {
    loop {
        let mut working = lock(part);
        let mut state = volume.lock();
        if state.is_closed {
            // Breaks a reference cycle: the copier refers to the volume.
            state.log(client).copier = None;
            return;
        }
        let mut wake_at = Instant::now() + SLEEP_MAX;
        if let Some(task) = working.task_of(&mut state, &mut wake_at) {
            drop(state);
            working.execute(&task);
            working.finish_task(copier);
            continue;
        }
        *P::wakes_at(state.log(client)) = wake_at;
        // The state is still locked: a later change wakes this thread, or another thread handles the change.
        drop(working);
        drop(volume.wait(P::THREAD(client), state, wake_at));
    }
}

/// Copies a log after a change of its state: short work in the calling thread, other work in the log's own threads. With
/// `may_wait`, the calling thread may also wait for a successor that has not failed.
pub(super) fn copy_now(volume: &ReplicatedVolume, client: u16, may_wait: bool) {
    let Some(copier) = volume.lock().log(client).copier.clone() else { return };
    execute_short(volume, client, &copier.reader, may_wait);
    execute_short(volume, client, &copier.sender, may_wait);
}

/// Executes short tasks of a part of a copier, and wakes its thread if other work is due, or due before the thread wakes up.
fn execute_short<P: CopierPart>(volume: &ReplicatedVolume, client: u16, part: &Mutex<P>, may_wait: bool) {
    let next = part.try_lock().ok().and_then(|mut part| {
        loop {
            let mut next = Instant::now() + SLEEP_MAX;
            let task = part.task_of(&mut volume.lock(), &mut next);
            match task {
                None => return Some(next),
                Some(task) if part.is_short(&task, may_wait) => part.execute(&task),
                Some(_) => return None,
            }
        }
    });
    if next.is_none_or(|next| next < *P::wakes_at(volume.lock().log(client))) {
        volume.notify_thread(P::THREAD(client));
    }
}

fn lock<P>(part: &Mutex<P>) -> MutexGuard<'_, P> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
