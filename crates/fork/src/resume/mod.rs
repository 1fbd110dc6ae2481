//! Resume: starts a running child of a seed on this node. The node calls it. This module combines descriptor,
//! container, restorer and pager.

mod error;
mod file_sources;
mod seed_source;

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use farfork_container::Container;
use farfork_wire::ChildId;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::eager_paging;
use crate::pager::{MemoryPlan, PagerClient, PagingMode, PagingStrategy};
use crate::phase;
use crate::restore::{
    self, ChildSpec, ContainerInit, LocalNode, PAYLOAD_NAME, PlannedChild, RestoreError, RestoredProcess,
    StandardStreams,
};
pub use error::ResumeError;
pub use file_sources::FilePolicy;
pub use seed_source::{LayerReader, LocalSeeds, SeedSource};

/// Name of the file in a child's directory to which its container's stub writes the wait status (four bytes).
pub const STATUS_FILE: &str = "exit";

/// Size of a wait status, in bytes.
const STATUS_BYTES: u64 = 4;

/// A request to start a child.
#[derive(Debug)]
pub struct ResumeRequest<'a> {
    /// The child.
    pub child: &'a ChildId,
    /// Its directory on the node.
    pub directory: &'a Path,
    /// Its seed.
    pub source: &'a SeedSource,
    /// Its container.
    pub container: &'a Container,
    /// Its standard streams.
    pub streams: StandardStreams,
    /// The file for its wait status, from [`create_status_file`].
    pub status_file: OwnedFd,
    /// The child gets this socket in place of the parent's socket for the reply to its checkpoint. The reply is already in
    /// this socket.
    pub checkpoint_socket: Option<OwnedFd>,
    /// Bytes for its payload file.
    pub payload: Option<&'a [u8]>,
    /// Whether the complete child waits before its first instruction.
    pub paused: bool,
    /// Whether the child is confined, as an untrusted child.
    pub untrusted: bool,
    /// How its pages are fetched.
    pub strategy: PagingStrategy,
    /// Time limit for the whole resume.
    pub limit: Duration,
}

/// Starts the child. On return the child runs, or waits if it is paused, and the pager serves its memory.
///
/// # Errors
/// [`ResumeError`]. The caller then drops the container, and tells the pager to release the child. A child that the pager
/// refuses may have run up to its first missing page.
pub fn resume_child(
    request: ResumeRequest<'_>,
    node: &LocalNode,
    pager: &PagerClient,
) -> Result<RestoredProcess, ResumeError> {
    let ResumeRequest {
        child,
        directory,
        source,
        container,
        streams,
        status_file,
        checkpoint_socket: caller,
        payload,
        ..
    } = request;
    let ResumeRequest { paused, untrusted, strategy, limit, .. } = request;
    let (deadline, is_eager) = (Instant::now() + limit, strategy.mode == PagingMode::Eager);
    let put = |bytes| phase!("resume.payload", container.put_file(PAYLOAD_NAME, bytes, 0o444));
    let payload = payload.map(put).transpose()?;
    let shared = phase!("resume.shared", source.fetch_shared_memory(deadline))?;
    let first =
        container.init_socket().map(|waiter| ContainerInit { pidfd: container.init().as_fd(), control: waiter });
    let descriptor = match untrusted {
        true => Cow::Owned(restore::confine_descriptor(&source.descriptor, container.id_range())?),
        false => Cow::Borrowed(&*source.descriptor),
    };
    let mut prepared = PlannedChild::new(ChildSpec {
        descriptor: &descriptor,
        node,
        stub_pid: container.forker_pid(),
        control: container.control(),
        streams,
        shared,
        checkpoint_socket: caller,
        payload: payload.as_deref(),
        paused: paused || is_eager,
        zygote_region: None,
        untrusted,
        user_namespace: first.zip(container.id_range()),
    })?;
    let (pager_end, child_end) =
        farfork_sys::fd_passing::seqpacket_pair().map_err(ResumeError::creation_error("a socket"))?;
    farfork_sys::fd_passing::enable_sender_pid(pager_end.as_fd()).map_err(ResumeError::creation_error("a socket"))?;
    let building = phase!("resume.child");
    let left = deadline.saturating_duration_since(Instant::now());
    // The stub builds the child while the pager adopts it: neither waits for the other.
    let pending_restore = prepared.start(child_end.as_fd(), status_file.as_fd(), left)?;
    let plan = MemoryPlan::from_descriptor(
        &source.descriptor,
        source.page_sources(),
        &prepared.userfaultfd_ranges(),
        strategy,
    );
    phase!("resume.memory", plan.write(directory))?;
    let adoption = phase!("resume.ask", pager.start_adoption(child, directory, pager_end));
    let restored = pending_restore.wait_restored();
    drop(building);
    phase!("resume.adopt", adoption.wait())?;
    let mut restored = restored?;
    if is_eager {
        restored.realtime_ns =
            phase!("resume.eager", eager_paging::settle_before_start(child, restored.pid, pager, deadline))?;
        if !paused {
            restore::unpause(container.control()).map_err(RestoreError::StubIo)?;
        }
    }
    Ok(restored)
}

/// Creates the file to which the container's stub writes the wait status. Allocates the file's block: then the status can be
/// written even if the file system is full, and the block does not count as memory of the container.
///
/// # Errors
/// As open(2) and fallocate(2).
pub fn create_status_file(directory: &Path) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(directory.join(STATUS_FILE))?;
    match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, STATUS_BYTES) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(file.into()),
        Err(error) => Err(error.into()),
    }
}
