//! Where the daemon meets the machinery: containers, restoring and the pager become one step that starts a child.
//!
//! Everything here blocks, and runs on threads of its own.

mod caller;
mod heirs;
mod nest;
mod options;
mod pager;
mod prewarm;
mod remedy;
mod sources;
mod unfinished;
mod zygotes;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use farfork_container::{Container, ContainerError, ContainerSpec, Limits, Pool, Protection, UsersSpec};
use farfork_fabric::Address;
use farfork_fork::capture::{self, CaptureError, CaptureOptions, Lineage, Observer, Offer, ProgramSockets};
use farfork_fork::owner_links::OwnerLinks;
use farfork_fork::phase;
use farfork_fork::restore::{LocalNode, Restored, StandardStreams};
use farfork_fork::resume::{self, OtherSeeds, OwnSeeds, ResumeError, ResumeRequest, SeedSource};
use farfork_fork::zygote::{has_not_run, resume_from};
use farfork_sys::identity::ProcessIdentity;
use farfork_trust::Credentials;
use farfork_wire::{ChildId, NodeName, SeedId};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;
use tonic::Code;

use crate::api::v1;
use crate::children::{Child, Limit, Newborn, Record};
use crate::clock;
use crate::failure::Failure;
use crate::limits::START_TIMEOUT;
use crate::network::{FanOut, Published};
use crate::run_dir::RunDir;

use nest::{Files, Nests};
pub(crate) use options::{SeedAccess, StartOptions};
pub(crate) use pager::{PagerError, PagerLink};
use unfinished::Unfinished;
use zygotes::{Kept, Zygotes};

/// What reading `/proc/PID` gives for a process that ends meanwhile.
const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// What starts children on this node.
#[derive(Debug)]
pub(crate) struct Engine {
    name: NodeName,
    nests: Nests,
    zygotes: Zygotes,
    node: LocalNode,
    pool: Pool,
    pager: Arc<PagerLink>,
    /// How seeds are read, this node's own and others'.
    others: OtherSeeds,
    /// The latest last.
    sources: Mutex<VecDeque<Arc<SeedSource>>>,
}

impl Engine {
    pub(crate) fn new(
        name: NodeName,
        (run_dir, zygotes_max): (RunDir, usize),
        node: LocalNode,
        pool: Pool,
        pager: Arc<PagerLink>,
        own_fabric: Address,
        credentials: Option<Credentials>,
    ) -> Self {
        let zygotes = Zygotes::new(name.clone(), run_dir.clone(), pager.clone(), zygotes_max);
        // Made now, the group is no more at the end than at the start.
        if let Some(error) = (zygotes_max > 0).then(|| pool.cgroups().zygotes().err()).flatten() {
            tracing::warn!(%error, "the control group of zygotes is not made yet");
        }
        let nests = Nests::new(name.clone(), run_dir);
        let own = OwnSeeds { node: name.clone(), address: own_fabric };
        let others = OtherSeeds { own, links: Arc::new(OwnerLinks::new(credentials)) };
        Self { name, nests, zygotes, node, pool, pager, others, sources: Mutex::default() }
    }

    /// Starts to capture a process, which runs on, or with `freeze` stays stopped. `asker`: its connections to this
    /// daemon, and the pages that it offers; `lineage` tells where the process's missing pages are, if it is a child.
    ///
    /// # Errors
    /// No capture could be started; all else is for `observer` to hear.
    pub(crate) fn capture(
        &self,
        pid: u32,
        freeze: bool,
        asker: (ProgramSockets, Option<Offer>),
        lineage: Option<Lineage>,
        observer: Box<dyn Observer>,
    ) -> Result<(), Failure> {
        let options = self.capture_options(freeze, asker, lineage);
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
        capture::hold(pid.cast_signed(), self.capture_options(false, asker, lineage), observer);
    }

    fn capture_options(
        &self,
        freeze: bool,
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
            ..CaptureOptions::new(self.name.clone())
        }
    }

    /// Who serves the missing pages of a process of this child, which other nodes will read here.
    pub(crate) fn lineage(&self, child: &Child, address: SocketAddr) -> Lineage {
        let (pager, directory) = (self.pager.client().clone(), child.directory().to_owned());
        Lineage { pager, child: child.record().id.clone(), directory, address }
    }

    /// Says what a prepare of a process would carry; `is_served`: it is a child's, whose missing pages the pager serves.
    ///
    /// # Errors
    /// There is no such process, or it cannot be looked at.
    pub(crate) fn check(&self, pid: u32, is_served: bool) -> Result<v1::CheckResponse, Failure> {
        let report = capture::check(pid.cast_signed(), is_served).map_err(|error| capture_failure(pid, &error))?;
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

    /// Starts one child, the one at `index` of its fork. `requested` is when it was asked for.
    ///
    /// # Errors
    /// It could not be started; nothing of it is left.
    pub(crate) fn start(
        &self,
        access: &SeedAccess,
        (options, fan_out): (&StartOptions, &FanOut),
        index: u32,
        payload: Option<&[u8]>,
        requested: Instant,
    ) -> Result<Newborn, Failure> {
        let source = phase!("resume.source", self.source(access, requested + START_TIMEOUT))?;
        let start =
            |zygote: Option<&Kept>| self.start_from(&source, zygote, (options, fan_out), (index, payload), requested);
        if let Some(kept) = self.zygotes.of(&source, options) {
            match start(Some(&*kept)) {
                Ok(newborn) => {
                    self.zygotes.copied();
                    return Ok(newborn);
                }
                Err(Broken { failure, came: Came::Nowhere }) => return Err(failure),
                Err(Broken { failure, came }) => {
                    // One that was killed says nothing of the next.
                    self.zygotes.retire(&source.key.seed, !kept.zygote().has_ended());
                    if came == Came::ToRun {
                        return Err(failure);
                    }
                    tracing::warn!(%failure, "a zygote is given up: children of its seed are restored one by one");
                }
            }
        }
        start(None).map_err(|broken| broken.failure)
    }

    /// Starts a child, as a copy of a zygote or from the beginning.
    fn start_from(
        &self,
        source: &SeedSource,
        zygote: Option<&Kept>,
        (options, fan_out): (&StartOptions, &FanOut),
        (index, payload): (u32, Option<&[u8]>),
        requested: Instant,
    ) -> Result<Newborn, Broken> {
        let requested_at = SystemTime::now() - requested.elapsed();
        let failed = |cause: &dyn std::fmt::Display| {
            let object = format!("a child of seed {} on node {}", source.key.seed, self.name);
            Broken { failure: Failure::new(Code::FailedPrecondition, object, cause), came: Came::Nowhere }
        };
        let no_files = |cause: io::Error| {
            let Broken { failure, came } = failed(&format!("its files in {}: {cause}", self.nests.place().display()));
            Broken {
                failure: if remedy::is_full(&cause) { failure.with_next_step(remedy::ROOM) } else { failure },
                came,
            }
        };
        let (tasks, most) = (source.descriptor.task_count(), options.limits.tasks_max);
        if let Some(most) = most.filter(|most| *most < tasks) {
            let cause = format!("the seed has {tasks} processes and threads, and its children may have {most}");
            let next = "give them more (--processes)";
            let failure = Broken { failure: failed(&cause).failure.with_next_step(next), came: Came::Nowhere };
            return Err(failure);
        }
        let published = Published::take(&options.publish).map_err(|failure| Broken { failure, came: Came::Nowhere })?;
        let nest = phase!("resume.nest", self.nests.take()).map_err(no_files)?;
        let (id, directory, Files { output, error, status }) = nest.into_parts();
        let unfinished = Unfinished::begin(id, directory, &self.pager);
        let (input, stdin) =
            phase!("resume.streams", standard_input(options.attached)).map_err(|error| failed(&error))?;
        let identity = caller::Identity { child: unfinished.id(), seed: &source.key.seed, index };
        let caller =
            phase!("resume.caller", caller::answered(&source.descriptor, identity, payload, unfinished.directory()));

        let taken = phase!("resume.container", self.take_container(&source.key.seed, (options, fan_out), requested));
        let mut container = taken.map_err(|error| failed(&error))?;
        container.limit(&options.limits).map_err(|error| failed(&error))?;
        for (host_path, inside_path) in &options.binds {
            phase!("resume.bind", container.bind(host_path, inside_path)).map_err(|error| failed(&error))?;
        }
        if options.protection != Protection::default() {
            phase!("resume.protect", container.protect(options.protection)).map_err(|error| failed(&error))?;
        }
        let entered =
            phase!("resume.network", options.network.enter(&container, fan_out, &source.descriptor, START_TIMEOUT));
        entered.map_err(|error| failed(&error))?;
        let request = ResumeRequest {
            child: unfinished.id(),
            directory: unfinished.directory(),
            source,
            container: &container,
            streams: StandardStreams { input, output, error },
            status_file: status,
            caller: caller.map_err(no_files)?,
            payload,
            paused: options.paused,
            untrusted: options.protection.untrusted,
            strategy: options.strategy,
            limit: START_TIMEOUT.saturating_sub(requested.elapsed()),
        };
        let resumed = self.resume(zygote, request);
        let (restored, gate) = resumed.map_err(|error| {
            let limit = limit_of_memory(&container, &options.limits, &error);
            let Broken { failure, .. } = limit.map_or_else(|| failed(&error), |limit| failed(&limit));
            let failure = match remedy::of(&error, options.network) {
                Some(step) => failure.with_next_step(step),
                None => failure,
            };
            let came = match &error {
                ResumeError::Plan(_) => Came::Nowhere,
                _ if has_not_run(&error) => Came::NotToRun,
                _ => Came::ToRun,
            };
            Broken { failure, came }
        })?;
        let has_run = |error: &dyn std::fmt::Display| Broken { came: Came::ToRun, ..failed(error) };
        container.dismiss_bearer(&options.limits).map_err(|error| has_run(&error))?;
        let stdin = stdin.map(pipe::Sender::from_owned_fd).transpose().map_err(|error| has_run(&error))?;
        let recording = phase!("resume.record");
        let record = self.record(unfinished.id(), source, &container, &restored, options, requested_at);
        let record = record.map_err(|error| has_run(&error))?;
        record.write(unfinished.directory()).map_err(|error| Broken { came: Came::ToRun, ..no_files(error) })?;
        drop(recording);
        let running = phase!("resume.part", container.into_running());
        let (container, control) = running.map_err(|error| has_run(&error))?;
        unfinished.finish();
        let gate = options.paused.then(|| gate.unwrap_or(control));
        Ok(Newborn { record, container, stdin, gate, published })
    }

    fn take_container(
        &self,
        seed: &SeedId,
        (options, fan_out): (&StartOptions, &FanOut),
        requested: Instant,
    ) -> Result<Container, ContainerError> {
        let (kind, deadline) = (options.container(), requested + START_TIMEOUT);
        match heirs::of(seed, options, fan_out) {
            Some(heirs) => self.pool.take_for(&heirs, kind, deadline),
            None => self.pool.take(kind, deadline),
        }
    }

    /// Has the child made; gives the socket on which a copy of a zygote waits where it is to be paused.
    fn resume(
        &self,
        zygote: Option<&Kept>,
        request: ResumeRequest<'_>,
    ) -> Result<(Restored, Option<OwnedFd>), ResumeError> {
        let pager = self.pager.client();
        let Some(kept) = zygote else {
            return Ok((resume::resume(request, &self.node, pager)?, None));
        };
        let (restored, control) = resume_from(kept.zygote(), request, &self.node, pager)?;
        Ok((restored, Some(control)))
    }

    /// Whether there is anything to make ready for the next child of a seed; when the node `is_idle`, also what is not needed soon.
    pub(crate) fn has_to_make_ready(&self, seed: &SeedId, is_idle: bool) -> bool {
        is_idle || self.nests.is_low() || !self.zygotes.knows(seed)
    }

    /// Makes ready what the next child of a seed, started so, will need, at leisure.
    pub(crate) fn make_ready_for(&self, access: &SeedAccess, options: &StartOptions) {
        self.make_ready();
        // Its descriptor is known, unless its fork failed.
        self.hatch(access, options, Instant::now());
    }

    /// Makes the zygote for children that are started so, where there is none and is to be one. Its descriptor comes until `deadline`, or
    /// there is none: what keeps it away is said of a child.
    pub(crate) fn hatch(&self, access: &SeedAccess, options: &StartOptions, deadline: Instant) {
        if let Ok(source) = self.source(access, deadline) {
            self.zygotes.hatch(&source, options, (&self.node, &self.pool));
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
        !self.zygotes.is_empty() || self.others.links.has_idle()
    }

    /// Lets go of what nobody used for long: zygotes, also those of seeds that are no more, and connections to owners. The zygotes
    /// that stay are tended.
    pub(crate) fn let_go(&self, is_dropped: impl Fn(&SeedId) -> bool) {
        self.zygotes.keep_up(is_dropped);
        self.zygotes.put_together();
        self.others.links.close_idle();
    }

    /// Lets go of what is kept for children of a seed that is no more: its zygote, and roots.
    pub(crate) fn forget_seed(&self, seed: &SeedId) {
        self.zygotes.retire(seed, false);
        self.pool.forget_heirs(&seed.to_string());
    }

    /// Ends all zygotes: the node stops.
    pub(crate) fn end_zygotes(&self) {
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

    fn record(
        &self,
        id: &ChildId,
        source: &SeedSource,
        container: &Container,
        restored: &Restored,
        options: &StartOptions,
        requested_at: SystemTime,
    ) -> io::Result<Record> {
        let requested_us = requested_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let stood_us = u128::from(restored.realtime_ns / 1_000);
        let started_unix_ms = clock::unix_ms(requested_at);
        Ok(Record {
            id: id.clone(),
            seed: source.key.seed.clone(),
            command: source.descriptor.process.arguments.join(" "),
            container: container.id().to_owned(),
            process: identity(restored.pid)?.to_string(),
            resume_us: u64::try_from(stood_us.saturating_sub(requested_us)).unwrap_or(u64::MAX),
            started_unix_ms,
            deadline_unix_ms: options.timeout.map(|limit| clock::after(started_unix_ms, limit)),
            memory_bytes_max: options.limits.memory_bytes_max,
            cpu_millicores_max: options.limits.cpu_millicores_max,
            processes_max: options.limits.tasks_max,
            untrusted: options.protection.untrusted,
            user_namespace: options.users == UsersSpec::Own,
            read_only: options.protection.read_only,
            network: options.network,
            publish: options.publish.clone(),
            inherits: source.descriptor.layers.iter().map(|layer| layer.seed.clone()).collect(),
            wants_huge_pages: source.descriptor.mappings.iter().any(|mapping| mapping.flags.huge_page),
            ended: None,
        })
    }
}

/// A child that could not be started.
struct Broken {
    failure: Failure,
    came: Came,
}

/// How far a child came that could not be started.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    /// What it needs was not to be had: that says nothing of its zygote.
    Nowhere,
    /// It was begun, and has certainly not run: it may be made in another way.
    NotToRun,
    /// It may have run: it is not to be started again.
    ToRun,
}

/// Which process the child is. One that has already ended, as a short job may have, is given a start time that no process
/// has, so that nobody who gets its number next is taken for it.
fn identity(pid: i32) -> io::Result<ProcessIdentity> {
    match ProcessIdentity::of(pid) {
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH) => {
            Ok(ProcessIdentity { pid, start_ticks: u64::MAX })
        }
        found => found,
    }
}

/// Which limit a container was killed for before its child stood.
fn limit_of_memory(container: &Container, limits: &Limits, error: &ResumeError) -> Option<Limit> {
    let cgroup = container.cgroup();
    let end = if has_not_run(error) { cgroup.memory_end() } else { cgroup.memory_end_of_killed() };
    Some(Limit::of_memory(end?, limits.memory_bytes_max))
}

/// A process's program and arguments; empty when it has ended.
fn command_of(pid: u32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&arguments).replace('\0', " ").trim_end().to_owned()
}

/// What a user is told of a process that could not be captured.
pub(crate) fn capture_failure(pid: u32, error: &CaptureError) -> Failure {
    let code = match error {
        CaptureError::Gone { .. } => Code::NotFound,
        _ => Code::FailedPrecondition,
    };
    // The failure names the process itself.
    let text = error.to_string().replace(&format!("pid {pid}, "), "");
    let cause = text.strip_prefix(&format!("pid {pid} ")).unwrap_or(&text);
    Failure::new(code, format!("process {pid}"), cause)
}

/// A child's standard input, with our end of it where somebody will attach.
fn standard_input(attached: bool) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    if !attached {
        return Ok((File::open("/dev/null")?.into(), None));
    }
    let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&write_end, rustix::fs::OFlags::NONBLOCK)?;
    Ok((read_end, Some(write_end)))
}

/// A number that no other has, across restarts too: 64 random bits.
pub(crate) fn random_number() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}
