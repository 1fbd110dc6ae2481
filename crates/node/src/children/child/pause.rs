//! Pausing, unpausing and signalling a child.
//!
//! A child that was started paused waits at a socket before its first instruction. Any other child is paused by
//! freezing its container's control group, which usually includes the container's init. Init reaps the child: if the
//! child ends while frozen, the group must be thawed, or the end is never reported. The group stays frozen across restarts
//! of the daemon. If a client may freeze the group directly (`open_freezer`), the freezer's state is authoritative.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farfork_api::failure::Failure;
use farfork_fork::restore;
use farfork_sys::pidfd;
use farfork_sys::process_identity::ProcessIdentity;
use tonic::Code;

use super::super::kill_limit::KillSource;
use super::{Child, ChildStatus, SIGKILL};

/// Longest wait until all threads of a child are frozen: shorter than a client's timeout. A system call that waits for
/// a page over a slow link freezes only when the page arrives.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(5);

impl Child {
    /// Stops the child, with all processes that it has forked. A paused child stays paused. Blocks.
    ///
    /// # Errors
    /// The child has ended; or it did not freeze within [`PAUSE_TIMEOUT`], and continues to run.
    pub(crate) fn pause(&self) -> Result<(), Failure> {
        // Locked until the end, so that pauses and unpauses do not overlap.
        let unpause_socket = self.unpause_socket.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_alive()?;
        if unpause_socket.is_some() {
            return Ok(());
        }
        let group = self.cgroup.as_ref().ok_or_else(|| self.ended_failure())?;
        let refused = |error| {
            let step = "it runs on; `farfork inspect` shows how much of its memory is local";
            self.failure(Code::FailedPrecondition, error).with_next_step(step)
        };
        self.disable_root_reuse();
        self.read_freezer();
        group.freeze(PAUSE_TIMEOUT).map_err(refused)?;
        if self.has_exited() {
            self.thaw_to_exit();
            return Err(self.ended_failure());
        }
        self.transition_status(ChildStatus::Running, ChildStatus::Paused);
        Ok(())
    }

    /// Lets the child continue, or execute its first instruction. A running child is not affected.
    ///
    /// # Errors
    /// The child has ended, or its unpause socket or control group failed.
    pub(crate) fn unpause(&self) -> Result<(), Failure> {
        let mut unpause_socket = self.unpause_socket.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_alive()?;
        self.read_freezer();
        match (unpause_socket.take(), &self.cgroup) {
            (Some(unpause_socket), _) => {
                restore::unpause(unpause_socket.as_fd()).map_err(|error| self.process_failure(&error))?
            }
            (None, Some(group)) if *self.status.borrow() == ChildStatus::Paused => {
                group.thaw().map_err(|error| self.failure(Code::Internal, error))?;
            }
            (None, _) => {}
        }
        self.transition_status(ChildStatus::Paused, ChildStatus::Running);
        Ok(())
    }

    /// Lets a client freeze and thaw the child directly. Returns the directory of the child's control group.
    ///
    /// # Errors
    /// The child has ended, it waits for its first instruction, or the node has no freezer of cgroup version 2.
    pub(crate) fn open_freezer(&self) -> Result<PathBuf, Failure> {
        let unpause_socket = self.unpause_socket.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_alive()?;
        if unpause_socket.is_some() {
            let failure = self.failure(Code::FailedPrecondition, "it was forked paused, and has not run yet");
            return Err(failure.with_next_step("unpause it first"));
        }
        let group = self.cgroup.as_ref().ok_or_else(|| self.ended_failure())?;
        let directory = group.unified_freezer().ok_or_else(|| {
            let cause = "its node has only the freezer of cgroup version 1";
            self.failure(Code::FailedPrecondition, cause).with_next_step("pause it by requests to its node")
        })?;
        if let Err(error) = group.move_init_out(self.process_identity()?.pid) {
            tracing::debug!(child = %self.record.id, %error, "a child's init is frozen with the child");
        }
        self.disable_root_reuse();
        self.has_external_freezer.store(true, Ordering::Release);
        Ok(directory.to_owned())
    }

    /// Updates the state from the freezer, if a client may have used it.
    pub(super) fn read_freezer(&self) {
        if !self.has_external_freezer.load(Ordering::Acquire) {
            return;
        }
        match self.is_frozen() {
            true => self.transition_status(ChildStatus::Running, ChildStatus::Paused),
            false => self.transition_status(ChildStatus::Paused, ChildStatus::Running),
        }
    }

    /// Whether the child is frozen. A child that waits for its first instruction is not frozen.
    pub(crate) fn is_frozen(&self) -> bool {
        self.cgroup.as_ref().is_some_and(|group| group.is_frozen())
    }

    /// Checks that the child's processes can be captured: `pid` is one of them.
    ///
    /// # Errors
    /// The child is frozen, or waits for its first instruction and is not complete.
    pub(crate) fn require_unpaused(&self, pid: u32) -> Result<(), Failure> {
        // The lock is held while another request pauses or unpauses the child. The capture fails if the child is then
        // frozen.
        let waits = self.unpause_socket.try_lock().is_ok_and(|unpause_socket| unpause_socket.is_some());
        if !waits && !self.is_frozen() {
            return Ok(());
        }
        let id = &self.record.id;
        let paused = Failure::new(Code::FailedPrecondition, format!("process {pid}"), format!("child {id} is paused"));
        Err(paused.with_next_step(format!("unpause it first: `farfork unpause {id}`")))
    }

    /// Sends the child a signal. A paused child gets the signal when it continues, except that SIGKILL ends it at once.
    ///
    /// # Errors
    /// The child has ended, or the number is not a signal number.
    pub(crate) fn kill(&self, signal: u32) -> Result<(), Failure> {
        if signal == SIGKILL {
            // Only the first cause counts.
            let _ = self.kill_source.set(KillSource::Request);
        }
        self.send_signal(signal)
    }

    /// Kills the child because the program that forked it no longer needs it.
    ///
    /// # Errors
    /// The child has ended.
    pub(crate) fn kill_for_program(&self) -> Result<(), Failure> {
        let _ = self.kill_source.set(KillSource::Program);
        self.send_signal(SIGKILL)
    }

    /// Kills the child at its deadline. Does nothing if the child has just ended.
    pub(in crate::children) fn kill_on_deadline(&self) {
        let _ = self.kill_source.set(KillSource::Deadline);
        let _ = self.send_signal(SIGKILL);
    }

    /// Kills the child because its memory is lost.
    pub(in crate::children) fn kill_memory_lost(&self) {
        let _ = self.send_signal(SIGKILL);
    }

    fn send_signal(&self, signal: u32) -> Result<(), Failure> {
        let has_ended = || self.ended_failure();
        self.check_alive()?;
        let process =
            self.process_identity()?.open().map_err(|error| self.process_failure(&error))?.ok_or_else(has_ended)?;
        match pidfd::send_signal(&process, signal.cast_signed()) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(self.failure(Code::InvalidArgument, format!("{signal} is no signal")))
            }
            // ESRCH: it has just ended.
            Err(_) => Err(has_ended()),
            Ok(()) => {
                if signal == SIGKILL {
                    self.is_killed.send_replace(true);
                    self.thaw_to_exit();
                }
                Ok(())
            }
        }
    }

    fn process_identity(&self) -> Result<ProcessIdentity, Failure> {
        self.record.process.parse().map_err(|error: io::Error| self.process_failure(&error))
    }

    /// Whether the child's process has ended, even if it is not reaped yet.
    fn has_exited(&self) -> bool {
        let process =
            self.record.process.parse().ok().and_then(|process: ProcessIdentity| process.open().ok().flatten());
        process.is_none_or(|process| pidfd::wait_exit(&process, Duration::ZERO).unwrap_or(false))
    }

    /// Thaws a child that was killed or has ended, so that its end is reported.
    fn thaw_to_exit(&self) {
        if let Some(group) = &self.cgroup
            && let Err(error) = group.thaw()
        {
            // Its container may just have been removed.
            tracing::debug!(child = %self.record.id, %error, "the control group of a killed child cannot be thawed");
        }
        self.transition_status(ChildStatus::Paused, ChildStatus::Running);
    }

    /// Changes the state from `from` to `to`. Any other state, such as ended, stays.
    fn transition_status(&self, from: ChildStatus, to: ChildStatus) {
        self.status.send_if_modified(|status| {
            let changes = *status == from;
            if changes {
                *status = to;
            }
            changes
        });
    }

    fn check_alive(&self) -> Result<(), Failure> {
        if self.is_alive() { Ok(()) } else { Err(self.ended_failure()) }
    }
}
