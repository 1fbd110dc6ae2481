//! `describe_mount_users`: why a volume cannot be unmounted. Reads `/proc`, and makes no call on the volume, which may not answer.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use farfork_sys::mount::table::{Mount, read_thread_mounts};
use farfork_sys::process::{self, FdDirectory, FdInfo, read_maps};
use rustix::fs::{CWD, Mode, OFlags, makedev, openat};

/// Most processes that the text names.
const NAMED_USERS_MAX: usize = 3;

/// A mount, as `/proc` shows it of a process that uses it.
struct UsedMount {
    /// Id of the mount, which descriptors and directories show.
    id: u64,
    /// Device of the file system, which memory maps show.
    device: u64,
}

/// Names the processes that use the volume mounted at a path, or the file system that is mounted below it.
///
/// The text begins a sentence: `process 4711 (tail) uses the volume`.
///
/// # Errors
/// As reading proc(5); `NotFound` if no volume is mounted at the path.
pub fn describe_mount_users(point: &Path) -> io::Result<String> {
    let mounts = read_thread_mounts()?;
    let volume = mounts.iter().rfind(|mount| mount.point == point && mount.is_volume());
    let volume = volume.ok_or(io::ErrorKind::NotFound)?;
    let used = UsedMount::new(volume)?;
    let users: Vec<i32> = process::all_pids()?.into_iter().filter(|pid| used.is_used_by(*pid)).collect();
    let submount = mounts.iter().find(|mount| mount.parent == volume.id).map(|mount| &mount.point);
    Ok(describe(&users, submount))
}

impl UsedMount {
    fn new(mount: &Mount) -> io::Result<Self> {
        let numbers =
            mount.device.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let (major, minor) = numbers.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { id: mount.id.into(), device: makedev(major, minor) })
    }

    /// Whether a process has an open file, a directory or a mapping of the mount. A process that has ended has none.
    fn is_used_by(&self, pid: i32) -> bool {
        let is_mapped = || read_maps(pid).is_ok_and(|maps| maps.iter().any(|entry| entry.device == self.device));
        ["cwd", "root"].iter().any(|link| self.contains(&format!("/proc/{pid}/{link}")))
            || self.has_open_file(pid)
            || is_mapped()
    }

    fn has_open_file(&self, pid: i32) -> bool {
        let Ok(infos) = FdDirectory::open_infos(pid) else { return false };
        let numbers = infos.numbers().unwrap_or_default();
        numbers.into_iter().any(|number| infos.info(number).is_ok_and(|info| info.mount == self.id))
    }

    fn contains(&self, link: &str) -> bool {
        let Ok(directory) = openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { return false };
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_raw_fd()));
        info.and_then(|text| FdInfo::parse(&text)).is_ok_and(|info| info.mount == self.id)
    }
}

fn describe(users: &[i32], submount: Option<&PathBuf>) -> String {
    let name = |pid: &i32| {
        let name = process::thread_name(*pid, *pid).unwrap_or_default();
        format!("{pid} ({})", String::from_utf8_lossy(&name).trim_end())
    };
    let named: Vec<String> = users.iter().take(NAMED_USERS_MAX).map(name).collect();
    match (&named[..], submount) {
        ([], Some(submount)) => format!("another file system is mounted at {}", submount.display()),
        ([], None) => "programs use the volume".to_owned(),
        ([one], _) => format!("process {one} uses the volume"),
        _ => {
            let mut text = format!("processes {}", named.join(", "));
            if users.len() > named.len() {
                let _ = write!(text, " and {} others", users.len() - named.len());
            }
            text + " use the volume"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::describe;

    #[test]
    fn few_processes_are_named() {
        let submount = PathBuf::from("/mnt/data/other");
        assert_eq!(describe(&[], None), "programs use the volume");
        assert_eq!(describe(&[], Some(&submount)), "another file system is mounted at /mnt/data/other");
        let text = describe(&[1, 1, 1, 1, 1], Some(&submount));
        assert!(text.starts_with("processes 1 (") && text.ends_with(" and 2 others use the volume"), "{text}");
        assert!(describe(&[1], None).starts_with("process 1 ("));
    }
}
