//! Detects by device which mapped files are on hugetlbfs or sysfs: the mapping flags, which show this too, are read only
//! after the reply. Also detects mapped files that the node lacks at their paths.

use std::collections::BTreeMap;

use farfork_sys::hugetlbfs;
use farfork_sys::mount::table::Mount;
use farfork_sys::namespace;
use farfork_sys::process::MapEntry;

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, major, minor, statx};

use crate::capture::error::Refusal;
use crate::capture::files::path_identity::{OTHER_NAME_REASON, OtherName};
use crate::capture::files::{DELETED_SUFFIX, path_identity};
use crate::capture::state::node_root::ProcDirectory;

/// VmFlags of a mapping of hugetlbfs huge pages.
pub(super) const HUGETLB_FLAG: &str = "ht";

/// A flag of farfork, which `smaps` does not have. It marks a shared mapping of a file that is copied, because the node
/// lacks the file at its path or `copies_files` is set.
pub(super) const OWN_FILE_FLAG: &str = "own";

/// Results of earlier checks: each device and each file is checked once.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileSystemCache {
    /// By device.
    kinds: BTreeMap<u64, FileSystemKind>,
    /// Whether files of shared mappings are copied in the pause, like deleted files.
    copies_files: bool,
    /// Whether a file is at its path, by device and inode.
    path_matches: BTreeMap<(u64, u64), bool>,
    /// Other names of files whose opened names were removed, by device and inode.
    other_names: BTreeMap<(u64, u64), OtherName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileSystemKind {
    Hugetlbfs,
    Sysfs,
    Other,
}

impl FileSystemCache {
    /// An empty cache. `copies_files`: files of shared mappings are copied in the pause.
    pub(crate) fn new(copies_files: bool) -> Self {
        Self { copies_files, ..Self::default() }
    }

    /// Marks hugetlbfs mappings, as `smaps` would, and shared mappings of files that are copied ([`OWN_FILE_FLAG`]). Mapped files
    /// that have lost their names get another path.
    pub(crate) fn mark_mappings(&mut self, pid: i32, maps: &mut [MapEntry]) {
        for entry in maps.iter_mut().filter(|entry| is_on_virtual_device(entry)) {
            if self.kind_of(pid, entry) == FileSystemKind::Hugetlbfs && !entry.has_flag(HUGETLB_FLAG) {
                entry.add_flag(HUGETLB_FLAG);
            }
        }
        let is_checked = |entry: &&mut MapEntry| entry.inode != 0 && (entry.is_shared || has_lost_name(entry));
        let mut checked = maps.iter_mut().filter(is_checked).peekable();
        if checked.peek().is_none() {
            return;
        }
        let has_our_mounts = namespace::is_main_thread_namespace(CWD, &format!("/proc/{pid}/ns/mnt"));
        for entry in checked {
            if has_our_mounts
                && has_lost_name(entry)
                && let OtherName::Found(path) = self.other_name(pid, entry)
            {
                entry.path.clone_from(path);
            }
            if !entry.is_shared {
                continue;
            }
            let is_copied = self.copies_files && entry.path.starts_with(b"/") && !is_on_virtual_device(entry);
            let is_own =
                is_copied || if has_our_mounts { !self.is_at_path(pid, entry) } else { is_absent_on_node(pid, entry) };
            if is_own {
                entry.add_flag(OWN_FILE_FLAG);
            }
        }
    }

    /// Refuses marked mappings that cannot be carried.
    pub(crate) fn refusals(&self, pid: i32, maps: &[MapEntry]) -> Vec<Refusal> {
        let is_devices = |entry: &&MapEntry| self.kinds.get(&entry.device) == Some(&FileSystemKind::Sysfs);
        let refusal = |entry: &MapEntry| {
            let name = String::from_utf8_lossy(&entry.path);
            Refusal::new(format!("pid {pid}, mapping {:#x}-{:#x} {name}", entry.start, entry.end), "it maps a device")
        };
        let devices = maps.iter().filter(|entry| is_on_virtual_device(entry)).filter(is_devices).map(refusal);
        let is_elsewhere = |entry: &&MapEntry| {
            entry.is_shared
                && has_lost_name(entry)
                && self.other_names.get(&(entry.device, entry.inode)) == Some(&OtherName::Elsewhere)
        };
        let refuse_elsewhere = |entry: &MapEntry| {
            let name = String::from_utf8_lossy(&entry.path);
            let object = format!("pid {pid}, mapping {:#x}-{:#x} {name}", entry.start, entry.end);
            Refusal::new(object, format!("its path {OTHER_NAME_REASON}"))
        };
        devices.chain(maps.iter().filter(is_elsewhere).map(refuse_elsewhere)).collect()
    }

    /// The other name of a mapped file whose path was removed. Each file is searched once.
    fn other_name(&mut self, pid: i32, entry: &MapEntry) -> &OtherName {
        let find = || {
            let link = format!("/proc/{pid}/map_files/{}", entry.range_name());
            let found = statx(CWD, link, AtFlags::empty(), StatxFlags::BASIC_STATS);
            found.map_or(OtherName::NotNeeded, |found| OtherName::find(&entry.path, &found))
        };
        self.other_names.entry((entry.device, entry.inode)).or_insert_with(find)
    }

    /// Whether a mapped file is still at its path on this node. Each file is checked once.
    fn is_at_path(&mut self, pid: i32, entry: &MapEntry) -> bool {
        if !entry.path.starts_with(b"/") || has_lost_name(entry) {
            return true;
        }
        let link = format!("/proc/{pid}/map_files/{}", entry.range_name());
        let found = || statx(CWD, &link, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID).ok();
        let look = || path_identity::is_mapping_at_path(&entry.path, || found().filter(is_regular_file));
        *self.path_matches.entry((entry.device, entry.inode)).or_insert_with(look)
    }

    fn kind_of(&mut self, pid: i32, entry: &MapEntry) -> FileSystemKind {
        let find = || FileSystemKind::read(&format!("/proc/{pid}/map_files/{}", entry.range_name()));
        *self.kinds.entry(entry.device).or_insert_with(find)
    }
}

/// Whether a process with its own mounts has mapped a file that this node does not have.
fn is_absent_on_node(pid: i32, entry: &MapEntry) -> bool {
    let link = format!("/proc/{pid}/map_files/{}", entry.range_name());
    let found = statx(CWD, link, AtFlags::empty(), StatxFlags::BASIC_STATS);
    let process = ProcDirectory { directory: CWD, prefix: &format!("/proc/{pid}") };
    // On an overlay, the mapped file is the one in a layer, whose mount is in no mount table. So compare devices.
    let device = format!("{}:{}", major(entry.device), minor(entry.device));
    let is_its = |mount: &Mount| mount.device == device;
    found.is_ok_and(|found| {
        is_regular_file(&found) && path_identity::is_absent_on_node(&entry.path, &found, process, is_its)
    })
}

/// Whether the path by which a file was mapped was removed.
fn has_lost_name(entry: &MapEntry) -> bool {
    entry.path.starts_with(b"/") && entry.path.ends_with(DELETED_SUFFIX)
}

fn is_regular_file(found: &Statx) -> bool {
    FileType::from_raw_mode(found.stx_mode.into()).is_file()
}

/// Whether a mapped file may be on hugetlbfs or sysfs: its device has the major number 0, so it has no driver.
fn is_on_virtual_device(entry: &MapEntry) -> bool {
    entry.inode != 0 && major(entry.device) == 0
}

impl FileSystemKind {
    fn read(link: &str) -> Self {
        const SYSFS: u64 = 0x6265_6572;
        // If statfs(2) fails, the mapping flags decide later.
        match rustix::fs::statfs(link).map(|found| found.f_type as u64) {
            Ok(hugetlbfs::HUGETLBFS_MAGIC) => Self::Hugetlbfs,
            Ok(SYSFS) => Self::Sysfs,
            _ => Self::Other,
        }
    }
}
