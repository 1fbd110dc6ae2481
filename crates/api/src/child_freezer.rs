//! `ChildFreezer`: pauses and unpauses a child without a request to its node. Either takes microseconds; a request takes ten
//! times as long.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use farfork_sys::cgroup::freezer::FreezerFiles;
use farfork_sys::pidfd;
use farfork_sys::process_identity::ProcessIdentity;
use tonic::Code;

use crate::client::{self, Client};
use crate::failure::Failure;
use crate::limits::QUERY_TIMEOUT;
use crate::v1;

/// Longest wait until all threads of a child have stopped. The node has the same limit.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The freezer of one child of this machine. The caller must be root, as for the node's Unix socket. A client that pauses a
/// child with this freezer should not also pause it by requests.
#[derive(Debug)]
pub struct ChildFreezer {
    child: String,
    files: FreezerFiles,
    /// The child's process.
    process: OwnedFd,
}

impl ChildFreezer {
    /// Opens the freezer of a child. `client` must be connected to the Unix socket of the child's node.
    ///
    /// # Errors
    /// The node refuses the request: the child has ended, has not run yet, or is on another node, or the node has no freezer
    /// of cgroup version 2. The child's process or the files of its freezer cannot be opened.
    pub async fn open(client: &mut Client, child: &str) -> Result<Self, Failure> {
        let request = v1::OpenFreezerRequest { child: child.to_owned() };
        let answer = client.open_freezer(client::request_with_timeout(QUERY_TIMEOUT, request)).await;
        let freezer = answer.map_err(|status| Failure::from_status(child, &status))?.into_inner();
        let failed = |error: io::Error| Failure::new(Code::Internal, format!("child {child}"), error);
        let identity: ProcessIdentity = freezer.process.parse().map_err(failed)?;
        let ended = || Failure::new(Code::NotFound, format!("child {child}"), "it has ended");
        let process = identity.open().map_err(failed)?.ok_or_else(ended)?;
        let files = FreezerFiles::open(Path::new(&freezer.cgroup)).map_err(failed)?;
        Ok(Self { child: child.to_owned(), files, process })
    }

    /// Stops the child and all processes that it forked. Blocks until all have stopped, at most 5 s.
    ///
    /// # Errors
    /// The child has ended, or does not stop. A child that does not stop in time continues to run.
    pub fn pause(&self) -> Result<(), Failure> {
        self.files.freeze(PAUSE_TIMEOUT).map_err(|error| self.failure(&error))?;
        // If the child has ended, thaw the container: its init must run to report the end.
        if pidfd::wait_exit(&self.process, Duration::ZERO).unwrap_or(true) {
            let _ = self.files.thaw();
            return Err(Failure::new(Code::FailedPrecondition, format!("child {}", self.child), "it has ended"));
        }
        Ok(())
    }

    /// Resumes the child; a running child is not changed.
    ///
    /// # Errors
    /// The child's container has ended.
    pub fn unpause(&self) -> Result<(), Failure> {
        self.files.thaw().map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let (object, has_stopped) = (format!("child {}", self.child), error.kind() != io::ErrorKind::TimedOut);
        match has_stopped {
            true => Failure::new(Code::FailedPrecondition, object, format!("its freezer: {error}"))
                .with_next_step("see with `farfork ps` whether it has ended"),
            false => Failure::new(Code::FailedPrecondition, object, "it did not stop in time, and runs on")
                .with_next_step("`farfork inspect` shows how its memory is fetched"),
        }
    }
}
