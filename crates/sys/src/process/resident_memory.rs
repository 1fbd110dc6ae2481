//! Parses `/proc/PID/smaps_rollup`: how much memory of a process is resident, and how much of it is shared.

use std::fs;
use std::io;

use super::malformed;

/// Resident memory of a process, in bytes. The kernel walks the page tables to compute it, which takes a millisecond for a
/// few hundred MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentMemory {
    /// Memory that other processes also map.
    pub shared_bytes: u64,
    /// Memory that only this process maps.
    pub private_bytes: u64,
}

impl ResidentMemory {
    /// Reads the resident memory of a process.
    ///
    /// # Errors
    /// NotFound or ESRCH if it has ended.
    pub fn read(pid: i32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        Self::parse(&text).ok_or_else(|| malformed("smaps_rollup"))
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib << 10)
        };
        let shared_bytes = bytes("Shared_Clean:")? + bytes("Shared_Dirty:")?;
        Some(Self { shared_bytes, private_bytes: bytes("Private_Clean:")? + bytes("Private_Dirty:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::ResidentMemory;

    #[test]
    fn shared_and_private_memory_are_summed_up() {
        let text = "55-7f ---p 00000000 00:00 0 [rollup]\nRss: 20 kB\nShared_Clean:    8 kB\nShared_Dirty:    4 kB\n\
                    Private_Clean:   2 kB\nPrivate_Dirty:   6 kB\n";
        let residence = ResidentMemory { shared_bytes: 12 << 10, private_bytes: 8 << 10 };
        assert_eq!(ResidentMemory::parse(text), Some(residence));
        assert_eq!(ResidentMemory::parse("Rss: 20 kB\n"), None);
    }

    #[test]
    fn this_process_has_resident_memory() {
        assert!(ResidentMemory::read(std::process::id().cast_signed()).unwrap().private_bytes > 0);
    }
}
