//! How a container gets the node's mounts: the steps that make them, and a version number that changes when they change.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use farfork_sys::mount::probe::{self, ProbedMount};
use farfork_sys::mount::table::{self, Mount};
use farfork_sys::mount::watch::MountWatch;

use super::mount_plan::{self, MountStep};

/// A mount that another process or machine serves.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServedMount {
    /// Device number `major:minor` of its file system, unique while the file system is mounted.
    pub(crate) device: String,
    pub(crate) point: PathBuf,
    pub(crate) is_volume: bool,
}

impl ServedMount {
    /// The served mounts in a mount table.
    pub(crate) fn find(mounts: &[Mount]) -> BTreeSet<Self> {
        let served = mounts.iter().filter(|mount| probe::is_served(&mount.filesystem));
        let describe = |mount: &Mount| Self {
            device: mount.device.clone(),
            point: mount.point.clone(),
            is_volume: mount.is_volume(),
        };
        served.map(describe).collect()
    }
}

/// The steps that mount a root.
#[derive(Debug, Clone)]
pub(crate) struct RootBlueprint {
    /// A hash of the mounts, so it changes when the mounts change.
    pub(crate) version: u64,
    pub(super) steps: Arc<Vec<MountStep>>,
    pub(super) served: Arc<BTreeSet<ServedMount>>,
}

/// The cached blueprint. Reading the mount table takes 100 µs; checking it for changes takes 1 µs. Containers are built and
/// taken more often than file systems are mounted.
#[derive(Debug)]
pub(crate) struct BlueprintCache {
    watch: MountWatch,
    pub(crate) plan: NodePlan,
    /// Whether `plan` is outdated, because the mount table could not be read after a change.
    is_outdated: bool,
    /// Served mounts that the node has unmounted since the last [`Self::take_unmounted`].
    unmounted: BTreeSet<ServedMount>,
}

/// The blueprint for the node's mounts, the mounts to probe, and the unresponsive ones.
#[derive(Debug)]
pub(crate) struct NodePlan {
    pub(crate) blueprint: RootBlueprint,
    /// The mounts whose servers must answer while a container is built.
    pub(crate) to_probe: Vec<ProbedMount>,
    /// Ids of mounts that are left out because their server does not answer.
    unresponsive: BTreeSet<u32>,
}

impl BlueprintCache {
    /// Reads the node's mount table and plans the mounts of a root.
    pub(crate) fn read(masked: &[PathBuf]) -> io::Result<Self> {
        // Start the watch first, so that no change is missed.
        let watch = MountWatch::start()?;
        Ok(Self {
            watch,
            plan: NodePlan::read(masked, BTreeSet::new())?,
            is_outdated: false,
            unmounted: BTreeSet::new(),
        })
    }

    /// Returns the plan for the current mounts, without those with the ids in `unresponsive`. If the mount table cannot be
    /// read, the old plan stays until the next call.
    pub(crate) fn current(&mut self, masked: &[PathBuf], unresponsive: BTreeSet<u32>) -> &NodePlan {
        // The watch reports a change only once.
        self.is_outdated |= self.watch.has_changed().unwrap_or(true) || self.plan.unresponsive != unresponsive;
        if !self.is_outdated {
            return &self.plan;
        }
        match NodePlan::read(masked, unresponsive) {
            Ok(changed) => {
                self.unmounted.extend(changed.blueprint.unmounted_since(&self.plan.blueprint));
                self.plan = changed;
                self.is_outdated = false;
            }
            Err(error) => tracing::warn!(%error, "cannot read the mount table: new containers may show old mounts"),
        }
        &self.plan
    }

    /// The served mounts that the node has unmounted since the last call.
    pub(crate) fn take_unmounted(&mut self) -> BTreeSet<ServedMount> {
        std::mem::take(&mut self.unmounted)
    }
}

impl RootBlueprint {
    /// The served mounts of an earlier blueprint that this one does not have.
    pub(crate) fn unmounted_since(&self, earlier: &Self) -> BTreeSet<ServedMount> {
        earlier.served.difference(&self.served).cloned().collect()
    }

    /// The volumes among `unmounted`, without those that a new client has mounted again at the same place.
    pub(crate) fn unmounted_volumes(&self, unmounted: &BTreeSet<ServedMount>) -> BTreeSet<ServedMount> {
        let is_replaced =
            |volume: &ServedMount| self.served.iter().any(|now| now.is_volume && now.point == volume.point);
        unmounted.iter().filter(|mount| mount.is_volume && !is_replaced(mount)).cloned().collect()
    }
}

impl NodePlan {
    fn read(masked: &[PathBuf], unresponsive: BTreeSet<u32>) -> io::Result<Self> {
        let mounts = table::read_own_mounts()?;
        let steps = mount_plan::plan_steps(&mounts, masked, &unresponsive);
        let mut hasher = DefaultHasher::new();
        for step in &steps {
            // A mount that replaces another one at the same path has a different id.
            let ids = mounts.iter().filter(|mount| mount.point == step.point()).map(|mount| mount.id);
            (step.point(), ids.collect::<Vec<_>>()).hash(&mut hasher);
        }
        let to_probe = mount_plan::mounts_to_probe(&mounts, masked);
        let served = Arc::new(ServedMount::find(&mounts));
        let blueprint = RootBlueprint { version: hasher.finish(), steps: Arc::new(steps), served };
        Ok(Self { blueprint, to_probe, unresponsive })
    }
}
