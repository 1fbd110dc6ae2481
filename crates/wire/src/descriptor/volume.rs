//! Volumes that a seed needs. A child opens their files by path, so its node must have each volume mounted at the same path.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Descriptor;
use super::validate::{InvalidDescriptor, require};

/// A mounted volume, and the paths on it that the processes of a seed use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Name of the volume.
    pub volume: String,
    /// The directory of the volume that is mounted: `/`, unless a part of it was bound (mount(8) with `--bind`).
    pub directory: String,
    /// The mount point, as the processes see it.
    pub mount_path: String,
    /// Absolute paths on the volume that the processes use, in ascending order: executables, open files, mapped files, and
    /// working and root directories.
    pub paths: Vec<String>,
}

impl Descriptor {
    /// Whether this path of the seed is on a volume.
    pub fn is_on_volume(&self, path: &str) -> bool {
        self.volumes.iter().any(|mount| mount.paths.binary_search_by(|known| known.as_str().cmp(path)).is_ok())
    }

    pub(super) fn validate_volumes(&self) -> Result<(), InvalidDescriptor> {
        for VolumeMount { volume, directory, mount_path, paths } in &self.volumes {
            let is_named = !volume.is_empty() && directory.starts_with('/') && mount_path.starts_with('/');
            require(is_named, || format!("volume `{volume}` has no name or is mounted nowhere"))?;
            let is_ordered = paths.is_sorted() && paths.iter().all(|path| Path::new(path).starts_with(mount_path));
            require(is_ordered, || format!("volume {volume}: its paths are out of order or elsewhere"))?;
        }
        Ok(())
    }
}
