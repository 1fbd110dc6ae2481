//! The mounts of the node that containers show: how each is made, and a version number that changes with them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use farfork_sys::mount::table;
use farfork_sys::mount::watch::MountWatch;

use super::mount_plan::{self, MountStep};

/// The mounts of a root, as they are made.
#[derive(Debug, Clone)]
pub(crate) struct RootBlueprint {
    /// Differs from that of other mounts.
    pub(crate) version: u64,
    pub(super) steps: Arc<Vec<MountStep>>,
}

/// The blueprint, kept up to date. Reading the table takes a tenth of a millisecond, asking whether it has changed a
/// microsecond: a container is built, or taken from the pool, more often than file systems are mounted.
#[derive(Debug)]
pub(crate) struct BlueprintCache {
    watch: MountWatch,
    blueprint: RootBlueprint,
}

impl BlueprintCache {
    /// Of the mounts there are now.
    pub(crate) fn read(masked: &[PathBuf]) -> io::Result<Self> {
        // The watch comes first, so that no change falls between.
        Ok(Self { watch: MountWatch::start()?, blueprint: read_blueprint(masked)? })
    }

    /// The blueprint now. When the table cannot be read the old one stands: building would fail too, and say why.
    pub(crate) fn current(&mut self, masked: &[PathBuf]) -> &RootBlueprint {
        if self.watch.has_changed().unwrap_or(true)
            && let Ok(changed) = read_blueprint(masked)
        {
            self.blueprint = changed;
        }
        &self.blueprint
    }
}

fn read_blueprint(masked: &[PathBuf]) -> io::Result<RootBlueprint> {
    let mounts = table::read_own_mounts()?;
    let steps = mount_plan::plan_steps(&mounts, masked);
    let mut hasher = DefaultHasher::new();
    for step in &steps {
        // Another mount at the same place has another id.
        let ids = mounts.iter().filter(|mount| mount.point == step.point()).map(|mount| mount.id);
        (step.point(), ids.collect::<Vec<_>>()).hash(&mut hasher);
    }
    Ok(RootBlueprint { version: hasher.finish(), steps: Arc::new(steps) })
}
