//! The memory of a template: another process on this host, read through its `/proc` file.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use farfork_sys::pidfd;
use rustix::io::Errno;

/// Most bytes that are read at once. More would cost no less a page, and a kernel that is not preempted runs nobody else on this
/// CPU meanwhile, such as the thread that is to send the one page that somebody waits for.
const READ_CHUNK_BYTES_MAX: usize = 32 << 10;

/// A template's memory, read by way of `/proc/PID/mem`: what process_vm_readv(2) reads, the kernel *copies* first where the
/// template shares it with its parent (it pins pages, and those that are pinned must not be shared: since Linux 5.19), so
/// that the template of a seed whose children read all would hold all of its memory once more. It also reads what the
/// template's own protection hides.
#[derive(Debug)]
pub struct TemplateMemory {
    pidfd: OwnedFd,
    mem: File,
}

impl TemplateMemory {
    /// Takes the template by its pidfd, whose `/proc/self/fdinfo` tells its number in this process's pid namespace.
    ///
    /// # Errors
    /// ESRCH where the template has ended or cannot be seen from this pid namespace; EACCES where this process may
    /// not read it (ptrace(2), PTRACE_MODE_ATTACH_FSCREDS).
    pub fn new(pidfd: OwnedFd) -> io::Result<Self> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
        let field = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        let pid = field.and_then(|text| text.trim().parse::<i32>().ok()).filter(|pid| *pid > 0).ok_or(Errno::SRCH)?;
        let mem = File::open(format!("/proc/{pid}/mem"))?;
        // The number may have become another process's meanwhile; what is open stays.
        let template = Self { pidfd, mem };
        template.check_alive()?;
        Ok(template)
    }

    /// Fills `into` from the template's memory at `address`, whatever the protection there.
    ///
    /// # Errors
    /// ESRCH where the template has ended, else as pread(2) of /proc/PID/mem: EIO where nothing is mapped. The
    /// contents of `into` are then meaningless.
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        // Nothing has to be asked behind a read that succeeded: the kernel holds the memory while it reads, has nothing to give
        // of memory that is gone, and fails where it has taken pages from a process that it kills for want of memory.
        let mut pieces = into.chunks_mut(READ_CHUNK_BYTES_MAX).zip((address..).step_by(READ_CHUNK_BYTES_MAX));
        let read = pieces.try_for_each(|(piece, address)| self.mem.read_exact_at(piece, address));
        if read.is_err() {
            self.check_alive()?;
        }
        read
    }

    /// Fails with ESRCH when the template has ended.
    fn check_alive(&self) -> io::Result<()> {
        if pidfd::wait_exit(&self.pidfd, Duration::ZERO)? { Err(Errno::SRCH.into()) } else { Ok(()) }
    }
}
