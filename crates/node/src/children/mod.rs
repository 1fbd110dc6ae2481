//! The children of this node: started here, watched until they end, listed until they are evicted.
//!
//! A child's state is stored in files of its directory: the child needs no daemon, and a restarted daemon finds the
//! state. `child.json` describes the child, `stdout` and `stderr` hold its output, and its container's stub writes
//! `exit` when the child ends.

mod budget;
mod child;
mod counter_totals;
mod counters;
mod exit;
mod exit_workers;
mod handback;
mod kill_limit;
mod lifecycle;
mod maintenance;
mod output;
mod record;
mod retention;
mod table;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_api::run_dir::RunDir;
use farfork_container::{Leftovers, RunningContainer};
use farfork_fork::pager::PagerCounters;
use farfork_wire::ChildId;
use tokio::task::JoinSet;
use tonic::Code;

use crate::clock;
use crate::network::{BoundPort, ChildForwarding, ReopenedProxies};
use crate::pager_link::PagerLink;

pub(crate) use budget::ChildBudget;
pub(crate) use child::{Child, ChildSockets, ChildStatus, OutputStream};
use counter_totals::CounterTotals;
pub(crate) use counters::{cache_use, pager_stats};
pub(crate) use exit::Exit;
use exit_workers::ExitWorkers;
pub(crate) use kill_limit::KillLimit;
pub(crate) use maintenance::run_child_maintenance;
pub(crate) use output::{OutputReader, OutputWatcher};
pub(crate) use record::{ChildRecord, ExitRecord};
use retention::{CleanedUpChild, EvictionBatch, end_instant};
pub(crate) use table::HeldChild;
use table::SharedChildTable;

/// Longest wait for the cleanup of an ended child. Freeing a large memory takes time.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(8);

/// The children of this node.
#[derive(Debug)]
pub(crate) struct ChildSupervisor {
    run_dir: RunDir,
    table: SharedChildTable,
    counter_totals: CounterTotals,
    output_watcher: Arc<OutputWatcher>,
    pager: Arc<PagerLink>,
    /// Watchers of running children. The next daemon watches children that outlive this one.
    watchers: Mutex<JoinSet<()>>,
    exit_workers: Arc<ExitWorkers>,
}

/// A child that was just started, with its container, sockets and forwarding.
#[derive(Debug)]
pub(crate) struct StartedChild {
    /// Its description.
    pub(crate) record: ChildRecord,
    /// Its container.
    pub(crate) container: RunningContainer,
    /// The daemon's ends of its pipes and sockets.
    pub(crate) sockets: ChildSockets,
    /// Forwards connections to the child, and from the child to allowed destinations.
    pub(crate) forwarding: ChildForwarding,
}

impl ChildSupervisor {
    /// Creates a supervisor without children. Must be called within the runtime.
    ///
    /// # Errors
    /// As inotify_init1(2).
    pub(crate) fn new(run_dir: RunDir, pager: Arc<PagerLink>) -> io::Result<Self> {
        let output = OutputWatcher::start()?;
        let (table, watchers, exit_workers) = (SharedChildTable::default(), Mutex::default(), Arc::default());
        Ok(Self {
            run_dir,
            table,
            counter_totals: CounterTotals::default(),
            output_watcher: output,
            pager,
            watchers,
            exit_workers,
        })
    }

    /// Takes over a child that was just started, and watches it.
    pub(crate) fn add(&self, started_child: StartedChild) -> Arc<Child> {
        let StartedChild { record, container, sockets, forwarding } = started_child;
        let directory = self.run_dir.child_dir(&record.id);
        let cgroup = Some(container.cgroup().clone());
        let child = Arc::new(Child::from_started(record, directory, sockets, cgroup));
        self.table.lock().insert(child.clone());
        self.spawn_watcher(child.clone(), container, forwarding);
        child
    }

    /// Adopts the children that an earlier daemon of this run directory started. `leftovers` are the containers of that
    /// daemon. A directory that describes no child is removed, because its start was never completed.
    ///
    /// # Errors
    /// The directories cannot be listed.
    pub(crate) fn adopt(&self, mut leftovers: Leftovers) -> io::Result<()> {
        let mut reopened = ReopenedProxies::default();
        for entry in fs::read_dir(self.run_dir.children_dir())? {
            let directory = entry?.path();
            match ChildRecord::read(&directory) {
                Ok(record) => self.adopt_child(record, directory, &mut leftovers, &mut reopened),
                Err(error) => {
                    tracing::info!(directory = %directory.display(), %error, "removing a directory that describes no child");
                    remove_directory(&directory);
                }
            }
        }
        for container in leftovers.running {
            tracing::info!(container = container.id(), "removing a container without a child");
            if let Err(error) = container.remove() {
                tracing::warn!(%error, "a container could not be removed");
            }
        }
        self.enter_past_exits();
        self.evict_ended(usize::MAX);
        Ok(())
    }

    /// Registers the adopted children that have ended for eviction, in the order of their ends.
    fn enter_past_exits(&self) {
        let (now, now_unix_ms) = (Instant::now(), clock::unix_ms_now());
        let mut table = self.table.lock();
        let cleaned_up = table.all().filter(|child| child.is_cleaned_up());
        let mut found: Vec<(u64, Arc<Child>)> =
            cleaned_up.filter_map(|child| Some((child.exit_record()?.unix_ms, child.clone()))).collect();
        found.sort_by_key(|(ended_unix_ms, _)| *ended_unix_ms);
        for (ended_unix_ms, child) in found {
            let at = end_instant(now, now_unix_ms, ended_unix_ms);
            let bytes = disk_usage(child.directory());
            table.mark_cleaned_up(&child.record().id, CleanedUpChild { ended_at: at, bytes });
        }
    }

    fn adopt_child(
        &self,
        record: ChildRecord,
        directory: PathBuf,
        Leftovers { running, oom_killed: killed, .. }: &mut Leftovers,
        reopened: &mut ReopenedProxies,
    ) {
        let container = running.iter().position(|container| container.id() == record.container);
        let container = container.map(|index| running.swap_remove(index));
        let cgroup = container.as_ref().map(|container| container.cgroup().clone());
        let child = Arc::new(Child::from_record(record, directory, cgroup));
        match container {
            Some(container) => {
                let forwarding = reopen_forwarding(child.record(), reopened);
                self.table.lock().insert(child.clone());
                self.spawn_watcher(child, container, forwarding);
            }
            None => {
                let memory_end = killed.iter().find(|(id, _)| *id == child.record().container).map(|(_, end)| *end);
                lifecycle::record_past_exit(&child, memory_end, &self.pager);
                self.table.lock().insert(child);
            }
        }
    }

    fn spawn_watcher(&self, child: Arc<Child>, container: RunningContainer, forwarding: ChildForwarding) {
        let table = self.table.clone();
        let (pager, exit_workers) = (self.pager.clone(), self.exit_workers.clone());
        let watcher = async move {
            let container = lifecycle::watch_until_exit(&child, container, forwarding).await;
            exit_workers.submit(Box::new(move || {
                lifecycle::clean_up(&child, &container, &pager);
                let id = &child.record().id;
                if child.is_cleaned_up() {
                    let cleaned_up = CleanedUpChild { ended_at: Instant::now(), bytes: disk_usage(child.directory()) };
                    table.lock().mark_cleaned_up(id, cleaned_up);
                } else {
                    table.lock().mark_ended(id);
                }
            }));
        };
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        while watchers.try_join_next().is_some() {}
        watchers.spawn(watcher);
    }

    /// Returns the child with this id.
    ///
    /// # Errors
    /// No child has this id.
    pub(crate) fn get(&self, id: &ChildId) -> Result<Arc<Child>, Failure> {
        let child = self.table.lock().get(id);
        child.ok_or_else(|| unknown_child(id))
    }

    /// Returns the child with this id, for a request during which the child must not be evicted.
    ///
    /// # Errors
    /// No child has this id.
    pub(crate) fn hold(&self, id: &ChildId) -> Result<HeldChild, Failure> {
        self.table.hold(id).ok_or_else(|| unknown_child(id))
    }

    /// Finds the child to which process `pid` belongs: a child and its descendants share a pid namespace, which no
    /// process can leave.
    pub(crate) fn find_by_pid(&self, pid: u32) -> Option<Arc<Child>> {
        // Skip the search if the node has no live children: a program waits for the result.
        if self.count_alive() == 0 {
            return None;
        }
        let namespace = |pid: &dyn std::fmt::Display| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let wanted = namespace(&pid).filter(|wanted| namespace(&"self").as_ref() != Some(wanted))?;
        let living: Vec<Arc<Child>> = self.all_alive();
        let is_its = |child: &Arc<Child>| child.pid().and_then(|pid| namespace(&pid)).as_ref() == Some(&wanted);
        living.into_iter().find(is_its)
    }

    /// All live children.
    pub(crate) fn all_alive(&self) -> Vec<Arc<Child>> {
        self.table.lock().alive().cloned().collect()
    }

    /// All children, the oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Child>> {
        let mut children: Vec<Arc<Child>> = self.table.lock().all().cloned().collect();
        children.sort_by_key(|child| child.record().started_unix_ms);
        children
    }

    /// How many children are alive.
    pub(crate) fn count_alive(&self) -> usize {
        self.table.lock().alive().count()
    }

    /// Sum of the memory limits of live children, in bytes.
    pub(crate) fn sum_memory_limits(&self) -> u64 {
        self.table.lock().alive().filter_map(|child| child.record().memory_bytes_max).sum()
    }

    /// Returns the sums of the pager's counters over all children that this node has had. Blocks: queries the pager for
    /// each live child.
    pub(crate) fn pager_counters(&self) -> PagerCounters {
        // Read the children and the sums of evicted ones under one lock, so that a child that is being evicted counts
        // exactly once.
        let (children, forgotten) = {
            let table = self.table.lock();
            (table.all().cloned().collect::<Vec<_>>(), self.counter_totals.evicted_total())
        };
        self.counter_totals.total(forgotten, &children, &self.pager)
    }

    /// Returns the watcher that reports growth of the children's output files.
    pub(crate) fn output_watcher(&self) -> &Arc<OutputWatcher> {
        &self.output_watcher
    }

    /// Removes an ended child from the list, with its directory.
    ///
    /// # Errors
    /// No child has this id, it has not ended, or its container could not be removed in time.
    pub(crate) async fn remove(&self, id: &ChildId) -> Result<(), Failure> {
        let child = self.get(id)?;
        if child.is_alive() {
            return Err(child
                .failure(Code::FailedPrecondition, "it has not ended")
                .with_next_step(format!("end it first: `farfork kill {id}`")));
        }
        if !child.wait_cleaned_up(CLEANUP_TIMEOUT).await {
            return Err(child
                .failure(Code::Unavailable, "its container is still being removed")
                .with_next_step("try again; its node's log may give the reason"));
        }
        self.evict(&child);
        Ok(())
    }

    /// Evicts ended children if there are too many, at most `count_max`. Blocks.
    pub(crate) fn evict_ended(&self, count_max: usize) {
        let (forgotten, uncollected) = {
            let mut table = self.table.lock();
            let EvictionBatch { children, uncollected } = table.take_surplus(Instant::now(), count_max);
            let forgotten: Vec<Arc<Child>> = children.iter().filter_map(|id| table.remove(id)).collect();
            forgotten.iter().for_each(|child| self.counter_totals.add_evicted(child));
            (forgotten, uncollected)
        };
        if uncollected > 0 {
            tracing::warn!(
                uncollected,
                "ended children are removed although no request has collected their exit status: there are too many"
            );
        }
        forgotten.iter().for_each(|child| remove_directory(child.directory()));
    }

    /// Evicts a child. If two callers do so at the same time, only the first removes its directory.
    fn evict(&self, child: &Child) {
        let known = {
            let mut table = self.table.lock();
            let known = table.remove(&child.record().id);
            known.iter().for_each(|child| self.counter_totals.add_evicted(child));
            known
        };
        if let Some(child) = known {
            remove_directory(child.directory());
        }
    }

    /// Kills all children, waits for their ends, and evicts them, because the node stops for good.
    pub(crate) async fn kill_all(&self) {
        for child in self.all() {
            // The child may have ended by itself.
            let _ = child.kill(rustix::process::Signal::KILL.as_raw().unsigned_abs());
        }
        let mut watchers = std::mem::take(&mut *self.watchers.lock().unwrap_or_else(PoisonError::into_inner));
        while watchers.join_next().await.is_some() {}
        self.exit_workers.wait_idle().await;
        self.all().iter().for_each(|child| self.evict(child));
    }
}

fn unknown_child(id: &ChildId) -> Failure {
    Failure::new(Code::NotFound, format!("child {id}"), "its node has no such child")
        .with_next_step("list children with `farfork ps`; those that ended long ago are removed")
}

/// Returns the disk space of a directory's files, in bytes. A file with n links counts 1/n. 0 if the directory cannot
/// be read.
fn disk_usage(directory: &Path) -> u64 {
    const BLOCK_BYTES: u64 = 512;
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.metadata().ok());
    files.map(|file| file.blocks() * BLOCK_BYTES / file.nlink().max(1)).sum()
}

fn remove_directory(directory: &Path) {
    if let Err(error) = fs::remove_dir_all(directory) {
        tracing::warn!(directory = %directory.display(), %error, "a child's directory is not removed");
    }
}

/// Opens an adopted child's forwarding again. If its ports or its proxy cannot be opened, the child continues without
/// them.
fn reopen_forwarding(record: &ChildRecord, reopened: &mut ReopenedProxies) -> ChildForwarding {
    let published = BoundPort::bind_all(&record.publish).unwrap_or_else(|failure| {
        tracing::warn!(child = %record.id, %failure, "a child's ports are no longer forwarded");
        Vec::new()
    });
    reopened.reopen(published, &record.egress, &record.process)
}
