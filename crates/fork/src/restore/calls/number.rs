//! Numbers of the system calls that a child's resources are made with (x86-64), and of what they are asked for.

pub(super) const READ: u32 = 0;
pub(super) const WRITE: u32 = 1;
pub(super) const OPEN: u32 = 2;
pub(super) const CLOSE: u32 = 3;
pub(super) const IOCTL: u32 = 16;
pub(super) const SETITIMER: u32 = 38;
pub(super) const FCNTL: u32 = 72;
pub(super) const FLOCK: u32 = 73;
pub(super) const PRCTL: u32 = 157;
pub(super) const TIMER_CREATE: u32 = 222;
pub(super) const TIMER_SETTIME: u32 = 223;
pub(super) const TIMER_GETOVERRUN: u32 = 225;
pub(super) const TIMER_DELETE: u32 = 226;
pub(super) const INOTIFY_ADD_WATCH: u32 = 254;
pub(super) const INOTIFY_RM_WATCH: u32 = 255;
pub(super) const TIMERFD_CREATE: u32 = 283;
pub(super) const TIMERFD_SETTIME: u32 = 286;
pub(super) const SIGNALFD4: u32 = 289;
pub(super) const DUP3: u32 = 292;
pub(super) const INOTIFY_INIT1: u32 = 294;
pub(super) const MEMBARRIER: u32 = 324;
pub(super) const PIDFD_OPEN: u32 = 434;

pub(super) const F_SETFL: u32 = 4;
pub(super) const F_SETLK: u32 = 6;
pub(super) const F_SETSIG: u32 = 10;
pub(super) const F_SETOWN_EX: u32 = 15;
pub(super) const F_OFD_SETLK: u32 = 37;
pub(super) const F_SETPIPE_SZ: u32 = 1031;
