//! The memory of the machine: total and available (proc_meminfo(5)).

use std::fs;
use std::io;

/// The machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemMemory {
    /// All memory that the kernel manages.
    pub total_bytes: u64,
    /// Memory that is free or can be freed.
    pub available_bytes: u64,
}

impl SystemMemory {
    /// Reads the current values.
    ///
    /// # Errors
    /// As reading /proc.
    pub fn read() -> io::Result<Self> {
        Self::parse(&fs::read_to_string("/proc/meminfo")?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name))?.trim();
            Some(value.strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
        };
        Some(Self { total_bytes: bytes("MemTotal:")?, available_bytes: bytes("MemAvailable:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::SystemMemory;

    #[test]
    fn fields_of_meminfo_are_found_by_name() {
        let text = "MemTotal:       25166 kB\nMemFree:  7 kB\nMemAvailable:   100 kB\n";
        let parsed = SystemMemory { total_bytes: 25_166 << 10, available_bytes: 100 << 10 };
        assert_eq!(SystemMemory::parse(text), Some(parsed));
        assert_eq!(SystemMemory::parse("MemTotal: 1 kB\n"), None);
        let now = SystemMemory::read().unwrap();
        assert!(now.total_bytes >= now.available_bytes && now.available_bytes > 0, "{now:?}");
    }
}
