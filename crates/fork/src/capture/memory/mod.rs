//! The memory map: the kind of each mapping, which mappings are refused, and their entries in a descriptor.

mod builder;
pub(super) mod eager;
mod file_systems;
pub(super) mod hugetlb;
pub(super) mod seals;
pub(super) mod stale_mappings;
mod template_memory;
mod writable_files;

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use farfork_sys::process::MapEntry;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{PageRun, SpecialMapping, USER_SPACE_END};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

pub(super) use builder::MemoryMap;
pub(super) use file_systems::FileSystemCache;
pub(super) use template_memory::TemplateMemory;
pub(super) use writable_files::{WrittenMappings, link_writable_files};

use super::error::Refusal;
use super::files::{DELETED_SUFFIX, SHARED_MEMORY_PREFIX, path_identity};
use super::shared::SEGMENT_PREFIX;
use file_systems::{HUGETLB_FLAG, OWN_FILE_FLAG};

/// The kind of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MappingKind {
    /// `[vsyscall]`, at the same address in each process.
    Vsyscall,
    Special(SpecialMapping),
    /// Private, without a file that another node could have.
    Anonymous,
    /// A private mapping of a file at its path.
    PrivateFile,
    /// A shared mapping of a file at its path.
    SharedFile,
    /// A shared mapping of an object that is copied: memory without a path, POSIX shared memory, or a file that the node
    /// lacks.
    SharedObject,
}

/// Classifies a mapping, or says why it cannot be carried.
pub(super) fn classify_mapping(entry: &MapEntry) -> Result<MappingKind, &'static str> {
    check_flags(entry)?;
    check_name(entry)?;
    Ok(match entry.path.as_slice() {
        _ if entry.start >= USER_SPACE_END => MappingKind::Vsyscall,
        b"[vdso]" => MappingKind::Special(SpecialMapping::Vdso),
        b"[vvar]" => MappingKind::Special(SpecialMapping::Vvar),
        b"[vvar_vclock]" => MappingKind::Special(SpecialMapping::VvarVclock),
        path if entry.is_shared => {
            let is_without_path = is_deleted(path) || path.starts_with(SHARED_MEMORY_PREFIX);
            if is_without_path || is_hugetlb(entry) || entry.has_flag(OWN_FILE_FLAG) {
                MappingKind::SharedObject
            } else {
                MappingKind::SharedFile
            }
        }
        _ if is_hugetlb(entry) => MappingKind::Anonymous,
        // A private mapping of /dev/zero is anonymous memory.
        path if entry.inode == 0 || !path.starts_with(b"/") || is_deleted(path) || path == b"/dev/zero" => {
            MappingKind::Anonymous
        }
        _ => MappingKind::PrivateFile,
    })
}

/// Whether a mapping is a [`MappingKind::SharedObject`].
pub(super) fn is_shared_object(entry: &MapEntry) -> bool {
    classify_mapping(entry) == Ok(MappingKind::SharedObject)
}

/// Whether a path has the suffix that the kernel appends if the file was deleted or replaced.
fn is_deleted(path: &[u8]) -> bool {
    path.ends_with(DELETED_SUFFIX)
}

/// Whether a mapping has hugetlbfs huge pages, according to a map that [`FileSystemCache`] has marked.
fn is_hugetlb(entry: &MapEntry) -> bool {
    entry.has_flag(HUGETLB_FLAG)
}

/// Whether a mapping is private hugetlbfs memory: a clone gets ordinary pages instead (`hugetlb`).
pub(super) fn is_private_hugetlb(entry: &MapEntry) -> bool {
    !entry.is_shared && is_hugetlb(entry)
}

/// Returns the addresses at which a mapping shows a part of its file; `None` if it shows nothing of this part.
pub(super) fn mapped_range_of(entry: &MapEntry, part: &Range<u64>) -> Option<Range<u64>> {
    let (first, behind) = (part.start.max(entry.offset), part.end.min(entry.offset + entry.bytes()));
    (first < behind).then(|| entry.start + first - entry.offset..entry.start + behind - entry.offset)
}

/// Checks VmFlags (proc_pid_smaps(5)), as far as they are known.
fn check_flags(entry: &MapEntry) -> Result<(), &'static str> {
    const REFUSED_FLAGS: [(&str, &str); 5] = [
        ("um", "another process serves its page faults (userfaultfd); let that finish first"),
        ("uw", "another process tracks its writes (userfaultfd); let that finish first"),
        ("ui", "another process serves its page faults (userfaultfd); let that finish first"),
        ("ss", "it is a shadow stack, which is not carried yet"),
        ("sl", "it is sealed (mseal), and a sealed area cannot be rebuilt"),
    ];
    let is_kernels = entry.path.starts_with(b"[v");
    if !is_kernels && (entry.has_flag("pf") || entry.has_flag("io")) {
        return Err("it maps a device");
    }
    REFUSED_FLAGS.iter().find(|(flag, _)| entry.has_flag(flag)).map_or(Ok(()), |(_, reason)| Err(reason))
}

fn check_name(entry: &MapEntry) -> Result<(), &'static str> {
    let path = entry.path.as_slice();
    if path.starts_with(b"/[aio]") {
        return Err(
            "it is the ring of an asynchronous I/O context (io_setup), which belongs to its process alone; destroy it first",
        );
    }
    if path.starts_with(b"/secretmem") {
        return Err("it is secret memory (memfd_secret), which no other process may read");
    }
    if path.starts_with(b"anon_inode:") {
        return Err("it maps an object of the kernel that cannot be carried");
    }
    if entry.is_shared && !path.starts_with(b"/") && !path.starts_with(b"[v") {
        return Err("it is a shared mapping of an unknown kind");
    }
    let is_device = path.starts_with(b"/dev/") && !path.starts_with(b"/dev/shm/") && !path.starts_with(b"/dev/zero");
    if is_device && !is_deleted(path) && !is_hugetlb(entry) {
        return Err("it maps a device");
    }
    Ok(())
}

/// Refuses mappings that cannot be carried.
pub(super) fn refuse_mappings<'a>(pid: i32, maps: impl IntoIterator<Item = &'a MapEntry>) -> Vec<Refusal> {
    let refusal = |entry: &MapEntry| {
        let reason = classify_mapping(entry).err()?;
        let name = String::from_utf8_lossy(&entry.path);
        let object = format!("pid {pid}, mapping {:#x}-{:#x} {name}", entry.start, entry.end);
        Some(Refusal::new(object.trim_end(), reason))
    };
    maps.into_iter().filter(|entry| !is_dontfork(entry)).filter_map(refusal).collect()
}

/// Refuses mappings because of their files. Ignores mappings that the process unmaps during the call.
pub(super) fn file_refusals<'a>(pid: i32, maps: impl IntoIterator<Item = &'a MapEntry>) -> Vec<Refusal> {
    let refusal = |entry: &MapEntry| {
        let bytes = || std::fs::metadata(format!("/proc/{pid}/map_files/{}", entry.range_name())).ok();
        let reason = match classify_mapping(entry).ok()? {
            MappingKind::SharedFile | MappingKind::SharedObject if has_ambiguous_path(pid, entry) => {
                "the kernel writes the name of its file as if the file was removed or had another name, because the name \
                 contains ` (deleted)` or `\\012`: rename the file"
            }
            MappingKind::SharedFile => check_path(entry).err()?,
            MappingKind::SharedObject if entry.path.starts_with(SEGMENT_PREFIX) => {
                check_segment_size(entry, bytes()?.len()).err()?
            }
            _ => return None,
        };
        Some(Refusal::new(format!("pid {pid}, mapping {:#x}-{:#x}", entry.start, entry.end), reason))
    };
    maps.into_iter().filter(|entry| !is_dontfork(entry)).filter_map(refusal).collect()
}

/// Whether the kernel's text of a path, in which it appends ` (deleted)` and writes a newline as `\012`, is itself the path of
/// the mapped file.
fn has_ambiguous_path(pid: i32, entry: &MapEntry) -> bool {
    if !is_deleted(&entry.path) && !entry.path.contains(&b'\n') {
        return false;
    }
    let text = entry.path.split(|byte| *byte == b'\n').collect::<Vec<_>>().join(&b"\\012"[..]);
    // Most removed files and memory files end here.
    if !Path::new(OsStr::from_bytes(&text)).exists() {
        return false;
    }
    let link = format!("/proc/{pid}/map_files/{}", entry.range_name());
    // After the end of the mapping, `mapped` is none.
    let mapped = || statx(CWD, &link, AtFlags::empty(), StatxFlags::BASIC_STATS).ok();
    path_identity::is_same_file(&text, mapped)
}

/// Returns the path of a mapped file, by which children open it.
fn check_path(entry: &MapEntry) -> Result<&str, &'static str> {
    str::from_utf8(&entry.path).map_err(|_| "the path of its file is not UTF-8")
}

/// Checks that a whole System V segment is attached. shmat(2) cannot attach a part of a segment.
fn check_segment_size(entry: &MapEntry, segment_bytes: u64) -> Result<(), &'static str> {
    let is_whole = entry.offset == 0 && entry.bytes() == segment_bytes.next_multiple_of(PAGE_SIZE);
    let reason = "it is a part of a segment of System V shared memory, whose rest was unmapped";
    is_whole.then_some(()).ok_or(reason)
}

/// Whether children lack a mapping, according to its flags: it is marked MADV_DONTFORK, and it is shared, has a file or is
/// also marked MADV_DONTDUMP (decision 014).
pub(super) fn is_dontfork(entry: &MapEntry) -> bool {
    entry.has_flag("dc") && (entry.has_flag("dd") || !is_private_anonymous(entry))
}

/// Whether a mapping is private memory without a file.
pub(super) fn is_private_anonymous(entry: &MapEntry) -> bool {
    classify_mapping(entry) == Ok(MappingKind::Anonymous) && entry.inode == 0
}

/// Merges runs that touch or overlap. `runs` must be ascending.
pub(super) fn merge_runs(runs: impl IntoIterator<Item = PageRun>) -> Vec<PageRun> {
    let mut merged: Vec<PageRun> = Vec::new();
    for run in runs.into_iter().filter(|run| run.count > 0) {
        match merged.last_mut() {
            Some(last) if run.first <= last.first + last.count => {
                let end = (last.first + last.count).max(run.first + run.count);
                last.count = end - last.first;
            }
            _ => merged.push(run),
        }
    }
    merged
}

/// Formats an error about a mapping's file.
fn mapping_error(entry: &MapEntry, source: &io::Error) -> String {
    format!("its file {} cannot be inspected: {source}", String::from_utf8_lossy(&entry.path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn merged_runs_have_the_same_pages_and_are_not_adjacent(mut firsts in prop::collection::vec((0_u64..200, 0_u64..9), 0..40)) {
            firsts.sort_unstable();
            let runs: Vec<PageRun> = firsts.iter().map(|(first, count)| PageRun { first: *first, count: *count }).collect();
            let merged = merge_runs(runs.iter().copied());
            let holds = |runs: &[PageRun], page: u64| runs.iter().any(|run| (run.first..run.first + run.count).contains(&page));
            for page in 0..210 {
                prop_assert_eq!(holds(&runs, page), holds(&merged, page));
            }
            prop_assert!(merged.windows(2).all(|pair| pair[0].first + pair[0].count < pair[1].first));
        }
    }
}
