//! The node's directory in each hierarchy: finds it, creates it, enables its controllers, and removes it.

use std::path::{Path, PathBuf};

use farfork_sys::cgroup;
use farfork_sys::cgroup::hierarchy::{self, CgroupVersion, CreationBase, DAEMON_LEAF, Hierarchy, STANDARD_TOP};

use super::unlimited::UnlimitedGroup;
use super::{CgroupDirectory, CgroupError, ContainerCgroup};

/// The controllers that limits of containers need.
pub const LIMIT_CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// The controller that pauses containers on a machine without the unified hierarchy. In the unified hierarchy, every group
/// can be frozen without it.
const FREEZER: &str = "freezer";

/// The node's directory in each hierarchy, with the groups below it.
#[derive(Debug, Clone)]
pub struct NodeCgroups {
    pub(super) directories: Vec<CgroupDirectory>,
    unlimited: UnlimitedGroup,
}

impl NodeCgroups {
    /// Finds the hierarchies and creates the node's directory (`name`, a relative path) in each.
    ///
    /// # Errors
    /// [`CgroupError::Detect`], [`CgroupError::Create`].
    pub fn create(name: &str) -> Result<Self, CgroupError> {
        Self::create_in(hierarchy::mounted_hierarchies().map_err(CgroupError::Detect)?, name)
    }

    /// Like [`NodeCgroups::create`], in these hierarchies.
    pub(super) fn create_in(mut hierarchies: Vec<Hierarchy>, name: &str) -> Result<Self, CgroupError> {
        // Version 2 first: version 1 cannot use a controller that version 2 has.
        hierarchies.sort_by_key(|hierarchy| hierarchy.version == CgroupVersion::V1);
        let is_unified = hierarchies.first().is_some_and(|hierarchy| hierarchy.version == CgroupVersion::V2);
        let wanted = [&LIMIT_CONTROLLERS[..], if is_unified { &[] } else { &[FREEZER] }].concat();
        let mut directories: Vec<CgroupDirectory> = Vec::new();
        for hierarchy in &hierarchies {
            if !hierarchy.top.starts_with(STANDARD_TOP) {
                let mount = hierarchy.top.display();
                tracing::warn!(%mount, "control groups are created in this mount, because {STANDARD_TOP} has none; keep it mounted while the node runs");
            }
            let CreationBase { directory, controllers } = hierarchy.creation_base(&wanted);
            if !directory.starts_with(hierarchy.limiting_group()) {
                let (group, base) = (hierarchy.own.display(), directory.display());
                tracing::warn!(%group, %base, "the limits of the daemon's control group do not hold for children, because it holds processes: their groups are elsewhere; under systemd 254 or later, set Delegate=yes and DelegateSubgroup={DAEMON_LEAF}, otherwise start the daemon in a group of its own");
            }
            if controllers.is_empty() && hierarchy.version == CgroupVersion::V1 {
                continue;
            }
            let path = directory.join(name);
            cgroup::create_path(&directory, Path::new(name), hierarchy.version, &controllers)
                .map_err(|cause| CgroupError::Create { path: path.clone(), cause })?;
            directories.push(CgroupDirectory { version: hierarchy.version, controllers, path });
        }
        let without_unlimited = Self { directories, unlimited: UnlimitedGroup::default() };
        let unlimited = without_unlimited.make_unlimited()?;
        Ok(Self { unlimited, ..without_unlimited })
    }

    /// Opens the directories that an earlier daemon used while the node had another name. The caller removes them.
    pub(crate) fn from_former(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        let to_directory = |path| CgroupDirectory { version: CgroupVersion::V1, controllers: Vec::new(), path };
        Self { directories: directories.into_iter().map(to_directory).collect(), unlimited: UnlimitedGroup::default() }
    }

    /// The node's directory in each hierarchy.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.directories.iter().map(|directory| directory.path.as_path())
    }

    /// Creates the group `name` in the node's directory, unless it exists.
    ///
    /// # Errors
    /// [`CgroupError::Create`]; the directories created so far are removed.
    pub fn create_group(&self, name: &str) -> Result<ContainerCgroup, CgroupError> {
        create_directories(self.group_below(name))
    }

    /// Creates a group without limits: only in the unified hierarchy, where processes can be created in it. In version 1
    /// hierarchies its processes are in the common group.
    pub(crate) fn create_unlimited_group(&self, name: &str) -> Result<ContainerCgroup, CgroupError> {
        create_directories(self.use_shared_v1(self.group_below(name)))
    }

    /// Opens the group `name` in the node's directory, which this daemon or an earlier one created.
    pub fn open_group(&self, name: &str) -> ContainerCgroup {
        let group = self.group_below(name);
        let has_others = group.directories.iter().skip(1).any(|directory| directory.path.exists());
        if has_others { group } else { self.use_shared_v1(group) }
    }

    fn use_shared_v1(&self, mut group: ContainerCgroup) -> ContainerCgroup {
        if self.unlimited.exists() {
            group.directories.truncate(1);
            group.unlimited = Some(self.unlimited.clone());
        }
        group
    }

    /// The common group of containers without limits.
    pub(crate) fn unlimited_group(&self) -> &UnlimitedGroup {
        &self.unlimited
    }

    pub(super) fn group_below(&self, name: &str) -> ContainerCgroup {
        let below =
            |directory: &CgroupDirectory| CgroupDirectory { path: directory.path.join(name), ..directory.clone() };
        let directories = self.directories.iter().map(below).collect();
        ContainerCgroup { directories, unlimited: None }
    }

    /// Creates the group of the node's templates, unless it exists. The group is separate, so that pages of templates are
    /// not charged to the parents' groups.
    ///
    /// # Errors
    /// As [`NodeCgroups::create_group`].
    pub fn template_group(&self) -> Result<ContainerCgroup, CgroupError> {
        self.create_group("templates")
    }

    /// Creates the group of the node's zygotes, unless it exists: their memory is charged to the node. If children have a
    /// common group, zygotes are in it too, so that their copies start in it.
    ///
    /// # Errors
    /// As [`NodeCgroups::create_group`].
    pub fn zygote_group(&self) -> Result<ContainerCgroup, CgroupError> {
        self.create_unlimited_group("zygotes")
    }

    /// Names of the groups in the node's directory.
    pub(crate) fn group_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .paths()
            .filter_map(|directory| std::fs::read_dir(directory).ok())
            .flat_map(|entries| entries.flatten())
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Removes the node's directories, and the parent directory `farfork` if it is empty then. Groups that still have
    /// processes stay, and so do the directories above them.
    pub fn remove_empty(&self) {
        self.unlimited.wait_threads_left();
        for name in self.group_names() {
            for place in self.open_group(&name).directories {
                let _ = std::fs::remove_dir(place.path);
            }
        }
        for directory in self.paths() {
            // The parent directory `farfork` is shared with other nodes. It stays while it has a directory of one of them.
            if std::fs::remove_dir(directory).is_ok()
                && let Some(above) = directory.parent().filter(|above| above.ends_with("farfork"))
            {
                let _ = std::fs::remove_dir(above);
            }
        }
    }
}

fn create_directories(group: ContainerCgroup) -> Result<ContainerCgroup, CgroupError> {
    for place in &group.directories {
        if let Err(cause) = cgroup::create(&place.path) {
            let _ = group.remove();
            return Err(CgroupError::Create { path: place.path.clone(), cause });
        }
    }
    Ok(group)
}
