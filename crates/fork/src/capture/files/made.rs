//! Open files that the kernel makes for a process, and that have no path: how they stand in a descriptor.

use farfork_sys::process::{FdInfo, LockEntry, LockKind};
use farfork_wire::descriptor::{FileLock, FileLockKind, OpenFile, TimeLeft};

use super::watches;

/// A timerfd as it stood; or why it cannot be carried.
pub(super) fn timer_fd(info: &FdInfo, flags: u32) -> Result<OpenFile, String> {
    /// TFD_TIMER_CANCEL_ON_SET.
    const CANCELLED_BY_CLOCK: u32 = 2;
    let timer = info.timer.ok_or("the kernel does not tell its state")?;
    if timer.flags & CANCELLED_BY_CLOCK != 0 {
        return Err("it is cancelled when the wall clock is set (TFD_TIMER_CANCEL_ON_SET), which is not carried".into());
    }
    let time = TimeLeft { left_ns: timer.left_ns, interval_ns: timer.interval_ns };
    let armed = if timer.left_ns == 0 && timer.interval_ns == 0 { TimeLeft::default() } else { time };
    Ok(OpenFile::TimerFd { clock: timer.clock, flags, ticks: timer.ticks, time: armed })
}

/// A signalfd.
pub(super) fn signal_fd(info: &FdInfo, flags: u32) -> Result<OpenFile, String> {
    let mask = info.signal_mask.ok_or("the kernel does not tell its signals")?;
    Ok(OpenFile::SignalFd { mask, flags })
}

/// An inotify of `subject`, in whose queue `unread` bytes wait.
pub(super) fn inotify(
    (subject, root): (i32, &str),
    info: &FdInfo,
    unread: u64,
    flags: u32,
) -> Result<OpenFile, String> {
    Ok(OpenFile::Inotify { has_lost: unread > 0, flags, watches: watches::by_path(subject, root, &info.watches)? })
}

/// A lock that is held by a descriptor; or why it cannot be carried.
pub(super) fn lock(number: u32, entry: &LockEntry) -> Result<FileLock, String> {
    let kind = match entry.kind {
        LockKind::Whole => FileLockKind::Whole,
        LockKind::Process => FileLockKind::Process,
        LockKind::Description => FileLockKind::Description,
        LockKind::Other => return Err("it has a lease, which is not carried; give it up first".to_owned()),
    };
    let bytes = entry.last.map_or(0, |last| (last - entry.start).saturating_add(1));
    Ok(FileLock { number, kind, is_exclusive: entry.is_exclusive, start: entry.start, bytes })
}
