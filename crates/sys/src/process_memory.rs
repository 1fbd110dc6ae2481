//! Reads and writes another process's memory (process_vm_readv(2), proc_pid_mem(5)).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Reads from `address` of process `pid` until `into` is full. Returns the number of bytes before the first page that cannot
/// be read (not mapped, or PROT_NONE).
///
/// # Errors
/// As process_vm_readv(2): EFAULT if not even the first byte can be read; ESRCH if the process has ended.
pub fn read_process(pid: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: into.len() };
    // SAFETY: `local` describes the exclusive borrow `into`; `remote` is never dereferenced in this process.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Reads `N` bytes at each address of process `pid`, in as few calls as possible. The first address that cannot be read, and
/// all later ones, yield `None`.
pub fn read_process_batch<const N: usize>(pid: i32, addresses: &[u64]) -> Vec<Option<[u8; N]>> {
    /// The maximal number of ranges per call.
    const UIO_MAXIOV: usize = 1024;
    let (mut all, mut is_whole) = (Vec::with_capacity(addresses.len()), true);
    for part in addresses.chunks(UIO_MAXIOV) {
        let mut bytes = vec![[0; N]; part.len()];
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: part.len() * N };
        let remote =
            |address: &u64| libc::iovec { iov_base: std::ptr::without_provenance_mut(*address as usize), iov_len: N };
        let remote: Vec<libc::iovec> = part.iter().map(remote).collect();
        let read = if is_whole {
            // SAFETY: `local` describes the exclusive borrow `bytes`; `remote` is never dereferenced in this process.
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), remote.len() as u64, 0) }
        } else {
            0
        };
        let whole = usize::try_from(read).unwrap_or(0) / N;
        is_whole = whole == part.len();
        all.extend(bytes.into_iter().enumerate().map(|(index, bytes)| (index < whole).then_some(bytes)));
    }
    all
}

/// Reads all of `into` from `address` of process `pid`. `mem` is the process's `/proc/PID/mem`. `mem` also gives access to
/// pages that [`read_process`] cannot read because of their protection.
///
/// # Errors
/// As process_vm_readv(2) and pread(2) of /proc/PID/mem (EIO if nothing is mapped).
pub fn read_process_exact(pid: i32, mem: &File, address: u64, into: &mut [u8]) -> io::Result<()> {
    let done = match read_process(pid, address, into) {
        Ok(bytes) => bytes,
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => 0,
        Err(error) => return Err(error),
    };
    if done < into.len() { mem.read_exact_at(&mut into[done..], address + done as u64) } else { Ok(()) }
}

/// Writes to `address` of process `pid` and opens no descriptor.
///
/// # Errors
/// As process_vm_writev(2): EFAULT if not even the first byte can be written; `WriteZero` if only a part can be written.
pub fn write_process(pid: i32, address: u64, from: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: from.len() };
    // SAFETY: `local` describes the borrow `from`, which the kernel only reads. `remote` is never dereferenced in this
    // process.
    match unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) } {
        written if written == from.len() as isize => Ok(()),
        0.. => Err(io::ErrorKind::WriteZero.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes to `address` of process `pid`. `mem` is the process's `/proc/PID/mem`, opened for writing. `mem` also gives access
/// to pages that the process itself may not write.
///
/// # Errors
/// As process_vm_writev(2) and pwrite(2) of /proc/PID/mem (EIO if nothing is mapped).
pub fn write_process_exact(pid: i32, mem: &File, address: u64, from: &[u8]) -> io::Result<()> {
    match write_process(pid, address, from) {
        Err(error) if error.kind() == io::ErrorKind::WriteZero || error.raw_os_error() == Some(libc::EFAULT) => {
            mem.write_all_at(from, address)
        }
        done => done,
    }
}
