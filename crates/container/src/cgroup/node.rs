//! The node's own directory in each hierarchy: found, made, handed its controllers, and removed.

use std::path::{Path, PathBuf};

use farfork_sys::cgroup;
use farfork_sys::cgroup::hierarchy::{self, Hierarchy, Version};

use super::{CgroupError, ContainerCgroup, Place, create_directory};

/// The controllers that limits of containers need.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// The node's directory in each hierarchy, with the groups below it.
#[derive(Debug, Clone)]
pub struct NodeCgroups {
    places: Vec<Place>,
}

impl NodeCgroups {
    /// Finds the hierarchies and makes the node's directory (`name`, a relative path) in each.
    ///
    /// # Errors
    /// [`CgroupError::Detect`], [`CgroupError::Create`].
    pub fn create(name: &str) -> Result<Self, CgroupError> {
        let hierarchies = hierarchy::mounted().map_err(CgroupError::Detect)?;
        let unified: Vec<&Hierarchy> = hierarchies.iter().filter(|h| h.version == Version::V2).collect();
        let mut places = Vec::new();
        for hierarchy in unified {
            places.push(create_unified(hierarchy, name)?);
        }
        for hierarchy in hierarchies.iter().filter(|h| h.version == Version::V1) {
            let taken = |c: &&String| places.iter().any(|p: &Place| p.controllers.contains(c));
            let wanted = |c: &&String| CONTROLLERS.contains(&c.as_str()) && !taken(c);
            let controllers: Vec<String> = hierarchy.controllers.iter().filter(wanted).cloned().collect();
            if !controllers.is_empty() {
                let path = hierarchy.own.join(name);
                create_below(&hierarchy.own, name, |_| ())?;
                places.push(Place { version: Version::V1, controllers, path });
            }
        }
        Ok(Self { places })
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
        let group = self.existing(name);
        for place in &group.places {
            if let Err(cause) = create_directory(&place.path) {
                let _ = group.remove();
                return Err(CgroupError::Create { path: place.path.clone(), cause });
            }
        }
        Ok(group)
    }

    /// The group `name` below the node's, which was made before, by this process or one before it.
    pub fn existing(&self, name: &str) -> ContainerCgroup {
        let below = |place: &Place| Place { path: place.path.join(name), ..place.clone() };
        ContainerCgroup { places: self.places.iter().map(below).collect() }
    }

    /// The group of the node's templates: apart from their parents', so that their copies of pages are not charged to
    /// those.
    ///
    /// # Errors
    /// As [`NodeCgroups::group`].
    pub fn templates(&self) -> Result<ContainerCgroup, CgroupError> {
        self.group("templates")
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

/// The node's directory in the unified hierarchy, with those of the controllers that can be handed down to it. Below a
/// group that holds processes none can: then the topmost directory is tried, and where that fails too, the groups are
/// without controllers.
fn create_unified(hierarchy: &Hierarchy, name: &str) -> Result<Place, CgroupError> {
    let available = |base: &Path| {
        let all = cgroup::controllers(base).unwrap_or_default();
        all.into_iter().filter(|c| CONTROLLERS.contains(&c.as_str())).collect::<Vec<_>>()
    };
    let delegable = |base: &&PathBuf| {
        let controllers = available(base);
        !controllers.is_empty() && controllers.iter().all(|c| cgroup::delegate(base, c).is_ok())
    };
    let (base, controllers) = match [&hierarchy.own, &hierarchy.top].into_iter().find(delegable) {
        Some(base) => (base, available(base)),
        None => (&hierarchy.own, Vec::new()),
    };
    create_below(base, name, |directory| {
        for controller in &controllers {
            if let Err(error) = cgroup::delegate(directory, controller) {
                tracing::warn!(directory = %directory.display(), controller, %error, "controller is not handed down");
            }
        }
    })?;
    Ok(Place { version: Version::V2, controllers, path: base.join(name) })
}

/// Makes the directories of `name` below `base`, one after the other, and prepares each.
fn create_below(base: &Path, name: &str, prepare: impl Fn(&Path)) -> Result<(), CgroupError> {
    let mut path = base.to_owned();
    for part in Path::new(name) {
        path.push(part);
        create_directory(&path).map_err(|cause| CgroupError::Create { path: path.clone(), cause })?;
        prepare(&path);
    }
    Ok(())
}
