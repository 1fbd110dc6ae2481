//! Parses the state of kernel objects (timers, watches) and the locks of files, as `fdinfo` shows them.

/// The state of a timerfd_create(2) timer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimerState {
    /// CLOCK_*.
    pub clock: u32,
    /// Expirations that have not been read.
    pub ticks: u64,
    /// The TFD_TIMER_* flags of timerfd_settime(2).
    pub flags: u32,
    /// Nanoseconds until the timer expires; 0 if the timer is disarmed.
    pub left_ns: u64,
    /// Nanoseconds between two expirations; 0 if the timer expires only once.
    pub interval_ns: u64,
}

/// A watch of an inotify(7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEntry {
    /// The watch descriptor.
    pub number: u32,
    /// IN_* events and flags.
    pub mask: u32,
    /// Inode number of the watched file.
    pub inode: u64,
    /// Device of the file, in the kernel's encoding: the minor number in the lower 20 bits, the major number above them.
    pub device: u32,
    /// A handle of the file, as from name_to_handle_at(2): type and bytes.
    pub handle: (i32, Vec<u8>),
}

/// A lock that a process holds through a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockEntry {
    /// The kind.
    pub kind: LockKind,
    /// Whether the lock also excludes readers.
    pub is_exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Last byte; `None` for the end of the file, even if the file grows.
    pub last: Option<u64>,
}

/// The kinds of file locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// flock(2).
    Flock,
    /// fcntl(2), F_SETLK.
    Posix,
    /// fcntl(2), F_OFD_SETLK.
    OpenFileDescription,
    /// fcntl(2), F_SETLEASE, while no other process waits for the end of the lease.
    Lease,
    /// A lease whose end another process waits for, a mandatory lock, or a kind that a later kernel added.
    Other,
}

/// Parses `(SECONDS, NANOSECONDS)`; returns nanoseconds.
pub(super) fn parse_time(text: &str) -> Option<u64> {
    let (seconds, nanoseconds) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(", ")?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanoseconds.parse().ok()?)
}

/// Parses `HEX ino:HEX sdev:HEX mask:HEX ignored_mask:HEX fhandle-bytes:HEX fhandle-type:HEX f_handle:HEX…`, which follows
/// `inotify wd:`.
pub(super) fn parse_watch(text: &str) -> Option<WatchEntry> {
    let mut words = text.split_ascii_whitespace();
    let number = u32::from_str_radix(words.next()?, 16).ok()?;
    let mut entry = WatchEntry { number, mask: 0, inode: 0, device: 0, handle: (0, Vec::new()) };
    for word in words {
        let (key, value) = word.split_once(':')?;
        let hex = || u64::from_str_radix(value, 16).ok();
        match key {
            "ino" => entry.inode = hex()?,
            "sdev" => entry.device = hex()? as u32,
            "mask" => entry.mask = hex()? as u32,
            "fhandle-type" => entry.handle.0 = hex()? as i32,
            "f_handle" => entry.handle.1 = parse_bytes(value)?,
            _ => {}
        }
    }
    Some(entry)
}

fn parse_bytes(hex: &str) -> Option<Vec<u8>> {
    let pair = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    (0..hex.len()).step_by(2).map(pair).collect()
}

/// Parses `1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF`, which follows `lock:`.
pub(super) fn parse_lock(text: &str) -> Option<LockEntry> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [_, kind, advisory, access, _, _, start, last] = words[..] else { return None };
    let kind = match (kind, advisory) {
        ("FLOCK", "ADVISORY") => LockKind::Flock,
        ("POSIX", "ADVISORY") => LockKind::Posix,
        ("OFDLCK", "ADVISORY") => LockKind::OpenFileDescription,
        ("LEASE", "ACTIVE") => LockKind::Lease,
        _ => LockKind::Other,
    };
    let last = if last == "EOF" { None } else { Some(last.parse().ok()?) };
    Some(LockEntry { kind, is_exclusive: access == "WRITE", start: start.parse().ok()?, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inotify_watch_is_parsed() {
        let text = "1f ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:7e9e0000640d1b6d";
        let watch = parse_watch(text).unwrap();
        assert_eq!((watch.number, watch.inode, watch.device, watch.mask), (31, 0x9e7e, 0x80_0013, 0x800_afce));
        assert_eq!(watch.handle, (1, vec![0x7e, 0x9e, 0, 0, 0x64, 0x0d, 0x1b, 0x6d]));
    }

    #[test]
    fn locks_and_timer_values_are_parsed() {
        let lock = parse_lock("1: POSIX  ADVISORY  READ 359 00:13:11691 100 149").unwrap();
        let expected = LockEntry { kind: LockKind::Posix, is_exclusive: false, start: 100, last: Some(149) };
        assert_eq!(lock, expected);
        assert_eq!(parse_lock("1: LEASE  ACTIVE    READ 1 0:1:2 0 EOF").unwrap().kind, LockKind::Lease);
        assert_eq!(parse_lock("1: LEASE  BREAKING  READ 1 0:1:2 0 EOF").unwrap().kind, LockKind::Other);
        assert_eq!(parse_time("(5, 6)"), Some(5_000_000_006));
        assert_eq!(parse_time("5"), None);
    }
}
