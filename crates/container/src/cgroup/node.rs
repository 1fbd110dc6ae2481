//! The node's own directory in each hierarchy: found, made, handed its controllers, and removed.

use std::path::{Path, PathBuf};

use farfork_sys::cgroup;
use farfork_sys::cgroup::hierarchy::{self, Base, Hierarchy, STANDARD_TOP, Version};

use super::unlimited::Unlimited;
use super::{CgroupError, ContainerCgroup, Place};

/// The controllers that limits of containers need.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// What pauses containers on a machine without the unified hierarchy, each group of which can be frozen.
const FREEZER: &str = "freezer";

/// The node's directory in each hierarchy, with the groups below it.
#[derive(Debug, Clone)]
pub struct NodeCgroups {
    pub(super) places: Vec<Place>,
    common: Unlimited,
}

impl NodeCgroups {
    /// Finds the hierarchies and makes the node's directory (`name`, a relative path) in each.
    ///
    /// # Errors
    /// [`CgroupError::Detect`], [`CgroupError::Create`].
    pub fn create(name: &str) -> Result<Self, CgroupError> {
        Self::create_in(hierarchy::mounted().map_err(CgroupError::Detect)?, name)
    }

    /// As [`NodeCgroups::create`], in these hierarchies.
    pub(super) fn create_in(mut hierarchies: Vec<Hierarchy>, name: &str) -> Result<Self, CgroupError> {
        // Version 2 comes first: what it controls, version 1 cannot.
        hierarchies.sort_by_key(|hierarchy| hierarchy.version == Version::V1);
        let is_unified = hierarchies.first().is_some_and(|hierarchy| hierarchy.version == Version::V2);
        let wanted = [&CONTROLLERS[..], if is_unified { &[] } else { &[FREEZER] }].concat();
        let mut places: Vec<Place> = Vec::new();
        for hierarchy in &hierarchies {
            if !hierarchy.top.starts_with(STANDARD_TOP) {
                let mount = hierarchy.top.display();
                tracing::warn!(%mount, "control groups are made in this mount, for none is at {STANDARD_TOP}: it must stay mounted as long as the node runs");
            }
            let Base { directory, controllers } = hierarchy.base(&wanted);
            if controllers.is_empty() && hierarchy.version == Version::V1 {
                continue;
            }
            let path = directory.join(name);
            cgroup::create_path(&directory, Path::new(name), hierarchy.version, &controllers)
                .map_err(|cause| CgroupError::Create { path: path.clone(), cause })?;
            places.push(Place { version: hierarchy.version, controllers, path });
        }
        let bare = Self { places, common: Unlimited::default() };
        let unlimited = bare.make_unlimited()?;
        Ok(Self { common: unlimited, ..bare })
    }

    /// Directories that an earlier daemon used under another name, to be removed.
    pub(crate) fn former(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        let place = |path| Place { version: Version::V1, controllers: Vec::new(), path };
        Self { places: directories.into_iter().map(place).collect(), common: Unlimited::default() }
    }

    /// The node's directory in each hierarchy.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.places.iter().map(|place| place.path.as_path())
    }

    /// Makes the group `name` below the node's, or finds it.
    ///
    /// # Errors
    /// [`CgroupError::Create`]; what was made until then is removed.
    pub fn group(&self, name: &str) -> Result<ContainerCgroup, CgroupError> {
        made(self.below(name))
    }

    /// The same without limits: only where processes can be born, and elsewhere in the group that all such have in common.
    pub(crate) fn unlimited(&self, name: &str) -> Result<ContainerCgroup, CgroupError> {
        made(self.without_others(self.below(name)))
    }

    /// The group `name` below the node's, which was made before, by this process or one before it.
    pub fn existing(&self, name: &str) -> ContainerCgroup {
        let group = self.below(name);
        let has_others = group.places.iter().skip(1).any(|place| place.path.exists());
        if has_others { group } else { self.without_others(group) }
    }

    fn without_others(&self, mut group: ContainerCgroup) -> ContainerCgroup {
        if self.common.is_used() {
            group.places.truncate(1);
            group.common = Some(self.common.clone());
        }
        group
    }

    /// The group that containers without limits have in common.
    pub(crate) fn all_unlimited(&self) -> &Unlimited {
        &self.common
    }

    pub(super) fn below(&self, name: &str) -> ContainerCgroup {
        let below = |place: &Place| Place { path: place.path.join(name), ..place.clone() };
        let places = self.places.iter().map(below).collect();
        ContainerCgroup { places, common: None }
    }

    /// The group of the node's templates: apart from their parents', so that their copies of pages are not charged to
    /// those.
    ///
    /// # Errors
    /// As [`NodeCgroups::group`].
    pub fn templates(&self) -> Result<ContainerCgroup, CgroupError> {
        self.group("templates")
    }

    /// The group of the node's zygotes, whose memory is the node's own. Where children have a group in common, they are in that:
    /// their copies are born there.
    ///
    /// # Errors
    /// As [`NodeCgroups::group`].
    pub fn zygotes(&self) -> Result<ContainerCgroup, CgroupError> {
        self.unlimited("zygotes")
    }

    /// Names of the groups below the node's.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .directories()
            .filter_map(|directory| std::fs::read_dir(directory).ok())
            .flat_map(|entries| entries.flatten())
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Removes the node's directories, and those above them that were made for them and are empty now. Groups that
    /// still hold processes stay, and so do the directories above them.
    pub fn remove_empty(&self) {
        self.common.wait_left();
        for name in self.names() {
            for place in self.existing(&name).places {
                let _ = std::fs::remove_dir(place.path);
            }
        }
        for directory in self.directories() {
            // The directory above, `farfork`, is shared with other nodes: it stays while it holds one of them.
            if std::fs::remove_dir(directory).is_ok()
                && let Some(above) = directory.parent().filter(|above| above.ends_with("farfork"))
            {
                let _ = std::fs::remove_dir(above);
            }
        }
    }
}

fn made(group: ContainerCgroup) -> Result<ContainerCgroup, CgroupError> {
    for place in &group.places {
        if let Err(cause) = cgroup::create(&place.path) {
            let _ = group.remove();
            return Err(CgroupError::Create { path: place.path.clone(), cause });
        }
    }
    Ok(group)
}
