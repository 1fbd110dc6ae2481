//! The memory of a template: another process on this host, read through its `/proc` file.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use farfork_sys::pidfd;
use rustix::io::Errno;

/// Longest single read, in bytes. A longer read would cost no less per page. A kernel without preemption runs no other
/// thread on this CPU during a read: for example, the thread that sends the one page for which a child waits.
const READ_CHUNK_BYTES_MAX: usize = 32 << 10;

/// A template's memory, read through `/proc/PID/mem`.
///
/// process_vm_readv(2) would pin pages. Since Linux 5.19, the kernel copies a page that the template shares with its parent
/// before it pins it. So if its children read everything, the template would hold all of its memory a second time.
/// `/proc/PID/mem` also reads pages that the template's own protection hides.
/// template's own protection hides.
#[derive(Debug)]
pub struct TemplateMemory {
    pidfd: OwnedFd,
    mem: File,
}

impl TemplateMemory {
    /// Opens the template's memory. `/proc/self/fdinfo` of its pidfd contains its pid in this process's pid namespace.
    ///
    /// # Errors
    /// ESRCH if the template has ended or is not visible in this pid namespace; EACCES if this process may not read it
    /// (ptrace(2), PTRACE_MODE_ATTACH_FSCREDS).
    pub fn new(pidfd: OwnedFd) -> io::Result<Self> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
        let field = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        let pid = field.and_then(|text| text.trim().parse::<i32>().ok()).filter(|pid| *pid > 0).ok_or(Errno::SRCH)?;
        let mem = File::open(format!("/proc/{pid}/mem"))?;
        // Another process may have got the pid before the open. The file keeps referring to the process for which it was
        // opened.
        let template = Self { pidfd, mem };
        template.check_alive()?;
        Ok(template)
    }

    /// Fills `into` from the template's memory at `address`, whatever the protection there.
    ///
    /// # Errors
    /// ESRCH if the template has ended. Otherwise as pread(2) of /proc/PID/mem: EIO if nothing is mapped. The contents of
    /// `into` are then undefined.
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        // A read that succeeded needs no check. The kernel holds the memory during the read, and returns nothing from memory
        // that was freed. The read fails if the kernel took pages from a process that it kills for lack of memory.
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
