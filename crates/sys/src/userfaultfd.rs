//! userfaultfd(2) and ioctl_userfaultfd(2): lets one process handle the page faults of another.
//!
//! The crate `userfaultfd` has most of these calls, but lacks three things. It reads messages only into its own buffer,
//! while the pager reads them into a mapped journal, so that a killed pager loses none. It has no UFFDIO_POISON. It hides
//! the errno that ended a partial copy.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::UserfaultfdFlags;

use crate::shared_mapping::SharedMapping;

/// Size of a message, in bytes (`struct uffd_msg`).
pub const EVENT_BYTES: usize = 32;

/// The link of a userfaultfd in /proc/PID/fd.
const FD_LINK: &str = "anon_inode:[userfaultfd]";

/// The version of the interface (UFFD_API).
const API: u64 = 0xaa;
/// UFFDIO_REGISTER_MODE_MISSING.
const MODE_MISSING: u64 = 1;
/// UFFDIO_REGISTER_MODE_MINOR.
const MODE_MINOR: u64 = 4;
/// UFFDIO_CONTINUE_MODE_DONTWAKE.
const CONTINUE_WITHOUT_WAKE: u64 = 1;
/// UFFDIO_COPY_MODE_WP.
const COPY_PROTECTED: u64 = 2;
/// UFFD_PAGEFAULT_FLAG_WRITE.
const FAULT_WRITE: u64 = 1;
/// UFFDIO_WRITEPROTECT_MODE_DONTWAKE.
const UNPROTECT_WITHOUT_WAKE: u64 = 2;

/// An address for queries that accept any address of user space. It is well above the lowest address that may be mapped.
const ANY_ADDRESS: u64 = 1 << 32;

/// Features of the interface, as bits (UFFD_FEATURE_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UffdFeatures(pub u64);

impl UffdFeatures {
    /// Messages at fork(2), mremap(2), madvise(2) (MADV_DONTNEED and similar) and munmap(2).
    pub const ALL_EVENTS: UffdFeatures = UffdFeatures(1 << 1 | 1 << 2 | 1 << 3 | 1 << 6);
    /// A page fault message names the thread that waits.
    pub const THREAD_IDS: UffdFeatures = UffdFeatures(1 << 8);
    /// UFFDIO_CONTINUE for files of hugetlbfs (since Linux 5.13).
    pub const MINOR_HUGETLBFS: UffdFeatures = UffdFeatures(1 << 9);

    /// Whether all of `other` is in this set.
    pub fn contains(self, other: UffdFeatures) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A message that the kernel sends to the reader of a userfaultfd.
///
/// ```text
///  byte 0      8           16          24          32
///       event  flags       address     thread              0x12 page fault
///       event  ufd (u32)                                   0x13 fork
///       event  from        to          length              0x14 remap
///       event  start       end                             0x15 remove, 0x16 unmap
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UffdEvent {
    /// A thread waits for the page at `address` (a multiple of the page size).
    Fault {
        /// First address of the page.
        address: u64,
        /// Whether the access is a write.
        write: bool,
        /// The waiting thread's id in its own pid namespace; 0 without [`UffdFeatures::THREAD_IDS`].
        thread: u32,
    },
    /// The process forked. The kernel has put a userfaultfd for the new process into the reader's descriptor table.
    Fork {
        /// Number of the new userfaultfd in that table.
        number: RawFd,
    },
    /// mremap(2) moved a range with its pages. The moved range replaced any mapping at the new place.
    Remap {
        /// Old first address.
        from: u64,
        /// New first address.
        to: u64,
        /// Length of the moved range, in bytes. If the new mapping is longer, its other pages are new.
        bytes: u64,
    },
    /// The contents of a range are being dropped (MADV_DONTNEED, MADV_FREE, MADV_REMOVE); it stays mapped.
    Remove {
        /// First address.
        start: u64,
        /// Address after the last byte.
        end: u64,
    },
    /// A range was unmapped.
    Unmap {
        /// First address.
        start: u64,
        /// Address after the last byte.
        end: u64,
    },
}

impl UffdEvent {
    /// Parses a message; `None` for zeroes or an unknown kind.
    pub fn parse(bytes: &[u8; EVENT_BYTES]) -> Option<UffdEvent> {
        let word = |index: usize| {
            let at = 8 * index;
            u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]))
        };
        match bytes[0] {
            0x12 => {
                let (address, write) = (word(2) & !0xfff, word(1) & FAULT_WRITE != 0);
                Some(UffdEvent::Fault { address, write, thread: word(3) as u32 })
            }
            0x13 => Some(UffdEvent::Fork { number: word(1) as u32 as RawFd }),
            0x14 => Some(UffdEvent::Remap { from: word(1), to: word(2), bytes: word(3) }),
            0x15 => Some(UffdEvent::Remove { start: word(1), end: word(2) }),
            0x16 => Some(UffdEvent::Unmap { start: word(1), end: word(2) }),
            _ => None,
        }
    }
}

/// Why an operation on a range ended early, and how much of the range it completed.
#[derive(Debug)]
pub struct RangeError {
    /// Completed bytes, from the start of the range.
    pub done: u64,
    /// Why the operation ended.
    pub cause: RangeErrorCause,
}

/// The meaning of the kernel's errno for the first page that was not completed.
#[derive(Debug)]
pub enum RangeErrorCause {
    /// The process is changing its memory map (EAGAIN): read the messages, then try again.
    MapChanging,
    /// The page is already present (EEXIST).
    AlreadyPresent,
    /// No single registered mapping covers the whole range (ENOENT): the range is unmapped, or spans two mappings.
    Unmapped,
    /// The process has ended or executed another program (ESRCH).
    ProcessGone,
    /// The machine or the process's control group has no memory left (ENOMEM).
    NoMemory,
    /// Any other error.
    Other(io::Error),
}

impl From<Errno> for RangeErrorCause {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => RangeErrorCause::MapChanging,
            Errno::EXIST => RangeErrorCause::AlreadyPresent,
            Errno::NOENT => RangeErrorCause::Unmapped,
            Errno::SRCH => RangeErrorCause::ProcessGone,
            Errno::NOMEM => RangeErrorCause::NoMemory,
            other => RangeErrorCause::Other(other.into()),
        }
    }
}

/// A userfaultfd. Dropping it closes the descriptor. Once the last process has closed it, missing pages of the registered
/// process read as zeroes.
#[derive(Debug)]
pub struct Userfaultfd(OwnedFd);

impl Userfaultfd {
    /// Creates a userfaultfd for the calling process, close-on-exec and nonblocking.
    ///
    /// # Errors
    /// As userfaultfd(2): EPERM without CAP_SYS_PTRACE, unless `vm.unprivileged_userfaultfd` permits it.
    pub fn create() -> io::Result<Self> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: the memory of this process changes only in ranges that it registers: copies go into missing pages, which a
        // fault would have filled as well.
        Ok(Self(unsafe { rustix::mm::userfaultfd(flags)? }))
    }

    /// Takes ownership of a descriptor that another process has passed, and makes it nonblocking.
    ///
    /// # Errors
    /// `InvalidInput` if it is not a userfaultfd.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        if !is_userfaultfd(fd.as_raw_fd()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the descriptor is not a userfaultfd"));
        }
        Self::nonblocking(fd)
    }

    /// Takes ownership of the userfaultfd with this descriptor number. Either a fork message named it, or an earlier process
    /// with the same descriptor table left it open. The caller must be its only owner.
    ///
    /// # Errors
    /// `InvalidInput` if that number is not a userfaultfd.
    pub fn from_number(number: RawFd) -> io::Result<Self> {
        if number < 0 || !is_userfaultfd(number) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("descriptor {number} is not a userfaultfd"),
            ));
        }
        // SAFETY: the number is open, as its link has just shown. Only the pager keeps descriptors of this kind, by the
        // numbers in its journals; no other `OwnedFd` has this number.
        Self::nonblocking(unsafe { OwnedFd::from_raw_fd(number) })
    }

    fn nonblocking(fd: OwnedFd) -> io::Result<Self> {
        rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self(fd))
    }

    /// Negotiates the interface with the kernel and enables `features`; returns all features of the kernel. Must be the
    /// first call on each userfaultfd, and is called only once.
    ///
    /// # Errors
    /// As UFFDIO_API: EINVAL for features that the kernel lacks; EPERM for fork events without CAP_SYS_PTRACE.
    pub fn enable(&self, features: UffdFeatures) -> io::Result<UffdFeatures> {
        let mut api = ApiArgument { api: API, features: features.0, ioctls: 0 };
        self.request::<{ opcode::read_write::<ApiArgument>(0xaa, 0x3f) }, _>(&mut api)?;
        Ok(UffdFeatures(api.features))
    }

    /// Registers a range for faults on missing pages.
    ///
    /// # Errors
    /// As UFFDIO_REGISTER: EINVAL if a part is not mapped, or is a private mapping of a disk file.
    pub fn register(&self, start: u64, bytes: u64) -> io::Result<()> {
        self.register_as(MODE_MISSING, start, bytes)
    }

    /// Registers a range for minor faults: on pages that the file has but the process has not mapped.
    ///
    /// # Errors
    /// As UFFDIO_REGISTER: EINVAL if a part is not mapped, or maps a file that is not shared memory.
    pub fn register_minor(&self, start: u64, bytes: u64) -> io::Result<()> {
        self.register_as(MODE_MINOR, start, bytes)
    }

    fn register_as(&self, mode: u64, start: u64, bytes: u64) -> io::Result<()> {
        let range = UffdioRange { start, bytes };
        let mut argument = RegisterArgument { range, mode, ioctls: 0 };
        Ok(self.request::<{ opcode::read_write::<RegisterArgument>(0xaa, 0x00) }, _>(&mut argument)?)
    }

    /// Maps the pages of a range that its file already has (UFFDIO_CONTINUE), and allocates none. Wakes no thread.
    ///
    /// # Errors
    /// [`RangeError`] at the first page that the file does not have (EFAULT, if no page was mapped before it).
    pub fn continue_range(&self, start: u64, bytes: u64) -> Result<(), RangeError> {
        let mut argument = RangeArgument { range: UffdioRange { start, bytes }, mode: CONTINUE_WITHOUT_WAKE, done: 0 };
        let outcome = self.request::<{ opcode::read_write::<RangeArgument>(0xaa, 0x07) }, _>(&mut argument);
        range_result(outcome, argument.done)
    }

    /// Undoes [`Self::register`]. Waiting threads continue (and find zeroes).
    ///
    /// # Errors
    /// As UFFDIO_UNREGISTER.
    pub fn unregister(&self, start: u64, bytes: u64) -> io::Result<()> {
        let mut range = UffdioRange { start, bytes };
        Ok(self.request::<{ opcode::read::<UffdioRange>(0xaa, 0x01) }, _>(&mut range)?)
    }

    /// Copies `from` to the missing pages at `to`, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// [`RangeError`] at the first page that cannot be filled.
    pub fn copy(&self, to: u64, from: &[u8]) -> Result<(), RangeError> {
        let source = from.as_ptr() as u64;
        let mut argument = CopyArgument { to, from: source, bytes: from.len() as u64, mode: 0, done: 0 };
        let outcome = self.request::<{ opcode::read_write::<CopyArgument>(0xaa, 0x03) }, _>(&mut argument);
        range_result(outcome, argument.done)
    }

    /// Maps zeroes at missing pages, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// [`RangeError`] at the first page that cannot be filled.
    pub fn zero(&self, start: u64, bytes: u64) -> Result<(), RangeError> {
        let mut argument = RangeArgument { range: UffdioRange { start, bytes }, mode: 0, done: 0 };
        let outcome = self.request::<{ opcode::read_write::<RangeArgument>(0xaa, 0x04) }, _>(&mut argument);
        range_result(outcome, argument.done)
    }

    /// Makes missing pages raise SIGBUS (EFAULT or EHWPOISON in a system call), and wakes the threads that wait for them.
    ///
    /// # Errors
    /// [`RangeError`] at the first page that cannot be poisoned; `Other` with EINVAL before Linux 6.6.
    pub fn poison(&self, start: u64, bytes: u64) -> Result<(), RangeError> {
        let mut argument = RangeArgument { range: UffdioRange { start, bytes }, mode: 0, done: 0 };
        let outcome = self.request::<{ opcode::read_write::<RangeArgument>(0xaa, 0x08) }, _>(&mut argument);
        range_result(outcome, argument.done)
    }

    /// Makes every thread that waits in the range repeat its access.
    ///
    /// # Errors
    /// As UFFDIO_WAKE: EINVAL for a range outside user space.
    pub fn wake(&self, start: u64, bytes: u64) -> io::Result<()> {
        let mut range = UffdioRange { start, bytes };
        Ok(self.request::<{ opcode::read::<UffdioRange>(0xaa, 0x02) }, _>(&mut range)?)
    }

    /// Whether the process's memory no longer exists, because the process has ended or executed another program. A
    /// userfaultfd sends no message about that.
    pub fn is_process_gone(&self) -> bool {
        // Removing a write protection that was never set changes nothing, at any address. The kernel checks first whether
        // the process exists.
        let range = UffdioRange { start: ANY_ADDRESS, bytes: 4096 };
        let mut argument = ProtectArgument { range, mode: UNPROTECT_WITHOUT_WAKE };
        let outcome = self.request::<{ opcode::read_write::<ProtectArgument>(0xaa, 0x06) }, _>(&mut argument);
        outcome == Err(Errno::SRCH)
    }

    /// Whether the page at an address is in a registered mapping. No mapping may be registered for write protection. Changes
    /// nothing.
    ///
    /// # Errors
    /// [`RangeErrorCause::MapChanging`] if a change of the process's memory map, or a fork, has not been read yet;
    /// [`RangeErrorCause::ProcessGone`].
    pub fn is_registered(&self, address: u64) -> Result<bool, RangeErrorCause> {
        self.is_in_one_mapping(address, 4096)
    }

    /// Whether a range of whole pages is in a single registered mapping. No mapping may be registered for write protection.
    /// Changes nothing.
    ///
    /// # Errors
    /// As [`Self::is_registered`].
    pub fn is_in_one_mapping(&self, address: u64, bytes: u64) -> Result<bool, RangeErrorCause> {
        // Request a copy with write protection. No mapping is registered for that. The kernel returns ENOENT if there is no
        // registered mapping, otherwise EINVAL, and copies nothing.
        let mut argument = CopyArgument { to: address, from: address, bytes, mode: COPY_PROTECTED, done: 0 };
        match self.request::<{ opcode::read_write::<CopyArgument>(0xaa, 0x03) }, _>(&mut argument) {
            Err(Errno::INVAL) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(other) => Err(other.into()),
            Ok(()) => Err(RangeErrorCause::Other(io::Error::other("a mapping is registered for write protection"))),
        }
    }

    /// Whether all messages about memory map changes and forks so far have been read.
    pub fn has_no_pending_events(&self) -> bool {
        !matches!(self.is_registered(ANY_ADDRESS), Err(RangeErrorCause::MapChanging))
    }

    /// Reads all pending messages, at most `messages_max`, into a mapping from `offset` on. The kernel stores them even if
    /// this process is killed during the call. Returns the number of messages; 0 if there are none.
    ///
    /// # Errors
    /// As read(2): EMFILE if the descriptor table has no room for a forked process's userfaultfd. The message then stays
    /// pending.
    pub fn read_events(&self, into: &SharedMapping, offset: usize, messages_max: usize) -> io::Result<usize> {
        match into.read_from(&self.0, offset, messages_max * EVENT_BYTES) {
            Ok(bytes) => Ok(bytes / EVENT_BYTES),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn request<const OPCODE: Opcode, Argument>(&self, argument: &mut Argument) -> Result<(), Errno> {
        // SAFETY: each opcode is used with its argument of linux/userfaultfd.h. A copy reads from a slice that is borrowed
        // for the call, and writes to missing pages of the registered process.
        unsafe { ioctl(&self.0, Updater::<OPCODE, Argument>::new(argument)) }
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Userfaultfd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl From<Userfaultfd> for OwnedFd {
    fn from(uffd: Userfaultfd) -> OwnedFd {
        uffd.0
    }
}

fn is_userfaultfd(number: RawFd) -> bool {
    fs::read_link(format!("/proc/self/fd/{number}")).is_ok_and(|link| link.as_os_str() == FD_LINK)
}

/// Converts the outcome of a request. `done` is the field that the kernel wrote: completed bytes, or the negative errno that
/// it also returned.
fn range_result(outcome: Result<(), Errno>, done: i64) -> Result<(), RangeError> {
    outcome.map_err(|errno| RangeError { done: u64::try_from(done).unwrap_or(0), cause: errno.into() })
}

/// `struct uffdio_api`.
#[repr(C)]
struct ApiArgument {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct UffdioRange {
    start: u64,
    bytes: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct RegisterArgument {
    range: UffdioRange,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct CopyArgument {
    to: u64,
    from: u64,
    bytes: u64,
    mode: u64,
    done: i64,
}

/// `struct uffdio_zeropage`, `struct uffdio_continue` and `struct uffdio_poison`.
#[repr(C)]
struct RangeArgument {
    range: UffdioRange,
    mode: u64,
    done: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct ProtectArgument {
    range: UffdioRange,
    mode: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn userfaultfd_messages_are_parsed() {
        let mut bytes = [0; EVENT_BYTES];
        assert_eq!(UffdEvent::parse(&bytes), None);
        bytes[0] = 0x14;
        bytes[8..16].copy_from_slice(&0x1000u64.to_ne_bytes());
        bytes[16..24].copy_from_slice(&0x5000u64.to_ne_bytes());
        bytes[24..32].copy_from_slice(&0x2000u64.to_ne_bytes());
        assert_eq!(UffdEvent::parse(&bytes), Some(UffdEvent::Remap { from: 0x1000, to: 0x5000, bytes: 0x2000 }));
        bytes[0] = 0x12;
        bytes[16..24].copy_from_slice(&0x5123u64.to_ne_bytes());
        assert_eq!(UffdEvent::parse(&bytes), Some(UffdEvent::Fault { address: 0x5000, write: false, thread: 0x2000 }));
        bytes[0] = 0x13;
        bytes[8..12].copy_from_slice(&17u32.to_ne_bytes());
        assert_eq!(UffdEvent::parse(&bytes), Some(UffdEvent::Fork { number: 17 }));
    }

    #[test]
    fn only_a_userfaultfd_is_accepted() {
        let file = tempfile::tempfile().unwrap();
        let number = file.as_raw_fd();
        assert!(Userfaultfd::from_number(number).is_err());
        assert!(Userfaultfd::from_number(-1).is_err());
        assert!(Userfaultfd::from_fd(file.into()).is_err());
    }

    #[test]
    fn a_userfaultfd_of_a_running_process_is_not_gone() {
        let uffd = Userfaultfd::create().unwrap();
        let features = uffd.enable(UffdFeatures::ALL_EVENTS).unwrap();
        assert!(features.contains(UffdFeatures::ALL_EVENTS));
        assert!(!uffd.is_process_gone());
    }

    #[test]
    fn unregistered_addresses_are_reported() {
        let uffd = Userfaultfd::create().unwrap();
        uffd.enable(UffdFeatures::ALL_EVENTS).unwrap();
        assert!(!uffd.is_registered(ANY_ADDRESS).unwrap());
        assert!(uffd.has_no_pending_events());
    }
}
