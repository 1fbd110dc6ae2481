//! What tells that a file here is the file that a process had mapped elsewhere.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use farfork_wire::descriptor::FileIdentity;
use object::elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID};
use object::read::ReadCache;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _};

/// Reads a file's identity: its inode, size and time, and its ELF build id where it has one.
///
/// # Errors
/// As open(2) and read(2).
pub fn identify(path: &Path) -> io::Result<FileIdentity> {
    let file = File::open(path)?;
    let mut identity = identify_by_inode(&file)?;
    let mut head = vec![0; HEAD_BYTES];
    let filled = file.read_at(&mut head, 0)?;
    identity.build_id = build_id_in(&head[..filled]).or_else(|| build_id(file));
    Ok(identity)
}

/// Linkers put the build id among the first things of a file, which one call reads; to look for it as what the file is takes two dozen.
const HEAD_BYTES: usize = 4096;

/// The build id of an ELF file, if it stands in its first bytes.
fn build_id_in(head: &[u8]) -> Option<Vec<u8>> {
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

/// The build id of an ELF file, wherever it stands.
fn build_id(file: File) -> Option<Vec<u8>> {
    let cache = ReadCache::new(file);
    object::File::parse(&cache).ok()?.build_id().ok()?.map(<[u8]>::to_vec)
}

/// The same without looking into the file: enough within one boot of one kernel.
///
/// # Errors
/// As fstat(2).
pub fn identify_by_inode(file: &File) -> io::Result<FileIdentity> {
    let metadata = file.metadata()?;
    Ok(FileIdentity {
        bytes: metadata.len(),
        device: metadata.dev(),
        inode: metadata.ino(),
        modified_ns: metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec(),
        build_id: None,
    })
}

/// Whether the file at `path` on this node is the one of `wanted`. Within one boot (`same_boot`) inode, size and time
/// decide; between kernels only size and build id can: a file without one is never the same, and is paged instead.
pub fn is_same(path: &Path, wanted: &FileIdentity, same_boot: bool) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    if !metadata.is_file() || metadata.len() != wanted.bytes {
        return false;
    }
    let modified_ns = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
    let same_inode = (metadata.dev(), metadata.ino(), modified_ns) == (wanted.device, wanted.inode, wanted.modified_ns);
    if same_boot && same_inode {
        return true;
    }
    wanted.build_id.is_some() && identify(path).is_ok_and(|found| found.build_id == wanted.build_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_elf_file_has_a_build_id_and_is_itself() {
        let path = Path::new("/proc/self/exe");
        let identity = identify(path).unwrap();
        assert!(is_same(path, &identity, true));
        assert!(identity.build_id.is_some());
        assert_eq!(identity.build_id, build_id(File::open(path).unwrap()), "wherever it is looked for");
        let mut other = identity.clone();
        other.bytes += 1;
        assert!(!is_same(path, &other, true));
    }

    #[test]
    fn elsewhere_a_file_without_build_id_is_never_the_same() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let identity = identify(file.path()).unwrap();
        assert!(identity.build_id.is_none());
        assert!(is_same(file.path(), &identity, true));
        assert!(!is_same(file.path(), &identity, false));
    }
}
