//! File identities: decide whether a file on this node is the file that a process used at capture, on this or another
//! node.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use farfork_wire::descriptor::{DIGEST_BYTES, FileIdentity, FileStatus};
use object::elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID};
use object::read::ReadCache;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _};
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, StatxTimestamp, makedev, statx};

/// Reads a file's identity: its inode, size and times, and its ELF build id if it has one.
///
/// # Errors
/// As open(2) and read(2).
pub fn read_identity(path: &Path) -> io::Result<FileIdentity> {
    let file = File::open(path)?;
    let mut identity = stat_identity(&file)?;
    let mut head = vec![0; BUILD_ID_SEARCH_BYTES];
    let filled = file.read_at(&mut head, 0)?;
    identity.build_id = parse_build_id(&head[..filled]).or_else(|| read_build_id(file));
    Ok(identity)
}

/// Number of bytes at the start of a file in which the build id is searched first. Linkers put the build id near the
/// start, so one read finds it; parsing the whole file takes two dozen reads.
const BUILD_ID_SEARCH_BYTES: usize = 4096;

/// Returns the build id of an ELF file, if it is within its first bytes.
fn parse_build_id(head: &[u8]) -> Option<Vec<u8>> {
    let file = FileHeader64::<Endianness>::parse(head).ok()?;
    let endian = file.endian().ok()?;
    let notes = file.program_headers(endian, head).ok()?.iter();
    let mut notes = notes.filter_map(|part| part.notes(endian, head).ok().flatten());
    notes.find_map(|mut notes| {
        while let Ok(Some(note)) = notes.next() {
            if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
                return Some(note.desc().to_vec());
            }
        }
        None
    })
}

/// Returns the build id of an ELF file, from any position.
fn read_build_id(file: File) -> Option<Vec<u8>> {
    let cache = ReadCache::new(file);
    object::File::parse(&cache).ok()?.build_id().ok()?.map(<[u8]>::to_vec)
}

/// Returns the identity of an open file from its inode, without reading the contents.
///
/// # Errors
/// As statx(2).
pub fn stat_identity(file: impl AsFd) -> io::Result<FileIdentity> {
    Ok(from_statx(&statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?))
}

/// Returns the identity of the file at a path from its inode.
///
/// # Errors
/// As statx(2).
pub fn stat_path_identity(path: &Path) -> io::Result<FileIdentity> {
    Ok(from_statx(&statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS)?))
}

/// Returns the identity from a result of statx(2).
pub fn from_statx(found: &Statx) -> FileIdentity {
    const PERMISSIONS: u16 = 0o7777;
    let nanoseconds = |time: &StatxTimestamp| time.tv_sec * 1_000_000_000 + i64::from(time.tv_nsec);
    FileIdentity {
        bytes: found.stx_size,
        device: makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        modified_ns: nanoseconds(&found.stx_mtime),
        changed_ns: nanoseconds(&found.stx_ctime),
        links: found.stx_nlink,
        status: FileStatus { mode: (found.stx_mode & PERMISSIONS).into(), uid: found.stx_uid, gid: found.stx_gid },
        build_id: None,
        digest: None,
    }
}

/// The result of comparing a file with an earlier identity on the same machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileComparison {
    /// It is the same file, and has the same bytes.
    Same,
    /// It is the same file, but its bytes were changed, or may have been.
    Changed,
    /// Another file.
    Different,
}

/// Compares `now` with `then`. Both must be from the same boot of the same machine.
pub fn compare(then: &FileIdentity, now: &FileIdentity) -> FileComparison {
    if (then.device, then.inode) != (now.device, now.inode) {
        return FileComparison::Different;
    }
    if has_same_content(then, now) { FileComparison::Same } else { FileComparison::Changed }
}

/// Whether size and times show that a file has the same bytes as before.
pub fn has_same_content(then: &FileIdentity, now: &FileIdentity) -> bool {
    // A differing change time is explained by a change of links, mode or owner. If only the change time differs, the
    // contents may have changed, and the modification time may have been set back.
    let is_explained = (then.links, then.status) != (now.links, now.status);
    (then.bytes, then.modified_ns) == (now.bytes, now.modified_ns)
        && (then.changed_ns == now.changed_ns || is_explained)
}

/// A modification time that no file has: marks the identity of a file that was changed before the identity was read.
pub const CHANGED_MARKER_NS: i64 = i64::MIN;

/// Marks the identity if the file was changed since `timestamp_ns`, a
/// [`file_time_ns`](farfork_sys::clock::file_time_ns).
pub fn mark_if_changed_since(timestamp_ns: i64, identity: &mut FileIdentity) {
    if identity.changed_ns >= timestamp_ns && identity.modified_ns >= timestamp_ns {
        identity.modified_ns = CHANGED_MARKER_NS;
    }
}

/// Whether the file at `path` on this node has the bytes of `wanted`. Within one boot (`same_boot`), equal inode, size and
/// times suffice. Otherwise size, and build id or digest must be equal. A file without build id and digest then never counts
/// as the same: its pages are read from the seed.
pub fn is_same_file(path: &Path, wanted: &FileIdentity, same_boot: bool) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    if !metadata.is_file() || metadata.len() != wanted.bytes || wanted.modified_ns == CHANGED_MARKER_NS {
        return false;
    }
    let Ok(found) = stat_path_identity(path) else { return false };
    match compare(wanted, &found) {
        FileComparison::Same if same_boot => true,
        FileComparison::Changed if same_boot => has_same_digest(path, wanted),
        _ if wanted.build_id.is_some() => read_identity(path).is_ok_and(|found| found.build_id == wanted.build_id),
        _ => has_same_digest(path, wanted),
    }
}

/// Whether the file at `path` has the known digest of `wanted`.
pub fn has_same_digest(path: &Path, wanted: &FileIdentity) -> bool {
    let found = || File::open(path).and_then(|file| compute_digest(&file));
    wanted.digest.is_some() && found().ok().flatten() == wanted.digest
}

/// Maximum size of a file that gets a digest, in bytes. Computing a digest must take no more than tens of microseconds.
const DIGEST_FILE_BYTES_MAX: u64 = 64 << 10;

/// Computes the SHA-256 of a small file; `None` for a larger file, or one that changes during the computation.
///
/// # Errors
/// As fstat(2) and pread(2).
pub fn compute_digest(file: &File) -> io::Result<Option<[u8; DIGEST_BYTES]>> {
    let before = stat_identity(file)?;
    if before.bytes > DIGEST_FILE_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; before.bytes as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
    let is_same = compare(&before, &stat_identity(file)?) == FileComparison::Same;
    Ok(is_same.then(|| digest.as_ref().try_into().ok()).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_elf_file_is_identified_by_its_build_id() {
        let path = Path::new("/proc/self/exe");
        let identity = read_identity(path).unwrap();
        assert!(is_same_file(path, &identity, true));
        assert!(identity.build_id.is_some());
        assert_eq!(identity.build_id, read_build_id(File::open(path).unwrap()), "both searches find the same build id");
        let mut other = identity.clone();
        other.bytes += 1;
        assert!(!is_same_file(path, &other, true));
    }

    #[test]
    fn a_file_without_build_id_never_matches_on_another_machine() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let identity = read_identity(file.path()).unwrap();
        assert!(identity.build_id.is_none());
        assert!(is_same_file(file.path(), &identity, true));
        assert!(!is_same_file(file.path(), &identity, false));
    }

    #[test]
    fn changed_contents_are_noticed_and_changed_attributes_are_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"before").unwrap();
        let mut then = read_identity(file.path()).unwrap();
        then.digest = compute_digest(file.as_file()).unwrap();
        let compared = || compare(&then, &stat_path_identity(file.path()).unwrap());
        assert_eq!(compared(), FileComparison::Same);
        let mut mode = file.path().metadata().unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o640);
        std::fs::set_permissions(file.path(), mode).unwrap();
        assert_eq!(compared(), FileComparison::Same);
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(file.path(), b"before").unwrap();
        assert_eq!(compared(), FileComparison::Changed);
        assert!(
            is_same_file(file.path(), &then, true) && is_same_file(file.path(), &then, false),
            "its bytes are the same"
        );
        std::fs::write(file.path(), b"behind").unwrap();
        assert!(!is_same_file(file.path(), &then, true) && !is_same_file(file.path(), &then, false));
    }

    #[test]
    fn a_change_with_a_restored_modification_time_is_noticed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"before").unwrap();
        let (then, times) =
            (read_identity(file.path()).unwrap(), file.as_file().metadata().unwrap().modified().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(file.path(), b"behind").unwrap();
        file.as_file().set_modified(times).unwrap();
        assert_eq!(compare(&then, &stat_path_identity(file.path()).unwrap()), FileComparison::Changed);
    }
}
