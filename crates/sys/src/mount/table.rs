//! Reads and parses the mount table of a mount namespace (`/proc/PID/mountinfo`).

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};

use super::probe::VOLUME_FILESYSTEM;

pub use rustix::mount::MountAttrFlags as Attributes;

/// Usual length of a table with a few dozen mounts, in bytes.
const TABLE_BYTES_USUAL: usize = 4096;

/// One mount: a line of `mountinfo` (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Id of the mount, unique while it exists.
    pub id: u32,
    /// Id of the mount that it is mounted on. For the root of the namespace that mount is not in the table.
    pub parent: u32,
    /// `major:minor` of the file system.
    pub device: String,
    /// The directory (or file) of the file system that is mounted.
    pub root: PathBuf,
    /// The mount point, as seen from the reader's root.
    pub point: PathBuf,
    /// Restrictions of the mount, in addition to those of its file system.
    pub attributes: Attributes,
    /// Type of the file system: `ext4`, `proc`, `fuse.sshfs`.
    pub filesystem: String,
    /// The mounted device, or any text.
    pub source: String,
    /// Options of the file system, comma-separated. They include the controllers of a cgroup v1 hierarchy.
    pub options: String,
}

/// Reads the mounts of the calling thread's namespace. Each mount precedes the mounts on it.
///
/// # Errors
/// As reading `/proc/thread-self/mountinfo`; `InvalidData` if the form of a line is unknown.
pub fn read_thread_mounts() -> io::Result<Vec<Mount>> {
    parse(&std::fs::read("/proc/thread-self/mountinfo")?)
}

/// The table of a mount namespace, held open. Any process or thread can read it, repeatedly.
#[derive(Debug)]
pub struct MountTable(File);

impl Mount {
    /// Whether this is the mount of a volume.
    pub fn is_volume(&self) -> bool {
        self.filesystem == VOLUME_FILESYSTEM
    }
}

impl MountTable {
    /// Opens the table of the calling thread, as seen from its root. `proc` is a `/proc` of the thread's pid namespace,
    /// which need not be mounted in the thread's mount namespace.
    ///
    /// # Errors
    /// As openat(2).
    pub fn open(proc: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self(openat(proc, "thread-self/mountinfo", flags, Mode::empty())?.into()))
    }

    /// Reads the current text of the table.
    ///
    /// # Errors
    /// As pread(2).
    pub fn read_text(&self) -> io::Result<Vec<u8>> {
        let mut text = vec![0; TABLE_BYTES_USUAL];
        let mut length = 0;
        loop {
            match self.0.read_at(&mut text[length..], length as u64)? {
                0 => break,
                read => length += read,
            }
            if length == text.len() {
                text.resize(length + TABLE_BYTES_USUAL, 0);
            }
        }
        text.truncate(length);
        Ok(text)
    }
}

/// Updates the text of a table after the mount at `point` was replaced by one that differs only in its id and device. Moves
/// the mount's line to the end, where the kernel lists a new mount. Returns `None` if `text` does not have exactly one mount
/// at `point`, or if statx(2) does not return mount ids (before Linux 5.8).
///
/// # Errors
/// As statx(2).
pub fn with_replaced_mount(text: &[u8], point: &Path) -> io::Result<Option<Vec<u8>>> {
    Ok(MountIdentity::read(point)?.and_then(|identity| move_mount_last(text, point, identity)))
}

/// The numbers by which the table identifies a mount and its file system.
#[derive(Debug, Clone, Copy)]
struct MountIdentity {
    mount_id: u64,
    /// Device number of the file system.
    major: u32,
    minor: u32,
}

impl MountIdentity {
    /// Reads the numbers of the mount at `point`; `None` if statx(2) does not return mount ids.
    fn read(point: &Path) -> io::Result<Option<Self>> {
        let now = statx(CWD, point, AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID)?;
        let has_mount_id = now.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        let identity = Self { mount_id: now.stx_mnt_id, major: now.stx_dev_major, minor: now.stx_dev_minor };
        Ok(has_mount_id.then_some(identity))
    }
}

/// Moves the line of the mount at `point` to the end of the text, and replaces its mount id and device by those of
/// `identity`.
fn move_mount_last(text: &[u8], point: &Path, identity: MountIdentity) -> Option<Vec<u8>> {
    const POINT: usize = 4;
    let is_there =
        |line: &&[u8]| line.split(|byte| *byte == b' ').nth(POINT).is_some_and(|field| unescape(field) == point);
    let lines = || text.split_inclusive(|byte| *byte == b'\n');
    let mut matching = lines().filter(is_there);
    let (line, None) = (matching.next()?, matching.next()) else { return None };
    let mut fields = line.splitn(POINT, |byte| *byte == b' ');
    let [_, parent, _, rest] = [fields.next()?, fields.next()?, fields.next()?, fields.next()?];
    let mut renewed: Vec<u8> = lines().filter(|line| !is_there(line)).flatten().copied().collect();
    let MountIdentity { mount_id, major, minor } = identity;
    renewed.extend(format!("{mount_id} ").into_bytes());
    renewed.extend(parent);
    renewed.extend(format!(" {major}:{minor} ").into_bytes());
    renewed.extend(rest);
    Some(renewed)
}

/// Reads the mounts of the namespace of the process's main thread.
///
/// # Errors
/// As [`read_thread_mounts`].
pub fn read_own_mounts() -> io::Result<Vec<Mount>> {
    parse(&std::fs::read("/proc/self/mountinfo")?)
}

/// Reads the mounts as process `pid` sees them, without those outside of its root.
///
/// # Errors
/// As [`read_thread_mounts`], and if the process has ended.
pub fn read_mounts_of(pid: i32) -> io::Result<Vec<Mount>> {
    parse(&std::fs::read(format!("/proc/{pid}/mountinfo"))?)
}

/// Parses the text of a `mountinfo` file.
///
/// # Errors
/// `InvalidData` with the line whose form is unknown.
pub fn parse(text: &[u8]) -> io::Result<Vec<Mount>> {
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            parse_line(line).ok_or_else(|| {
                let line = String::from_utf8_lossy(line);
                io::Error::new(io::ErrorKind::InvalidData, format!("cannot parse a mountinfo line: {line}"))
            })
        })
        .collect()
}

/// Parses a line such as `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`. The number of
/// fields between the mount's options and the dash varies.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut text = || Some(std::str::from_utf8(fields.next()?).ok()?.to_owned());
    let (id, parent, device) = (text()?.parse().ok()?, text()?.parse().ok()?, text()?);
    let root = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    let attributes = parse_attributes(fields.next()?);
    fields.find(|field| *field == b"-")?;
    let filesystem = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = String::from_utf8_lossy(fields.next()?).into_owned();
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(Mount { id, parent, device, root, point, attributes, filesystem, source, options })
}

/// Parses the options that restrict a mount, and ignores all others.
fn parse_attributes(field: &[u8]) -> Attributes {
    field.split(|byte| *byte == b',').fold(Attributes::empty(), |all, option| {
        all | match option {
            b"ro" => Attributes::MOUNT_ATTR_RDONLY,
            b"nosuid" => Attributes::MOUNT_ATTR_NOSUID,
            b"nodev" => Attributes::MOUNT_ATTR_NODEV,
            b"noexec" => Attributes::MOUNT_ATTR_NOEXEC,
            _ => Attributes::empty(),
        }
    })
}

/// Decodes a path. The kernel writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    OsString::from_vec(bytes).into()
}

/// Returns the mounts that a path can reach, in the table's order. A mount is hidden by a later mount on the same point, or
/// on a directory above it.
pub fn visible_mounts(table: &[Mount]) -> Vec<&Mount> {
    let covered_by = |mount: &Mount| table.iter().find(|m| m.parent == mount.id && m.point == mount.point);
    let reachable = |mount: &Mount| {
        let mut mount = mount;
        loop {
            // A later sibling on a directory above hides this mount.
            let hidden = table
                .iter()
                .any(|m| m.parent == mount.parent && m.id != mount.id && is_strictly_below(&mount.point, &m.point));
            let Some(parent) = table.iter().find(|m| m.id == mount.parent && m.id != mount.id) else {
                return true;
            };
            // The mount that covers the parent hides this mount, unless this mount is that cover.
            let covered = mount.point != parent.point && covered_by(parent).is_some();
            if hidden || covered {
                return false;
            }
            mount = parent;
        }
    };
    table.iter().filter(|m| covered_by(m).is_none() && reachable(m)).collect()
}

fn is_strictly_below(path: &Path, above: &Path) -> bool {
    path != above && path.starts_with(above)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACKED: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,mode=755
26 24 0:24 / /dev/pts rw - devpts devpts rw
29 26 0:26 / /dev/pts rw - devpts devpts rw
30 27 0:27 / /srv/a/b rw - tmpfs tmpfs rw
31 27 0:28 / /srv/a ro,nosuid shared:3 master:1 - tmpfs with\\040blank rw
32 31 0:29 / /srv/a/c\\040d rw - tmpfs t rw
";

    #[test]
    fn fields_of_a_mount_table_are_parsed() {
        let table = parse(STACKED.as_bytes()).unwrap();
        assert_eq!(table.len(), 7);
        assert_eq!((table[0].id, table[0].parent, table[0].device.as_str()), (27, 1, "254:0"));
        assert_eq!(table[1].filesystem, "devtmpfs");
        let restricted = Attributes::MOUNT_ATTR_RDONLY | Attributes::MOUNT_ATTR_NOSUID;
        assert_eq!((table[0].attributes, table[5].attributes), (Attributes::empty(), restricted));
        assert_eq!(table[6].point, Path::new("/srv/a/c d"));
        assert_eq!(table[1].options, "rw,mode=755");
    }

    #[test]
    fn covered_mounts_are_not_visible() {
        let table = parse(STACKED.as_bytes()).unwrap();
        let ids: Vec<u32> = visible_mounts(&table).iter().map(|m| m.id).collect();
        assert_eq!(ids, [27, 24, 29, 31, 32]);
    }

    #[test]
    fn a_mount_that_took_anothers_place_stands_last() {
        let identity = MountIdentity { mount_id: 40, major: 0, minor: 50 };
        let renewed = move_mount_last(STACKED.as_bytes(), Path::new("/srv/a"), identity).unwrap();
        let (renewed, old) = (parse(&renewed).unwrap(), parse(STACKED.as_bytes()).unwrap());
        let [before @ .., last] = &renewed[..] else { panic!("it is empty") };
        assert_eq!(*last, Mount { id: 40, device: "0:50".to_owned(), ..old[5].clone() });
        assert!(before.iter().eq(old.iter().filter(|mount| mount.id != 31)));
        for several_or_none in ["/dev/pts", "/srv"] {
            assert_eq!(move_mount_last(STACKED.as_bytes(), Path::new(several_or_none), identity), None);
        }
    }

    #[test]
    fn a_line_of_another_form_is_an_error() {
        assert_eq!(parse(b"1 2 3\n").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
