//! Named shared memory: POSIX shared memory, which is a file, and System V segments.
//! Both are filled from a memfd that the daemon passes, before anything is mapped.
//! Also copies written pages into private file mappings, and protects a bridged vdso.

use std::collections::BTreeSet;
use std::ops::Range;

use farfork_wire::descriptor::{Backing, FileStatus, FileTimes, Mapping, SharedObjectKind};
use farfork_wire::{Descriptor, PAGE_SIZE};
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::passed_objects::{PassedObjects, is_deferred_seal};
use super::super::plan_layout::{STEP_SHARED_MEMORY, STEP_VDSO_BRIDGE, STEP_WRITTEN_PAGES};
use super::super::process_tree::TreePosition;
use super::{SyscallBuilder, abi, value};

/// Maximum number of bytes that one system call copies: the kernel's MAX_RW_COUNT.
const COPY_BYTES_MAX: u64 = 0x7fff_f000;

/// The properties of a System V segment.
#[derive(Debug, Clone, Copy)]
struct SegmentProperties {
    /// The key of shmget(2).
    key: u32,
    /// The segment's id in the parent.
    id: u32,
    /// Mode and owner.
    status: FileStatus,
}

/// Creates all named shared memory, in the first process of a tree.
pub(super) fn create_shared_memory(
    descriptor: &Descriptor,
    objects: &PassedObjects,
    place: &TreePosition<'_>,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    for (index, object) in descriptor.shared_objects.iter().enumerate() {
        syscall_builder.set_step(STEP_SHARED_MEMORY, index as u32);
        let memfd = place.fd_base + objects.slot_of_shared_object(index as u32);
        match &object.kind {
            SharedObjectKind::Anonymous | SharedObjectKind::MemFd(_) | SharedObjectKind::DeletedFile(_) => {}
            SharedObjectKind::PosixShm { path, status } => {
                if objects.is_private_path(path) {
                    fill_shared_file(memfd, object.bytes, path, *status, object.times, syscall_builder)?;
                }
            }
            SharedObjectKind::SystemV { key, id, status, .. } => {
                let attached = segment_mappings(descriptor, index as u32);
                let segment = SegmentProperties { key: *key, id: *id, status: *status };
                create_segment(memfd, object.bytes, segment, &attached, syscall_builder)?;
            }
        }
    }
    attach_segments(descriptor, place, syscall_builder);
    Ok(())
}

/// Attaches the System V segments of a process, after the first process has created them. A segment that was marked for
/// removal is removed (IPC_RMID) as soon as one process has attached it; others can still attach it.
pub(super) fn attach_segments(
    descriptor: &Descriptor,
    place: &TreePosition<'_>,
    syscall_builder: &mut SyscallBuilder<'_>,
) {
    for (index, object) in descriptor.shared_objects.iter().enumerate() {
        let SharedObjectKind::SystemV { id, is_removed, .. } = object.kind else { continue };
        syscall_builder.set_step(STEP_SHARED_MEMORY, index as u32);
        for mapping in segment_mappings(descriptor, index as u32) {
            let at = value(mapping.start);
            syscall_builder.call_expecting(mapping.start, abi::SHMAT, &[value(id), at, value(shmat_flags(mapping))]);
            let length = (mapping.end - mapping.start).next_multiple_of(PAGE_SIZE);
            let protect = [at, value(length), value(u32::from(mapping.protection))];
            syscall_builder.call_expecting(0, abi::MPROTECT, &protect);
        }
        if is_removed && place.is_first_to_attach(index as u32) {
            syscall_builder.call_expecting(0, abi::SHMCTL, &[value(id), value(IPC_RMID), value(0_u32)]);
        }
    }
}

/// Writes the pages that a process had written through private mappings of files. This does not change the files,
/// because the kernel copies a private page when it is written.
pub(super) fn write_private_pages(
    objects: &PassedObjects,
    place: &TreePosition<'_>,
    overlaid: &BTreeSet<u64>,
    syscall_builder: &mut SyscallBuilder<'_>,
) {
    const PROT_READ_WRITE: u8 = 3;
    let Some((passed, runs)) = objects.written_pages(place.process_index) else { return };
    syscall_builder.set_step(STEP_WRITTEN_PAGES, 0);
    let source = place.fd_base + passed;
    for run in runs.filter(|run| overlaid.contains(&run.mapping.0)) {
        let (start, end) = run.mapping;
        // Change the protection of the whole mapping: a mapping that was writable stays accounted (VM_ACCOUNT), and the
        // kernel does not merge parts that are accounted differently.
        let protect = [PROT_READ_WRITE, run.protection].map(|protection| [start, end - start, protection.into()]);
        let is_writable = run.protection & PROT_READ_WRITE == PROT_READ_WRITE;
        if !is_writable {
            syscall_builder.call_expecting(0, abi::MPROTECT, &protect[0].map(value));
        }
        for offset in (0..run.bytes).step_by(COPY_BYTES_MAX as usize) {
            let length = (run.bytes - offset).min(COPY_BYTES_MAX);
            let read = [value(source), value(run.address + offset), value(length), value(run.file_offset + offset)];
            syscall_builder.call_expecting(length, abi::PREAD64, &read);
        }
        if !is_writable {
            syscall_builder.call_expecting(0, abi::MPROTECT, &protect[1].map(value));
        }
    }
}

/// Makes the mapping of the bridged vdso read-only and executable, after its code was copied.
pub(super) fn protect_vdso_code(place: &Range<u64>, syscall_builder: &mut SyscallBuilder<'_>) {
    const PROT_READ_EXEC: u32 = 5;
    syscall_builder.set_step(STEP_VDSO_BRIDGE, 0);
    syscall_builder.call_expecting(
        0,
        abi::MPROTECT,
        &[value(place.start), value(place.end - place.start), value(PROT_READ_EXEC)],
    );
}

/// Adds the seals that do not affect existing mappings.
pub(super) fn add_deferred_seals(
    descriptor: &Descriptor,
    objects: &PassedObjects,
    fd_base: u32,
    syscall_builder: &mut SyscallBuilder<'_>,
) {
    for (index, object) in descriptor.shared_objects.iter().enumerate() {
        if let Some(seals) = object.seals.filter(|seals| is_deferred_seal(*seals)) {
            syscall_builder.set_step(STEP_SHARED_MEMORY, index as u32);
            let memfd = fd_base + objects.slot_of_shared_object(index as u32);
            syscall_builder.call_expecting(0, abi::FCNTL, &[value(memfd), value(abi::F_ADD_SEALS), value(seals)]);
        }
    }
}

/// Creates the file at `path`. Fills it with `bytes` bytes of `memfd`, a descriptor of the child during the restore. If
/// the node has a file at this path, the child's file is another one, in its own layer.
fn fill_shared_file(
    memfd: u32,
    bytes: u64,
    path: &str,
    status: FileStatus,
    times: FileTimes,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    let path = syscall_builder.text_argument(path)?;
    let flags = (OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW).bits();
    syscall_builder.call_expecting(0, abi::OPEN, &[path, value(flags), value(status.mode)]);
    syscall_builder.call_expecting(0, abi::FCHMOD, &[value(0_u32), value(status.mode)]);
    syscall_builder.call_expecting(0, abi::FCHOWN, &[value(0_u32), value(status.uid), value(status.gid)]);
    for offset in (0..bytes).step_by(COPY_BYTES_MAX as usize) {
        let (from, length) = (syscall_builder.words_argument(&[offset])?, (bytes - offset).min(COPY_BYTES_MAX));
        syscall_builder.call_expecting(length, abi::SENDFILE, &[value(0_u32), value(memfd), from, value(length)]);
    }
    set_file_times(0, times, syscall_builder)?;
    syscall_builder.call_expecting(0, abi::CLOSE, &[value(0_u32)]);
    Ok(())
}

/// Sets the times of shared memory files. Runs after all steps that change them: mapping a file sets its access time.
pub(super) fn set_times(
    descriptor: &Descriptor,
    objects: &PassedObjects,
    fd_base: u32,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    for (index, object) in descriptor.shared_objects.iter().enumerate() {
        if matches!(object.kind, SharedObjectKind::MemFd(_) | SharedObjectKind::DeletedFile(_)) {
            syscall_builder.set_step(STEP_SHARED_MEMORY, index as u32);
            set_file_times(fd_base + objects.slot_of_shared_object(index as u32), object.times, syscall_builder)?;
        }
    }
    Ok(())
}

/// Sets st_atime and st_mtime by utimensat(2). Only the kernel can set st_ctime.
fn set_file_times(file: u32, times: FileTimes, syscall_builder: &mut SyscallBuilder<'_>) -> Result<(), RestoreError> {
    const NS_PER_SECOND: i64 = 1_000_000_000;
    let words =
        [times.accessed_ns, times.modified_ns].map(|ns| [ns.div_euclid(NS_PER_SECOND), ns.rem_euclid(NS_PER_SECOND)]);
    let times =
        syscall_builder.words_argument(&words.concat().into_iter().map(i64::cast_unsigned).collect::<Vec<u64>>())?;
    syscall_builder.call_expecting(0, abi::UTIMENSAT, &[value(file), value(0_u32), times, value(0_u32)]);
    Ok(())
}

/// Returns the mappings of a segment.
fn segment_mappings(descriptor: &Descriptor, object: u32) -> Vec<&Mapping> {
    let is_it =
        |mapping: &&Mapping| matches!(mapping.backing, Backing::SharedMemory { object: other, .. } if other == object);
    descriptor.mappings.iter().filter(is_it).collect()
}

pub(super) const IPC_CREAT: u32 = 0o1000;
pub(super) const IPC_EXCL: u32 = 0o2000;
const IPC_RMID: u32 = 0;
pub(super) const IPC_SET: u32 = 1;

/// Address at which a segment is attached to be filled, if the child has not attached it. The address is free: the child's
/// memory is not mapped yet, and the restorer's region is far below. If it were in use, shmat(2) would fail.
const SEGMENT_FILL_ADDRESS: u64 = 0x4000_0000_0000;

/// Creates a System V segment, and fills it with `bytes` bytes of `memfd`, a descriptor of the child during the restore.
fn create_segment(
    memfd: u32,
    bytes: u64,
    segment: SegmentProperties,
    attached: &[&Mapping],
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    let SegmentProperties { key, id, status } = segment;
    set_next_ipc_id("/proc/sys/kernel/shm_next_id", id, syscall_builder)?;
    let flags = status.mode | IPC_CREAT | IPC_EXCL;
    syscall_builder.call_expecting(id.into(), abi::SHMGET, &[value(key), value(bytes), value(flags)]);
    let owner = syscall_builder.words_argument(&encode_shmid_ds(key, status))?;
    syscall_builder.call_expecting(0, abi::SHMCTL, &[value(id), value(IPC_SET), owner]);
    if bytes > 0 {
        let place = attached.first().map_or(SEGMENT_FILL_ADDRESS, |first| first.start);
        syscall_builder.call_expecting(place, abi::SHMAT, &[value(id), value(place), value(0_u32)]);
        for offset in (0..bytes).step_by(COPY_BYTES_MAX as usize) {
            let length = (bytes - offset).min(COPY_BYTES_MAX);
            let read = [value(memfd), value(place + offset), value(length), value(offset)];
            syscall_builder.call_expecting(length, abi::PREAD64, &read);
        }
        syscall_builder.call_expecting(0, abi::SHMDT, &[value(place)]);
    }
    Ok(())
}

fn shmat_flags(mapping: &Mapping) -> u32 {
    const SHM_RDONLY: u32 = 0o10_000;
    const SHM_EXEC: u32 = 0o100_000;
    const PROT_WRITE: u8 = 2;
    const PROT_EXEC: u8 = 4;
    let has = |bit: u8, flag: u32| if mapping.protection & bit != 0 { flag } else { 0 };
    (SHM_RDONLY ^ has(PROT_WRITE, SHM_RDONLY)) | has(PROT_EXEC, SHM_EXEC)
}

/// Sets the id that the IPC namespace assigns next; requires CONFIG_CHECKPOINT_RESTORE.
pub(super) fn set_next_ipc_id(
    file: &str,
    id: u32,
    syscall_builder: &mut SyscallBuilder<'_>,
) -> Result<(), RestoreError> {
    let (path, text) = (syscall_builder.text_argument(file)?, id.to_string());
    let (bytes, length) = (syscall_builder.bytes_argument(text.as_bytes())?, text.len() as u64);
    syscall_builder.call_expecting(0, abi::OPEN, &[path, value((OFlags::WRONLY | OFlags::CLOEXEC).bits())]);
    syscall_builder.call_expecting(length, abi::WRITE, &[value(0_u32), bytes, value(length)]);
    syscall_builder.call_expecting(0, abi::CLOSE, &[value(0_u32)]);
    Ok(())
}

/// Encodes the part of `struct shmid64_ds` that IPC_SET reads: key, uid, gid, two creator ids, mode (32 bits each). The
/// structure has 112 bytes.
fn encode_shmid_ds(key: u32, status: FileStatus) -> [u64; 14] {
    let mut words = [0; 14];
    words[0] = u64::from(key) | u64::from(status.uid) << 32;
    words[1] = status.gid.into();
    words[2] = u64::from(status.mode) << 32;
    words
}

/// Whether an object is a System V segment, whose shared mappings are made by shmat(2).
pub(in super::super) fn is_mapped_by_shmat(kind: &SharedObjectKind) -> bool {
    matches!(kind, SharedObjectKind::SystemV { .. })
}
