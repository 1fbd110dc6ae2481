//! The gate of a child that stands, complete, and waits for a word before its first instruction: whose user has it wait, or one that was
//! made ahead of need.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use farfork_sys::fdpass;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Backing, OpenFile, SharedKind};
use rustix::fs::OFlags;

use super::layout::{WORD_GO, WORD_GO_AND_TELL};
use super::{RestoreError, Restored, stub};

/// Lets a paused child go.
///
/// # Errors
/// As sendmsg(2): EPIPE when the child is gone.
pub fn unpause(control: BorrowedFd<'_>) -> io::Result<()> {
    say(control, WORD_GO)
}

/// Lets a child go that says when: [`wait_gone`] hears it.
///
/// # Errors
/// As sendmsg(2): EPIPE when the child is gone. It has not run.
pub fn go_and_tell(control: BorrowedFd<'_>) -> io::Result<()> {
    say(control, WORD_GO_AND_TELL)
}

/// Waits, at most `limit`, until a child says that it goes, which is the last thing before its first instruction.
///
/// # Errors
/// It may have run.
pub fn wait_gone(control: BorrowedFd<'_>, descriptor: &Descriptor, limit: Duration) -> Result<Restored, RestoreError> {
    stub::wait_restored(control, limit, descriptor).map(Restored::from)
}

fn say(control: BorrowedFd<'_>, word: u32) -> io::Result<()> {
    fdpass::send(control, &word.to_ne_bytes(), &[])
}

/// Why a child of a seed is not to stand complete before anybody asks for it: what it has that others would notice, that goes on while
/// it waits, or that shows the node's files as they were then. `None`: nobody can tell.
pub fn unfit_to_wait(descriptor: &Descriptor) -> Option<&'static str> {
    let process = &descriptor.process;
    if !(process.interval_timers.is_empty() && process.posix_timers.is_empty()) {
        return Some("its timers would go on");
    }
    if !(descriptor.file_locks.is_empty() && descriptor.file_owners.is_empty()) {
        return Some("it holds locks of files, or is told of their readiness");
    }
    if descriptor.threads.iter().any(|thread| thread.scheduling.deadline.is_some()) {
        return Some("it has a share of the processor set aside");
    }
    if descriptor.shared_objects.iter().any(|object| matches!(object.kind, SharedKind::Named { .. })) {
        return Some("it has shared memory that others find by its name");
    }
    let is_shown = |mapping: &Backing| matches!(mapping, Backing::SharedFile { writable: true, .. });
    if descriptor.mappings.iter().any(|mapping| is_shown(&mapping.backing) || mapping.flags.locked) {
        return Some("it maps a file that it may write to, or locks memory");
    }
    if descriptor.open_files.iter().any(|file| !is_its_own(file)) {
        return Some("it has files that others have, too");
    }
    None
}

/// Whether nobody else has a part of an open file, or the child has only a look at it.
fn is_its_own(file: &OpenFile) -> bool {
    match file {
        OpenFile::Standard(_)
        | OpenFile::Device { .. }
        | OpenFile::Directory { .. }
        | OpenFile::DeletedDirectory { .. }
        | OpenFile::Pipe { .. }
        | OpenFile::EventFd { .. }
        | OpenFile::Epoll { .. }
        | OpenFile::Memory { .. }
        | OpenFile::SignalFd { .. }
        | OpenFile::Program { .. }
        | OpenFile::Socket(_) => true,
        // An overlay makes a copy of what is opened to be written to.
        OpenFile::Regular { flags, .. } => OFlags::from_bits_retain(*flags) & OFlags::RWMODE == OFlags::RDONLY,
        OpenFile::NamedPipe { .. }
        | OpenFile::TimerFd { .. }
        | OpenFile::Inotify { .. }
        | OpenFile::Process { .. }
        | OpenFile::Terminal { .. } => false,
    }
}
