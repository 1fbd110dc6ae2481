//! Starts a paused child, which is complete and waits for a command before its first instruction.
//! A child is paused at its user's request, or because the node restores it before it is requested (prestart).
//! `find_prestart_obstacle` decides which seeds cannot be prestarted.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use farfork_sys::fd_passing;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Backing, OpenFile, SharedObjectKind};
use rustix::fs::OFlags;

use super::plan_layout::{COMMAND_START, COMMAND_START_AND_REPORT};
use super::{RestoreError, RestoredProcess, stub};

/// Starts a paused child.
///
/// # Errors
/// As sendmsg(2): EPIPE if the child has ended.
pub fn unpause(control: BorrowedFd<'_>) -> io::Result<()> {
    send_command(control, COMMAND_START)
}

/// Starts a paused child that then reports its start: [`wait_unpaused`] waits for the report.
///
/// # Errors
/// As sendmsg(2): EPIPE if the child has ended. It has not run.
pub fn unpause_with_report(control: BorrowedFd<'_>) -> io::Result<()> {
    send_command(control, COMMAND_START_AND_REPORT)
}

/// Waits, at most `limit`, for the report of a child's start. The child sends the report just before its first
/// instruction.
///
/// # Errors
/// The report was not received. The child may have started.
pub fn wait_unpaused(
    control: BorrowedFd<'_>,
    descriptor: &Descriptor,
    limit: Duration,
) -> Result<RestoredProcess, RestoreError> {
    stub::wait_restored(control, limit, descriptor).map(RestoredProcess::from)
}

fn send_command(control: BorrowedFd<'_>, command: u32) -> io::Result<()> {
    fd_passing::send(control, &command.to_ne_bytes(), &[])
}

/// Returns the reason why no child of a seed may be restored before it is requested, or `None`. Such a child would
/// affect other processes, its timers would run while it waits, or it would see files from before the request.
pub fn find_prestart_obstacle(descriptor: &Descriptor) -> Option<&'static str> {
    let process = &descriptor.process;
    if !(process.interval_timers.is_empty() && process.posix_timers.is_empty()) {
        return Some("its timers would continue");
    }
    if !(descriptor.file_locks.is_empty() && descriptor.file_owners.is_empty()) {
        return Some("it holds file locks, or gets signals when files are ready");
    }
    if descriptor.threads.iter().any(|thread| thread.scheduling.deadline.is_some()) {
        return Some("it has reserved CPU time (SCHED_DEADLINE)");
    }
    if descriptor.shared_objects.iter().any(|object| matches!(object.kind, SharedObjectKind::PosixShm { .. })) {
        return Some("it has named shared memory");
    }
    let is_shown = |mapping: &Backing| matches!(mapping, Backing::SharedFile { writable: true, .. });
    if descriptor.mappings.iter().any(|mapping| is_shown(&mapping.backing) || mapping.flags.locked) {
        return Some("it maps a file that it may write to, or locks memory");
    }
    if descriptor.open_files.iter().any(|file| !is_unshared_file(file)) {
        return Some("it shares open files with other processes");
    }
    None
}

/// Whether an open file can be created before the child is requested: it shares no state with other processes, or the
/// child only reads the file.
fn is_unshared_file(file: &OpenFile) -> bool {
    match file {
        OpenFile::StandardStream(_)
        | OpenFile::Device { .. }
        | OpenFile::Directory { .. }
        | OpenFile::DeletedDirectory { .. }
        | OpenFile::Pipe { .. }
        | OpenFile::EventFd { .. }
        | OpenFile::Epoll { .. }
        | OpenFile::MemFd { .. }
        | OpenFile::SignalFd { .. }
        | OpenFile::CheckpointSocket { .. }
        | OpenFile::Socket(_) => true,
        // A file that is opened for writing is copied up by overlayfs, in its state before the request.
        OpenFile::Regular { flags, .. } => OFlags::from_bits_retain(*flags) & OFlags::RWMODE == OFlags::RDONLY,
        OpenFile::NamedPipe { .. }
        | OpenFile::TimerFd { .. }
        | OpenFile::Inotify { .. }
        | OpenFile::PidFd { .. }
        | OpenFile::Terminal { .. } => false,
    }
}
