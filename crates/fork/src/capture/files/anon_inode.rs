//! Builds the open files without a path (timerfd, signalfd, inotify) and the file locks of a descriptor.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use farfork_sys::process::{FdInfo, LockEntry, LockKind, ProcStatus, TimerState};
use farfork_wire::descriptor::{FileLock, FileLockKind, OpenFile, TimerSpec};

use super::{FdKind, OpenFd, inotify_watches};
use crate::capture::state::tree_root::TreeRoot;
use crate::capture::survey::ThreadProfile;

/// Builds a timerfd in its state at the pause. The error says why it cannot be carried.
pub(super) fn build_timer_fd(info: &FdInfo, flags: u32) -> Result<OpenFile, String> {
    let timer = info.timer.ok_or("the kernel does not show its state")?;
    let is_cancelled_by_clock = has_cancel_on_set(&timer);
    if is_cancelled_by_clock && timer.ticks > 0 {
        return Err(
            "it has expired, or setting the wall clock has cancelled it (TFD_TIMER_CANCEL_ON_SET); only a read \
                    shows which: not carried; let the process read it first"
                .into(),
        );
    }
    let time = TimerSpec { remaining_ns: timer.left_ns, interval_ns: timer.interval_ns };
    let time = if timer.left_ns == 0 && timer.interval_ns == 0 { TimerSpec::default() } else { time };
    Ok(OpenFile::TimerFd { clock: timer.clock, flags, ticks: timer.ticks, time, is_cancelled_by_clock })
}

/// Whether TFD_TIMER_CANCEL_ON_SET is set and has an effect. It has one only on a timer of the wall clock with an absolute
/// time.
fn has_cancel_on_set(timer: &TimerState) -> bool {
    /// TFD_TIMER_ABSTIME and TFD_TIMER_CANCEL_ON_SET.
    const CANCELLED_BY_CLOCK: u32 = 1 | 2;
    /// CLOCK_REALTIME and CLOCK_REALTIME_ALARM.
    const WALL_CLOCKS: [u32; 2] = [0, 8];
    WALL_CLOCKS.contains(&timer.clock) && timer.flags & CANCELLED_BY_CLOCK == CANCELLED_BY_CLOCK
}

/// Builds a signalfd.
pub(super) fn build_signal_fd(info: &FdInfo, flags: u32) -> Result<OpenFile, String> {
    let mask = info.signal_mask.ok_or("the kernel does not show its signals")?;
    Ok(OpenFile::SignalFd { mask, flags })
}

/// Builds an inotify instance. `root` is the root of the tree; `unread` is the number of bytes in the queue.
pub(super) fn build_inotify(root: TreeRoot, info: &FdInfo, unread: u64, flags: u32) -> Result<OpenFile, String> {
    Ok(OpenFile::Inotify {
        has_lost: unread > 0,
        flags,
        watches: inotify_watches::resolve_watches(root, &info.watches)?,
    })
}

/// A process that holds locks through its descriptors.
#[derive(Debug, Clone, Copy)]
pub(super) struct LockHolder<'a> {
    pid: i32,
    /// Status of its main thread.
    status: Option<&'a ProcStatus>,
}

impl<'a> LockHolder<'a> {
    /// A holder, with the profiles of its threads.
    pub(super) fn new(pid: i32, profiles: &'a BTreeMap<i32, ThreadProfile>) -> Self {
        Self { pid, status: profiles.get(&pid).map(|profile| &profile.status) }
    }
}

/// Returns why a process could not take one of its leases again. F_SETLEASE requires CAP_LEASE for a file of another user
/// (fcntl(2)), and the process may have changed its user id since it took the lease.
fn refuse_foreign_lease(holder: LockHolder<'_>, number: u32) -> Option<String> {
    const CAP_LEASE: u64 = 1 << 28;
    let LockHolder { pid, status } = holder;
    let status = status?;
    let ([_, _, _, fsuid], [_, _, effective, ..]) = (status.uids, status.capabilities);
    let owner = fs::metadata(format!("/proc/{pid}/fd/{number}")).ok()?.uid();
    (owner != fsuid && effective & CAP_LEASE == 0).then(|| {
        format!(
            "it has a lease (F_SETLEASE) on a file of user {owner}, which neither it, as user {fsuid}, nor a child may take again; release it first"
        )
    })
}

/// All containers of a node have the same devices and files of `/sys`, and the kernel has one inode for all objects without a
/// path, such as eventfds. A child's lock on them would conflict with the parent's.
const SHARED_LOCK_REASON: &str = "it has a lock on a file that all processes of the machine share, so that a child could not \
     take it again: not carried; release it first, or lock a regular file";

/// Builds a lock that is held through a descriptor. The error says why it cannot be carried.
pub(super) fn build_lock(holder: LockHolder<'_>, fd: &OpenFd, entry: &LockEntry) -> Result<FileLock, String> {
    let number = fd.number;
    let is_anonymous = fd.link.starts_with(b"anon_inode:");
    if fd.kind == FdKind::Device || is_anonymous || fd.link.starts_with(b"/sys/") {
        return Err(SHARED_LOCK_REASON.to_owned());
    }
    let kind = match entry.kind {
        LockKind::Flock => FileLockKind::Flock,
        LockKind::Posix => FileLockKind::Posix,
        LockKind::OpenFileDescription => FileLockKind::OpenFileDescription,
        LockKind::Lease if !entry.is_exclusive => {
            refuse_foreign_lease(holder, number).map_or(Ok(FileLockKind::Lease), Err)?
        }
        LockKind::Lease => {
            return Err(
                "it has a write lease (F_SETLEASE, F_WRLCK), which the kernel breaks when another process opens \
                        the file, as a child on its own node does: not carried; release it first"
                    .to_owned(),
            );
        }
        LockKind::Other => {
            return Err("it has a lease that another process waits for, or a lock of an unknown kind, which is not \
                        carried; release it first"
                .to_owned());
        }
    };
    let bytes = entry.last.map_or(0, |last| (last - entry.start).saturating_add(1));
    Ok(FileLock { number, kind, is_exclusive: entry.is_exclusive, start: entry.start, bytes })
}
