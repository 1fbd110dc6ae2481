//! Pseudo-terminals of other processes (pty(7)): their settings, their users, and whether data is queued in them. Queued
//! data is not read, because reading would remove it. Also opens the peers of this process's own masters.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Size of `struct termios2`, in bytes.
pub const SETTINGS_BYTES: usize = 44;

/// The state of a pseudo-terminal, queried through its master end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtyMaster {
    /// Number of the pseudo-terminal: the name of the other end in `/dev/pts`.
    pub number: u32,
    /// Settings of the other end, a `struct termios2`.
    pub settings: [u8; SETTINGS_BYTES],
    /// Size of the window: rows and columns in characters, then width and height in pixels.
    pub window: [u16; 4],
    /// Number of the line discipline; 0 is the usual one (N_TTY).
    pub discipline: u32,
    /// Whether the other end is still locked (unlockpt(3)).
    pub is_locked: bool,
    /// Whether packet mode is on: data is preceded by a byte with its kind (TIOCPKT).
    pub is_packet_mode: bool,
    /// The session that it controls, by the leader's id in this process's pid namespace; 0 if the leader has no id there.
    /// `None` if it controls no session.
    pub session: Option<i32>,
    /// The foreground process group; 0 if there is none with an id in this process's pid namespace.
    pub foreground: i32,
    /// The operations that would not block.
    pub readiness: PtyReadiness,
}

/// The readiness of one end of a pseudo-terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtyReadiness {
    /// Number of bytes that can be read, as far as the kernel counts them; at least 1 if anything can be read.
    pub unread_bytes: u32,
    /// A change of the other end's settings has not been reported yet (packet mode).
    pub has_packet_event: bool,
    /// The end can be written: output is not stopped (Ctrl-S), and the buffer is not full.
    pub is_writable: bool,
    /// The other end was open and is now closed.
    pub is_hung_up: bool,
}

/// Queries a master end.
///
/// # Errors
/// As ioctl_tty(2): ENOTTY if `fd` is not a master end.
pub fn read_master(fd: BorrowedFd<'_>) -> io::Result<PtyMaster> {
    // From asm-generic/ioctls.h; libc has no name for some of them.
    const TCGETS2: libc::c_ulong = 0x802c_542a;
    const TIOCGPTN: libc::c_ulong = 0x8004_5430;
    const TIOCGPKT: libc::c_ulong = 0x8004_5438;
    const TIOCGPTLCK: libc::c_ulong = 0x8004_5439;
    let group = |request| match ioctl_value(fd, request, 0_i32) {
        // ENOTTY: the terminal controls no session.
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => Ok(None),
        group => group.map(Some),
    };
    Ok(PtyMaster {
        number: ioctl_value(fd, TIOCGPTN, 0_u32)?,
        settings: ioctl_value(fd, TCGETS2, [0_u8; SETTINGS_BYTES])?,
        window: ioctl_value(fd, libc::TIOCGWINSZ, [0_u16; 4])?,
        discipline: ioctl_value(fd, libc::TIOCGETD, 0_u32)?,
        is_locked: ioctl_value(fd, TIOCGPTLCK, 0_u32)? != 0,
        is_packet_mode: ioctl_value(fd, TIOCGPKT, 0_u32)? != 0,
        session: group(libc::TIOCGSID)?,
        foreground: group(libc::TIOCGPGRP)?.unwrap_or(0),
        readiness: poll_pty(fd)?,
    })
}

/// Reads the readiness of either end.
///
/// # Errors
/// As poll(2) and ioctl_tty(2).
pub fn poll_pty(fd: BorrowedFd<'_>) -> io::Result<PtyReadiness> {
    let events = libc::POLLIN | libc::POLLOUT | libc::POLLPRI;
    let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: one pollfd, which outlives the call; the call does not wait.
    if unsafe { libc::poll(&raw mut polled, 1, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let has = |event: libc::c_short| polled.revents & event != 0;
    // FIONREAD must follow poll(2), which makes the kernel deliver data that is still in transit.
    let counted = ioctl_value(fd, libc::FIONREAD, 0_u32)?;
    Ok(PtyReadiness {
        unread_bytes: counted.max(has(libc::POLLIN).into()),
        has_packet_event: has(libc::POLLPRI),
        is_writable: has(libc::POLLOUT),
        is_hung_up: has(libc::POLLHUP),
    })
}

/// Unlocks the other end (unlockpt(3)).
///
/// # Errors
/// As ioctl_tty(2).
pub fn unlock(master: BorrowedFd<'_>) -> io::Result<()> {
    const TIOCSPTLCK: libc::c_ulong = 0x4004_5431;
    ioctl_value(master, TIOCSPTLCK, 0_i32).map(drop)
}

/// Opens the other end, which must be unlocked, for reading and writing. It does not become the controlling terminal.
///
/// # Errors
/// As ioctl_tty(2) for TIOCGPTPEER.
pub fn open_peer(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const TIOCGPTPEER: libc::c_ulong = 0x5441;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the request takes flags by value, and returns a new descriptor, which has no other owner.
    match unsafe { libc::ioctl(master.as_raw_fd(), TIOCGPTPEER, flags) } {
        // SAFETY: see above.
        fd @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the number of the pseudo-terminal whose slave end is `fd`, from the device number; `None` for another terminal.
///
/// # Errors
/// As fstat(2).
pub fn pts_number(fd: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    Ok(pts_number_of_device(rustix::fs::fstat(fd)?.st_rdev))
}

/// Returns the number of the pseudo-terminal with a device number. A device of `/dev/pts` has major number 136, and the
/// pseudo-terminal's number as minor number.
pub(crate) fn pts_number_of_device(device: u64) -> Option<u32> {
    const MAJOR: u32 = 136;
    (rustix::fs::major(device) == MAJOR).then(|| rustix::fs::minor(device))
}

/// Whether further opens of an end are refused (TIOCEXCL).
///
/// # Errors
/// As ioctl_tty(2).
pub fn is_exclusive(fd: BorrowedFd<'_>) -> io::Result<bool> {
    const TIOCGEXCL: libc::c_ulong = 0x8004_5440;
    Ok(ioctl_value(fd, TIOCGEXCL, 0_u32)? != 0)
}

/// Makes an ioctl(2) that reads or writes a value of type `T`.
fn ioctl_value<T: Copy>(fd: BorrowedFd<'_>, request: libc::c_ulong, mut value: T) -> io::Result<T> {
    // SAFETY: each caller passes a value of the type that its request expects, which consists of plain numbers. The value
    // outlives the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) } {
        0.. => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    #[test]
    fn a_new_pseudo_terminal_is_locked_and_empty() {
        let mut fd = std::fs::File::options().read(true).write(true).open("/dev/ptmx").unwrap();
        let master = read_master(fd.as_fd()).unwrap();
        assert!(
            master.is_locked && !master.is_packet_mode && master.session.is_none() && master.discipline == 0,
            "{master:?}"
        );
        assert_eq!(
            master.readiness,
            PtyReadiness { unread_bytes: 0, has_packet_event: false, is_writable: true, is_hung_up: false }
        );
        assert!(open_peer(fd.as_fd()).is_err(), "it is locked");
        unlock(fd.as_fd()).unwrap();
        let other = open_peer(fd.as_fd()).unwrap();
        assert_eq!(pts_number(other.as_fd()).unwrap(), Some(master.number));
        assert_eq!(pts_number(std::fs::File::open("/dev/null").unwrap().as_fd()).unwrap(), None);
        // A kernel thread sends the typed bytes back as an echo.
        fd.write_all(b"typed").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while poll_pty(fd.as_fd()).unwrap().unread_bytes < 5 && Instant::now() < deadline {
            sleep(Duration::from_millis(1));
        }
        assert_eq!(poll_pty(fd.as_fd()).unwrap().unread_bytes, 5);
        assert!(!read_master(fd.as_fd()).unwrap().is_locked && !is_exclusive(other.as_fd()).unwrap());
        assert!(read_master(std::fs::File::open("/dev/null").unwrap().as_fd()).is_err());
    }

    #[test]
    fn a_device_is_a_pseudo_terminal_by_its_major() {
        assert_eq!(pts_number_of_device(0), None);
        assert_eq!(pts_number_of_device((4 << 8) | 1), None, "a virtual console");
        assert_eq!(pts_number_of_device(136 << 8), Some(0));
        assert_eq!(pts_number_of_device((136 << 8) | 0x2c | (1 << 20)), Some(300));
    }
}
