//! Ends waiting containers with a mount that the node no longer has. An unmounted file system stays in use, and its server runs, as long
//! as a container shows it.
//!
//! Only FUSE and network file systems count: other mounts change often, and a container with one of them ends when it is taken.

use std::io::{self, PipeWriter};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use farfork_sys::mount::watch::MountWatch;

use super::PoolShared;

/// The thread that notices changes of the node's mounts. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct MountWatcher {
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl MountWatcher {
    pub(super) fn start(shared: Arc<PoolShared>) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let watch = MountWatch::start()?;
        let body = move || {
            let mut served = shared.builder.served_mounts();
            while watch.wait_change(stopped.as_fd()).unwrap_or(false) {
                let now = shared.builder.served_mounts();
                if !served.is_subset(&now) {
                    shared.discard_outdated();
                }
                served = now;
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
    /// Leaves containers that do not show the node's mounts as they are to the fillers, which end them.
    fn discard_outdated(&self) {
        let mut state = self.lock();
        let mut outdated = Vec::new();
        for spec_pool in state.by_spec.values_mut() {
            for container in std::mem::take(&mut spec_pool.ready) {
                if container.is_current() { spec_pool.ready.push_back(container) } else { outdated.push(container) }
            }
        }
        state.discarded.containers.extend(outdated);
        drop(state);
        self.wanted.notify_all();
    }
}
