//! The gate of a child that stands, complete, and waits for a word before its first instruction: whose user has it wait, or one that was
//! made ahead of need.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_sys::fdpass;
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{Backing, OpenFile, SharedKind};
use rustix::fs::OFlags;

use super::layout::{WORD_GO, WORD_GO_AND_TELL};
use super::{LocalNode, RestoreError, Restored, stub};

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
    let told = stub::wait_restored(control, limit, descriptor)?;
    Ok(Restored { pid: told.pid, realtime_ns: told.realtime_ns })
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

/// Which of the node's files a child of a seed had by their paths when it was made.
#[derive(Debug)]
pub struct FilesThere(Vec<(Option<FileNumber>, PathBuf)>);

/// Device and inode.
type FileNumber = (u64, u64);

impl FilesThere {
    /// Those that a child has which is made now: its directories, its executable, what it has open or maps.
    pub fn look(descriptor: &Descriptor, node: &LocalNode) -> Self {
        let process = &descriptor.process;
        let cwd = process.deleted_cwd.is_none().then_some(&process.cwd);
        let own = std::iter::once(&process.exe).chain(cwd).chain(&process.root);
        let open = descriptor.open_files.iter().filter_map(|file| match file {
            OpenFile::Regular { path, .. } | OpenFile::Directory { path, .. } => Some(path),
            _ => None,
        });
        let mapped = descriptor.mappings.iter().filter_map(|mapping| match mapping.backing {
            Backing::SharedFile { file, .. } => Some(&descriptor.mapped_files[file as usize].path),
            _ => None,
        });
        let here = |path: &String| node.root.join(path.trim_start_matches('/'));
        let seen = own.chain(open).chain(mapped).map(here).map(|path| (number_of(&path), path));
        Self(seen.collect())
    }

    /// Whether each path leads to the same file still: who replaces one wants the next child to have the new one.
    pub fn are_the_same(&self) -> bool {
        self.0.iter().all(|(number, path)| number_of(path) == *number)
    }
}

fn number_of(path: &Path) -> Option<FileNumber> {
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
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
