//! A process and all of its descendants, captured as one. A process without children is a tree, too.
//!
//! `attempt` surveys and stops the tree; `tree_pause` pauses its processes. A stopped process forks no children, so the
//! lists of children are complete when the last process is stopped, even if more processes were forked during the stop.

mod children_lists;
mod main_thread;
mod merge;
mod relations;
mod shared_tables;

use std::collections::BTreeMap;
use std::time::Duration;

use farfork_sys::process::{self, ProcStat};
use farfork_sys::ptrace;
use farfork_wire::descriptor::PROCESSES_MAX;

use super::CaptureOptions;
use super::descriptor_size::DescriptorSize;
use super::error::{CaptureError, Refusal};
use super::files::{self, TreeStreams};
use super::pause::PreparedProcess;
use super::stop::{self, PendingStops};
use crate::capture::state::auxiliary_vector::AuxiliaryVector;
use crate::capture::stop::vfork;
use crate::capture::tracer::deadline::Deadline;
use crate::capture::tracer::trace_lock::TraceLock;
use children_lists::{ChildrenLists, ListedChild};
use shared_tables::SharedTables;

pub(super) use merge::merge_descriptors;
pub(super) use relations::TreeRelations;
pub(super) use shared_tables::refuse_unsupported_sharing;

/// A running process and its living descendants. Each process follows its parent.
pub(super) fn list_tree(pid: i32) -> Result<Vec<i32>, CaptureError> {
    let mut found = vec![pid];
    let mut index = 0;
    while index < found.len() && found.len() < PROCESSES_MAX {
        let parent = found[index];
        let tids = process::thread_ids(parent).unwrap_or_default();
        for child in ChildrenLists::open(parent, tids.into_iter()).list()? {
            if let ListedChild::Living(child, _) = child {
                found.push(child);
            }
        }
        index += 1;
    }
    Ok(found)
}

/// Whether the parent of a stopped process has waited for the stop (WUNTRACED).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopReport {
    /// The next wait of the parent will report the stop.
    Pending,
    /// A wait of the parent has reported the stop.
    Reported,
}

/// One process of a tree.
pub(super) struct TreeProcess {
    pub(super) prepared: PreparedProcess,
    /// Index of its parent in the tree.
    parent: usize,
    /// Read in the pause. For the first process, read before the pause.
    stat: ProcStat,
    /// Set if a signal had stopped the process.
    stop_report: Option<StopReport>,
    /// The tables that it shares with its parent.
    shared_tables: SharedTables,
    children_lists: ChildrenLists,
    /// `None` for the first process: `capture_tree` holds its lock.
    _lock: Option<TraceLock>,
}

/// A child that has ended and has not been waited for.
#[derive(Debug)]
pub(super) struct UnreapedChild {
    pid: i32,
    parent: usize,
    inner_id: u32,
    stat: ProcStat,
}

//  running   survey: the first process, its children, theirs …
//  ┌ pause   stop: the first ─ its children, listed while it is stopped ─ theirs …
//  │         each is paused and cloned; all stay stopped until the last has been
//  └ running                              relations: parents, groups, sessions ─ merge: one descriptor
/// A process and all its descendants.
pub(super) struct ProcessTree {
    /// The first process first; each other one follows its parent.
    pub(super) processes: Vec<TreeProcess>,
    unreaped: Vec<UnreapedChild>,
    /// The standard streams of the tree.
    pub(super) streams: TreeStreams,
}

/// The progress of stopping a tree.
#[derive(Default)]
struct TreeStopProgress {
    /// Processes that were surveyed before the stop, and are not in the tree again yet.
    surveyed: BTreeMap<i32, TreeProcess>,
    /// Stops that were requested, and have not been waited for.
    pending_stops: PendingStops,
    /// The threads of each stopped process, in the order of the tree.
    stopped_tids: Vec<Vec<i32>>,
}

impl TreeProcess {
    pub(super) fn pid(&self) -> i32 {
        self.prepared.survey.pid
    }

    /// Whether the process has its parent's memory (CLONE_VM), not its own.
    pub(super) fn shares_memory(&self) -> bool {
        self.shared_tables.memory
    }

    fn new(prepared: PreparedProcess, parent: usize, trace_lock: Option<TraceLock>) -> Self {
        let survey = &prepared.survey;
        let children_lists = ChildrenLists::open(survey.pid, survey.profiles.keys().copied());
        let stat = survey.stat.clone();
        Self {
            prepared,
            parent,
            stat,
            stop_report: None,
            shared_tables: SharedTables::default(),
            children_lists,
            _lock: trace_lock,
        }
    }

    /// Reads the state that is only valid when the process and its parent are stopped.
    fn read_stopped(&mut self, parent: i32) -> Result<(), CaptureError> {
        let pid = self.pid();
        // The survey compared the tables with the tables of the parent that the process had at that time.
        let is_parent_still = self.stat.parent == parent;
        let common =
            if is_parent_still { self.shared_tables.recheck(pid, parent)? } else { SharedTables::read(pid, parent)? };
        if self.shared_tables != common {
            let what = "the tables that it shares with its parent".to_owned();
            return Err(CaptureError::Unstable { pid, what });
        }
        self.stat = ProcStat::read(pid).map_err(CaptureError::reading(pid, "stat"))?;
        if self.stat.start_ticks != self.prepared.survey.stat.start_ticks {
            return Err(CaptureError::Unstable { pid, what: "its pid, which another process has now".to_owned() });
        }
        let is_stopped =
            ptrace::is_stopped_by_signal(pid).map_err(CaptureError::tracing("read the stop state of", pid))?;
        // The kernel keeps the signal of a stop until the parent has waited for it.
        let report = if self.stat.exit_code == 0 { StopReport::Reported } else { StopReport::Pending };
        self.stop_report = is_stopped.then_some(report);
        Ok(())
    }
}

impl ProcessTree {
    /// Surveys a running process and its descendants.
    pub(super) fn survey(pid: i32, options: &CaptureOptions) -> Result<Self, CaptureError> {
        let mut first = PreparedProcess::prepare(pid, options, &options.daemon_sockets, None)?;
        first.shared_sources.allocate_buffers(pid, std::iter::empty())?;
        let streams = TreeStreams::from_fds(pid, &first.survey.fds).resolve_inner_pipes(|| list_tree(pid))?;
        if streams.has_inner_stream() {
            streams.mark_standard(pid, &mut first.survey.fds);
        }
        let mut tree = Self { processes: vec![TreeProcess::new(first, 0, None)], unreaped: Vec::new(), streams };
        let (mut index, mut refusals) = (0, Vec::new());
        while index < tree.processes.len() {
            for found in tree.processes[index].children_lists.list()? {
                let ListedChild::Living(child, _) = found else { continue };
                match tree.add_child(child, index, options, options.timeout) {
                    Ok(()) | Err(CaptureError::Unstable { .. }) => {}
                    Err(CaptureError::ProcessGone { .. }) => {}
                    Err(_) if has_ended(child) => {}
                    Err(CaptureError::Refused { refusals: its, .. }) => refusals.extend(its),
                    Err(error) => return Err(error),
                }
            }
            index += 1;
        }
        // A refused descendant is missing in the tree, and may have the other end of a terminal.
        if refusals.is_empty() {
            let fds = tree.processes.iter().map(|one| (one.pid(), &one.prepared.survey.fds[..]));
            refusals.extend(files::unpaired_terminals(fds)?);
        }
        refusals.extend(tree.descriptor_size().refusal(pid));
        if refusals.is_empty() { Ok(tree) } else { Err(CaptureError::refused(pid, refusals)) }
    }

    /// The parts that determine the size of the tree's descriptor, according to the surveys.
    fn descriptor_size(&self) -> DescriptorSize {
        let surveys = self.processes.iter().map(|one| &one.prepared.survey);
        surveys.fold(DescriptorSize::default(), |size, survey| size.add(survey.profiles.len(), survey.maps.len()))
    }

    /// Stops all processes, including those that are forked during the stop. Returns the threads of each process.
    pub(super) fn stop(
        &mut self,
        options: &CaptureOptions,
        deadline: &Deadline,
    ) -> Result<Vec<Vec<i32>>, CaptureError> {
        let mut progress = TreeStopProgress::default();
        if self.processes.len() > 1 {
            self.processes.iter().for_each(|one| progress.pending_stops.interrupt_process(one.pid()));
        }
        let stopped = self.stop_all(options, deadline, &mut progress);
        let TreeStopProgress { surveyed, mut pending_stops, stopped_tids } = progress;
        drop(surveyed);
        pending_stops.release();
        if stopped.is_err() {
            // Nothing of these processes was changed.
            stopped_tids.iter().flatten().for_each(|tid| drop(ptrace::detach(*tid)));
        }
        stopped?;
        let (first, others) = self.processes.split_at_mut(1);
        others
            .iter_mut()
            .for_each(|one| first[0].prepared.shared_sources.merge(std::mem::take(&mut one.prepared.shared_sources)));
        Ok(stopped_tids)
    }

    fn stop_all(
        &mut self,
        options: &CaptureOptions,
        deadline: &Deadline,
        progress: &mut TreeStopProgress,
    ) -> Result<(), CaptureError> {
        progress.surveyed = self.processes.drain(1..).map(|one| (one.pid(), one)).collect();
        self.unreaped.clear();
        let mut orphans_possible = true;
        while orphans_possible {
            if deadline.is_over() {
                let (pid, phase) = (self.processes[0].pid(), "stopping a tree whose processes keep forking and ending");
                return Err(CaptureError::TimedOut { pid, limit: deadline.limit(), phase });
            }
            // If a process has ended during this pass, its children have a new parent, whose lists may already have been
            // read: read all lists again.
            orphans_possible = false;
            let mut index = 0;
            while index < self.processes.len() {
                if index == progress.stopped_tids.len() {
                    let pid = self.processes[index].pid();
                    let outcome = stop::finish_stop(pid, deadline, &mut progress.pending_stops);
                    let outcome = outcome
                        .map(|tids| progress.stopped_tids.push(tids))
                        .and_then(|()| self.survey_again(index, options));
                    match outcome {
                        Ok(()) => {}
                        Err(error) if index > 0 && is_exit_error(pid, &error) => {
                            progress.stopped_tids.truncate(index);
                            self.move_to_unreaped(index)?;
                            orphans_possible = true;
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                let all_lived = self.add_children(index, options, progress)?;
                orphans_possible |= !all_lived;
                index += 1;
            }
        }
        let pids: Vec<i32> = self.processes.iter().map(TreeProcess::pid).collect();
        self.processes[1..].iter_mut().try_for_each(|one| one.read_stopped(pids[one.parent]))
    }

    /// Adds the children of a stopped process that are not in the tree yet. Returns whether none of them has ended.
    fn add_children(
        &mut self,
        index: usize,
        options: &CaptureOptions,
        progress: &mut TreeStopProgress,
    ) -> Result<bool, CaptureError> {
        let TreeStopProgress { surveyed, pending_stops, stopped_tids } = progress;
        let (pid, mut all_lived) = (self.processes[index].pid(), true);
        // A process with a pending stop is not a template. The wait for its stop shows whether it has ended since.
        let is_known = |child: i32| surveyed.contains_key(&child) && pending_stops.contains(child);
        for found in self.processes[index].children_lists.list_all(pid, &stopped_tids[index], is_known)? {
            match found {
                ListedChild::Known(child) => {
                    let known = surveyed.remove(&child);
                    self.processes.extend(known.map(|known| TreeProcess { parent: index, ..known }));
                }
                ListedChild::Unreaped(pid, inner_id, stat) => {
                    if !self.unreaped.iter().any(|known| known.pid == pid) {
                        self.unreaped.push(UnreapedChild { pid, parent: index, inner_id, stat });
                    }
                }
                // The next pass finds a zombie.
                ListedChild::Exiting => all_lived = false,
                ListedChild::Living(child, _) if self.processes.iter().any(|known| known.pid() == child) => {}
                ListedChild::Living(child, stat) => {
                    let known = surveyed.remove(&child);
                    match known.filter(|known| known.prepared.survey.stat.start_ticks == stat.start_ticks) {
                        Some(known) => self.processes.push(TreeProcess { parent: index, ..known }),
                        None => match self.add_child(child, index, options, Duration::ZERO) {
                            Err(error) if is_exit_error(child, &error) => {
                                self.add_unreaped(child, index)?;
                                all_lived = false;
                            }
                            joined => joined?,
                        },
                    }
                }
            }
        }
        Ok(all_lived)
    }

    /// Moves a process from `processes` to `unreaped`: the process ended while others were stopped. No other process refers
    /// to it as its parent yet.
    fn move_to_unreaped(&mut self, index: usize) -> Result<(), CaptureError> {
        let TreeProcess { parent, prepared, .. } = self.processes.remove(index);
        let pid = prepared.survey.pid;
        // If the process was already traced, its parent is notified of the end only now.
        let _ = ptrace::reap(pid);
        self.add_unreaped(pid, parent)
    }

    fn add_unreaped(&mut self, pid: i32, parent: usize) -> Result<(), CaptureError> {
        if let Some(ListedChild::Unreaped(pid, inner_id, stat)) =
            children_lists::inspect_child(pid).map_err(CaptureError::reading(pid, "stat"))?
        {
            self.unreaped.push(UnreapedChild { pid, parent, inner_id, stat });
        }
        Ok(())
    }

    /// Surveys a child of the process with index `parent`, and adds the child to the tree.
    fn add_child(
        &mut self,
        pid: i32,
        parent: usize,
        options: &CaptureOptions,
        lock_timeout: Duration,
    ) -> Result<(), CaptureError> {
        let first = self.processes[0].pid();
        if self.processes.len() == PROCESSES_MAX {
            let reason = format!("it and its descendants are more than {PROCESSES_MAX} processes");
            return Err(CaptureError::refused(first, vec![Refusal::new(format!("pid {first}"), reason)]));
        }
        let unstable = |_| CaptureError::Unstable { pid, what: "another capture of it is under way".to_owned() };
        let trace_lock = TraceLock::acquire(pid, lock_timeout).map_err(unstable)?;
        let (prepared, common) = self.survey_child(pid, parent, options)?;
        self.processes
            .push(TreeProcess { shared_tables: common, ..TreeProcess::new(prepared, parent, Some(trace_lock)) });
        Ok(())
    }

    /// Surveys a stopped process again if it has executed another program since its survey.
    fn survey_again(&mut self, index: usize, options: &CaptureOptions) -> Result<(), CaptureError> {
        let TreeProcess { prepared, parent, .. } = &self.processes[index];
        let pid = prepared.survey.pid;
        if prepared.is_current()? {
            return Ok(());
        }
        if index == 0 {
            return Err(AuxiliaryVector::changed_error(pid));
        }
        let (prepared, common) = self.survey_child(pid, *parent, options)?;
        let renewed = &mut self.processes[index];
        (renewed.prepared, renewed.shared_tables) = (prepared, common);
        Ok(())
    }

    /// Surveys a child of the process with index `parent`.
    fn survey_child(
        &self,
        pid: i32,
        parent: usize,
        options: &CaptureOptions,
    ) -> Result<(PreparedProcess, SharedTables), CaptureError> {
        let sockets = options.daemon_sockets.for_descendant();
        let mut prepared = PreparedProcess::prepare(pid, options, &sockets, Some(&self.streams))?;
        let others = || self.processes.iter().filter(|one| one.pid() != pid);
        prepared.shared_sources.allocate_buffers(pid, others().map(|one| &one.prepared.shared_sources))?;
        let refusals = refuse_unsupported_sharing(pid, &others().map(TreeProcess::pid).collect::<Vec<_>>())?;
        if !refusals.is_empty() {
            return Err(CaptureError::refused(self.processes[0].pid(), refusals));
        }
        let parent_pid = self.processes[parent].pid();
        let common = SharedTables::read(pid, parent_pid)?;
        if prepared.survey.stat.parent != parent_pid {
            return Err(CaptureError::Unstable { pid, what: "its parent".to_owned() });
        }
        if common.memory && is_waiting_in_vfork(parent_pid) {
            let what = "its parent waits for it in vfork(2)".to_owned();
            return Err(CaptureError::Unstable { pid, what });
        }
        if common.memory && options.freeze {
            let reason = "it has its parent's address space (CLONE_VM), which cannot be frozen twice; drop `--freeze`";
            let refusal = Refusal::new(format!("pid {pid}"), reason);
            return Err(CaptureError::refused(self.processes[0].pid(), vec![refusal]));
        }
        Ok((prepared, common))
    }
}

/// Whether a thread waits in vfork(2). The process stops only after that wait, when the child no longer shares its memory.
fn is_waiting_in_vfork(pid: i32) -> bool {
    process::thread_ids(pid).unwrap_or_default().into_iter().any(vfork::is_in_vfork)
}

/// Whether an error means that the process has ended, or is about to.
fn is_exit_error(pid: i32, error: &CaptureError) -> bool {
    matches!(error, CaptureError::ProcessGone { .. }) || has_ended(pid)
}

/// Whether the process has ended, or is about to.
pub(super) fn has_ended(pid: i32) -> bool {
    match ProcStat::read(pid) {
        Ok(stat) if stat.state == 'Z' => !main_thread::has_only_main_thread_ended(pid),
        Ok(stat) => stat.state == 'X' || stat.is_exiting(),
        Err(_) => true,
    }
}
