//! Finds what keeps a volume mounted after umount(8): another mount namespace may still have the mount. The error about a
//! second mount names the process.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use farfork_sys::mount::table::{Mount, read_mounts_of, read_thread_mounts};
use farfork_sys::process;

use super::store::VolumeStore;

/// The mount of a volume. Displayed as the end of a sentence: `the volume is mounted on this node already`.
#[derive(Debug, PartialEq, Eq)]
pub enum MountHolder {
    /// This process sees the mount at a path.
    OwnNamespace(PathBuf),
    /// Only other mount namespaces have the mount.
    OtherNamespace {
        /// A process of such a namespace.
        pid: i32,
        /// Its name.
        name: String,
        /// The mount point, as the process sees it.
        point: PathBuf,
    },
    /// No mount namespace was found that has the mount.
    Unknown,
}

impl MountHolder {
    /// Searches the mount tables of all processes for the mount of the volume's client.
    pub(super) fn find(store: &VolumeStore, volume: &str) -> Self {
        let Some(device) = store.volume(volume).mount_device() else { return Self::Unknown };
        let find_point = |mounts: Vec<Mount>| {
            mounts.into_iter().rfind(|mount| mount.device == device && mount.is_volume()).map(|mount| mount.point)
        };
        if let Some(point) = read_thread_mounts().ok().and_then(find_point) {
            return Self::OwnNamespace(point);
        }
        let mut namespaces = HashSet::new();
        for pid in process::all_pids().unwrap_or_default() {
            let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
            if !namespaces.insert(namespace) {
                continue;
            }
            if let Some(point) = read_mounts_of(pid).ok().and_then(find_point) {
                let name = process::thread_name(pid, pid).unwrap_or_default();
                return Self::OtherNamespace { pid, name: String::from_utf8_lossy(&name).trim_end().to_owned(), point };
            }
        }
        Self::Unknown
    }
}

impl fmt::Display for MountHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnNamespace(point) => write!(f, ", at {}: unmount it first", point.display()),
            Self::OtherNamespace { pid, name, point } => {
                let point = point.display();
                write!(
                    f,
                    ": process {pid} ({name}) still has it at {point} in its own mount namespace; end the process, \
                     or run `nsenter --mount --target {pid} umount {point}`"
                )
            }
            Self::Unknown => f.write_str(": unmount it first"),
        }
    }
}
