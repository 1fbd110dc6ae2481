//! The template: a copy-on-write clone of a stopped process that never runs.
//!
//! The parent's tracer traces it from its first moment (CLONE_PTRACE). If that tracer dies, the template dies at its
//! first instruction: its stack pointer is unmapped, and its signals are blocked.
//! It stays a zombie of the parent until the parent waits for it. `TemplateClone::kill` makes the parent do so, in a
//! pause of its main thread alone.

pub(super) mod cloning;
pub(super) mod dontfork;
pub(super) mod flag_probe;

use std::fs::{self, File};
use std::thread;
use std::time::Duration;

use farfork_container::OOM_SCORE_ADJUSTMENT;
use farfork_sys::priority;
use farfork_sys::process::{self, ProcStat, ProcStatus};
use farfork_sys::ptrace::{self, Registers};
use rustix::process::{Pid, Signal, kill_process};

use super::error::CaptureError;
use super::injection::injector::{InjectedCall, Injector, read_registers};
use super::injection::script::EndSignal;
use super::injection::script_runner::InjectionTarget;
use super::injection::sigreturn_frame::{Gadgets, RescueFrame, SigreturnFrame};
use super::open_memory;
use super::state::ThreadExtendedState;
use super::state::seccomp;
use super::stop::stop_guard::StopGuard;
use super::stop::{freezer, interrupted_calls, stop_thread};
use super::tracer::deadline::Deadline;
use super::tracer::executor::run_ready;
use super::tracer::trace_lock::TraceLock;

/// Time limit for the wait until a killed template has ended, if a capture waits for it.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for the same wait if no capture waits for it. The kernel may not schedule a process for many seconds
/// (`docs/decisions/023-scheduling-stalls.md`), and a template that ends after the wait is never reaped.
const LATE_KILL_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for one attempt to make the parent's main thread reap a template.
const REAP_LIMIT: Duration = Duration::from_millis(500);

/// Attempts after which a template stays a zombie until its parent ends. On a busy machine, an attempt may be too late, or
/// find the parent traced.
const REAP_ATTEMPTS: usize = 10;

/// Further attempts if no capture waits for them, and the pause before each.
const LATE_REAP_ATTEMPTS: usize = 20;
const LATE_REAP_PAUSE: Duration = Duration::from_secs(1);

/// Stack pointer of a template: an address that is never mapped (vm.mmap_min_addr).
const UNMAPPED_STACK: u64 = 0x10;

const CLONE: u64 = 56;
const CLONE_FILES: u64 = 0x400;
const CLONE_PTRACE: u64 = 0x2000;

//  cloned ─▶ own session ─▶ own file table ─▶ described ─▶ parked (OOM score, callback's cgroup) ─▶ killed, reaped
//
// The clone shares the parent's descriptor table at first (CLONE_FILES): a table of its own would hold the parent's
// files open, whatever the parent closes (see `files::tree_files`). It has no exit signal, so the parent's waitpid(-1)
// does not see it.
/// A clone that never runs. Dropping it kills it.
#[derive(Debug)]
pub(super) struct TemplateClone {
    pub(super) pid: i32,
    /// Id of the clone in the parent's innermost pid namespace.
    inner_pid: u64,
    /// Registers for injected calls.
    pub(super) registers: Registers,
    parent_pid: i32,
    parent_start_ticks: u64,
    syscall_address: u64,
    has_ended: bool,
}

/// Returns the call that makes a template.
pub(super) fn clone_call() -> InjectedCall {
    InjectedCall::new("clone", CLONE, [CLONE_PTRACE | CLONE_FILES, UNMAPPED_STACK])
}

/// Returns the call that reaps a dead child. `inner_id`: the child's id in the caller's pid namespace. The call never waits.
pub(super) fn reap_call(inner_id: u64) -> InjectedCall {
    const WAIT4: u64 = 61;
    const WNOHANG: u64 = 1;
    /// __WALL: also children without an exit signal.
    const WAIT_ALL: u64 = 0x4000_0000;
    InjectedCall::new("wait4", WAIT4, [inner_id, 0, WAIT_ALL | WNOHANG, 0])
}

impl TemplateClone {
    /// Adopts a new clone, whose id in the parent's pid namespace is `inner_pid`. `options`: ptrace options that it needs in
    /// addition.
    pub(super) async fn adopt(
        inner_pid: u64,
        parent: i32,
        parent_start_ticks: u64,
        options: usize,
        injector: &mut Injector<'_>,
    ) -> Result<Self, CaptureError> {
        let pid = injector.wait_clone().await.inspect_err(|_| kill_running_clones(parent))?;
        ptrace::set_options(pid, ptrace::OPTION_EXIT_KILL | ptrace::OPTION_TRACE_SYSCALL_GOOD | options)
            .map_err(CaptureError::tracing("set the options of template", pid))?;
        // The clone runs only for injected calls, for which this thread waits, so raise its priority. Failure is harmless.
        let _ = priority::make_real_time(pid);
        let (registers, syscall_at) = (read_registers(pid)?, injector.syscall_address());
        Ok(Self {
            pid,
            inner_pid,
            registers,
            parent_pid: parent,
            parent_start_ticks,
            syscall_address: syscall_at,
            has_ended: false,
        })
    }

    /// Id of the clone in the parent's innermost pid namespace.
    pub(super) fn inner_id(&self) -> u32 {
        self.inner_pid as u32
    }

    /// The clone as a target of injected calls.
    pub(super) fn injection_target<'a>(&'a self, mem: &'a File) -> InjectionTarget<'a> {
        InjectionTarget { pid: self.pid, registers: &self.registers, inner_id: self.inner_id(), mem }
    }

    /// Resets the scheduling priority to an ordinary one, as control groups require. Call it after the last injected call.
    pub(super) fn clear_options(&self) {
        let _ = priority::make_ordinary(self.pid);
    }

    /// Raises the OOM score adjustment, so that the template is killed before its parent.
    pub(super) fn raise_oom_score(&self) -> Result<(), CaptureError> {
        let path = format!("/proc/{}/oom_score_adj", self.pid);
        let now: i32 = process::read_line(&path).ok().and_then(|line| line.parse().ok()).unwrap_or(0);
        let wanted = template_oom_score(now);
        if now < wanted {
            fs::write(&path, wanted.to_string()).map_err(CaptureError::reading(self.pid, "oom_score_adj"))?;
        }
        Ok(())
    }

    /// Kills and reaps the clone, within time limits. The zombie that remains in the parent is reaped by the parent's main
    /// thread. `trace_lock` is the parent's lock, if the caller holds it.
    pub(super) fn kill(&mut self, trace_lock: Option<&TraceLock>) {
        match trace_lock {
            Some(_) => self.kill_and_reap(trace_lock, KILL_LIMIT, REAP_ATTEMPTS),
            None => self.kill_and_reap(None, LATE_KILL_LIMIT, REAP_ATTEMPTS + LATE_REAP_ATTEMPTS),
        }
    }

    fn kill_and_reap(&mut self, trace_lock: Option<&TraceLock>, end_limit: Duration, attempts: usize) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        // Kill only a tracee: if the template was killed before and is reaped, another process may have its id.
        let is_tracee = matches!(ptrace::reap(self.pid), Ok(false));
        if is_tracee && !self.kill_within(end_limit) {
            tracing::warn!(
                template = self.pid,
                "a killed template has not ended within {end_limit:?}, and stays a zombie"
            );
            return;
        }
        if let Err(error) = self.reap_repeatedly(trace_lock, attempts) {
            tracing::warn!(template = self.pid, parent = self.parent_pid, %error, "a template stays a zombie until its parent ends");
        }
    }

    /// Kills the clone, and waits until it has ended. Returns whether it has.
    fn kill_within(&self, limit: Duration) -> bool {
        // The template frees its own memory, which takes long if there is much. With ordinary priority, it does not delay
        // other processes.
        let _ = priority::make_ordinary(self.pid);
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
        Deadline::after(limit).wait_end(self.pid)
    }

    /// Makes the parent reap the dead template, if it can. A debugger of the parent, and a freezer, prevent it.
    fn reap_repeatedly(&self, trace_lock: Option<&TraceLock>, attempts: usize) -> Result<(), CaptureError> {
        let mut reaped = Ok(());
        for attempt in 0..attempts {
            if attempt >= REAP_ATTEMPTS {
                thread::sleep(LATE_REAP_PAUSE);
            }
            if !self.is_zombie() {
                return Ok(());
            }
            reaped = self.reap_in_parent(trace_lock);
            match &reaped {
                Err(CaptureError::Refused { .. }) => break,
                Err(_) if !self.can_parent_reap() => return Ok(()),
                _ => {}
            }
        }
        if self.is_zombie() { reaped } else { Ok(()) }
    }

    /// Whether the clone waits for its parent's wait(2).
    fn is_zombie(&self) -> bool {
        ProcStat::read(self.pid).is_ok_and(|stat| stat.state == 'Z' && stat.parent == self.parent_pid)
    }

    fn can_parent_reap(&self) -> bool {
        let is_parent = |stat: ProcStat| stat.start_ticks == self.parent_start_ticks;
        ProcStat::read(self.parent_pid).is_ok_and(is_parent) && freezer::freezing_group(self.parent_pid).is_none()
    }

    /// Makes the parent's main thread wait for the dead template.
    fn reap_in_parent(&self, trace_lock: Option<&TraceLock>) -> Result<(), CaptureError> {
        let pid = self.parent_pid;
        let _turn = match trace_lock {
            Some(_) => None,
            None => Some(TraceLock::acquire(pid, REAP_LIMIT)?),
        };
        let deadline = Deadline::after(REAP_LIMIT);
        if !self.can_parent_reap() {
            return Err(CaptureError::ProcessGone { pid });
        }
        interrupted_calls::observe_thread(pid);
        let reaped = self.reap_in_stopped_parent(pid, &deadline);
        interrupted_calls::schedule_call_timeouts();
        reaped
    }

    /// Stops the main thread of the parent, and makes it reap the template.
    fn reap_in_stopped_parent(&self, pid: i32, deadline: &Deadline) -> Result<(), CaptureError> {
        stop_thread(pid, deadline)?;
        let mut stopped = StopGuard::new(pid, &[pid])?;
        let status = ProcStatus::read(pid).map_err(CaptureError::reading(pid, "status"))?;
        let (maps, mem) = (process::read_maps(pid), open_memory(pid));
        let (maps, mem) = (maps.map_err(CaptureError::reading(pid, "the memory map"))?, mem?);
        let leader = stopped.snapshot.leader();
        let thread_extended_state = ThreadExtendedState::read(pid)?;
        let frame = SigreturnFrame::prepare(leader, &thread_extended_state, Gadgets::find(pid, &maps), &maps, &mem);
        let mut injector = Injector::new(pid, self.syscall_address, deadline);
        seccomp::suspend(pid, &status)?;
        let rescue = RescueFrame { frame: frame.as_ref(), mem: &mem };
        let call = reap_call(self.inner_pid);
        let reaped = rescue
            .arm_leader(leader, EndSignal::choose(&status, &stopped.snapshot))
            .and_then(|()| run_ready(injector.call_with_frame(pid, &leader.registers, call, rescue)));
        rescue.disarm_leader(leader);
        stopped.add_withheld(&mut injector.withheld_signals);
        reaped.map(drop)
    }
}

impl Drop for TemplateClone {
    /// Tries to reap it only once: a capture that fails may still hold the parent's lock, and keep the parent stopped.
    fn drop(&mut self) {
        self.kill_and_reap(None, KILL_LIMIT, 1);
    }
}

/// Kills the clones of a process that this thread traces and that have not stopped. The first process of a pid namespace does not
/// stop, for example. It would run when this thread ends.
fn kill_running_clones(parent: i32) {
    let tracer = rustix::thread::gettid().as_raw_pid();
    let is_clone = |pid: &i32| ProcStatus::read(*pid).is_ok_and(|status| status.tracer == tracer);
    let children = process::children_of_thread(parent, parent).into_iter();
    for clone in children.filter(is_clone).filter_map(Pid::from_raw) {
        let _ = kill_process(clone, Signal::KILL);
    }
}

/// Returns the OOM score adjustment of a template: half-way between the children's score and the parent's. The parent's
/// score counts as at least 0.
///
/// For each point, the kernel adds a thousandth of all memory to the size of a process. So it kills a smaller process first
/// only if the sizes differ by less than the distance of the scores. A template is as large as its parent, and often larger
/// than a child.
fn template_oom_score(parents: i32) -> i32 {
    if parents < OOM_SCORE_ADJUSTMENT { i32::midpoint(parents.max(0), OOM_SCORE_ADJUSTMENT) } else { parents }
}

#[cfg(test)]
mod tests {
    use super::template_oom_score;

    #[test]
    fn the_oom_score_of_a_template_is_between_parent_and_children() {
        assert_eq!((template_oom_score(0), template_oom_score(-1000), template_oom_score(500)), (450, 450, 700));
        assert_eq!((template_oom_score(900), template_oom_score(1000)), (900, 1000), "a parent that is a child");
    }
}
