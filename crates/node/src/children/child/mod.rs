//! One child of this node: its record, its state, and the operations on it.

mod pause;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_container::ContainerCgroup;
use farfork_fork::pager::{LOST_FILE, MemoryPlan, PagerCounters, SETTLED_FILE, SettleProgress, SettleState};
use farfork_sys::process::{self, ResidentMemory};
use farfork_sys::process_identity::ProcessIdentity;
use farfork_wire::PAGE_SIZE;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Code;

use super::kill_limit::KillSource;
use super::{ChildRecord, ExitRecord, OutputReader, OutputWatcher};
use crate::clock::Timestamp;
use crate::pager_link::PagerLink;

/// SIGKILL, which no child can catch.
pub(super) const SIGKILL: u32 = rustix::process::Signal::KILL.as_raw().unsigned_abs();

/// SIGBUS, which a child gets for a page that is lost or for which there is no memory.
pub(super) const SIGBUS: u32 = rustix::process::Signal::BUS.as_raw().unsigned_abs();

/// The state of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChildStatus {
    /// The child is stopped, before its first instruction or later.
    Paused,
    /// The child runs.
    Running,
    /// The child has ended.
    Ended(ExitRecord),
}

/// A file that a child writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The result of a child whose program requested its own checkpoint.
    Result,
}

/// The daemon's ends of a new child's pipes and sockets.
#[derive(Debug, Default)]
pub(crate) struct ChildSockets {
    /// The child's standard input, if a client may attach to it.
    pub(crate) stdin: Option<pipe::Sender>,
    /// The socket on which a child that is started paused waits before its first instruction.
    pub(crate) unpause_socket: Option<OwnedFd>,
    /// The child's channel, if it has one.
    pub(crate) channel: Option<OwnedFd>,
}

/// A child of this node.
#[derive(Debug)]
pub(crate) struct Child {
    record: ChildRecord,
    directory: PathBuf,
    status: watch::Sender<ChildStatus>,
    /// Whether the container of the child is removed, and the pager has released the child.
    is_cleaned_up: watch::Sender<bool>,
    /// The daemon's end of its standard input, until a client attaches.
    stdin: Mutex<Option<pipe::Sender>>,
    /// The daemon's end of the child's channel, until a program takes it.
    channel: Mutex<Option<OwnedFd>>,
    /// The socket on which a child that was started paused waits. Locked during each operation that pauses or unpauses
    /// the child.
    unpause_socket: Mutex<Option<OwnedFd>>,
    /// The control group of its container; `None` if the container had ended when this daemon started.
    cgroup: Option<ContainerCgroup>,
    /// Why it was killed, if this daemon killed it.
    kill_source: OnceLock<KillSource>,
    /// Whether this daemon has sent it SIGKILL.
    is_killed: watch::Sender<bool>,
    /// Whether the root file system of the child's container must not be reused.
    is_root_reuse_disabled: AtomicBool,
    /// Whether a client may pause it through its control group.
    has_external_freezer: AtomicBool,
    /// Whether a stream of `Peer.Tend` has waited for the child's end.
    is_exit_watched: AtomicBool,
}

impl Child {
    /// Creates the object for a new child. `cgroup` is the control group of its container.
    pub(super) fn from_started(
        record: ChildRecord,
        directory: PathBuf,
        sockets: ChildSockets,
        cgroup: Option<ContainerCgroup>,
    ) -> Self {
        let ChildSockets { stdin, unpause_socket, channel } = sockets;
        let status = if unpause_socket.is_some() { ChildStatus::Paused } else { ChildStatus::Running };
        let (stdin, unpause_socket) = (Mutex::new(stdin), Mutex::new(unpause_socket));
        let (status, is_cleaned_up) = (watch::Sender::new(status), watch::Sender::new(false));
        let (kill_source, is_killed) = (OnceLock::new(), watch::Sender::new(false));
        Self {
            record,
            directory,
            status,
            is_cleaned_up,
            stdin,
            channel: Mutex::new(channel),
            unpause_socket,
            cgroup,
            kill_source,
            is_killed,
            is_root_reuse_disabled: AtomicBool::new(false),
            has_external_freezer: AtomicBool::new(false),
            is_exit_watched: AtomicBool::new(false),
        }
    }

    /// Excludes the root file system of the child's container from reuse.
    pub(crate) fn disable_root_reuse(&self) {
        self.is_root_reuse_disabled.store(true, Ordering::Release);
    }

    /// Whether the root file system of the child's container must not be reused.
    pub(super) fn is_root_reuse_disabled(&self) -> bool {
        self.is_root_reuse_disabled.load(Ordering::Acquire)
    }

    /// Records that a stream of `Peer.Tend` waits for the child's end.
    pub(crate) fn set_exit_watched(&self) {
        self.is_exit_watched.store(true, Ordering::Release);
    }

    /// Whether a stream of `Peer.Tend` has waited for the child's end.
    pub(crate) fn is_exit_watched(&self) -> bool {
        self.is_exit_watched.load(Ordering::Acquire)
    }

    /// Creates the object for a child that an earlier daemon started. A child that waited for its first instruction
    /// ended with that daemon. A child that was paused later is still paused.
    pub(super) fn from_record(record: ChildRecord, directory: PathBuf, cgroup: Option<ContainerCgroup>) -> Self {
        let child = Self::from_started(record, directory, ChildSockets::default(), cgroup);
        // The earlier daemon may have let a client use the freezer.
        child.has_external_freezer.store(true, Ordering::Release);
        if child.is_frozen() {
            child.status.send_replace(ChildStatus::Paused);
        }
        if let Some(ended) = child.record.ended.clone() {
            child.status.send_replace(ChildStatus::Ended(ended));
        }
        child
    }

    pub(crate) fn record(&self) -> &ChildRecord {
        &self.record
    }

    /// Pid of the child's first process on this node. The process may have ended.
    pub(super) fn pid(&self) -> Option<i32> {
        Some(self.record.process.parse::<ProcessIdentity>().ok()?.pid)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns a receiver of the child's current state and its later changes.
    pub(crate) fn status(&self) -> watch::Receiver<ChildStatus> {
        self.read_freezer();
        self.status.subscribe()
    }

    /// Returns how the child ended; `None` if it is alive.
    pub(crate) fn exit_record(&self) -> Option<ExitRecord> {
        match &*self.status.borrow() {
            ChildStatus::Ended(ended) => Some(ended.clone()),
            ChildStatus::Paused | ChildStatus::Running => None,
        }
    }

    /// Whether the child has not ended.
    pub(crate) fn is_alive(&self) -> bool {
        !matches!(*self.status.borrow(), ChildStatus::Ended(_))
    }

    /// Waits until the child ends.
    pub(crate) async fn wait_exit(&self) -> ExitRecord {
        let mut status = self.status();
        let ended = status.wait_for(|status| matches!(status, ChildStatus::Ended(_))).await;
        match ended.as_deref() {
            Ok(ChildStatus::Ended(ended)) => ended.clone(),
            _ => unreachable!("the sender lives as long as the child"),
        }
    }

    /// Reads the reason why the child's memory is lost; `None` if it is not lost.
    pub(crate) fn memory_loss_cause(&self) -> Option<String> {
        let text = fs::read_to_string(self.directory.join(LOST_FILE)).ok()?;
        Some(text.trim_end().to_owned())
    }

    /// Whether all of the child's memory is on this node, so that the child no longer needs its seed.
    pub(crate) fn is_memory_settled(&self) -> bool {
        self.directory.join(SETTLED_FILE).exists()
    }

    /// Returns the host's pid of the child's process.
    ///
    /// # Errors
    /// The child has ended.
    pub(crate) fn host_pid(&self) -> Result<i32, Failure> {
        let process: ProcessIdentity =
            self.record.process.parse().map_err(|error: io::Error| self.process_failure(&error))?;
        let is_there = process.open().map_err(|error| self.process_failure(&error))?.is_some();
        if is_there { Ok(process.pid) } else { Err(self.ended_failure()) }
    }

    /// Moves a process of the node into the control groups of the child's container.
    ///
    /// # Errors
    /// The child has ended, or the kernel's error.
    pub(crate) fn adopt_process(&self, pid: i32) -> Result<(), Failure> {
        let group = self.cgroup.as_ref().ok_or_else(|| self.ended_failure())?;
        group.join_with_common(pid).map_err(|error| self.failure(Code::FailedPrecondition, error))
    }

    /// Creates the failure of a request that needs a live child.
    pub(crate) fn ended_failure(&self) -> Failure {
        self.failure(Code::FailedPrecondition, "it has ended")
            .with_next_step("forget it with `farfork rm`, or see how it ended with `farfork inspect`")
    }

    /// Returns how many pages of the child's memory are missing. With `begin`, the pager starts to fetch them all.
    /// Blocks.
    ///
    /// # Errors
    /// The child has ended, or the pager does not answer or does not serve the child.
    pub(crate) fn settle_memory(&self, pager: &PagerLink, begin: bool) -> Result<SettleProgress, Failure> {
        match pager.client().settle(&self.record.id, begin, self.host_pid()?) {
            Ok(progress) => Ok(progress),
            // A restarted pager does not know settled children, because they need no pager.
            Err(_) if self.is_memory_settled() => {
                Ok(SettleProgress { total_pages: 0, missing_pages: 0, state: SettleState::Settled })
            }
            Err(error) => Err(self.failure(Code::FailedPrecondition, error).with_next_step("see the node's log")),
        }
    }

    /// Returns how much of the child's memory is shared, private, remote, and mapped from files. Blocks, because the
    /// kernel examines each page.
    pub(crate) fn memory_use(&self, counted: Option<&PagerCounters>) -> v1::MemoryUse {
        let process = self.record.process.parse().ok().filter(|_| self.is_alive());
        let pid = process.map(|process: ProcessIdentity| process.pid);
        let resident = pid.and_then(|pid| ResidentMemory::read(pid).ok());
        let status = pid.and_then(|pid| process::ProcStatus::read(pid).ok());
        let seen = MemoryPlan::read(&self.directory).ok().map(|plan| plan.populated_bytes());
        let fetched = counted.map(|counted| (counted.pages_fetched + counted.pages_cached) * PAGE_SIZE);
        v1::MemoryUse {
            shared_bytes: resident.map(|resident| resident.shared_bytes),
            private_bytes: resident.map(|resident| resident.private_bytes),
            remote_bytes: match self.is_memory_settled() {
                true => Some(0),
                false => seen.zip(fetched).map(|(seen, fetched)| seen.saturating_sub(fetched)),
            },
            file_bytes: status.map(|status| status.file_bytes),
        }
    }

    /// Takes the daemon's end of the child's standard input. Later calls return `None`.
    pub(crate) fn take_stdin(&self) -> Option<pipe::Sender> {
        self.stdin.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes the daemon's end of the child's channel. Later calls return `None`.
    pub(crate) fn take_channel(&self) -> Option<OwnedFd> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether a client can still attach to the child's standard input.
    pub(super) fn has_stdin(&self) -> bool {
        self.stdin.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether the child has returned a result.
    pub(crate) fn has_result(&self) -> bool {
        fs::metadata(self.directory.join(OutputStream::Result.file_name())).is_ok_and(|file| file.len() > 0)
    }

    /// Whether the child can return a result: its program requested its own checkpoint.
    pub(crate) fn can_have_result(&self) -> bool {
        self.directory.join(OutputStream::Result.file_name()).exists()
    }

    /// Opens an output of the child. With `follow`, the reader also returns later output.
    ///
    /// # Errors
    /// The file cannot be read or watched.
    pub(crate) fn open_output(
        &self,
        stream: OutputStream,
        follow: Option<&Arc<OutputWatcher>>,
    ) -> Result<OutputReader, Failure> {
        let path = self.directory.join(stream.file_name());
        let opened = match follow {
            Some(watch) if self.is_alive() => OutputReader::follow(&path, watch, self.status()),
            _ => OutputReader::open(&path),
        };
        opened.map_err(|error| self.failure(Code::Internal, format!("cannot read its output: {error}")))
    }

    /// Why it was killed, if this daemon killed it.
    pub(super) fn kill_source(&self) -> Option<KillSource> {
        self.kill_source.get().copied()
    }

    /// Waits until this daemon sends the child SIGKILL.
    pub(super) async fn wait_killed(&self) {
        // The sender lives as long as the child.
        let _ = self.is_killed.subscribe().wait_for(|is_killed| *is_killed).await;
    }

    /// Records that the child's container is removed, and that the pager has released the child.
    pub(super) fn mark_cleaned_up(&self) {
        self.is_cleaned_up.send_replace(true);
    }

    /// Whether the container of the child is removed, and the pager has released the child.
    pub(super) fn is_cleaned_up(&self) -> bool {
        *self.is_cleaned_up.borrow()
    }

    /// Waits, at most `limit`, until a child that has ended is cleaned up. Returns false on timeout.
    pub(super) async fn wait_cleaned_up(&self, limit: Duration) -> bool {
        let mut is_cleaned_up = self.is_cleaned_up.subscribe();
        timeout(limit, is_cleaned_up.wait_for(|is_cleaned_up| *is_cleaned_up)).await.is_ok()
    }

    /// Records the child's end in its directory, and notifies all tasks that wait for the end.
    pub(super) fn mark_ended(&self, ended: ExitRecord) {
        let record = ChildRecord { ended: Some(ended.clone()), ..self.record.clone() };
        if let Err(error) = record.write(&self.directory) {
            tracing::warn!(child = %self.record.id, %error, "its end cannot be recorded");
        }
        drop(self.take_stdin());
        self.status.send_replace(ChildStatus::Ended(ended));
    }

    /// Creates a failure about this child.
    pub(crate) fn failure(&self, code: Code, cause: impl std::fmt::Display) -> Failure {
        Failure::new(code, format!("child {}", self.record.id), cause)
    }

    fn process_failure(&self, error: &io::Error) -> Failure {
        self.failure(Code::Internal, format!("its process cannot be reached: {error}"))
    }
}

impl OutputStream {
    /// Name of the file in the child's directory.
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
            OutputStream::Result => "result",
        }
    }
}

impl From<&Child> for v1::Child {
    fn from(child: &Child) -> Self {
        let memory_lost = child.memory_loss_cause().unwrap_or_default();
        Self { memory_lost, is_settled: child.is_memory_settled(), ..child.to_started_view() }
    }
}

impl Child {
    /// Converts the child for the API. The fields about settled or lost memory have the values of a child that was just
    /// started.
    pub(crate) fn to_started_view(&self) -> v1::Child {
        let ChildRecord { id, seed, command, process, resume_us, started_unix_ms, .. } = self.record();
        let ChildRecord { memory_bytes_max, cpu_millicores_max, processes_max, inherits, .. } = self.record();
        let ChildRecord { untrusted, user_namespace, read_only, root, network, publish, egress, .. } = self.record();
        self.read_freezer();
        let (state, ended) = match &*self.status.borrow() {
            ChildStatus::Paused => (v1::ChildState::Paused, None),
            ChildStatus::Running => (v1::ChildState::Running, None),
            ChildStatus::Ended(ended) => match ended.exit {
                super::Exit::Lost(_) => (v1::ChildState::Lost, Some(ended.clone())),
                _ => (v1::ChildState::Exited, Some(ended.clone())),
            },
        };
        let pid = process.split_once('@').and_then(|(pid, _)| pid.parse().ok());
        v1::Child {
            id: id.to_string(),
            node: id.node().to_string(),
            seed: seed.to_string(),
            pid: pid.unwrap_or(0),
            state: state.into(),
            ended_unix_ms: ended.as_ref().map_or(0, |ended| ended.unix_ms),
            exit: ended.map(v1::Exit::from),
            resume_us: *resume_us,
            started_unix_ms: *started_unix_ms,
            age_ms: self.record().started().age_ms_at(Timestamp::now()),
            command: command.clone(),
            memory_lost: String::new(),
            is_settled: false,
            memory_bytes_max: memory_bytes_max.unwrap_or(0),
            cpu_millicores_max: cpu_millicores_max.unwrap_or(0),
            processes_max: processes_max.unwrap_or(0),
            inherits: inherits.iter().map(ToString::to_string).collect(),
            untrusted: *untrusted,
            user_namespace: *user_namespace,
            read_only: *read_only,
            network: v1::Network::from(*network).into(),
            publish: publish.iter().copied().map(Into::into).collect(),
            egress: egress.to_strings(),
            root: root.clone().unwrap_or_default(),
        }
    }
}
