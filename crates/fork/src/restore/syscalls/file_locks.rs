//! Takes the child's file locks and leases again, and sets the process or thread that gets a file's signals.

use std::collections::BTreeSet;

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{FileLock, FileLockKind, OpenFile};

use super::super::RestoreError;
use super::super::passed_objects::PassedObjects;
use super::super::plan_layout::{STEP_FILE_OWNER, STEP_LOCK};
use super::{CreatedFiles, SyscallBuilder, abi, value};

/// The restorer's own descriptors of the child's files.
#[derive(Debug, Clone, Copy)]
pub(super) struct RestorerFiles<'a> {
    pub(super) objects: &'a PassedObjects,
    pub(super) created_files: &'a CreatedFiles,
    /// The descriptor of the first slot.
    pub(super) fd_base: u32,
}

/// Takes all locks of the child's files again. If another process holds one (the parent, on a shared path), the child
/// is not started: it would run without a lock on which it relies.
pub(super) fn take_locks(
    descriptor: &Descriptor,
    restorer_files: RestorerFiles<'_>,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    close_other_descriptors(descriptor, restorer_files, syscall_builder);
    for lock in &descriptor.file_locks {
        syscall_builder.set_step(STEP_LOCK, lock.number);
        let command = match lock.kind {
            FileLockKind::Flock => {
                syscall_builder.call_expecting(0, abi::FLOCK, &[value(lock.number), value(flock_operation(lock))]);
                continue;
            }
            FileLockKind::Lease => {
                let reading = value(F_RDLCK as u32);
                syscall_builder.call_expecting(0, abi::FCNTL, &[value(lock.number), value(abi::F_SETLEASE), reading]);
                continue;
            }
            FileLockKind::Posix => abi::F_SETLK,
            FileLockKind::OpenFileDescription => abi::F_OFD_SETLK,
        };
        let range = syscall_builder.words_argument(&encode_flock(lock))?;
        syscall_builder.call_expecting(0, abi::FCNTL, &[value(lock.number), value(command), range]);
    }
    Ok(())
}

/// Closes the restorer's own descriptors of files with POSIX locks. A POSIX lock ends when its process closes any descriptor of
/// the file (fcntl(2)), so none may be closed after the first lock is taken. Processes that share the table may already have
/// closed some of these descriptors.
fn close_other_descriptors(
    descriptor: &Descriptor,
    restorer_files: RestorerFiles<'_>,
    syscall_builder: &mut SyscallBuilder<'_>,
) {
    let locks = descriptor.file_locks.iter().filter(|lock| lock.kind == FileLockKind::Posix);
    let slots: BTreeSet<u32> = locks.flat_map(|lock| restorer_slots(descriptor, lock, restorer_files)).collect();
    for slot in slots {
        syscall_builder.call_may_fail(abi::CLOSE, &[value(restorer_files.fd_base + slot)]);
    }
}

/// The slots of the restorer's own descriptors of a locked file: those that are already placed and mapped, or were sent in a
/// socket's message.
fn restorer_slots(descriptor: &Descriptor, lock: &FileLock, restorer_files: RestorerFiles<'_>) -> Vec<u32> {
    let RestorerFiles { objects, created_files, .. } = restorer_files;
    let locked = descriptor.file_descriptors.iter().find(|entry| entry.number == lock.number);
    let Some(file) = locked.and_then(|entry| descriptor.open_files.get(entry.open_file as usize)) else {
        return Vec::new();
    };
    let all = descriptor.open_files.iter().enumerate();
    let opened = all.filter(|(_, other)| has_same_inode(file, other)).flat_map(|(index, _)| {
        [objects.slot_of_open_file(index as u32), created_files.slot_of_open_file(index as u32)]
    });
    let mapped = match file {
        OpenFile::MemFd { object, .. } => Some(objects.slot_of_shared_object(*object)),
        _ => None,
    };
    opened.flatten().chain(mapped).collect()
}

/// Whether two open files of a descriptor are the same file. Both ends of a pipe are.
fn has_same_inode(file: &OpenFile, other: &OpenFile) -> bool {
    match (file, other) {
        (OpenFile::MemFd { object: one, .. }, OpenFile::MemFd { object: two, .. }) => one == two,
        (OpenFile::Pipe { pipe: one, .. }, OpenFile::Pipe { pipe: two, .. }) => one == two,
        (OpenFile::Regular { path: one, .. }, OpenFile::Regular { path: two, .. })
        | (OpenFile::Directory { path: one, .. }, OpenFile::Directory { path: two, .. })
        | (OpenFile::NamedPipe { path: one, .. }, OpenFile::NamedPipe { path: two, .. }) => one == two,
        _ => std::ptr::eq(file, other),
    }
}

/// F_RDLCK.
const F_RDLCK: u64 = 0;

fn flock_operation(lock: &FileLock) -> u32 {
    const LOCK_SH: u32 = 1;
    const LOCK_EX: u32 = 2;
    const LOCK_NB: u32 = 4;
    LOCK_NB | if lock.is_exclusive { LOCK_EX } else { LOCK_SH }
}

/// Encodes `struct flock`: type and whence (16 bits each), start, length, pid. Offsets are relative to the start of the
/// file.
fn encode_flock(lock: &FileLock) -> [u64; 4] {
    const F_WRLCK: u64 = 1;
    [if lock.is_exclusive { F_WRLCK } else { F_RDLCK }, lock.start, lock.bytes, 0]
}

/// Sets the owner and the signal of each file that sends signals, and then enables readiness signals (O_ASYNC).
pub(super) fn set_file_owners(
    descriptor: &Descriptor,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    const F_OWNER_TID: u32 = 0;
    const F_OWNER_PID: u32 = 1;
    for owner in &descriptor.file_owners {
        syscall_builder.set_step(STEP_FILE_OWNER, owner.number);
        let (kind, id) = if owner.tid == 0 { (F_OWNER_PID, descriptor.process.pid) } else { (F_OWNER_TID, owner.tid) };
        let owner_argument = syscall_builder.words_argument(&[u64::from(kind) | u64::from(id) << 32])?;
        syscall_builder.call_expecting(0, abi::FCNTL, &[value(owner.number), value(abi::F_SETOWN_EX), owner_argument]);
        let signal = [value(owner.number), value(abi::F_SETSIG), value(owner.signal)];
        syscall_builder.call_expecting(0, abi::FCNTL, &signal);
        let flags = open_file_flags(descriptor, owner.number);
        if flags & O_ASYNC != 0 {
            syscall_builder.call_expecting(0, abi::FCNTL, &[value(owner.number), value(abi::F_SETFL), value(flags)]);
        }
    }
    Ok(())
}

/// The flag for signal-driven I/O, for which rustix has no name.
pub(in super::super) const O_ASYNC: u32 = 0o20_000;

fn open_file_flags(descriptor: &Descriptor, number: u32) -> u32 {
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
            | OpenFile::MemFd { flags, .. }
            | OpenFile::TimerFd { flags, .. }
            | OpenFile::SignalFd { flags, .. }
            | OpenFile::Inotify { flags, .. }
            | OpenFile::PidFd { flags, .. }
            | OpenFile::Terminal { flags, .. }
            | OpenFile::CheckpointSocket { flags, .. },
        ) => *flags,
        Some(OpenFile::Socket(socket)) => socket.flags,
        Some(OpenFile::StandardStream(_)) | None => 0,
    }
}
