//! Prewarms this node for a seed: caches its descriptor, loads its working set into the pager's cache, and connects to
//! its owner, before the first child is requested.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_api::limits::PREWARM_TIMEOUT;
use farfork_fork::pager::{PrewarmProgress, PrewarmState};
use farfork_fork::resume::SeedSource;
use tonic::Code;

use super::{Engine, SeedAccess};

/// Interval between checks of the pager's progress. In this time, the pager loads a working set of a few MiB.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

impl Engine {
    /// Prewarms this node for a seed. Returns how many pages the seed's working set has, and how many of them are
    /// cached here. Pages of this node's own seeds are local, and not cached. Blocks until all pages are loaded.
    ///
    /// # Errors
    /// The seed cannot be read, or its working set is not loaded within [`PREWARM_TIMEOUT`].
    pub(crate) fn prewarm(&self, access: &SeedAccess) -> Result<PrewarmProgress, Failure> {
        let deadline = Instant::now() + PREWARM_TIMEOUT;
        let source = self.load_source(access, deadline)?;
        let failed = |cause: &dyn std::fmt::Display| {
            let object = format!("seed {} on node {}", access.key.seed, self.name);
            Failure::new(Code::FailedPrecondition, object, format!("it is not prewarmed: {cause}"))
                .with_next_step("children can be forked nevertheless, and fetch the pages that they touch")
        };
        let child_dir = self.child_dirs.take().map_err(|error| failed(&error))?;
        let (_, directory, _) = child_dir.into_parts();
        let progress = self.fill_cache(&source, &directory, deadline);
        // The directory only held the memory plan of this request.
        if let Err(error) = fs::remove_dir_all(&directory) {
            tracing::warn!(directory = %directory.display(), %error, "cannot be removed");
        }
        progress.map_err(|cause| failed(&cause))
    }

    fn fill_cache(&self, source: &SeedSource, directory: &Path, deadline: Instant) -> Result<PrewarmProgress, String> {
        source.full_memory_plan().write(directory).map_err(|error| error.to_string())?;
        loop {
            let reply = self.pager.client().prewarm(&source.key.seed, directory);
            let progress = reply.map_err(|error| error.to_string())?;
            match progress.state {
                PrewarmState::Done => return Ok(progress),
                PrewarmState::Failed(reason) => return Err(reason),
                PrewarmState::Running if Instant::now() >= deadline => {
                    return Err(format!("its pages did not arrive within {} s", PREWARM_TIMEOUT.as_secs()));
                }
                PrewarmState::Running => thread::sleep(POLL_INTERVAL),
            }
        }
    }
}
