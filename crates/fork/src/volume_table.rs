//! The mounted volumes of a mount namespace: finds the volume of a path.
//!
//! `capture` records the volumes in a descriptor, and lists them for `farfork check`. `resume` compares them with the
//! node's volumes. Neither makes a call to a volume.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use farfork_container::path_on_node;
use farfork_sys::mount::probe::{VOLUME_FILESYSTEM, VOLUME_SOURCE_PREFIX};
use farfork_sys::mount::table::{self, Mount};
use farfork_wire::Descriptor;
use farfork_wire::descriptor::{OpenFile, VolumeMount};

/// The visible mounts of a namespace; empty if none of them is a volume.
#[derive(Debug, Default)]
pub(crate) struct VolumeTable(Vec<Mount>);

/// A path on a volume.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VolumePath<'a> {
    pub(crate) volume: &'a str,
    mount: &'a Mount,
    /// Path from the root of the volume.
    pub(crate) path: String,
}

impl VolumeTable {
    /// Reads the table of a process, with paths relative to its root.
    ///
    /// # Errors
    /// As reading `/proc/PID/mountinfo`.
    pub(crate) fn read(pid: i32) -> io::Result<Self> {
        let text = fs::read(format!("/proc/{pid}/mountinfo"))?;
        // Search the text before parsing it: parsing takes longer, and most tables have no volume.
        let has_volume = text.windows(VOLUME_FILESYSTEM.len()).any(|found| found == VOLUME_FILESYSTEM.as_bytes());
        if has_volume { Self::parse(&text) } else { Ok(Self::default()) }
    }

    fn parse(text: &[u8]) -> io::Result<Self> {
        let mounts = table::parse(text)?;
        Ok(Self(table::visible_mounts(&mounts).into_iter().cloned().collect()))
    }

    /// Returns the volume of a path without symbolic links, and the path within the volume.
    pub(crate) fn find(&self, path: &str) -> Option<VolumePath<'_>> {
        let above = self.0.iter().filter(|mount| Path::new(path).starts_with(&mount.point));
        let mount = above.max_by_key(|mount| mount.point.components().count())?;
        let below = Path::new(path).strip_prefix(&mount.point).ok()?;
        let path = if below.as_os_str().is_empty() { mount.root.clone() } else { mount.root.join(below) };
        Some(VolumePath { volume: volume_name(mount)?, mount, path: path.to_string_lossy().into_owned() })
    }

    /// Returns the volume of a mount, given the mount id of statx(2).
    pub(crate) fn volume_of_mount(&self, id: u64) -> Option<&str> {
        self.0.iter().find(|mount| u64::from(mount.id) == id).and_then(volume_name)
    }

    /// Returns the volume of a device number from `/proc/PID/maps`.
    pub(crate) fn volume_of_device(&self, device: u64) -> Option<&str> {
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        self.0.iter().find(|mount| mount.device == device).and_then(volume_name)
    }

    /// Returns the volumes that the processes of a seed use.
    pub(crate) fn used_by(&self, descriptor: &Descriptor) -> Vec<VolumeMount> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut used: BTreeMap<u32, VolumeMount> = BTreeMap::new();
        for path in named_paths(descriptor) {
            let Some(VolumePath { volume, mount, .. }) = self.find(path) else { continue };
            let text = |path: &Path| path.to_string_lossy().into_owned();
            let entry = used.entry(mount.id).or_insert_with(|| VolumeMount {
                volume: volume.to_owned(),
                directory: text(&mount.root),
                mount_path: text(&mount.point),
                paths: Vec::new(),
            });
            entry.paths.push(path.to_owned());
        }
        let mut mounts: Vec<VolumeMount> = used.into_values().collect();
        for mount in &mut mounts {
            mount.paths.sort_unstable();
            mount.paths.dedup();
        }
        mounts
    }

    /// Returns the first used path of a seed's volume that is not at the same path below `root`, on the same volume.
    pub(crate) fn find_missing<'a>(&self, wanted: &'a VolumeMount, root: &Path) -> Option<&'a str> {
        let is_there = |path: &&String| {
            // Symbolic links of another root are not followed: a lookup could wait for the server of a volume.
            let on_node = path_on_node(root, Path::new(path));
            let found = on_node.to_str().and_then(|path| self.find(path));
            found.is_some_and(|found| {
                let below = Path::new(path.as_str()).strip_prefix(&wanted.mount_path).unwrap_or(Path::new(""));
                found.volume == wanted.volume && *found.path == *Path::new(&wanted.directory).join(below)
            })
        };
        wanted.paths.iter().find(|path| !is_there(path)).map(String::as_str)
    }
}

fn volume_name(mount: &Mount) -> Option<&str> {
    mount.source.strip_prefix(VOLUME_SOURCE_PREFIX).filter(|_| mount.is_volume())
}

/// Returns the paths of all files and directories of a descriptor.
fn named_paths(descriptor: &Descriptor) -> impl Iterator<Item = &str> {
    let own = descriptor.processes().flat_map(|process| {
        let cwd = process.deleted_cwd.is_none().then_some(&process.cwd);
        let exe = process.exe_object.is_none().then_some(&process.exe);
        cwd.into_iter().chain(exe).chain(&process.root)
    });
    let open = descriptor.open_files.iter().filter_map(|file| match file {
        OpenFile::Regular { path, .. }
        | OpenFile::Directory { path, .. }
        | OpenFile::Device { path, .. }
        | OpenFile::NamedPipe { path, .. } => Some(path),
        _ => None,
    });
    own.chain(open).map(String::as_str).chain(descriptor.mapped_files.iter().map(|file| file.path.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
27 1 254:0 / / rw - ext4 /dev/vda rw
41 27 0:38 / /mnt/data rw - fuse.farfork farfork:data rw
42 41 0:39 / /mnt/data/below rw - tmpfs tmpfs rw
43 27 0:38 /folder /srv/part rw - fuse.farfork farfork:data rw
44 27 0:40 / /mnt/other rw - fuse.sshfs farfork:data rw
";

    fn table() -> VolumeTable {
        VolumeTable::parse(TABLE.as_bytes()).unwrap()
    }

    #[test]
    fn the_nearest_mount_decides() {
        let table = table();
        let find = |path: &str| table.find(path).map(|found| (found.volume.to_owned(), found.path));
        assert_eq!(find("/mnt/data/folder/file"), Some(("data".into(), "/folder/file".into())));
        assert_eq!(find("/mnt/data"), Some(("data".into(), "/".into())));
        assert_eq!(find("/srv/part/file"), Some(("data".into(), "/folder/file".into())));
        for elsewhere in ["/mnt/data/below/file", "/mnt/database", "/mnt/other/file", "/etc/passwd"] {
            assert_eq!(find(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn a_volume_is_identified_by_mount_and_device() {
        let table = table();
        assert_eq!((table.volume_of_mount(41), table.volume_of_mount(42)), (Some("data"), None));
        let device = |minor| rustix::fs::makedev(0, minor);
        assert_eq!((table.volume_of_device(device(38)), table.volume_of_device(device(40))), (Some("data"), None));
    }

    #[test]
    fn a_node_must_have_the_same_volume_at_the_same_path() {
        let wanted = |volume: &str, directory: &str, mount_path: &str, path: &str| VolumeMount {
            volume: volume.into(),
            directory: directory.into(),
            mount_path: mount_path.into(),
            paths: vec![path.into()],
        };
        let missing = |mount: &VolumeMount| table().find_missing(mount, Path::new("/")).map(str::to_owned);
        assert_eq!(missing(&wanted("data", "/", "/mnt/data", "/mnt/data/file")), None);
        assert_eq!(missing(&wanted("data", "/folder", "/srv/part", "/srv/part/file")), None);
        let rooted = wanted("data", "/folder/part", "/part", "/part/file");
        assert_eq!(table().find_missing(&rooted, Path::new("/srv")), Some("/part/file"));
        let rooted = wanted("data", "/folder", "/part", "/part/file");
        assert_eq!(table().find_missing(&rooted, Path::new("/srv")), None);
        for lacking in [
            wanted("else", "/", "/mnt/data", "/mnt/data/file"),
            wanted("data", "/", "/mnt/data", "/mnt/data/below/file"),
            wanted("data", "/", "/srv/part", "/srv/part/file"),
            wanted("data", "/", "/mnt", "/mnt/file"),
        ] {
            assert_eq!(missing(&lacking).as_ref(), lacking.paths.first());
        }
    }
}
