//! Files of `/proc`, `/sys` and control groups whose open file has state of its own, which the kernel does not show, or that act
//! on this machine. They are refused. Other such files are opened by their paths, and show the child.

use farfork_sys::process::FdDirectory;
use rustix::fs::{AtFlags, Mode, OFlags, fstatfs, openat, statat};

/// File systems whose open files keep filters, positions in consumed data, or unfinished requests.
const STATEFUL_FILE_SYSTEMS: [(u64, &str); 3] =
    [(0x7472_6163, "tracefs"), (0x6462_6720, "debugfs"), (0x6265_6570, "configfs")];

/// Returns why a regular file cannot be carried. `number` is its link in `links`.
pub(super) fn refusal_reason(links: &FdDirectory, number: &str, link: &[u8]) -> Option<String> {
    if let Some(reason) = stateful_name(link) {
        return can_write(links, number).then(|| reason.to_owned());
    }
    if link == b"/proc/kmsg" {
        return Some("takes the kernel's messages away from other readers, on the child's node too".to_owned());
    }
    if !link.starts_with(b"/sys/") {
        return None;
    }
    let path_fd = openat(links, number, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let magic = fstatfs(path_fd).ok()?.f_type as u64;
    let (_, name) = STATEFUL_FILE_SYSTEMS.into_iter().find(|(known, _)| *known == magic)?;
    Some(format!("is a file of {name}, whose open files have state that the kernel does not show"))
}

/// Returns why a file must not be open for writing, judged by its path.
fn stateful_name(link: &[u8]) -> Option<&'static str> {
    let in_control_group = |suffix: &[u8]| link.starts_with(b"/sys/fs/cgroup/") && link.ends_with(suffix);
    if link.starts_with(b"/proc/pressure/") || in_control_group(b".pressure") {
        return Some(
            "is open for writing, as for a trigger of pressure stall information (PSI), which belongs to the open file",
        );
    }
    if in_control_group(b".peak") {
        return Some("is open for writing, which begins a new peak that belongs to the open file");
    }
    let name = link.strip_prefix(b"/proc/")?;
    let is_of_process = name.first().is_some_and(u8::is_ascii_digit);
    (!is_of_process && !name.starts_with(b"sys/"))
        .then_some("is open for writing, and acts on this machine, or keeps a request in the open file")
}

fn can_write(links: &FdDirectory, number: &str) -> bool {
    const OWNER_MAY_WRITE: u32 = 0o200;
    statat(links, number, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|link| link.st_mode & OWNER_MAY_WRITE != 0)
}

/// The process that a file of `/proc` shows, by its number in the path.
pub(super) fn shown_process(link: &[u8]) -> Option<i32> {
    let name = link.strip_prefix(b"/proc/")?;
    let digits = name.split(|byte| *byte == b'/').next()?;
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_with_state_are_known() {
        let is_stateful = |link: &str| stateful_name(link.as_bytes()).is_some();
        for link in ["/proc/pressure/io", "/sys/fs/cgroup/a/cpu.pressure", "/sys/fs/cgroup/memory.peak", "/proc/mtrr"] {
            assert!(is_stateful(link), "{link}");
        }
        for link in ["/proc/71/oom_score_adj", "/proc/sys/vm/swappiness", "/sys/fs/cgroup/memory.high", "/a.pressure"] {
            assert!(!is_stateful(link), "{link}");
        }
    }

    #[test]
    fn the_shown_process_is_parsed() {
        let shown = |link: &str| shown_process(link.as_bytes());
        assert_eq!([shown("/proc/71/mem"), shown("/proc/71"), shown("/proc/stat")], [Some(71), Some(71), None]);
    }
}
