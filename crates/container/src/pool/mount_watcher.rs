//! Releases file systems that the node has unmounted: ends waiting containers and cached roots that show one, and
//! unmounts volumes in running containers. The server of a file system runs while a container shows it.
//!
//! Only FUSE and network file systems count. Other mounts change often; a container that shows an old one is not handed
//! out. In running containers, only volumes are unmounted: other file systems are under an overlay with the container's
//! data.

use std::collections::BTreeSet;
use std::io::{self, PipeWriter};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farfork_sys::mount::watch::MountWatch;
use farfork_sys::process_identity::ProcessIdentity;

use super::{PoolShared, PoolState};
use crate::record;
use crate::root::blueprint::ServedMount;
use crate::unmounted_volumes;

/// Interval between two attempts for a container that uses an unmounted volume.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The thread that detects changes of the node's mounts. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct MountWatcher {
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// For each container: its init, and the unmounted volumes that the container uses.
type VolumesInUse = Vec<(ProcessIdentity, BTreeSet<ServedMount>)>;

impl MountWatcher {
    pub(super) fn start(shared: Arc<PoolShared>) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let watch = MountWatch::start()?;
        let body = move || {
            let mut in_use = VolumesInUse::new();
            let retry = |in_use: &VolumesInUse| (!in_use.is_empty()).then_some(RETRY_INTERVAL);
            while watch.wait_change(stopped.as_fd(), retry(&in_use)).unwrap_or(false) {
                let unmounted = shared.builder.take_unmounted();
                if !unmounted.is_empty() {
                    shared.discard_outdated();
                    in_use.extend(shared.containers_to_release(&unmounted));
                }
                in_use.retain_mut(|(init, volumes)| {
                    let Ok(Some(pidfd)) = init.open() else { return false };
                    *volumes = unmounted_volumes::release(init.pid, &pidfd, volumes);
                    !volumes.is_empty()
                });
            }
        };
        let thread = thread::Builder::new().name("pool-mounts".to_owned()).spawn(body)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for MountWatcher {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl PoolShared {
    /// Moves outdated containers and roots to the fillers, which end them.
    fn discard_outdated(&self) {
        let mut state = self.lock();
        let PoolState { by_spec, root_cache, discarded, .. } = &mut *state;
        for spec_pool in by_spec.values_mut() {
            discarded.discard_outdated(&mut spec_pool.ready);
        }
        root_cache.discard_outdated(self.builder.mounts_version(), discarded);
        self.wanted.notify_all();
    }

    /// Lists all containers of the node, including those of earlier daemons, each with the volumes that the node has
    /// unmounted.
    fn containers_to_release(&self, unmounted: &BTreeSet<ServedMount>) -> VolumesInUse {
        let volumes = self.builder.unmounted_volumes(unmounted);
        if volumes.is_empty() {
            return Vec::new();
        }
        let records = record::read_records(&self.builder.config().records_dir()).unwrap_or_else(|error| {
            tracing::warn!(%error, "unmounted volumes may stay in use");
            Vec::new()
        });
        records.into_iter().map(|record| (record.init, volumes.clone())).collect()
    }
}
