//! Where the daemon meets the machinery: containers, restoring and the pager become one step that starts a child.
//!
//! Everything here blocks, and runs on threads of its own.

mod caller;
mod denial;
mod heirs;
mod nest;
mod options;
mod prewarm;
mod remedy;
mod sources;
mod standby;
mod start;
mod unfinished;
mod zygotes;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use farfork_container::{ContainerSpec, Pool};
use farfork_fork::capture::{
    self, CaptureError, CaptureOptions, CheckOptions, Lineage, NamespacePolicy, Observer, Offer, ProgramSockets,
};
use farfork_fork::owner_links::OwnerLinks;
use farfork_fork::restore::LocalNode;
use farfork_fork::resume::{OtherSeeds, OwnSeeds, SeedSource};
use farfork_trust::Credentials;
use farfork_wire::{NodeName, SeedId};
use tonic::Code;

use crate::api::v1;
use crate::children::Child;
use crate::failure::Failure;
use crate::pager_link::PagerLink;
use crate::run_dir::RunDir;

use nest::Nests;
pub(crate) use options::{SeedAccess, StartOptions};
use standby::Standbys;
pub(crate) use zygotes::Hatching;
use zygotes::Zygotes;

/// What starts children on this node.
#[derive(Debug)]
pub(crate) struct Engine {
    name: NodeName,
    nests: Nests,
    zygotes: Zygotes,
    standbys: Standbys,
    node: LocalNode,
    pool: Pool,
    pager: Arc<PagerLink>,
    /// How seeds are read, this node's own and others'.
    others: OtherSeeds,
    /// The latest last.
    sources: Mutex<VecDeque<Arc<SeedSource>>>,
}

/// What a user chooses of a capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CaptureManner {
    /// The process stays stopped, as the template; else it runs on.
    pub(crate) freeze: bool,
    /// What becomes of a process whose children would lack something of its namespaces.
    pub(crate) namespaces: NamespacePolicy,
}

impl Engine {
    pub(crate) fn new(
        name: NodeName,
        (run_dir, zygotes_max): (RunDir, usize),
        node: LocalNode,
        pool: Pool,
        pager: Arc<PagerLink>,
        own: OwnSeeds,
        credentials: Option<Credentials>,
    ) -> Self {
        let zygotes = Zygotes::new(name.clone(), run_dir.clone(), pager.clone(), zygotes_max);
        // Made now, the group is no more at the end than at the start.
        if let Some(error) = (zygotes_max > 0).then(|| pool.cgroups().zygotes().err()).flatten() {
            tracing::warn!(%error, "the control group of zygotes is not made yet");
        }
        let nests = Nests::new(name.clone(), run_dir);
        let others = OtherSeeds { own, links: Arc::new(OwnerLinks::new(credentials)) };
        Self {
            name,
            nests,
            zygotes,
            standbys: Standbys::default(),
            node,
            pool,
            pager,
            others,
            sources: Mutex::default(),
        }
    }

    /// Starts to capture a process. `asker`: its connections to this
    /// daemon, and the pages that it offers; `lineage` tells where the process's missing pages are, if it is a child.
    ///
    /// # Errors
    /// No capture could be started; all else is for `observer` to hear.
    pub(crate) fn capture(
        &self,
        pid: u32,
        manner: CaptureManner,
        asker: (ProgramSockets, Option<Offer>),
        lineage: Option<Lineage>,
        observer: Box<dyn Observer>,
    ) -> Result<(), Failure> {
        let options = self.capture_options(manner, asker, lineage);
        capture::start(pid.cast_signed(), options, observer).map_err(|error| capture_failure(pid, &error))
    }

    /// Captures a process, which runs on, in the calling thread: that holds its template then, and is not given back before
    /// the seed is dropped.
    pub(crate) fn capture_and_hold(
        &self,
        pid: u32,
        asker: (ProgramSockets, Option<Offer>),
        lineage: Option<Lineage>,
        observer: Box<dyn Observer>,
    ) {
        capture::hold(pid.cast_signed(), self.capture_options(CaptureManner::default(), asker, lineage), observer);
    }

    fn capture_options(
        &self,
        CaptureManner { freeze, namespaces }: CaptureManner,
        (sockets, offer): (ProgramSockets, Option<Offer>),
        lineage: Option<Lineage>,
    ) -> CaptureOptions {
        // Copies that the parent's writes leave the template with are not charged to the parent. It is moved when all
        // else is done: a move can take some milliseconds, until the kernel's readers of the old membership are gone.
        let cgroups = self.pool.cgroups().clone();
        let on_template = move |template: i32| {
            if let Err(error) = cgroups.templates().and_then(|group| group.join(template)) {
                tracing::warn!(%error, "a template stays in its parent's control group");
            }
        };
        CaptureOptions {
            freeze,
            on_template: Some(Box::new(on_template)),
            sockets,
            offer,
            lineage,
            namespaces,
            ..CaptureOptions::new(self.name.clone())
        }
    }

    /// Who serves the missing pages of a process of this child, which other nodes will read here.
    pub(crate) fn lineage(&self, child: &Child, address: SocketAddr) -> Lineage {
        let (pager, directory) = (self.pager.client().clone(), child.directory().to_owned());
        Lineage { pager, child: child.record().id.clone(), directory, address }
    }

    /// Says what a prepare of a process would carry.
    ///
    /// # Errors
    /// There is no such process, or it cannot be looked at.
    pub(crate) fn check(&self, pid: u32, options: CheckOptions) -> Result<v1::CheckResponse, Failure> {
        let report = capture::check(pid.cast_signed(), options).map_err(|error| capture_failure(pid, &error))?;
        let refusals = report.refusals.into_iter();
        Ok(v1::CheckResponse {
            command: command_of(pid),
            threads: u32::try_from(report.threads).unwrap_or(u32::MAX),
            mappings: u32::try_from(report.mappings).unwrap_or(u32::MAX),
            file_descriptors: u32::try_from(report.file_descriptors).unwrap_or(u32::MAX),
            memory_bytes: report.memory_bytes,
            refusals: refusals.map(|refusal| v1::Refusal { object: refusal.object, reason: refusal.reason }).collect(),
            notes: report.notes,
        })
    }

    /// Whether there is anything to make ready for the next child of a seed; when the node `is_idle`, also what is not needed soon.
    pub(crate) fn has_to_make_ready(&self, seed: &SeedId, is_idle: bool) -> bool {
        is_idle || self.nests.is_low() || !self.zygotes.knows(seed)
    }

    /// Makes ready what the next child of a seed, started so, will need, at leisure.
    pub(crate) fn make_ready_for(&self, access: &SeedAccess, options: &StartOptions) {
        self.make_ready();
        // Its descriptor is known, unless its fork failed.
        self.hatch(access, options, (Hatching::Asked, Instant::now()));
    }

    /// Makes the zygote for children that are started so, where there is none and is to be one. Its descriptor comes until `deadline`, or
    /// there is none: what keeps it away is said of a child.
    pub(crate) fn hatch(&self, access: &SeedAccess, options: &StartOptions, (why, deadline): (Hatching, Instant)) {
        if let Ok(source) = self.source(access, deadline) {
            self.zygotes.hatch(&source, options, (&self.node, &self.pool), why);
        }
    }

    /// Whether children that are started so are copies of a zygote, where their seed has one.
    pub(crate) fn copies_zygotes(&self, options: &StartOptions) -> bool {
        self.zygotes.are_kept() && zygotes::asks_for_nothing_else(options)
    }

    /// The zygotes that there are.
    pub(crate) fn zygotes(&self) -> &Zygotes {
        &self.zygotes
    }

    /// Whether something is kept for the next child: else there is nothing to let go of.
    pub(crate) fn keeps_anything(&self) -> bool {
        !self.zygotes.is_empty() || !self.standbys.is_empty() || self.others.links.has_idle()
    }

    /// Lets go of what nobody used for long: zygotes, also those of seeds that are no more or that were foretold in vain, and connections to
    /// owners. The zygotes that stay are tended.
    pub(crate) fn let_go(&self, is_dropped: impl Fn(&SeedId) -> bool, is_in_vain: impl Fn(&SeedId) -> bool) {
        self.standbys.let_go();
        self.zygotes.keep_up(is_dropped, is_in_vain);
        // What stands by has the small pages of before, and nobody is to have it in between.
        self.standbys.hold(true);
        self.zygotes.put_together().iter().for_each(|seed| self.standbys.forget(seed));
        self.standbys.hold(false);
        self.others.links.close_idle();
    }

    /// Lets go of what is kept for children of a seed that is no more: its zygote, and roots.
    pub(crate) fn forget_seed(&self, seed: &SeedId) {
        self.standbys.forget(seed);
        self.zygotes.retire(seed);
        self.pool.forget_heirs(&seed.to_string());
    }

    /// Ends all zygotes, and what stands by: the node stops.
    pub(crate) fn end_zygotes(&self) {
        self.standbys.end_all();
        self.zygotes.end_all();
    }

    /// Makes ready what the next child will need, at leisure.
    pub(crate) fn make_ready(&self) {
        self.nests.refill();
    }

    /// How many containers of a kind are ready for children to come.
    pub(crate) fn containers_ready(&self, kind: ContainerSpec) -> usize {
        self.pool.ready(kind)
    }
}

/// A process's program and arguments; empty when it has ended.
fn command_of(pid: u32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&arguments).replace('\0', " ").trim_end().to_owned()
}

/// Most refusals that a failure names: `farfork check` lists all.
const REFUSALS_NAMED_MAX: usize = 20;

/// What a user is told of a process that could not be captured.
pub(crate) fn capture_failure(pid: u32, error: &CaptureError) -> Failure {
    let code = match error {
        CaptureError::Gone { .. } => Code::NotFound,
        _ => Code::FailedPrecondition,
    };
    // The failure names the process itself.
    let text = match error {
        CaptureError::Refused { refusals, .. } if refusals.len() > REFUSALS_NAMED_MAX => {
            let named: Vec<String> = refusals[..REFUSALS_NAMED_MAX].iter().map(ToString::to_string).collect();
            format!("cannot be carried: {}; and {} more", named.join("; "), refusals.len() - REFUSALS_NAMED_MAX)
        }
        _ => error.to_string().replace(&format!("pid {pid}, "), ""),
    };
    let cause = text.strip_prefix(&format!("pid {pid} ")).unwrap_or(&text);
    let failure = Failure::new(code, format!("process {pid}"), cause);
    match error {
        CaptureError::Refused { refusals, .. } if refusals.len() > REFUSALS_NAMED_MAX => {
            failure.with_next_step(format!("`farfork check {pid}` lists all that it would refuse"))
        }
        CaptureError::Read { source, .. } | CaptureError::Trace { source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            denial::explained(failure, pid)
        }
        _ => failure,
    }
}

/// A number that no other has, across restarts too: 64 random bits.
pub(crate) fn random_number() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}
