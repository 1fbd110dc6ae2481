//! Starts a child: takes the prepared resources, forks it from its seed's zygote or restores it, and records it.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_api::failure::Failure;
use farfork_api::limits::START_TIMEOUT;
use farfork_container::{Container, ContainerError, ContainerLimits, RootProtection, RootSpec, UsersSpec};
use farfork_fork::restore::{self, LocalNode, RestoredProcess, StandardStreams};
use farfork_fork::resume::{self, FilePolicy, ResumeError, ResumeRequest, SeedSource};
use farfork_fork::zygote::{is_late, is_retryable, resume_from_zygote};
use farfork_fork::{call_timer, phase};
use farfork_sys::process_identity::ProcessIdentity;
use farfork_wire::ChildId;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;
use tonic::Code;

use super::checkpoint_reply::{CheckpointReply, OpenedReply, open_reply};
use super::child_dir_pool::ChildFiles;
use super::child_root::{resolve_root_directory, root_directory};
use super::start_rollback::StartRollback;
use super::zygote_cache::CachedZygote;
use super::{Engine, SeedAccess, StartOptions, next_step, root_reuse};
use crate::children::{ChildRecord, ChildSockets, KillLimit, StartedChild};
use crate::clock;
use crate::network::{BoundPort, ChildForwarding, FanOutNetwork};

/// The error of read(2) on a file in `/proc/PID` if the process has ended since the file was opened.
const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// A request to start one child: seed, options, and the time at which it was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartRequest<'a> {
    pub(super) source: &'a SeedSource,
    pub(super) options: &'a StartOptions,
    /// The directory of the node that is its root, from `resolve_root_directory`; `None`: the node's root.
    pub(super) root: Option<&'a Path>,
    pub(super) fan_out: &'a FanOutNetwork,
    pub(super) requested_at: Instant,
}

/// The part of a request that differs between the children of a fork.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChildAssignment<'a> {
    /// Index of the child in its fork.
    pub(crate) index: u32,
    pub(crate) payload: Option<&'a [u8]>,
}

/// Whether the request that a child is made for is known.
#[derive(Debug, Clone, Copy)]
pub(super) enum Assignment<'a> {
    Immediate(ChildAssignment<'a>),
    /// The request is not known yet: the child is made in advance for the next request with or without a payload.
    Deferred {
        has_payload: bool,
    },
}

/// A restored child: running, or waiting for its assignment. Dropping it removes the child with all its resources.
#[derive(Debug)]
pub(super) struct RestoredChild {
    pub(super) container: Container,
    pub(super) rollback: StartRollback,
    pub(super) restored: RestoredProcess,
    /// The socket on which a copy of a zygote waits.
    pub(super) release_socket: Option<OwnedFd>,
    /// The reply to the checkpoint request, if it is still to be sent.
    pub(super) checkpoint_reply: Option<CheckpointReply>,
    channel: Option<OwnedFd>,
    stdin: Option<OwnedFd>,
    forwarding: ChildForwarding,
}

impl Engine {
    /// Starts one child of a fork. `fan_out` is the network of the fork's children, and `requested` is the time of the
    /// request. If the fork has more children than start at once (`is_fan_out`), no prestarted child is used.
    ///
    /// # Errors
    /// The child could not be started. All its resources are removed.
    pub(crate) fn start(
        &self,
        access: &SeedAccess,
        options: &StartOptions,
        fan_out: &FanOutNetwork,
        is_fan_out: bool,
        child_assignment: ChildAssignment<'_>,
        requested: Instant,
    ) -> Result<StartedChild, Failure> {
        let source = &*phase!("resume.source", self.load_source(access, requested + START_TIMEOUT))?;
        let root = resolve_root_directory(source, options);
        let start_request = StartRequest { source, options, root: root.as_deref(), fan_out, requested_at: requested };
        self.require_volumes(start_request)?;
        let owner_source = phase!("resume.files", self.with_owner_files(start_request))?;
        if let Some(source) = &owner_source {
            // Use no zygote or prestarted child: these have the node's files.
            let start_request = StartRequest { source, ..start_request };
            let restored_child = self
                .restore_child(None, start_request, Assignment::Immediate(child_assignment))
                .map_err(|error| error.failure)?;
            return self.commit_start(restored_child, start_request).map_err(|error| error.failure);
        }
        if !is_fan_out && let Some(started) = self.start_prestarted(start_request, child_assignment) {
            return started;
        }
        let start = |zygote: Option<&CachedZygote>| {
            let restored_child = self.restore_child(zygote, start_request, Assignment::Immediate(child_assignment))?;
            self.commit_start(restored_child, start_request)
        };
        if let Some(cached_zygote) = self.zygote_cache.find(source, options) {
            match start(Some(&*cached_zygote)) {
                Ok(started_child) => {
                    self.zygote_cache.record_copy(&cached_zygote);
                    return Ok(started_child);
                }
                Err(StartFailure { failure, progress: StartProgress::NotBegun, .. }) => return Err(failure),
                Err(StartFailure { failure, progress, is_late }) => {
                    self.retire_zygote(source, &cached_zygote, is_late);
                    if progress == StartProgress::MayHaveRun {
                        return Err(failure);
                    }
                    tracing::warn!(%failure, "a zygote is no longer used: children of its seed are restored one by one");
                }
            }
        }
        start(None).map_err(|error| error.failure)
    }

    /// Refuses a child if this node has not mounted the volumes that the child needs at the parent's paths.
    fn require_volumes(&self, start_request: StartRequest<'_>) -> Result<(), Failure> {
        let StartRequest { source, options, root, .. } = start_request;
        let shown: Vec<PathBuf> = options.binds.iter().map(|(_, inside)| inside.clone()).collect();
        let root = root.unwrap_or(Path::new("/"));
        source.check_volumes(root, &shown).map_err(|error| {
            let StartFailure { failure, .. } = self.start_failure(source, &error);
            match next_step::mount_volume_step(&error, self.name.as_str(), root) {
                Some(step) => failure.with_next_step(step),
                None => failure,
            }
        })
    }

    /// Returns the seed with files from its owner, if this node lacks the files of the capture.
    fn with_owner_files(&self, start_request: StartRequest<'_>) -> Result<Option<SeedSource>, Failure> {
        let StartRequest { source, options, root, requested_at, .. } = start_request;
        let everything = [PathBuf::from("/")];
        let shown: Vec<PathBuf> = options.binds.iter().map(|(_, inside)| inside.clone()).collect();
        let shown = if options.root == RootSpec::Shared { &everything[..] } else { &shown };
        let policy = FilePolicy { allow_changed: options.allow_changed_files, overridden_paths: shown, requested_at };
        source.with_captured_files(&self.node_of_child(root), &policy).map_err(|error| {
            let StartFailure { failure, .. } = self.start_failure(source, &error);
            match next_step::find_next_step(&error, options) {
                Some(step) => failure.with_next_step(step),
                None => failure,
            }
        })
    }

    /// Stops the use of a zygote after a copy has failed; `is_late`: the copy took too long. If the zygote was killed, the
    /// seed may get another one.
    pub(super) fn retire_zygote(&self, source: &SeedSource, cached_zygote: &CachedZygote, is_late: bool) {
        match cached_zygote.zygote().has_ended() {
            true => self.zygote_cache.retire(&source.key.seed),
            false => self.zygote_cache.retire_failed(&source.key.seed, is_late),
        }
    }

    /// Restores a child, as a copy of a zygote or in full.
    pub(super) fn restore_child(
        &self,
        zygote: Option<&CachedZygote>,
        start_request: StartRequest<'_>,
        assignment: Assignment<'_>,
    ) -> Result<RestoredChild, StartFailure> {
        let StartRequest { source, options, root, requested_at: requested, .. } = start_request;
        let failed = |cause: &dyn Display| self.start_failure(source, cause);
        check_task_limit(source, options).map_err(|(cause, next)| {
            let start_failure = failed(&cause);
            StartFailure { failure: start_failure.failure.with_next_step(next), ..start_failure }
        })?;
        let published = BoundPort::bind_all(&options.publish).map_err(StartFailure::nowhere)?;
        let child_dir =
            phase!("resume.nest", self.child_dirs.take()).map_err(|error| self.directory_failure(source, &error))?;
        let (id, directory, ChildFiles { output, error, status }) = child_dir.into_parts();
        let start_rollback = StartRollback::new(id, directory, &self.pager);
        let (input, stdin) = phase!("resume.streams", open_stdin(options.attached)).map_err(|error| failed(&error))?;
        let opened = phase!(
            "resume.caller",
            open_reply(start_request, start_rollback.id(), start_rollback.directory(), assignment)
        );
        let OpenedReply { reply, checkpoint_socket, channel } =
            opened.map_err(|error| self.directory_failure(source, &error))?;

        let taken = phase!("resume.container", self.take_container(start_request));
        let mut container = taken.map_err(|error| failed(&error))?;
        configure_container(&container, start_request).map_err(|error| failed(&*error))?;
        let forwarding = self.open_forwarding(published, start_request, &container)?;
        let request = ResumeRequest {
            child: start_rollback.id(),
            directory: start_rollback.directory(),
            source,
            container: &container,
            streams: StandardStreams { input, output, error },
            status_file: status,
            checkpoint_socket,
            payload: assignment.payload(),
            paused: options.paused || matches!(assignment, Assignment::Deferred { .. }),
            untrusted: options.protection.untrusted,
            strategy: options.strategy,
            limit: START_TIMEOUT.saturating_sub(requested.elapsed()),
        };
        let resumed = self.resume(zygote, request, &self.node_of_child(root));
        let (restored, release_socket) =
            resumed.map_err(|error| self.resume_failure(start_request, &container, &error))?;
        let waited = container.wait_privileged_forker(&options.limits);
        waited.map_err(|error| StartFailure { progress: StartProgress::MayHaveRun, ..failed(&error) })?;
        Ok(RestoredChild {
            container,
            rollback: start_rollback,
            restored,
            release_socket,
            checkpoint_reply: reply,
            channel,
            stdin,
            forwarding,
        })
    }

    /// Records a restored child. From now on the child belongs to its user, and outlives the daemon.
    pub(super) fn commit_start(
        &self,
        restored_child: RestoredChild,
        start_request: StartRequest<'_>,
    ) -> Result<StartedChild, StartFailure> {
        let StartRequest { source, options, requested_at: requested, .. } = start_request;
        let RestoredChild {
            container,
            rollback,
            restored,
            release_socket,
            checkpoint_reply: _,
            channel,
            stdin,
            forwarding,
        } = restored_child;
        let requested_at = SystemTime::now() - requested.elapsed();
        let has_run = |error: &dyn Display| StartFailure {
            progress: StartProgress::MayHaveRun,
            ..self.start_failure(source, error)
        };
        let stdin = stdin.map(pipe::Sender::from_owned_fd).transpose().map_err(|error| has_run(&error))?;
        let recording = phase!("resume.record");
        let record = self.build_record(rollback.id(), start_request, &container, &restored, requested_at);
        let record = record.map_err(|error| has_run(&error))?;
        let written = record.write(rollback.directory());
        written.map_err(|error| StartFailure {
            progress: StartProgress::MayHaveRun,
            ..self.directory_failure(source, &error)
        })?;
        drop(recording);
        let running = phase!("resume.part", container.into_running());
        let (container, control) = running.map_err(|error| has_run(&error))?;
        rollback.disarm();
        call_timer::watch_child_calls(restored.pid, &source.descriptor, time_since_restore(&restored));
        let unpause_socket = options.paused.then(|| release_socket.unwrap_or(control));
        let sockets = ChildSockets { stdin, unpause_socket, channel };
        Ok(StartedChild { record, container, sockets, forwarding })
    }

    pub(super) fn start_failure(&self, source: &SeedSource, cause: &dyn Display) -> StartFailure {
        let object = format!("a child of seed {} on node {}", source.key.seed, self.name);
        StartFailure::nowhere(Failure::new(Code::FailedPrecondition, object, cause))
    }

    fn directory_failure(&self, source: &SeedSource, cause: &io::Error) -> StartFailure {
        let base_dir = self.child_dirs.base_dir();
        let StartFailure { failure, .. } =
            self.start_failure(source, &format!("its files in {}: {cause}", base_dir.display()));
        StartFailure::nowhere(if next_step::is_disk_full(cause) {
            failure.with_next_step(next_step::DISK_FULL_STEP)
        } else {
            failure
        })
    }

    /// Opens the child's forwarding before its first instruction.
    fn open_forwarding(
        &self,
        published: Vec<BoundPort>,
        start_request: StartRequest<'_>,
        container: &Container,
    ) -> Result<ChildForwarding, StartFailure> {
        let StartRequest { options, fan_out, .. } = start_request;
        let init = container.init().as_fd();
        let opened =
            phase!("resume.doors", ChildForwarding::open(published, &options.egress, options.network, init, fan_out));
        opened.map_err(|error| {
            let StartFailure { failure, .. } =
                self.start_failure(start_request.source, &format!("the egress of its network: {error}"));
            StartFailure::nowhere(failure.with_next_step(next_step::EGRESS_UNSUPPORTED_STEP))
        })
    }

    fn resume_failure(
        &self,
        start_request: StartRequest<'_>,
        container: &Container,
        error: &ResumeError,
    ) -> StartFailure {
        let StartRequest { source, options, .. } = start_request;
        let limit = find_memory_limit(container, &options.limits, error);
        let StartFailure { failure, .. } =
            limit.map_or_else(|| self.start_failure(source, error), |limit| self.start_failure(source, &limit));
        let failure = match next_step::find_next_step(error, options) {
            Some(step) => failure.with_next_step(step),
            None => failure,
        };
        let start_progress = match error {
            ResumeError::Plan(_) => StartProgress::NotBegun,
            _ if is_retryable(error) => StartProgress::NeverRan,
            _ => StartProgress::MayHaveRun,
        };
        StartFailure { failure, progress: start_progress, is_late: is_late(error) }
    }

    fn take_container(&self, start_request: StartRequest<'_>) -> Result<Container, ContainerError> {
        let StartRequest { source, options, root, fan_out, requested_at } = start_request;
        let (kind, deadline) = (options.container(), requested_at + START_TIMEOUT);
        match root_reuse::root_reuse_key(&source.key.seed, &source.lineage, options, root, fan_out) {
            Some(root_reuse_key) => self.pool.take_with_reuse(&root_reuse_key, kind, deadline),
            None => self.pool.take(kind, deadline),
        }
    }

    /// Restores the child. For a copy of a zygote, also returns the socket on which the copy waits.
    fn resume(
        &self,
        zygote: Option<&CachedZygote>,
        request: ResumeRequest<'_>,
        node: &LocalNode,
    ) -> Result<(RestoredProcess, Option<OwnedFd>), ResumeError> {
        let pager = self.pager.client();
        let Some(cached_zygote) = zygote else {
            return Ok((resume::resume_child(request, node, pager)?, None));
        };
        let (restored, control) = resume_from_zygote(cached_zygote.zygote(), request, node, pager)?;
        Ok((restored, Some(control)))
    }

    fn build_record(
        &self,
        id: &ChildId,
        start_request: StartRequest<'_>,
        container: &Container,
        restored: &RestoredProcess,
        requested_at: SystemTime,
    ) -> io::Result<ChildRecord> {
        let StartRequest { source, options, .. } = start_request;
        let requested_us = requested_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let restored_us = u128::from(restored.realtime_ns / 1_000);
        let started_unix_ms = clock::unix_ms(requested_at);
        let passed_ms = clock::unix_ms_now().saturating_sub(started_unix_ms);
        Ok(ChildRecord {
            id: id.clone(),
            seed: source.key.seed.clone(),
            command: source.descriptor.process.arguments.join(" "),
            container: container.id().to_owned(),
            process: read_process_identity(restored.pid)?.to_string(),
            resume_us: u64::try_from(restored_us.saturating_sub(requested_us)).unwrap_or(u64::MAX),
            started_unix_ms,
            started_boot_ms: Some(clock::boot_ms_now().saturating_sub(passed_ms)),
            deadline_unix_ms: options.timeout.map(|limit| clock::add_duration(started_unix_ms, limit)),
            deadline_boot_ms: options.timeout.map(|limit| clock::add_duration(clock::boot_ms_now(), limit)),
            memory_bytes_max: options.limits.memory_bytes_max,
            cpu_millicores_max: options.limits.cpu_millicores_max,
            processes_max: options.limits.tasks_max,
            untrusted: options.protection.untrusted,
            user_namespace: options.users == UsersSpec::Private,
            read_only: options.protection.read_only,
            // As requested: `service::fork` compares it with the request.
            root: root_directory(source, options).map(|root| root.display().to_string()),
            network: options.network,
            publish: options.publish.clone(),
            egress: options.egress.clone(),
            inherits: source.descriptor.layers.iter().map(|layer| layer.seed.clone()).collect(),
            wants_huge_pages: source.descriptor.mappings.iter().any(|mapping| mapping.flags.huge_page),
            ended: None,
        })
    }
}

impl<'a> Assignment<'a> {
    fn payload(self) -> Option<&'a [u8]> {
        match self {
            Self::Immediate(child_assignment) => child_assignment.payload,
            Self::Deferred { has_payload } => has_payload.then_some(&[]),
        }
    }
}

/// Checks that a child may have as many processes and threads as its seed. The error contains the cause and the next
/// step.
fn check_task_limit(source: &SeedSource, options: &StartOptions) -> Result<(), (String, &'static str)> {
    let (tasks, most) = (source.descriptor.task_count(), options.limits.tasks_max);
    match most.filter(|most| *most < tasks) {
        None => Ok(()),
        Some(most) => {
            let cause = format!("the seed has {tasks} processes and threads, and its children may have {most}");
            Err((cause, "give them more (--processes)"))
        }
    }
}

/// Configures a container of the pool for this child.
fn configure_container(
    container: &Container,
    start_request: StartRequest<'_>,
) -> Result<(), Box<dyn std::error::Error>> {
    let StartRequest { source, options, root, fan_out, .. } = start_request;
    container.set_limits(&options.limits)?;
    if let Some(root) = root {
        // The stub mounts /proc before it reports. Later, this mount would go to the former root.
        restore::wait_stub_started(container.control())?;
        phase!("resume.root", container.change_root(root))?;
    }
    for (host_path, inside_path) in &options.binds {
        phase!("resume.bind", container.bind(host_path, inside_path)).map_err(next_step::explain_bind_error)?;
    }
    if options.protection != RootProtection::default() {
        phase!("resume.protect", container.protect(options.protection))?;
    }
    let entered = options.network.enter(container, fan_out, &source.descriptor, START_TIMEOUT);
    Ok(phase!("resume.network", entered)?)
}

/// A child that could not be started.
pub(super) struct StartFailure {
    pub(super) failure: Failure,
    pub(super) progress: StartProgress,
    /// Whether a step of the start took too long.
    pub(super) is_late: bool,
}

impl StartFailure {
    fn nowhere(failure: Failure) -> Self {
        Self { failure, progress: StartProgress::NotBegun, is_late: false }
    }
}

/// The progress of a child that could not be started.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StartProgress {
    /// A resource was missing before the zygote was used.
    NotBegun,
    /// The start had begun, but the child has not run: the start may be retried without the zygote.
    NeverRan,
    /// The child may have run: it must not be started again.
    MayHaveRun,
}

/// Returns the time since the child was restored.
fn time_since_restore(restored: &RestoredProcess) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_nanos(restored.realtime_ns))
}

/// Reads the identity of the child's process. If the process has already ended, as a short job may have, the identity
/// has a start time that no process has. So a later process with the same pid is not mistaken for the child.
fn read_process_identity(pid: i32) -> io::Result<ProcessIdentity> {
    match ProcessIdentity::of(pid) {
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH) => {
            Ok(ProcessIdentity { pid, start_ticks: u64::MAX })
        }
        found => found,
    }
}

/// Returns the limit for which a container was killed before its child was restored.
fn find_memory_limit(container: &Container, limits: &ContainerLimits, error: &ResumeError) -> Option<KillLimit> {
    let cgroup = container.cgroup();
    let end = if is_retryable(error) { cgroup.oom_cause() } else { cgroup.oom_cause_of_killed() };
    Some(KillLimit::from_memory_end(end?, limits.memory_bytes_max))
}

/// Opens a child's standard input. If a client will attach, it is a pipe, and the second descriptor is the daemon's
/// end.
fn open_stdin(attached: bool) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    if !attached {
        return Ok((File::open("/dev/null")?.into(), None));
    }
    let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&write_end, rustix::fs::OFlags::NONBLOCK)?;
    Ok((read_end, Some(write_end)))
}
