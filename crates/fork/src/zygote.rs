//! Zygotes: a seed's memory, restored once on a node and kept stopped, from which further children are forked into their
//! containers. What of a child a zygote has, and what a copy adds, is `restore`'s; its pages, and whose userfaultfd is whose,
//! are the pager's; which seeds have one, and how long, the node's.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farfork_container::Outsider;
use farfork_wire::ChildId;

use crate::pager::{ClientError, MemoryPlan, PagerClient, PlanError, Source, Strategy};
use crate::phase;
use crate::restore::{
    ChildPlan, Cradle, LocalNode, PAYLOAD_NAME, Prepared, Region, RestoreError, Restored, ZygotePlan,
};
use crate::resume::{ResumeError, ResumeRequest, SeedSource};

/// A zygote. Dropping it kills its process; the pager is told by whoever knows that no copy is being made.
#[derive(Debug)]
pub struct Zygote {
    id: ChildId,
    directory: PathBuf,
    process: Outsider,
    region: Region,
    registered: Vec<Range<u64>>,
    /// Where the pages of its copies come from by the plan that is written for them.
    sources: Vec<Source>,
    /// Held by whoever has a copy made: the pager tells copies apart by their being made one after the other.
    turn: Mutex<()>,
}

impl Zygote {
    /// Has `process` become a zygote of a seed, under this name of its own, with a directory for the pager's files.
    ///
    /// # Errors
    /// [`ResumeError`]; the caller tells the pager to release it.
    pub fn hatch(
        (id, directory): (ChildId, &Path),
        process: Outsider,
        source: &SeedSource,
        node: &LocalNode,
        (pager, limit): (&PagerClient, Duration),
    ) -> Result<Self, ResumeError> {
        let until = Instant::now() + limit;
        let planned = ZygotePlan::new(&source.descriptor, node, (process.pid(), process.control()))?;
        let registered = planned.registered();
        let plan = MemoryPlan::from_descriptor(&source.descriptor, source.sources(), &registered, Strategy::default());
        plan.write_for_copies(directory)?;
        let sources = plan.sources.clone();
        MemoryPlan { is_zygote: true, ..plan }.write(directory)?;
        let registered = registered.first().map_or_else(Vec::new, |ranges| ranges.to_vec());
        let (pager_end, its_end) = farfork_sys::fdpass::seqpacket_pair().map_err(ResumeError::local("a socket"))?;
        farfork_sys::fdpass::tell_sender(pager_end.as_fd()).map_err(ResumeError::local("a socket"))?;
        let adoption = pager.begin_adoption(&id, directory, pager_end);
        let left = until.saturating_duration_since(Instant::now());
        let region = planned.start(process.control(), its_end.as_fd(), left);
        adoption.wait()?;
        let (region, directory) = (region?, directory.to_owned());
        Ok(Self { id, directory, process, region, registered, sources, turn: Mutex::default() })
    }

    /// Its name at the pager.
    pub fn id(&self) -> &ChildId {
        &self.id
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether its process has ended.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Gives a copy its memory plan: that which is there for all, but where it is to be another one.
    fn plan_copy(&self, source: &SeedSource, strategy: Strategy, directory: &Path) -> Result<(), PlanError> {
        let sources = source.sources();
        let is_as_all = strategy == Strategy::default() && sources == self.sources;
        if is_as_all && MemoryPlan::link_for_copy(&self.directory, directory).is_ok() {
            return Ok(());
        }
        let registered = [&self.registered[..]];
        MemoryPlan::from_descriptor(&source.descriptor, sources, &registered, strategy).write(directory)
    }
}

/// Whether a child that was to be a copy of a zygote, and failed so, has certainly not run: it may be made in another way.
pub fn has_not_run(error: &ResumeError) -> bool {
    let may_have = |error: &RestoreError| {
        use RestoreError::{Control, Died, Silent, StubGone};
        matches!(error, Control(_) | Died { .. } | Silent { .. } | StubGone)
    };
    match error {
        ResumeError::Restore(error) => !may_have(error),
        ResumeError::Pager(_) => false,
        _ => true,
    }
}

/// Whether something took too long: that says more of the machine than of the zygote.
pub fn is_late(error: &ResumeError) -> bool {
    matches!(error, ResumeError::Restore(RestoreError::Silent { .. }) | ResumeError::Pager(ClientError::Silent { .. }))
}

/// Makes the child as a copy of a zygote of its seed. When this returns it runs, or waits if it is to be paused, and its
/// memory is served. Gives its control socket, on which it would wait. Its container must have a control group of the unified
/// hierarchy, which the caller moves it from into others.
///
/// # Errors
/// [`ResumeError`]; the child has not run, or ends with its container, and the zygote is not to be used any more.
pub fn resume_from(
    zygote: &Zygote,
    request: ResumeRequest<'_>,
    node: &LocalNode,
    pager: &PagerClient,
) -> Result<(Restored, OwnedFd), ResumeError> {
    let ResumeRequest { child, directory, source, container, streams, status_file, caller, payload, .. } = request;
    let ResumeRequest { paused, strategy, limit, .. } = request;
    let deadline = Instant::now() + limit;
    let birthplace = container.birthplace()?.ok_or_else(|| ResumeError::Local {
        what: "a child from a zygote",
        cause: std::io::Error::other("there is no unified hierarchy of control groups to be born in"),
    })?;
    let payload = payload.map(|bytes| container.put_file(PAYLOAD_NAME, bytes, 0o444)).transpose()?;
    let shared = phase!("resume.shared", source.fetch_shared(deadline))?;
    let mut prepared = Prepared::new(ChildPlan {
        descriptor: &source.descriptor,
        node,
        stub_pid: container.init_pid(),
        control: container.control(),
        streams,
        shared,
        caller,
        payload: payload.as_deref(),
        paused,
        zygote: Some(zygote.region),
        untrusted: false,
        users: None,
    })?;
    phase!("resume.memory", zygote.plan_copy(source, strategy, directory))?;
    let keep = farfork_sys::fdpass::self_connected().map_err(ResumeError::local("a socket"))?;

    let turn = phase!("resume.turn", zygote.turn.lock()).unwrap_or_else(PoisonError::into_inner);
    let cradle = Cradle { init: container.init().as_fd(), birthplace: birthplace.as_fd() };
    let left = deadline.saturating_duration_since(Instant::now());
    let started = phase!("resume.zygote", prepared.start_copy(zygote.process.control(), cradle, left));
    let (restored, control) = started?;
    phase!("resume.transfer", pager.transfer(&zygote.id, (child, directory, restored.pid), keep.as_fd()))?;
    drop(turn);
    prepared.have_awaited(status_file.as_fd(), keep.as_fd())?;
    Ok((restored, control))
}
