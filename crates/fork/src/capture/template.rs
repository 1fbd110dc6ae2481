//! The template: a copy-on-write clone of a stopped process that never runs.
//!
//! ```text
//!  born ─▶ apart (own session) ─▶ without files ─▶ described ─▶ parked (OOM order, callback's cgroup) ─▶ killed, reaped
//! ```
//!
//! It is cloned with CLONE_PTRACE: frozen from its first moment, traced by the thread that traces the parent; and with CLONE_FILES:
//! a table of its own would hold the parent's files open, whatever the parent closes (see [`open`](crate::capture::files::open)). It has no
//! exit signal: the parent's waitpid(-1) does not see it. Its stack pointer is where nothing is mapped and its signals
//! are blocked: let go by a tracer that died, it would die at its first instruction. Dead, it stays a zombie of the
//! parent until the parent waits for it: [`Template::end`] makes it do so, in a pause of its main thread alone.

pub(super) mod born;
pub(super) mod twin;
pub(super) mod unforked;

use std::fs;
use std::time::Duration;

use farfork_container::OOM_SCORE_ADJUSTMENT;
use farfork_sys::priority;
use farfork_sys::process::{self, Stat, Status};
use farfork_sys::ptrace::{self, Registers, Report};
use rustix::process::{Pid, Signal, kill_process};

use super::calls::inject::{Call, Injector, read_registers};
use super::calls::rescue::{self, Gadgets, Rescue};
use super::calls::script::EndSignal;
use super::error::CaptureError;
use super::open_memory;
use super::state::Standing;
use super::state::filters;
use super::stop::stopped::Stopped;
use super::stop::{freezer, stop_one, waits};
use super::tracer::deadline::{Deadline, Silence};
use super::tracer::post::at_once;
use super::tracer::turn::Turn;

/// How long the end of a killed template is awaited.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How long the parent's main thread may take to stop for reaping a template; beyond, the zombie stays until the
/// parent ends.
const REAP_LIMIT: Duration = Duration::from_millis(500);

/// An address that is never mapped (vm.mmap_min_addr): a template's stack pointer.
const NO_STACK: u64 = 0x10;

const CLONE: u64 = 56;
const CLONE_FILES: u64 = 0x400;
const CLONE_PTRACE: u64 = 0x2000;

/// A clone that never runs. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Clone {
    pub(super) pid: i32,
    /// Its id in the parent's innermost pid namespace.
    inner_pid: u64,
    /// Registers for calls made in it.
    pub(super) registers: Registers,
    parent: i32,
    parent_start_ticks: u64,
    syscall_at: u64,
    has_ended: bool,
}

/// The call that makes a template.
pub(super) fn clone_call() -> Call {
    Call::new("clone", CLONE, [CLONE_PTRACE | CLONE_FILES, NO_STACK])
}

/// The call that reaps a dead child of the caller, which knows it as `inner_id`; it never waits.
pub(super) fn reap_call(inner_id: u64) -> Call {
    const WAIT4: u64 = 61;
    const WNOHANG: u64 = 1;
    /// Also children without an exit signal.
    const WALL: u64 = 0x4000_0000;
    Call::new("wait4", WAIT4, [inner_id, 0, WALL | WNOHANG, 0])
}

impl Clone {
    /// Takes on the newborn of a clone, whose id in the parent's pid namespace is `inner_pid`; `options` of ptrace are those that
    /// it needs beside its own.
    pub(super) async fn born(
        inner_pid: u64,
        parent: i32,
        parent_start_ticks: u64,
        options: usize,
        injector: &mut Injector<'_>,
    ) -> Result<Self, CaptureError> {
        let pid = injector.wait_newborn().await?;
        ptrace::set_options(pid, ptrace::OPTION_EXIT_KILL | ptrace::OPTION_TRACE_SYSCALL_GOOD | options)
            .map_err(CaptureError::trace("set the options of template", pid))?;
        // It runs for a moment only where we make it, and we wait for that. Without the right to, so be it.
        let _ = priority::raise(pid);
        let (registers, syscall_at) = (read_registers(pid)?, injector.syscall_at());
        Ok(Self { pid, inner_pid, registers, parent, parent_start_ticks, syscall_at, has_ended: false })
    }

    /// Its id in the parent's innermost pid namespace.
    pub(super) fn inner_id(&self) -> u32 {
        self.inner_pid as u32
    }

    /// Nothing more is made in it: an ordinary process, as control groups want it.
    pub(super) fn park(&self) {
        let _ = priority::lower(self.pid);
    }

    /// Gives it a place in the OOM order.
    pub(super) fn lower_in_oom_order(&self) -> Result<(), CaptureError> {
        let path = format!("/proc/{}/oom_score_adj", self.pid);
        let now: i32 = process::read_line(&path).ok().and_then(|line| line.parse().ok()).unwrap_or(0);
        let wanted = oom_score_adj(now);
        if now < wanted {
            fs::write(&path, wanted.to_string()).map_err(CaptureError::read(self.pid, "oom_score_adj"))?;
        }
        Ok(())
    }

    /// Kills and reaps it, within limits. The zombie that remains in the parent is reaped by the parent's main thread.
    /// `turn` is the parent's, where the caller has it.
    pub(super) fn end(&mut self, turn: Option<&Turn>) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        // Its memory is torn down by itself, which takes long where it is large: nobody shall have to wait for that.
        let _ = priority::lower(self.pid);
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
        if !self.await_end() {
            tracing::warn!(template = self.pid, "a killed template has not ended within {END_LIMIT:?}");
            return;
        }
        match self.reap_in_parent(turn) {
            Ok(()) => {}
            Err(CaptureError::Gone { .. }) => {}
            Err(error) => {
                tracing::debug!(template = self.pid, parent = self.parent, %error, "a template stays a zombie until its parent ends");
            }
        }
    }

    fn await_end(&self) -> bool {
        let deadline = Deadline::after(END_LIMIT);
        // Its end may have been taken before, when it was killed by somebody else.
        if !matches!(ptrace::reap(self.pid), Ok(false)) {
            return true;
        }
        while !deadline.is_over() {
            match deadline.next_report() {
                Ok((tid, Report::Ended)) if tid == self.pid => return ptrace::reap(tid).unwrap_or(true),
                // Its last stop, told late.
                Ok(_) => {}
                Err(Silence::TimedOut) => return false,
                Err(Silence::NoTracee) => return true,
            }
        }
        false
    }

    /// Makes the parent's main thread wait for the dead template.
    fn reap_in_parent(&self, turn: Option<&Turn>) -> Result<(), CaptureError> {
        let pid = self.parent;
        let is_zombie = |stat: Stat| stat.state == 'Z' && stat.parent == pid;
        if !Stat::read(self.pid).is_ok_and(is_zombie) {
            return Ok(());
        }
        let _turn = match turn {
            Some(_) => None,
            None => Some(Turn::wait(pid, REAP_LIMIT).ok_or(CaptureError::Gone { pid })?),
        };
        let deadline = Deadline::after(REAP_LIMIT);
        let is_parent = |stat: Stat| stat.start_ticks == self.parent_start_ticks;
        if !Stat::read(pid).is_ok_and(is_parent) || freezer::frozen_by(pid).is_some() {
            return Err(CaptureError::Gone { pid });
        }
        waits::look(pid);
        let reaped = self.reap_stopped(pid, &deadline);
        waits::settle();
        reaped
    }

    /// The same of a parent whose main thread alone is stopped for it.
    fn reap_stopped(&self, pid: i32, deadline: &Deadline) -> Result<(), CaptureError> {
        stop_one(pid, deadline)?;
        let mut stopped = Stopped::take(pid, &[pid])?;
        let status = Status::read(pid).map_err(CaptureError::read(pid, "status"))?;
        let (maps, mem) = (process::maps(pid), open_memory(pid));
        let (maps, mem) = (maps.map_err(CaptureError::read(pid, "the memory map"))?, mem?);
        let leader = stopped.snapshot.leader();
        let standing = Standing::read(pid)?;
        let rescue = Rescue::prepare(leader, &standing, Gadgets::find(pid, &maps), &maps, &mem);
        let mut injector = Injector::new(pid, self.syscall_at, deadline);
        filters::suspend(pid, &status)?;
        let (rescued, end) = ((rescue.as_ref(), &mem), EndSignal::for_process(&status, &stopped.snapshot));
        let call = reap_call(self.inner_pid);
        let reaped = rescue::enter(leader, end, rescued)
            .and_then(|()| at_once(injector.call_safely((pid, &leader.registers), call, rescue.as_ref(), &mem)));
        rescue::leave(leader, rescued);
        stopped.withhold(&mut injector.withheld);
        reaped.map(drop)
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// Where a template is in the kernel's order of victims: half-way between the seed's children and its parent, or what has the
/// default of 0. The kernel adds a thousandth of the memory for each point to what a process holds, so that a process goes
/// before one that holds more only by less than their distance: a template holds as much as its parent, and often more
/// than a child.
fn oom_score_adj(parents: i32) -> i32 {
    if parents < OOM_SCORE_ADJUSTMENT { i32::midpoint(parents.max(0), OOM_SCORE_ADJUSTMENT) } else { parents }
}

#[cfg(test)]
mod tests {
    use super::oom_score_adj;

    #[test]
    fn a_template_goes_before_its_parent_and_after_children() {
        assert_eq!((oom_score_adj(0), oom_score_adj(-1000), oom_score_adj(500)), (450, 450, 700));
        assert_eq!((oom_score_adj(900), oom_score_adj(1000)), (900, 1000), "of a child that is forked on");
    }
}
