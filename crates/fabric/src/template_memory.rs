//! The memory of a template: another process on this host, read through its `/proc` file.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use farfork_sys::pidfd;
use rustix::io::Errno;

/// Longest single read, in bytes. A longer read would cost no less per page. During a read, a kernel without preemption
/// runs no other thread on this CPU, such as the thread that sends a page for which a child waits.
const READ_CHUNK_BYTES_MAX: usize = 32 << 10;

/// A template's memory, read through `/proc/PID/mem`.
///
/// process_vm_readv(2) would pin pages. Since Linux 5.19, the kernel copies a page that the template shares with its
/// parent before it pins the page. So if children read all pages, the template would hold a second copy of its memory.
/// `/proc/PID/mem` also reads pages that are mapped without read permission.
#[derive(Debug)]
pub struct TemplateMemory {
    pidfd: OwnedFd,
    mem: File,
}

impl TemplateMemory {
    /// Opens the template's memory. Its pid in this process's pid namespace is read from the pidfd's file in
    /// `/proc/self/fdinfo`.
    ///
    /// # Errors
    /// ESRCH if the template has ended or is not visible in this pid namespace; EACCES if this process may not read it
    /// (ptrace(2), PTRACE_MODE_ATTACH_FSCREDS).
    pub fn new(pidfd: OwnedFd) -> io::Result<Self> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
        let field = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        let pid = field.and_then(|text| text.trim().parse::<i32>().ok()).filter(|pid| *pid > 0).ok_or(Errno::SRCH)?;
        let mem = File::open(format!("/proc/{pid}/mem"))?;
        // Check after the open: another process may have got the pid before it. Once opened, the file refers to one
        // process.
        let template = Self { pidfd, mem };
        template.check_alive()?;
        Ok(template)
    }

    /// Fills `into` from the template's memory at `address`, even if the memory is mapped without read permission.
    ///
    /// # Errors
    /// ESRCH if the template has ended. Otherwise as pread(2) of /proc/PID/mem: EIO if nothing is mapped. After an
    /// error, the contents of `into` are undefined.
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        // Only a failed read needs the check. During a read, the kernel keeps the memory alive, so a successful read
        // has returned the template's bytes. The read fails if the OOM killer has taken pages from the process.
        let mut pieces = into.chunks_mut(READ_CHUNK_BYTES_MAX).zip((address..).step_by(READ_CHUNK_BYTES_MAX));
        let read = pieces.try_for_each(|(piece, address)| self.mem.read_exact_at(piece, address));
        if read.is_err() {
            self.check_alive()?;
        }
        read
    }

    /// Returns ESRCH if the template has ended.
    fn check_alive(&self) -> io::Result<()> {
        if pidfd::wait_exit(&self.pidfd, Duration::ZERO)? { Err(Errno::SRCH.into()) } else { Ok(()) }
    }
}
