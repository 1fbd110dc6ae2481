//! Checks of limits: descriptors, threads, mappings, memory.

use std::fs;

use farfork_sys::system_memory::SystemMemory;
use rustix::process::{Resource, getrlimit};

use super::finding::HostFinding;
use crate::output::format_bytes;

/// Enough descriptors for some thousand children and connections.
const DESCRIPTORS_MIN: u64 = 65_536;

/// The kernel's own default of `vm.max_map_count`. Programs with JIT compilers and many threads come near it.
const MAPPINGS_MIN: u64 = 65_530;

/// Enough process ids for some thousand children.
const PROCESSES_MIN: u64 = 32_768;

/// The kernel's default of `vm.overcommit_memory` is 0. With 2, a child's memory counts in full when it is mapped.
const OVERCOMMIT_STRICT: u64 = 2;

const MEMORY_MIN: u64 = 512 << 20;

pub(super) fn check() -> Vec<HostFinding> {
    vec![
        check_descriptors(getrlimit(Resource::Nofile).maximum),
        check_processes(),
        check_sysctl("mappings", "vm.max_map_count", MAPPINGS_MIN),
        check_overcommit(read_sysctl("vm.overcommit_memory")),
        check_memory(),
    ]
}

fn check_descriptors(maximum: Option<u64>) -> HostFinding {
    let found = maximum.map_or_else(|| "unlimited".to_owned(), |maximum| format!("hard limit {maximum}"));
    if maximum.is_none_or(|maximum| maximum >= DESCRIPTORS_MIN) {
        return HostFinding::ok("descriptors", found);
    }
    let remedy = format!("ulimit -Hn {DESCRIPTORS_MIN}, or LimitNOFILE={DESCRIPTORS_MIN} in the unit of the daemon");
    HostFinding::warning("descriptors", found, remedy)
}

fn check_processes() -> HostFinding {
    match getrlimit(Resource::Nproc).maximum {
        Some(maximum) if maximum < PROCESSES_MIN => {
            let remedy = format!("ulimit -Hu {PROCESSES_MIN}, or LimitNPROC={PROCESSES_MIN} in the unit of the daemon");
            HostFinding::warning("processes", format!("hard limit {maximum} (ulimit -Hu)"), remedy)
        }
        _ => check_sysctl("processes", "kernel.pid_max", PROCESSES_MIN),
    }
}

/// Warns if a kernel parameter is below `minimum`.
fn check_sysctl(check: &'static str, parameter: &str, minimum: u64) -> HostFinding {
    match read_sysctl(parameter) {
        Some(value) if value < minimum => {
            HostFinding::warning(check, format!("{parameter} is {value}"), format!("sysctl {parameter}={minimum}"))
        }
        Some(value) => HostFinding::ok(check, format!("{parameter} is {value}")),
        None => HostFinding::warning(check, format!("{parameter} cannot be read"), "mount /proc/sys in this container"),
    }
}

fn read_sysctl(parameter: &str) -> Option<u64> {
    let path = format!("/proc/sys/{}", parameter.replace('.', "/"));
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn check_overcommit(mode: Option<u64>) -> HostFinding {
    if mode != Some(OVERCOMMIT_STRICT) {
        return HostFinding::ok("overcommit", "permitted");
    }
    let found = "vm.overcommit_memory is 2: each child counts with all memory that it maps";
    HostFinding::warning("overcommit", found, "sysctl vm.overcommit_memory=0")
}

fn check_memory() -> HostFinding {
    match SystemMemory::read() {
        Ok(memory) if memory.available_bytes < MEMORY_MIN => {
            let found = format!("{} available", format_bytes(memory.available_bytes));
            HostFinding::warning("memory", found, "end other programs, or use a machine with more memory")
        }
        Ok(memory) => {
            let (available, total) = (format_bytes(memory.available_bytes), format_bytes(memory.total_bytes));
            HostFinding::ok("memory", format!("{available} of {total} available"))
        }
        Err(error) => HostFinding::problem("memory", format!("/proc/meminfo: {error}"), "mount /proc"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingStatus;
    use super::{check_descriptors, check_overcommit, check_sysctl};

    #[test]
    fn low_limits_are_warnings_with_a_command() {
        let low = check_descriptors(Some(1024));
        assert_eq!((low.status, low.found.as_str()), (FindingStatus::Warning, "hard limit 1024"));
        assert!(low.remedy.unwrap().starts_with("ulimit -Hn 65536"));
        assert_eq!(check_descriptors(None).status, FindingStatus::Ok);
        assert_eq!(check_overcommit(Some(2)).remedy.as_deref(), Some("sysctl vm.overcommit_memory=0"));
        assert_eq!(check_overcommit(Some(0)).status, FindingStatus::Ok);
        let parameter = check_sysctl("processes", "kernel.pid_max", u64::MAX);
        assert_eq!(parameter.remedy, Some(format!("sysctl kernel.pid_max={}", u64::MAX)));
        assert_eq!(check_sysctl("processes", "kernel.pid_max", 1).status, FindingStatus::Ok);
    }
}
