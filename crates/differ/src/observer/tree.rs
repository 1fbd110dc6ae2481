//! `StoppedTree`: a process and all its descendants, stopped.

use std::time::Duration;

use farfork_fork::capture::StoppedProcess;
use farfork_sys::process::{self, ProcStat, ProcStatus};

use super::ObserveError;

/// Time limit for stopping a process: the same as the default limit of a capture.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Maximum number of processes of a tree, so that the stop is bounded. It is far above the processes of one seed.
const PROCESSES_MAX: usize = 10_000;

/// A process of a tree.
#[derive(Debug)]
pub(super) struct TreeProcess {
    pub(super) pid: i32,
    /// Its id in its own pid namespace, which is the same in a child.
    pub(super) inner_id: u32,
    /// `None` for a zombie.
    pub(super) standstill: Option<StoppedProcess>,
}

/// The stopped processes of a tree. Dropping it resumes them.
#[derive(Debug)]
pub(super) struct StoppedTree(Vec<TreeProcess>);

impl StoppedTree {
    /// Stops a process, and then each of its descendants. A stopped process starts no others.
    pub(super) fn stop(pid: i32) -> Result<Self, ObserveError> {
        let mut awaited = vec![pid];
        let mut stopped = Vec::new();
        while let Some(pid) = awaited.pop() {
            if stopped.len() >= PROCESSES_MAX {
                return Err(ObserveError::TooManyProcesses(PROCESSES_MAX));
            }
            let path = format!("/proc/{pid}/status");
            let status = ProcStatus::read(pid).map_err(ObserveError::read(&path))?;
            let has_ended = status.state == "Z";
            let standstill = if has_ended { None } else { Some(StoppedProcess::stop(pid, STOP_LIMIT)?) };
            let inner_id = inner_id(pid).map_err(ObserveError::read(&path))?;
            awaited.extend(child_pids(pid)?);
            stopped.push(TreeProcess { pid, inner_id, standstill });
        }
        // Parent and child have the same order of inner ids, so a shared object is named after the same process in both.
        stopped.sort_by_key(|process| process.inner_id);
        Ok(Self(stopped))
    }

    pub(super) fn processes(&self) -> &[TreeProcess] {
        &self.0
    }

    pub(super) fn processes_mut(&mut self) -> &mut [TreeProcess] {
        &mut self.0
    }
}

/// The id of a process or thread in its own pid namespace.
pub(super) fn inner_id(id: i32) -> std::io::Result<u32> {
    let last = ProcStatus::read(id)?.namespace_ids.last().copied();
    last.ok_or_else(|| std::io::Error::other("its /proc/PID/status has no line NSpid"))
}

/// Whether a process is the template of a seed, which holds memory and never runs. Also true for a process that no longer
/// exists.
fn is_template(pid: i32) -> bool {
    let Ok(stat) = ProcStat::read(pid) else { return true };
    stat.exit_signal == 0 && (stat.state == 'Z' || ProcStatus::read(pid).is_ok_and(|status| status.tracer != 0))
}

fn child_pids(pid: i32) -> Result<Vec<i32>, ObserveError> {
    let mut children = Vec::new();
    for tid in process::thread_ids(pid).map_err(ObserveError::read(format!("/proc/{pid}/task")))? {
        let listed = process::children_of_thread(pid, tid);
        children.extend(listed.into_iter().filter(|child| !is_template(*child)));
    }
    Ok(children)
}
