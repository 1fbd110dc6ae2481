//! Starts a child: what it is to have is taken from what is ready, it is restored or forked from its seed's zygote, and recorded.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_container::{Container, ContainerError, Limits, Protection, RootSpec, UsersSpec};
use farfork_fork::restore::{Restored, StandardStreams};
use farfork_fork::resume::{self, FilePolicy, ResumeError, ResumeRequest, SeedSource};
use farfork_fork::zygote::{has_not_run, is_late, resume_from};
use farfork_fork::{call_timer, phase};
use farfork_sys::identity::ProcessIdentity;
use farfork_wire::ChildId;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;
use tonic::Code;

use super::nest::Files;
use super::unfinished::Unfinished;
use super::zygotes::Kept;
use super::{Engine, SeedAccess, StartOptions, caller, heirs, remedy};
use crate::children::{Limit, Newborn, Record};
use crate::clock;
use crate::failure::Failure;
use crate::limits::START_TIMEOUT;
use crate::network::{Doors, FanOut, Published};

/// What reading `/proc/PID` gives for a process that ends meanwhile.
const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// What is asked for: which seed's child, how, and since when it is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) source: &'a SeedSource,
    pub(super) options: &'a StartOptions,
    pub(super) fan_out: &'a FanOut,
    pub(super) requested: Instant,
}

/// What of a child its siblings do not have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lot<'a> {
    /// Its place in its fork.
    pub(super) index: u32,
    pub(super) payload: Option<&'a [u8]>,
}

/// Whose child it is going to be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Whose<'a> {
    Known(Lot<'a>),
    /// That of whoever asks next: it waits for that. Whether there will be a payload is known.
    Unknown {
        has_payload: bool,
    },
}

/// A child that stands, and runs, or waits for a word. Dropping it leaves nothing of it.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) container: Container,
    pub(super) unfinished: Unfinished,
    pub(super) restored: Restored,
    /// At which a copy of a zygote waits.
    pub(super) gate: Option<OwnedFd>,
    /// By which it is still to be told what it is.
    pub(super) line: Option<caller::Line>,
    stdin: Option<OwnedFd>,
    doors: Doors,
}

impl Engine {
    /// Starts one child, the one at `index` of its fork. `requested` is when it was asked for; `alone`: not among more than start at once,
    /// so that it may be one that stands by.
    ///
    /// # Errors
    /// It could not be started; nothing of it is left.
    pub(crate) fn start(
        &self,
        access: &SeedAccess,
        (options, fan_out): (&StartOptions, &FanOut),
        (index, alone): (u32, bool),
        payload: Option<&[u8]>,
        requested: Instant,
    ) -> Result<Newborn, Failure> {
        let source = &*phase!("resume.source", self.source(access, requested + START_TIMEOUT))?;
        let lot = Lot { index, payload };
        let owners = phase!("resume.files", self.owners_files(source, options, requested))?;
        if let Some(source) = &owners {
            // What was made ahead has the node's.
            let asked = Asked { source, options, fan_out, requested };
            let standing = self.stand(None, asked, Whose::Known(lot)).map_err(|broken| broken.failure)?;
            return self.settle(standing, asked).map_err(|broken| broken.failure);
        }
        let asked = Asked { source, options, fan_out, requested };
        if alone && let Some(started) = self.start_standby(asked, lot) {
            return started;
        }
        let start = |zygote: Option<&Kept>| {
            let standing = self.stand(zygote, asked, Whose::Known(lot))?;
            self.settle(standing, asked)
        };
        if let Some(kept) = self.zygotes.of(source, options) {
            match start(Some(&*kept)) {
                Ok(newborn) => {
                    self.zygotes.copied(&kept);
                    return Ok(newborn);
                }
                Err(Broken { failure, came: Came::Nowhere, .. }) => return Err(failure),
                Err(Broken { failure, came, is_late }) => {
                    self.give_up_zygote(source, &kept, is_late);
                    if came == Came::ToRun {
                        return Err(failure);
                    }
                    tracing::warn!(%failure, "a zygote is given up: children of its seed are restored one by one");
                }
            }
        }
        start(None).map_err(|broken| broken.failure)
    }

    /// The seed with files from its owner, where the node has not those of the capture.
    fn owners_files(
        &self,
        source: &SeedSource,
        options: &StartOptions,
        asked: Instant,
    ) -> Result<Option<SeedSource>, Failure> {
        let everything = [PathBuf::from("/")];
        let shown: Vec<PathBuf> = options.binds.iter().map(|(_, inside)| inside.clone()).collect();
        let shown = if options.root == RootSpec::Shared { &everything[..] } else { &shown };
        let policy = FilePolicy { allow_changed: options.allow_changed_files, shown, asked };
        source.with_files(&self.node, &policy).map_err(|error| {
            let Broken { failure, .. } = self.broken(source, &error);
            match remedy::of(&error, options.network) {
                Some(step) => failure.with_next_step(step),
                None => failure,
            }
        })
    }

    /// No more copies are made of a zygote that one failed of, which `is_late` where it took too long. One that was killed says nothing of
    /// the next.
    pub(super) fn give_up_zygote(&self, source: &SeedSource, kept: &Kept, is_late: bool) {
        match kept.zygote().has_ended() {
            true => self.zygotes.retire(&source.key.seed),
            false => self.zygotes.retire_failed(&source.key.seed, is_late),
        }
    }

    /// Has a child stand, as a copy of a zygote or from the beginning.
    pub(super) fn stand(&self, zygote: Option<&Kept>, asked: Asked<'_>, whose: Whose<'_>) -> Result<Standing, Broken> {
        let Asked { source, options, fan_out, requested } = asked;
        let failed = |cause: &dyn Display| self.broken(source, cause);
        require_tasks(source, options).map_err(|(cause, next)| {
            let broken = failed(&cause);
            Broken { failure: broken.failure.with_next_step(next), ..broken }
        })?;
        let published = Published::take(&options.publish).map_err(Broken::nowhere)?;
        let nest = phase!("resume.nest", self.nests.take()).map_err(|error| self.no_files(source, &error))?;
        let (id, directory, Files { output, error, status }) = nest.into_parts();
        let unfinished = Unfinished::begin(id, directory, &self.pager);
        let (input, stdin) =
            phase!("resume.streams", standard_input(options.attached)).map_err(|error| failed(&error))?;
        let called = phase!("resume.caller", self.call(source, unfinished.id(), unfinished.directory(), whose));
        let (line, caller) = called.map_err(|error| self.no_files(source, &error))?;

        let taken = phase!("resume.container", self.take_container(source, (options, fan_out), requested));
        let mut container = taken.map_err(|error| failed(&error))?;
        furnish(&container, asked).map_err(|error| failed(&*error))?;
        let doors = self.open_doors(published, asked, &container)?;
        let request = ResumeRequest {
            child: unfinished.id(),
            directory: unfinished.directory(),
            source,
            container: &container,
            streams: StandardStreams { input, output, error },
            status_file: status,
            caller,
            payload: whose.payload(),
            paused: options.paused || matches!(whose, Whose::Unknown { .. }),
            untrusted: options.protection.untrusted,
            strategy: options.strategy,
            limit: START_TIMEOUT.saturating_sub(requested.elapsed()),
        };
        let resumed = self.resume(zygote, request);
        let (restored, gate) = resumed.map_err(|error| self.not_resumed((source, options), &container, &error))?;
        let dismissed = container.dismiss_bearer(&options.limits);
        dismissed.map_err(|error| Broken { came: Came::ToRun, ..failed(&error) })?;
        Ok(Standing { container, unfinished, restored, gate, line, stdin, doors })
    }

    /// The socket of a child whose parent waited to be told what it is, answered or to be answered.
    fn call(
        &self,
        source: &SeedSource,
        child: &ChildId,
        directory: &Path,
        whose: Whose<'_>,
    ) -> io::Result<(Option<caller::Line>, Option<OwnedFd>)> {
        let Some((line, caller)) = caller::open(&source.descriptor, directory)? else { return Ok((None, None)) };
        let Whose::Known(Lot { index, payload }) = whose else { return Ok((Some(line), Some(caller))) };
        line.answer(caller::Identity { child, seed: &source.key.seed, index }, payload)?;
        Ok((None, Some(caller)))
    }

    /// Records a child that stands: it is its user's from now on, and outlives the daemon.
    pub(super) fn settle(&self, standing: Standing, asked: Asked<'_>) -> Result<Newborn, Broken> {
        let Asked { source, options, requested, .. } = asked;
        let Standing { container, unfinished, restored, gate, line: _, stdin, doors } = standing;
        let requested_at = SystemTime::now() - requested.elapsed();
        let has_run = |error: &dyn Display| Broken { came: Came::ToRun, ..self.broken(source, error) };
        let stdin = stdin.map(pipe::Sender::from_owned_fd).transpose().map_err(|error| has_run(&error))?;
        let recording = phase!("resume.record");
        let record = self.record(unfinished.id(), source, &container, &restored, options, requested_at);
        let record = record.map_err(|error| has_run(&error))?;
        let written = record.write(unfinished.directory());
        written.map_err(|error| Broken { came: Came::ToRun, ..self.no_files(source, &error) })?;
        drop(recording);
        let running = phase!("resume.part", container.into_running());
        let (container, control) = running.map_err(|error| has_run(&error))?;
        unfinished.finish();
        call_timer::watch_child(restored.pid, &source.descriptor, age(&restored));
        let gate = options.paused.then(|| gate.unwrap_or(control));
        Ok(Newborn { record, container, stdin, gate, doors })
    }

    pub(super) fn broken(&self, source: &SeedSource, cause: &dyn Display) -> Broken {
        let object = format!("a child of seed {} on node {}", source.key.seed, self.name);
        Broken::nowhere(Failure::new(Code::FailedPrecondition, object, cause))
    }

    fn no_files(&self, source: &SeedSource, cause: &io::Error) -> Broken {
        let place = self.nests.place();
        let Broken { failure, .. } = self.broken(source, &format!("its files in {}: {cause}", place.display()));
        Broken::nowhere(if remedy::is_full(cause) { failure.with_next_step(remedy::ROOM) } else { failure })
    }

    /// What leads to the child and from it is open before its first instruction.
    fn open_doors(&self, published: Vec<Published>, asked: Asked<'_>, container: &Container) -> Result<Doors, Broken> {
        let Asked { options, fan_out, .. } = asked;
        let place = (options.network, container.init().as_fd(), fan_out);
        phase!("resume.doors", Doors::open(published, &options.egress, place)).map_err(|error| {
            let Broken { failure, .. } = self.broken(asked.source, &format!("a way out of its network: {error}"));
            Broken::nowhere(failure.with_next_step(remedy::NO_WAY_OUT))
        })
    }

    fn not_resumed(
        &self,
        (source, options): (&SeedSource, &StartOptions),
        container: &Container,
        error: &ResumeError,
    ) -> Broken {
        let limit = limit_of_memory(container, &options.limits, error);
        let Broken { failure, .. } =
            limit.map_or_else(|| self.broken(source, error), |limit| self.broken(source, &limit));
        let failure = match remedy::of(error, options.network) {
            Some(step) => failure.with_next_step(step),
            None => failure,
        };
        let came = match error {
            ResumeError::Plan(_) => Came::Nowhere,
            _ if has_not_run(error) => Came::NotToRun,
            _ => Came::ToRun,
        };
        Broken { failure, came, is_late: is_late(error) }
    }

    fn take_container(
        &self,
        source: &SeedSource,
        (options, fan_out): (&StartOptions, &FanOut),
        requested: Instant,
    ) -> Result<Container, ContainerError> {
        let (kind, deadline) = (options.container(), requested + START_TIMEOUT);
        match heirs::of((&source.key.seed, &source.lineage), options, fan_out) {
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
            deadline_boot_ms: options.timeout.map(|limit| clock::after(clock::boot_ms_now(), limit)),
            memory_bytes_max: options.limits.memory_bytes_max,
            cpu_millicores_max: options.limits.cpu_millicores_max,
            processes_max: options.limits.tasks_max,
            untrusted: options.protection.untrusted,
            user_namespace: options.users == UsersSpec::Own,
            read_only: options.protection.read_only,
            network: options.network,
            publish: options.publish.clone(),
            egress: options.egress.clone(),
            inherits: source.descriptor.layers.iter().map(|layer| layer.seed.clone()).collect(),
            wants_huge_pages: source.descriptor.mappings.iter().any(|mapping| mapping.flags.huge_page),
            ended: None,
        })
    }
}

impl<'a> Whose<'a> {
    fn payload(self) -> Option<&'a [u8]> {
        match self {
            Self::Known(lot) => lot.payload,
            Self::Unknown { has_payload } => has_payload.then_some(&[]),
        }
    }
}

/// A seed's processes and threads, all of which a child must be allowed to have; else why it is not, and what to do.
fn require_tasks(source: &SeedSource, options: &StartOptions) -> Result<(), (String, &'static str)> {
    let (tasks, most) = (source.descriptor.task_count(), options.limits.tasks_max);
    match most.filter(|most| *most < tasks) {
        None => Ok(()),
        Some(most) => {
            let cause = format!("the seed has {tasks} processes and threads, and its children may have {most}");
            Err((cause, "give them more (--processes)"))
        }
    }
}

/// Makes of a container of the pool what this child is to live in.
fn furnish(container: &Container, asked: Asked<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let Asked { source, options, fan_out, .. } = asked;
    container.limit(&options.limits)?;
    for (host_path, inside_path) in &options.binds {
        phase!("resume.bind", container.bind(host_path, inside_path))?;
    }
    if options.protection != Protection::default() {
        phase!("resume.protect", container.protect(options.protection))?;
    }
    let entered = options.network.enter(container, fan_out, &source.descriptor, START_TIMEOUT);
    Ok(phase!("resume.network", entered)?)
}

/// A child that could not be started.
pub(super) struct Broken {
    pub(super) failure: Failure,
    pub(super) came: Came,
    /// Because something took too long.
    pub(super) is_late: bool,
}

impl Broken {
    fn nowhere(failure: Failure) -> Self {
        Self { failure, came: Came::Nowhere, is_late: false }
    }
}

/// How far a child came that could not be started.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// What it needs was not to be had: that says nothing of its zygote.
    Nowhere,
    /// It was begun, and has certainly not run: it may be made in another way.
    NotToRun,
    /// It may have run: it is not to be started again.
    ToRun,
}

/// For how long a child has stood.
fn age(restored: &Restored) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_nanos(restored.realtime_ns))
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

/// A child's standard input, with our end of it where somebody will attach.
fn standard_input(attached: bool) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    if !attached {
        return Ok((File::open("/dev/null")?.into(), None));
    }
    let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&write_end, rustix::fs::OFlags::NONBLOCK)?;
    Ok((read_end, Some(write_end)))
}
