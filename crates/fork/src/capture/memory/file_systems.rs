//! Which of the kernel's own file systems mapped files lie on, by their devices: what the flags of an area would tell late.

use std::collections::BTreeMap;

use farfork_sys::hugetlbfs;
use farfork_sys::process::MapEntry;

use crate::capture::error::Refusal;

/// VmFlags of an area in huge pages of hugetlbfs.
pub(super) const HUGE_FLAG: &str = "ht";

/// What was found out of devices.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileSystems(BTreeMap<u64, FileSystem>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileSystem {
    Huge,
    Devices,
    Other,
}

impl FileSystems {
    /// Marks what of the map of a process is in huge pages of hugetlbfs, as `smaps` would.
    pub(crate) fn mark(&mut self, pid: i32, maps: &mut [MapEntry]) {
        for entry in maps.iter_mut().filter(|entry| is_kernels(entry)) {
            if self.of(pid, entry) == FileSystem::Huge && !entry.has_flag(HUGE_FLAG) {
                entry.add_flag(HUGE_FLAG);
            }
        }
    }

    /// What of a marked map cannot be carried.
    pub(crate) fn refusals(&self, pid: i32, maps: &[MapEntry]) -> Vec<Refusal> {
        let is_devices = |entry: &&MapEntry| self.0.get(&entry.device) == Some(&FileSystem::Devices);
        let refusal = |entry: &MapEntry| {
            let name = String::from_utf8_lossy(&entry.path);
            Refusal::new(format!("pid {pid}, mapping {:#x}-{:#x} {name}", entry.start, entry.end), "it maps a device")
        };
        maps.iter().filter(|entry| is_kernels(entry)).filter(is_devices).map(refusal).collect()
    }

    fn of(&mut self, pid: i32, entry: &MapEntry) -> FileSystem {
        let find = || FileSystem::behind(&format!("/proc/{pid}/map_files/{}", entry.range_name()));
        *self.0.entry(entry.device).or_insert_with(find)
    }
}

/// What lies on a device of a driver's is on neither.
fn is_kernels(entry: &MapEntry) -> bool {
    entry.inode != 0 && rustix::fs::major(entry.device) == 0
}

impl FileSystem {
    fn behind(link: &str) -> Self {
        const SYSFS: u64 = 0x6265_6572;
        // What cannot be asked is found out by its flags.
        match rustix::fs::statfs(link).map(|found| found.f_type as u64) {
            Ok(hugetlbfs::MAGIC) => Self::Huge,
            Ok(SYSFS) => Self::Devices,
            _ => Self::Other,
        }
    }
}
