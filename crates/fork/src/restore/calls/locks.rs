//! What the child holds by its files: locks, and who is told of their readiness.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{FileLock, FileLockKind, OpenFile};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::layout::{STEP_LOCK, STEP_OWNER};
use super::{Argument, Script, number, value};

/// Takes all locks again, of the child's own files. Where somebody else has one (the parent, of a path that is shared) the
/// child does not start: it believes that it has it.
pub(super) fn take(descriptor: &Descriptor, script: &mut Script<'_>) -> Result<(), RestoreError> {
    for lock in &descriptor.file_locks {
        script.about(STEP_LOCK, lock.number);
        let command = match lock.kind {
            FileLockKind::Whole => {
                script.gives(0, number::FLOCK, &[value(lock.number), value(flock_operation(lock))]);
                continue;
            }
            FileLockKind::Lease => {
                let reading = value(READ_LOCK as u32);
                script.gives(0, number::FCNTL, &[value(lock.number), value(number::F_SETLEASE), reading]);
                continue;
            }
            FileLockKind::Process => number::F_SETLK,
            FileLockKind::Description => number::F_OFD_SETLK,
        };
        let range = script.words(&flock_words(lock))?;
        script.gives(0, number::FCNTL, &[value(lock.number), value(command), range]);
    }
    Ok(())
}

/// F_RDLCK.
const READ_LOCK: u64 = 0;

fn flock_operation(lock: &FileLock) -> u32 {
    const SHARED: u32 = 1;
    const EXCLUSIVE: u32 = 2;
    const NOT_WAITING: u32 = 4;
    NOT_WAITING | if lock.is_exclusive { EXCLUSIVE } else { SHARED }
}

/// `struct flock`: type and whence (16 bits each), start, length, pid; counted from the file's start.
fn flock_words(lock: &FileLock) -> [u64; 4] {
    const WRITE_LOCK: u64 = 1;
    [if lock.is_exclusive { WRITE_LOCK } else { READ_LOCK }, lock.start, lock.bytes, 0]
}

/// Says who is told, and by which signal; only then that somebody is (O_ASYNC).
pub(super) fn tell_owners(descriptor: &Descriptor, script: &mut Script<'_>) -> Result<(), RestoreError> {
    const THREAD: u32 = 0;
    const PROCESS: u32 = 1;
    for owner in &descriptor.file_owners {
        script.about(STEP_OWNER, owner.number);
        let (kind, id) = if owner.tid == 0 { (PROCESS, descriptor.process.pid) } else { (THREAD, owner.tid) };
        let who = script.words(&[u64::from(kind) | u64::from(id) << 32])?;
        script.gives(0, number::FCNTL, &[value(owner.number), value(number::F_SETOWN_EX), who]);
        let signal = [value(owner.number), value(number::F_SETSIG), value(owner.signal)];
        script.gives(0, number::FCNTL, &signal);
        let flags = OFlags::from_bits_retain(flags_of(descriptor, owner.number)) | OFlags::from_bits_retain(O_ASYNC);
        script.gives(
            0,
            number::FCNTL,
            &[value(owner.number), value(number::F_SETFL), Argument::Value(flags.bits().into())],
        );
    }
    Ok(())
}

/// A file tells of its readiness by a signal; rustix has no name for it.
pub(in super::super) const O_ASYNC: u32 = 0o20_000;

fn flags_of(descriptor: &Descriptor, number: u32) -> u32 {
    let entry = descriptor.file_descriptors.iter().find(|entry| entry.number == number);
    match entry.and_then(|entry| descriptor.open_files.get(entry.open_file as usize)) {
        Some(
            OpenFile::Regular { flags, .. }
            | OpenFile::Directory { flags, .. }
            | OpenFile::DeletedDirectory { flags, .. }
            | OpenFile::Device { flags, .. }
            | OpenFile::Pipe { flags, .. }
            | OpenFile::NamedPipe { flags, .. }
            | OpenFile::EventFd { flags, .. }
            | OpenFile::Epoll { flags, .. }
            | OpenFile::Memory { flags, .. }
            | OpenFile::TimerFd { flags, .. }
            | OpenFile::SignalFd { flags, .. }
            | OpenFile::Inotify { flags, .. }
            | OpenFile::Process { flags, .. }
            | OpenFile::Terminal { flags, .. }
            | OpenFile::Program { flags, .. },
        ) => *flags,
        Some(OpenFile::Socket(socket)) => socket.flags,
        Some(OpenFile::Standard(_)) | None => 0,
    }
}
