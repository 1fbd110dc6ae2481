//! Lists the files and directories of volumes that a process uses, for `farfork check`. Refuses files that were removed from
//! a volume, because no other node can open them.

use std::collections::BTreeSet;

use farfork_sys::process::MapEntry;

use super::error::{CaptureError, Refusal};
use super::files::{DELETED_SUFFIX, OpenFd};
use super::state::proc_link::read_proc_link;
use super::state::tree_root::TreeRoot;
use crate::volume_table::VolumeTable;

/// How a process uses something on a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeObjectKind {
    /// The file is open as a descriptor.
    FileDescriptor,
    /// The file is mapped, as libraries are.
    Mapping,
    /// The process executes the file.
    Executable,
    /// The directory is the working directory.
    WorkingDirectory,
    /// The directory is the root directory (chroot(2)).
    RootDirectory,
}

/// A file or directory of a volume that a process uses.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct VolumeObject {
    /// The process.
    pub pid: i32,
    /// How the process uses it.
    pub kind: VolumeObjectKind,
    /// Number of the descriptor.
    pub fd: Option<u32>,
    /// Name of the volume.
    pub volume: String,
    /// Path from the root of the volume.
    pub path: String,
}

/// Reads the volumes that are mounted in the tree's mount namespace.
pub(super) fn read_volumes(root: TreeRoot) -> Result<VolumeTable, CaptureError> {
    VolumeTable::read(root.pid).map_err(CaptureError::reading(root.pid, "the mounts"))
}

/// The files and directories of volumes that a process uses: links of `/proc` first, then descriptors, then mappings.
pub(super) fn list_volume_objects(
    pid: i32,
    volumes: &VolumeTable,
    fds: &[OpenFd],
    maps: &[MapEntry],
) -> Vec<VolumeObject> {
    let object = |kind, fd, path: &[u8]| {
        let found = volumes.find(std::str::from_utf8(path).ok()?)?;
        Some(VolumeObject { pid, kind, fd, volume: found.volume.to_owned(), path: found.path })
    };
    let links = [
        ("exe", VolumeObjectKind::Executable),
        ("cwd", VolumeObjectKind::WorkingDirectory),
        ("root", VolumeObjectKind::RootDirectory),
    ];
    let read = |(name, kind)| object(kind, None, read_proc_link(pid, pid, name).ok()?.as_bytes());
    let mut objects: Vec<VolumeObject> = links.into_iter().filter_map(read).collect();
    objects.extend(fds.iter().filter_map(|fd| object(VolumeObjectKind::FileDescriptor, Some(fd.number), &fd.link)));
    let executable = read_proc_link(pid, pid, "exe").unwrap_or_default();
    let mapped: BTreeSet<&[u8]> = maps.iter().map(|entry| &entry.path[..]).collect();
    let mapped = mapped.into_iter().filter(|path| *path != executable.as_bytes());
    objects.extend(mapped.filter_map(|path| object(VolumeObjectKind::Mapping, None, path)));
    objects
}

/// Refuses mapped files that were removed from a volume. `files::refuse_open_files` refuses removed files that are open.
pub(super) fn refuse_removed_mappings(
    pid: i32,
    root: TreeRoot,
    maps: &[MapEntry],
) -> Result<Vec<Refusal>, CaptureError> {
    let mut removed = maps.iter().filter(|entry| entry.path.ends_with(DELETED_SUFFIX)).peekable();
    if removed.peek().is_none() {
        return Ok(Vec::new());
    }
    let volumes = read_volumes(root)?;
    let refuse = |entry: &MapEntry| {
        let name = format!("pid {pid}, mapping {:#x}-{:#x}", entry.start, entry.end);
        Some(Refusal::new(name, removed_reason(&entry.path, volumes.volume_of_device(entry.device)?)))
    };
    Ok(removed.filter_map(refuse).collect())
}

/// Formats the reason for refusing a file that was removed from its volume.
pub(super) fn removed_reason(link: &[u8], volume: &str) -> String {
    let path = String::from_utf8_lossy(link.strip_suffix(DELETED_SUFFIX).unwrap_or(link)).into_owned();
    format!("{path} was removed from volume {volume}, so that no other node can open it; close it first")
}
