//! System V shared memory, semaphores and message queues of the calling thread's IPC namespace (sysvipc(7)). This module
//! only reads them.

use std::fs::File;
use std::{io, mem, ptr};

use crate::process;

/// Whether there is any semaphore set or message queue.
///
/// # Errors
/// As semctl(2) and msgctl(2).
pub fn has_semaphores_or_queues() -> io::Result<bool> {
    const SEM_INFO: libc::c_int = 19;
    const MSG_INFO: libc::c_int = 12;
    // SAFETY: all-zero bytes are a valid value of a struct of numbers.
    let mut sets: libc::seminfo = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut queues: libc::msginfo = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one struct seminfo, which outlives the call.
    check_result(unsafe { libc::semctl(0, 0, SEM_INFO, &raw mut sets) })?;
    // SAFETY: with this command the kernel writes one struct msginfo, although the parameter's type is msqid_ds; it outlives
    // the call.
    check_result(unsafe { libc::msgctl(0, MSG_INFO, (&raw mut queues).cast()) })?;
    Ok(sets.semusz > 0 || queues.msgpool > 0)
}

/// Whether there is any shared memory segment.
///
/// # Errors
/// As shmctl(2).
pub fn has_shared_memory() -> io::Result<bool> {
    const SHM_INFO: libc::c_int = 14;
    // `struct shm_info`: the number of segments in use, then five longs.
    let mut info = [0_u64; 6];
    // SAFETY: with this command the kernel writes one struct shm_info, of six words, which outlives the call.
    check_result(unsafe { libc::shmctl(0, SHM_INFO, info.as_mut_ptr().cast()) })?;
    Ok(info[0].to_ne_bytes()[..4] != [0; 4])
}

/// Opens the contents of a shared memory segment for reading. Attaches the segment temporarily. This changes the segment's
/// timestamps and its last pid (`shm_lpid`).
///
/// # Errors
/// As shmat(2), and as opening a file of `/proc/self/map_files`.
pub fn open_segment(id: u32) -> io::Result<File> {
    // SAFETY: the kernel chooses the address, and does not replace an existing mapping.
    let at = unsafe { libc::shmat(id.cast_signed(), ptr::null(), libc::SHM_RDONLY) };
    if at.addr() == usize::MAX {
        return Err(io::Error::last_os_error());
    }
    let opened = open_mapped(at.addr() as u64);
    // SAFETY: it was attached here, and nothing else uses it.
    check_result(unsafe { libc::shmdt(at) })?;
    opened
}

/// Opens the file that this process has mapped at `start`. The size of the mapping is not used: for huge pages it is rounded
/// up.
fn open_mapped(start: u64) -> io::Result<File> {
    let maps = process::read_maps(std::process::id().cast_signed())?;
    let mapped = maps.iter().find(|entry| entry.start == start).ok_or(io::ErrorKind::NotFound)?;
    File::open(format!("/proc/self/map_files/{}", mapped.range_name()))
}

/// Reads the values of a set of `count` semaphores.
///
/// # Errors
/// As semctl(2); `InvalidData` if the set has another size.
pub fn read_semaphores(id: u32, count: u32) -> io::Result<Vec<u16>> {
    const GETALL: libc::c_int = 13;
    let has_count = semaphore_count(id)? == u64::from(count);
    if !has_count {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut values = vec![0_u16; count as usize];
    // SAFETY: the kernel writes as many values as the set has. That number was just checked, and never changes while the id
    // exists.
    check_result(unsafe { libc::semctl(id.cast_signed(), 0, GETALL, values.as_mut_ptr()) })?;
    Ok(values)
}

fn semaphore_count(id: u32) -> io::Result<u64> {
    // SAFETY: all-zero bytes are a valid value of a struct of numbers.
    let mut status: libc::semid_ds = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one struct semid_ds, which outlives the call.
    check_result(unsafe { libc::semctl(id.cast_signed(), 0, libc::IPC_STAT, &raw mut status) })?;
    Ok(status.sem_nsems)
}

/// Returns the id of the process that last changed a semaphore, in the caller's pid namespace; 0 if there is no such
/// process, or if it has no id there.
///
/// # Errors
/// As semctl(2).
pub fn semaphore_last_pid(id: u32, number: u32) -> io::Result<i32> {
    const GETPID: libc::c_int = 11;
    // SAFETY: the command takes no argument.
    check_result(unsafe {
        libc::semctl(id.cast_signed(), number.cast_signed(), GETPID, ptr::null_mut::<libc::c_void>())
    })
}

/// Reads the maximal number of bytes in a message queue.
///
/// # Errors
/// As msgctl(2).
pub fn read_queue_limit(id: u32) -> io::Result<u64> {
    // SAFETY: all-zero bytes are a valid value of a struct of numbers.
    let mut status: libc::msqid_ds = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one struct msqid_ds, which outlives the call.
    check_result(unsafe { libc::msgctl(id.cast_signed(), libc::IPC_STAT, &raw mut status) })?;
    Ok(status.msg_qbytes)
}

/// Reads the message at index `index` of a queue, and leaves it there; `None` after the last one. Returns its type and at
/// most `bytes_max` bytes. Needs CONFIG_CHECKPOINT_RESTORE.
///
/// # Errors
/// As msgrcv(2), MSG_COPY: E2BIG if the message is longer than `bytes_max`.
pub fn peek_message(id: u32, index: u32, bytes_max: usize) -> io::Result<Option<(i64, Vec<u8>)>> {
    const MSG_COPY: libc::c_int = 0o40_000;
    const TYPE_BYTES: usize = mem::size_of::<libc::c_long>();
    let mut buffer = vec![0_u64; (TYPE_BYTES + bytes_max).div_ceil(TYPE_BYTES)];
    let flags = libc::IPC_NOWAIT | MSG_COPY;
    // SAFETY: the kernel writes a long and at most `bytes_max` bytes to `buffer`, which has room for them and outlives the
    // call.
    let got = unsafe { libc::msgrcv(id.cast_signed(), buffer.as_mut_ptr().cast(), bytes_max, index.into(), flags) };
    if got < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOMSG) { Ok(None) } else { Err(error) };
    }
    let bytes: Vec<u8> = buffer[1..].iter().flat_map(|word| word.to_ne_bytes()).take(got as usize).collect();
    Ok(Some((buffer[0].cast_signed(), bytes)))
}

fn check_result(result: libc::c_int) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
