//! Zygotes: a zygote is a process on a node that holds a seed's memory and runs none of its program. Further children
//! are forked from the zygote. `restore` defines the parts of a child that a zygote has and that a copy adds. The pager
//! serves the pages, and assigns userfaultfds to children. The node decides which seeds have a zygote, and for how
//! long.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farfork_container::HostInit;
use farfork_wire::ChildId;

use crate::pager::{ClientError, MemoryPlan, PageSource, PagerClient, PagingStrategy, PlanError};
use crate::phase;
use crate::restore::{
    ChildSpec, CopyDestination, LocalNode, PAYLOAD_NAME, PlannedChild, PlannedZygote, RestoreError, RestoredProcess,
    ZygoteRegion,
};
use crate::resume::{ResumeError, ResumeRequest, SeedSource};

/// A zygote. Dropping it kills its process. The caller must then request the pager to release the zygote, when no copy
/// is being made.
#[derive(Debug)]
pub struct Zygote {
    id: ChildId,
    directory: PathBuf,
    process: HostInit,
    region: ZygoteRegion,
    userfaultfd_ranges: Vec<Range<u64>>,
    /// The page sources in the plan that all its copies share.
    sources: Vec<PageSource>,
    /// Held while a copy is made. The pager distinguishes copies only by their order.
    copy_lock: Mutex<()>,
}

/// A request for a zygote.
#[derive(Debug)]
pub struct ZygoteRequest<'a> {
    /// The zygote's own id.
    pub id: ChildId,
    /// Its directory, for the pager's files.
    pub directory: &'a Path,
    /// The process that becomes the zygote.
    pub process: HostInit,
    /// Its seed.
    pub source: &'a SeedSource,
    /// Time limit for the whole start.
    pub limit: Duration,
}

impl Zygote {
    /// Makes the process of the request a zygote of a seed.
    ///
    /// # Errors
    /// [`ResumeError`]; the caller must then request the pager to release the zygote.
    pub fn start(request: ZygoteRequest<'_>, node: &LocalNode, pager: &PagerClient) -> Result<Self, ResumeError> {
        let ZygoteRequest { id, directory, process, source, limit } = request;
        let until = Instant::now() + limit;
        let planned = PlannedZygote::new(&source.descriptor, node, process.pid(), process.control())?;
        let registered = planned.userfaultfd_ranges();
        let plan = MemoryPlan::from_descriptor(
            &source.descriptor,
            source.page_sources(),
            &registered,
            PagingStrategy::default(),
        );
        plan.write_for_copies(directory)?;
        let sources = plan.sources.clone();
        MemoryPlan { is_zygote: true, ..plan }.write(directory)?;
        let registered = registered.first().map_or_else(Vec::new, |ranges| ranges.to_vec());
        let (pager_end, its_end) =
            farfork_sys::fd_passing::seqpacket_pair().map_err(ResumeError::creation_error("a socket"))?;
        farfork_sys::fd_passing::enable_sender_pid(pager_end.as_fd())
            .map_err(ResumeError::creation_error("a socket"))?;
        let adoption = pager.start_adoption(&id, directory, pager_end);
        let left = until.saturating_duration_since(Instant::now());
        let region = planned.start(process.control(), its_end.as_fd(), left);
        adoption.wait()?;
        let (region, directory) = (region?, directory.to_owned());
        Ok(Self {
            id,
            directory,
            process,
            region,
            userfaultfd_ranges: registered,
            sources,
            copy_lock: Mutex::default(),
        })
    }

    /// The id under which the pager serves the zygote.
    pub fn id(&self) -> &ChildId {
        &self.id
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether its process has ended.
    pub fn has_ended(&self) -> bool {
        self.process.has_exited()
    }

    /// The pid of its process.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Writes the memory plan of a copy: a link to the shared plan of all copies, unless the copy needs another one.
    fn write_copy_plan(
        &self,
        source: &SeedSource,
        strategy: PagingStrategy,
        directory: &Path,
    ) -> Result<(), PlanError> {
        let sources = source.page_sources();
        let is_as_all = strategy == PagingStrategy::default() && sources == self.sources;
        if is_as_all && MemoryPlan::link_for_copy(&self.directory, directory).is_ok() {
            return Ok(());
        }
        let registered = [&self.userfaultfd_ranges[..]];
        MemoryPlan::from_descriptor(&source.descriptor, sources, &registered, strategy).write(directory)
    }
}

/// Whether a child whose copy from a zygote failed has certainly not run. Then the child may be started without the
/// zygote.
pub fn is_retryable(error: &ResumeError) -> bool {
    let may_have = |error: &RestoreError| {
        use RestoreError::{ChildDied, StubExited, StubIo, Timeout};
        matches!(error, StubIo(_) | ChildDied { .. } | Timeout { .. } | StubExited)
    };
    match error {
        ResumeError::Restore(error) => !may_have(error),
        ResumeError::Pager(_) => false,
        _ => true,
    }
}

/// Whether the cause is a time limit, or a file that was replaced during the restore. Another attempt may succeed.
pub fn is_late(error: &ResumeError) -> bool {
    matches!(
        error,
        ResumeError::Restore(RestoreError::Timeout { .. } | RestoreError::ReplacedFile { .. })
            | ResumeError::Pager(ClientError::NoReply { .. })
    )
}

/// Makes the child as a copy of a zygote of its seed. On return the child runs, or waits if it is paused, and the pager
/// serves its memory. Also returns its control socket, on which a paused child waits. The container must have a cgroup
/// v2; the caller moves the child from this cgroup into others.
///
/// # Errors
/// [`ResumeError`]. The child has not run, or ends with its container. The zygote must not be used again.
pub fn resume_from_zygote(
    zygote: &Zygote,
    request: ResumeRequest<'_>,
    node: &LocalNode,
    pager: &PagerClient,
) -> Result<(RestoredProcess, OwnedFd), ResumeError> {
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
    let ResumeRequest { paused, strategy, limit, .. } = request;
    let deadline = Instant::now() + limit;
    let birthplace = container.open_clone_target()?.ok_or_else(|| ResumeError::CreateResource {
        what: "a child from a zygote",
        cause: std::io::Error::other("the node has no unified control group hierarchy (cgroup v2) for the child"),
    })?;
    let payload = payload.map(|bytes| container.put_file(PAYLOAD_NAME, bytes, 0o444)).transpose()?;
    let shared = phase!("resume.shared", source.fetch_shared_memory(deadline))?;
    let mut prepared = PlannedChild::new(ChildSpec {
        descriptor: &source.descriptor,
        node,
        stub_pid: container.init_pid(),
        control: container.control(),
        streams,
        shared,
        checkpoint_socket: caller,
        payload: payload.as_deref(),
        paused,
        zygote_region: Some(zygote.region),
        untrusted: false,
        user_namespace: None,
    })?;
    phase!("resume.memory", zygote.write_copy_plan(source, strategy, directory))?;
    let keep = farfork_sys::fd_passing::self_connected_socket().map_err(ResumeError::creation_error("a socket"))?;

    let copy_guard = phase!("resume.turn", zygote.copy_lock.lock()).unwrap_or_else(PoisonError::into_inner);
    let copy_destination = CopyDestination { init: container.init().as_fd(), cgroup: birthplace.as_fd() };
    let left = deadline.saturating_duration_since(Instant::now());
    let started = phase!("resume.zygote", prepared.start_from_zygote(zygote.process.control(), copy_destination, left));
    let (restored, control) = started?;
    phase!("resume.transfer", pager.transfer(&zygote.id, child, directory, restored.pid, keep.as_fd()))?;
    drop(copy_guard);
    prepared.assign_to_init(status_file.as_fd(), keep.as_fd())?;
    Ok((restored, control))
}
