//! Which of the node's mounts containers show, as one number that changes with them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;

use farfork_sys::mount::table;
use farfork_sys::mount::watch::MountWatch;

use super::plan;

/// The number, kept up to date. Reading the table takes a tenth of a millisecond, asking whether it has changed a
/// microsecond: a container is taken from the pool more often than file systems are mounted.
#[derive(Debug)]
pub(crate) struct Layout {
    watch: MountWatch,
    number: u64,
}

impl Layout {
    /// Of the mounts there are now.
    pub(crate) fn read(masked: &[PathBuf]) -> io::Result<Self> {
        // The watch comes first, so that no change falls between.
        Ok(Self { watch: MountWatch::start()?, number: number(masked)? })
    }

    /// The number now. When the table cannot be read the old one stands: building would fail too, and say why.
    pub(crate) fn now(&mut self, masked: &[PathBuf]) -> u64 {
        if self.watch.changed().unwrap_or(true) {
            self.number = number(masked).unwrap_or(self.number);
        }
        self.number
    }
}

fn number(masked: &[PathBuf]) -> io::Result<u64> {
    let mounts = table::of_process()?;
    let mut hasher = DefaultHasher::new();
    for step in plan::steps(&mounts, masked) {
        // Another mount at the same place has another id.
        let ids = mounts.iter().filter(|mount| mount.point == step.point()).map(|mount| mount.id);
        (step.point(), ids.collect::<Vec<_>>()).hash(&mut hasher);
    }
    Ok(hasher.finish())
}
