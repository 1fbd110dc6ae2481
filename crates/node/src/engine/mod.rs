//! Starts children on this node with containers, restore and the pager. Also captures processes, and keeps zygotes and
//! prestarted children.
//!
//! Its functions block. Callers run them on threads that may block.

mod checkpoint_reply;
mod child_dir_pool;
mod child_root;
mod next_step;
mod options;
mod prestart;
mod prewarm;
mod ptrace_denial;
mod root_reuse;
mod source_cache;
mod start;
mod start_rollback;
mod zygote_cache;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use farfork_api::failure::Failure;
use farfork_api::run_dir::RunDir;
use farfork_api::v1;
use farfork_container::{ContainerPool, ContainerSpec};
use farfork_fork::capture::{
    self, CaptureCallbacks, CaptureError, CaptureOptions, CheckOptions, DaemonSockets, NamespacePolicy, OfferedPages,
    ServingPager, VolumeObject, VolumeObjectKind,
};
use farfork_fork::owner_connections::OwnerConnectionPool;
use farfork_fork::restore::LocalNode;
use farfork_fork::resume::{LayerReader, LocalSeeds, SeedSource};
use farfork_trust::Credentials;
use farfork_wire::{NodeName, SeedId};
use tonic::Code;

use crate::children::Child;
use crate::pager_link::PagerLink;

use child_dir_pool::ChildDirPool;
pub(crate) use options::{SeedAccess, StartOptions};
use prestart::PrestartPool;
pub(crate) use start::ChildAssignment;
use zygote_cache::ZygoteCache;
pub(crate) use zygote_cache::{ZygoteLimits, ZygoteTrigger};

/// Starts children on this node.
#[derive(Debug)]
pub(crate) struct Engine {
    name: NodeName,
    child_dirs: ChildDirPool,
    zygote_cache: ZygoteCache,
    prestart_pool: PrestartPool,
    node: LocalNode,
    pool: ContainerPool,
    pager: Arc<PagerLink>,
    /// Reads this node's and other nodes' seeds.
    other_seeds: LayerReader,
    /// The seeds that were read last, with their descriptors; the latest at the end.
    source_cache: Mutex<VecDeque<Arc<SeedSource>>>,
}

/// The options of a capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CaptureMode {
    /// Whether the process stays stopped, as its own template. Otherwise it runs on.
    pub(crate) freeze: bool,
    /// The policy for a process whose children would lack parts of its namespaces.
    pub(crate) namespaces: NamespacePolicy,
}

/// The resources that a capture uses in addition to the process itself.
#[derive(Debug, Default)]
pub(crate) struct CaptureInputs {
    /// The process's connections to this daemon.
    pub(crate) daemon_sockets: DaemonSockets,
    /// Pages that the process offers for the capture.
    pub(crate) offered_pages: Option<OfferedPages>,
    /// The pager of its missing pages, if it is a child.
    pub(crate) serving_pager: Option<ServingPager>,
}

impl Engine {
    pub(crate) fn new(
        run_dir: RunDir,
        zygote_limits: ZygoteLimits,
        node: LocalNode,
        pool: ContainerPool,
        pager: Arc<PagerLink>,
        own: LocalSeeds,
        credentials: Option<Credentials>,
    ) -> Self {
        let name = own.node.clone();
        let zygote_cache = ZygoteCache::new(name.clone(), run_dir.clone(), pager.clone(), zygote_limits);
        // Create the zygotes' group now, so that a node has the same number of groups at its start and at its end.
        if let Some(error) = (zygote_limits.count_max > 0).then(|| pool.cgroups().zygote_group().err()).flatten() {
            tracing::warn!(%error, "the control group of zygotes cannot be created yet");
        }
        let child_dirs = ChildDirPool::new(name.clone(), run_dir);
        let other_seeds = LayerReader { local: own, connections: Arc::new(OwnerConnectionPool::new(credentials)) };
        Self {
            name,
            child_dirs,
            zygote_cache,
            prestart_pool: PrestartPool::default(),
            node,
            pool,
            pager,
            other_seeds,
            source_cache: Mutex::default(),
        }
    }

    /// Starts the capture of a process.
    ///
    /// # Errors
    /// The capture could not be started. `observer` gets all later failures.
    pub(crate) fn capture(
        &self,
        pid: u32,
        mode: CaptureMode,
        inputs: CaptureInputs,
        observer: Box<dyn CaptureCallbacks>,
    ) -> Result<(), Failure> {
        let options = self.capture_options(mode, inputs);
        capture::start_capture(pid.cast_signed(), options, observer).map_err(|error| capture_failure(pid, &error))
    }

    /// Captures a process, which runs on, in the calling thread. The thread holds the template, and returns only when the
    /// seed is dropped.
    pub(crate) fn capture_and_hold(&self, pid: u32, inputs: CaptureInputs, observer: Box<dyn CaptureCallbacks>) {
        capture::capture_and_hold(pid.cast_signed(), self.capture_options(CaptureMode::default(), inputs), observer);
    }

    fn capture_options(
        &self,
        CaptureMode { freeze, namespaces }: CaptureMode,
        CaptureInputs { daemon_sockets, offered_pages, serving_pager }: CaptureInputs,
    ) -> CaptureOptions {
        // Move the template to its own group, so that pages that only the template still uses are not charged to the
        // parent. This is the last step: a move can take milliseconds, until the kernel's readers of the old membership
        // have finished.
        let cgroups = self.pool.cgroups().clone();
        let on_template = move |template: i32| {
            if let Err(error) = cgroups.template_group().and_then(|group| group.join(template)) {
                tracing::warn!(%error, "a template stays in its parent's control group");
            }
        };
        CaptureOptions {
            freeze,
            on_template: Some(Box::new(on_template)),
            daemon_sockets,
            offered_pages,
            serving_pager,
            namespaces,
            ..CaptureOptions::new(self.name.clone())
        }
    }

    /// Describes the pager that serves the missing pages of this child's processes. Other nodes read these pages at
    /// `address`.
    pub(crate) fn lineage(&self, child: &Child, address: SocketAddr) -> ServingPager {
        let (pager, directory) = (self.pager.client().clone(), child.directory().to_owned());
        let root = child.record().root.clone();
        ServingPager { pager, child: child.record().id.clone(), directory, root, address }
    }

    /// Reports what a prepare of a process would capture, and what it would refuse.
    ///
    /// # Errors
    /// The process does not exist, or cannot be examined.
    pub(crate) fn check_process(&self, pid: u32, options: CheckOptions) -> Result<v1::CheckResponse, Failure> {
        let report = capture::check(pid.cast_signed(), options).map_err(|error| capture_failure(pid, &error))?;
        let refusals = report.refusals.into_iter();
        Ok(v1::CheckResponse {
            command: read_command_line(pid),
            processes: u32::try_from(report.processes).unwrap_or(u32::MAX),
            threads: u32::try_from(report.threads).unwrap_or(u32::MAX),
            mappings: u32::try_from(report.mappings).unwrap_or(u32::MAX),
            file_descriptors: u32::try_from(report.file_descriptors).unwrap_or(u32::MAX),
            memory_bytes: report.memory_bytes,
            refusals: refusals.map(|refusal| v1::Refusal { object: refusal.object, reason: refusal.reason }).collect(),
            notes: report.notes,
            volume_objects: report.volume_objects.into_iter().map(volume_object).collect(),
        })
    }

    /// Whether something can be prepared for the next child of a seed. If the node `is_idle`, this includes things
    /// that are not needed soon.
    pub(crate) fn has_prewarm_work(&self, seed: &SeedId, is_idle: bool) -> bool {
        is_idle || self.child_dirs.is_low() || !self.zygote_cache.is_decided(seed)
    }

    /// Prepares a child directory and a zygote for the next child of a seed with these options. Called in the
    /// background.
    pub(crate) fn prewarm_next_child(&self, access: &SeedAccess, options: &StartOptions) {
        self.refill_child_dirs();
        // The descriptor is cached, unless the fork failed.
        self.create_zygote(access, options, ZygoteTrigger::Requested, Instant::now());
    }

    /// Creates the zygote for children with these options, if it is wanted and does not exist. If the descriptor cannot be
    /// read by `deadline`, no zygote is created; the fork of a child reports the cause.
    pub(crate) fn create_zygote(
        &self,
        access: &SeedAccess,
        options: &StartOptions,
        trigger: ZygoteTrigger,
        deadline: Instant,
    ) {
        if let Ok(source) = self.load_source(access, deadline) {
            self.zygote_cache.create(&source, options, trigger, &self.node, &self.pool);
        }
    }

    /// Whether children with these options are copies of their seed's zygote, if it has one.
    pub(crate) fn can_copy_zygote(&self, options: &StartOptions) -> bool {
        self.zygote_cache.is_enabled() && zygote_cache::has_copyable_options(options)
    }

    /// Returns the zygotes of this node.
    pub(crate) fn zygote_cache(&self) -> &ZygoteCache {
        &self.zygote_cache
    }

    /// Whether zygotes, prestarted children or idle connections are kept. Otherwise there is nothing to evict.
    pub(crate) fn has_cached_state(&self) -> bool {
        !self.zygote_cache.is_empty() || !self.prestart_pool.is_empty() || self.other_seeds.connections.has_idle()
    }

    /// Evicts zygotes, prestarted children and connections to owners that were not used for long. Also evicts zygotes
    /// of dropped seeds, and speculative zygotes that are not needed (`is_in_vain`). Collapses small pages of the other
    /// zygotes into huge ones.
    pub(crate) fn evict_unused(&self, is_dropped: impl Fn(&SeedId) -> bool, is_in_vain: impl Fn(&SeedId) -> bool) {
        self.prestart_pool.drop_stale();
        self.zygote_cache.evict_unused(is_dropped, is_in_vain);
        // Suspend prestarted children during the collapse: those of a collapsed zygote still have small pages, and are
        // dropped.
        self.prestart_pool.set_suspended(true);
        self.zygote_cache.collapse_huge_pages().iter().for_each(|seed| self.prestart_pool.remove_seed(seed));
        self.prestart_pool.set_suspended(false);
        self.other_seeds.connections.close_idle();
    }

    /// Drops the prestarted children, the zygote and the roots of a dropped seed.
    pub(crate) fn evict_seed(&self, seed: &SeedId) {
        self.prestart_pool.remove_seed(seed);
        self.zygote_cache.retire(seed);
        self.pool.evict_roots(&seed.to_string());
    }

    /// Ends all prestarted children and zygotes, because the node stops.
    pub(crate) fn stop_zygotes(&self) {
        self.prestart_pool.clear();
        self.zygote_cache.clear();
    }

    /// Creates child directories in advance. Called in the background.
    pub(crate) fn refill_child_dirs(&self) {
        self.child_dirs.refill();
    }

    /// How many containers of a kind are ready.
    pub(crate) fn count_ready_containers(&self, kind: ContainerSpec) -> usize {
        self.pool.ready_count(kind)
    }
}

/// Reads the program and arguments of a process; empty if the process has ended.
fn read_command_line(pid: u32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&arguments).replace('\0', " ").trim_end().to_owned()
}

/// Maximum number of refusals in the text of one failure. `farfork check` lists all.
const REFUSALS_NAMED_MAX: usize = 20;

/// Converts the error of a process's capture to a failure.
pub(crate) fn capture_failure(pid: u32, error: &CaptureError) -> Failure {
    let code = match error {
        CaptureError::ProcessGone { .. } => Code::NotFound,
        _ => Code::FailedPrecondition,
    };
    // The failure's object is the process, so the cause need not contain the pid.
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
            ptrace_denial::explain_denial(failure, pid)
        }
        _ => failure,
    }
}

fn volume_object(object: VolumeObject) -> v1::VolumeObject {
    let kind = match object.kind {
        VolumeObjectKind::FileDescriptor => "fd",
        VolumeObjectKind::Mapping => "mapping",
        VolumeObjectKind::Executable => "executable",
        VolumeObjectKind::WorkingDirectory => "working directory",
        VolumeObjectKind::RootDirectory => "root directory",
    };
    let VolumeObject { pid, fd, volume, path, .. } = object;
    v1::VolumeObject { kind: kind.to_owned(), pid: pid.cast_unsigned(), fd, volume, path }
}

/// Draws an id of 64 random bits, which is unique even across restarts.
pub(crate) fn random_id() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}
