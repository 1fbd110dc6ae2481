//! Starts a child: what it is to have is taken from what is ready, it is restored or forked from its seed's zygote, and recorded.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use farfork_container::{Container, ContainerError, Limits, Protection, UsersSpec};
use farfork_fork::phase;
use farfork_fork::restore::{Restored, StandardStreams};
use farfork_fork::resume::{self, ResumeError, ResumeRequest, SeedSource};
use farfork_fork::zygote::{has_not_run, resume_from};
use farfork_sys::identity::ProcessIdentity;
use farfork_wire::{ChildId, SeedId};
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
use crate::network::{FanOut, Published};

/// What reading `/proc/PID` gives for a process that ends meanwhile.
const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

impl Engine {
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

/// A child's standard input, with our end of it where somebody will attach.
fn standard_input(attached: bool) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    if !attached {
        return Ok((File::open("/dev/null")?.into(), None));
    }
    let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&write_end, rustix::fs::OFlags::NONBLOCK)?;
    Ok((read_end, Some(write_end)))
}
