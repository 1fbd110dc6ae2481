//! The children of this node: started here, watched until they end, listed until they are forgotten.
//!
//! A child's state is files in its directory, so that it needs no daemon to go on, and a daemon that starts again
//! finds it: `child.json` says what it is, `stdout` and `stderr` are what it wrote, `exit` is left by its container's
//! stub when it ends.

mod budget;
mod child;
mod counters;
mod ends;
mod exit;
mod handback;
mod life;
mod limit;
mod output;
mod record;
mod register;
mod retention;
mod tally;
mod tending;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farfork_container::{Leftovers, RunningContainer};
use farfork_fork::pager::PagerCounters;
use farfork_wire::ChildId;
use tokio::net::unix::pipe;
use tokio::task::JoinSet;
use tonic::Code;

use crate::clock;
use crate::failure::Failure;
use crate::network::{Doors, Published, Reopened};
use crate::pager_link::PagerLink;
use crate::run_dir::RunDir;

pub(crate) use budget::ChildBudget;
pub(crate) use child::{Child, Status, Stream};
use ends::Ends;
pub(crate) use exit::Exit;
pub(crate) use limit::Limit;
pub(crate) use output::{Output, OutputWatch};
pub(crate) use record::{Ended, Record};
pub(crate) use register::HeldChild;
use register::SharedRegister;
use retention::{SettledChild, Surplus, instant_of_end};
use tally::Tally;
pub(crate) use tending::tend;

/// For what is left of a child that has ended to be removed: its memory may be large.
const SETTLE_LIMIT: Duration = Duration::from_secs(8);

/// The children of this node.
#[derive(Debug)]
pub(crate) struct Children {
    run_dir: RunDir,
    register: SharedRegister,
    tally: Tally,
    output: Arc<OutputWatch>,
    pager: Arc<PagerLink>,
    /// As long as they last. Those that last longer than the daemon are for the next one, with their ends.
    lives: Mutex<JoinSet<()>>,
    ends: Arc<Ends>,
}

/// What belongs to a child that has just been started.
#[derive(Debug)]
pub(crate) struct Newborn {
    /// What it is.
    pub(crate) record: Record,
    /// Where it lives.
    pub(crate) container: RunningContainer,
    /// Our end of its standard input, where somebody will attach.
    pub(crate) stdin: Option<pipe::Sender>,
    /// The socket that it waits at, where it is paused.
    pub(crate) gate: Option<OwnedFd>,
    /// What leads to it, and from it to others.
    pub(crate) doors: Doors,
}

impl Children {
    /// No children yet. Must be called within the runtime.
    ///
    /// # Errors
    /// As inotify_init1(2).
    pub(crate) fn new(run_dir: RunDir, pager: Arc<PagerLink>) -> io::Result<Self> {
        let output = OutputWatch::start()?;
        let (register, lives, ends) = (SharedRegister::default(), Mutex::default(), Arc::default());
        Ok(Self { run_dir, register, tally: Tally::default(), output, pager, lives, ends })
    }

    /// Takes a child that was just started, and watches over it.
    pub(crate) fn add(&self, newborn: Newborn) -> Arc<Child> {
        let Newborn { record, container, stdin, gate, doors } = newborn;
        let directory = self.run_dir.child(&record.id);
        let cgroup = Some(container.cgroup().clone());
        let child = Arc::new(Child::started(record, directory, stdin, gate, cgroup));
        self.register.lock().insert(child.clone());
        self.watch_over(child.clone(), container, doors);
        child
    }

    /// Takes over the children that an earlier daemon of this run directory started; `leftovers` are its containers. A directory that tells no child is removed: its start was never finished.
    ///
    /// # Errors
    /// The directories cannot be listed.
    pub(crate) fn adopt(&self, mut leftovers: Leftovers) -> io::Result<()> {
        let mut reopened = Reopened::default();
        for entry in fs::read_dir(self.run_dir.children())? {
            let directory = entry?.path();
            match Record::read(&directory) {
                Ok(record) => self.adopt_child(record, directory, &mut leftovers, &mut reopened),
                Err(error) => {
                    tracing::info!(directory = %directory.display(), %error, "removing what is no child");
                    remove_directory(&directory);
                }
            }
        }
        for container in leftovers.running {
            tracing::info!(container = container.id(), "removing a container without a child");
            if let Err(error) = container.remove() {
                tracing::warn!(%error, "a container is not removed");
            }
        }
        self.settle_found();
        self.keep_to_limit(usize::MAX);
        Ok(())
    }

    /// Those that had ended before: the first to end first.
    fn settle_found(&self) {
        let (now, now_unix_ms) = (Instant::now(), clock::unix_ms_now());
        let mut register = self.register.lock();
        let settled = register.all().filter(|child| child.is_settled());
        let mut found: Vec<(u64, Arc<Child>)> =
            settled.filter_map(|child| Some((child.ended()?.unix_ms, child.clone()))).collect();
        found.sort_by_key(|(ended_unix_ms, _)| *ended_unix_ms);
        for (ended_unix_ms, child) in found {
            let at = instant_of_end(now, now_unix_ms, ended_unix_ms);
            let bytes = bytes_on_disk(child.directory());
            register.settle(&child.record().id, SettledChild { at, bytes });
        }
    }

    fn adopt_child(
        &self,
        record: Record,
        directory: PathBuf,
        Leftovers { running, killed, .. }: &mut Leftovers,
        reopened: &mut Reopened,
    ) {
        let container = running.iter().position(|container| container.id() == record.container);
        let container = container.map(|index| running.swap_remove(index));
        let cgroup = container.as_ref().map(|container| container.cgroup().clone());
        let child = Arc::new(Child::adopted(record, directory, cgroup));
        match container {
            Some(container) => {
                let doors = doors_of(child.record(), reopened);
                self.register.lock().insert(child.clone());
                self.watch_over(child, container, doors);
            }
            None => {
                let memory_end = killed.iter().find(|(id, _)| *id == child.record().container).map(|(_, end)| *end);
                life::conclude_past(&child, memory_end, &self.pager);
                self.register.lock().insert(child);
            }
        }
    }

    fn watch_over(&self, child: Arc<Child>, container: RunningContainer, doors: Doors) {
        let register = self.register.clone();
        let (pager, ends) = (self.pager.clone(), self.ends.clone());
        let life = async move {
            let container = life::watch_over(&child, container, doors).await;
            ends.deal_with(Box::new(move || {
                life::conclude(&child, &container, &pager);
                let id = &child.record().id;
                if child.is_settled() {
                    let settled = SettledChild { at: Instant::now(), bytes: bytes_on_disk(child.directory()) };
                    register.lock().settle(id, settled);
                } else {
                    register.lock().end(id);
                }
            }));
        };
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        while lives.try_join_next().is_some() {}
        lives.spawn(life);
    }

    /// The child of an id.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn get(&self, id: &ChildId) -> Result<Arc<Child>, Failure> {
        let child = self.register.lock().get(id);
        child.ok_or_else(|| unknown(id))
    }

    /// The child of an id, for a request that needs it to stay listed.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn hold(&self, id: &ChildId) -> Result<HeldChild, Failure> {
        self.register.hold(id).ok_or_else(|| unknown(id))
    }

    /// The child that a process is, or that forked it: they share a pid namespace, which nobody leaves.
    pub(crate) fn of_process(&self, pid: u32) -> Option<Arc<Child>> {
        // A node without children need not look: a program waits for this.
        if self.living() == 0 {
            return None;
        }
        let namespace = |pid: &dyn std::fmt::Display| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let wanted = namespace(&pid).filter(|wanted| namespace(&"self").as_ref() != Some(wanted))?;
        let living: Vec<Arc<Child>> = self.all_living();
        let is_its = |child: &Arc<Child>| child.pid().and_then(|pid| namespace(&pid)).as_ref() == Some(&wanted);
        living.into_iter().find(is_its)
    }

    /// Those that have not ended.
    pub(crate) fn all_living(&self) -> Vec<Arc<Child>> {
        self.register.lock().living().cloned().collect()
    }

    /// All of them, the oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Child>> {
        let mut children: Vec<Arc<Child>> = self.register.lock().all().cloned().collect();
        children.sort_by_key(|child| child.record().started_unix_ms);
        children
    }

    /// How many have not ended.
    pub(crate) fn living(&self) -> usize {
        self.register.lock().living().count()
    }

    /// What those that have not ended may use together, by their limits.
    pub(crate) fn limits_bytes(&self) -> u64 {
        self.register.lock().living().filter_map(|child| child.record().memory_bytes_max).sum()
    }

    /// What the pager has counted for all children that this node has had. Blocks: it is asked for each that runs.
    pub(crate) fn counted(&self) -> PagerCounters {
        // Under the table's lock, so that a child that is forgotten meanwhile counts once.
        let (children, forgotten) = {
            let register = self.register.lock();
            (register.all().cloned().collect::<Vec<_>>(), self.tally.forgotten())
        };
        self.tally.sum(forgotten, &children, &self.pager)
    }

    /// Tells when files of children grow.
    pub(crate) fn output(&self) -> &Arc<OutputWatch> {
        &self.output
    }

    /// Forgets a child that has ended, and removes its directory.
    ///
    /// # Errors
    /// There is none of that id, it has not ended, or what is left of it cannot be removed.
    pub(crate) async fn remove(&self, id: &ChildId) -> Result<(), Failure> {
        let child = self.get(id)?;
        if child.lives() {
            return Err(child
                .failure(Code::FailedPrecondition, "it has not ended")
                .with_next_step(format!("end it first: `farfork kill {id}`")));
        }
        if !child.wait_settled(SETTLE_LIMIT).await {
            return Err(child
                .failure(Code::Unavailable, "its container is still being removed")
                .with_next_step("try again; its node's log may say what keeps it"));
        }
        self.forget(&child);
        Ok(())
    }

    /// Forgets ended children where there are too many, at most so many of them. Blocks.
    pub(crate) fn keep_to_limit(&self, count_max: usize) {
        let (forgotten, uncollected) = {
            let mut register = self.register.lock();
            let Surplus { children, uncollected } = register.surplus(Instant::now(), count_max);
            let forgotten: Vec<Arc<Child>> = children.iter().filter_map(|id| register.forget(id)).collect();
            forgotten.iter().for_each(|child| self.tally.forget(child));
            (forgotten, uncollected)
        };
        if uncollected > 0 {
            tracing::warn!(uncollected, "children are forgotten whose ends nobody has asked for: there are too many");
        }
        forgotten.iter().for_each(|child| remove_directory(child.directory()));
    }

    /// Each of two who forget a child at the same time may find its directory gone.
    fn forget(&self, child: &Child) {
        let known = {
            let mut register = self.register.lock();
            let known = register.forget(&child.record().id);
            known.iter().for_each(|child| self.tally.forget(child));
            known
        };
        if let Some(child) = known {
            remove_directory(child.directory());
        }
    }

    /// Kills all, waits for their ends, and forgets them: the node stops for good.
    pub(crate) async fn end_all(&self) {
        for child in self.all() {
            // It may have ended by itself.
            let _ = child.kill(rustix::process::Signal::KILL.as_raw().unsigned_abs());
        }
        let mut lives = std::mem::take(&mut *self.lives.lock().unwrap_or_else(PoisonError::into_inner));
        while lives.join_next().await.is_some() {}
        self.ends.dealt_with().await;
        self.all().iter().for_each(|child| self.forget(child));
    }
}

fn unknown(id: &ChildId) -> Failure {
    Failure::new(Code::NotFound, format!("child {id}"), "its node knows no such child")
        .with_next_step("list children with `farfork ps`; those that ended long ago are forgotten")
}

/// What the files of a directory take; of one that several directories share, this one's part. None where it cannot be read.
fn bytes_on_disk(directory: &Path) -> u64 {
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

/// What led to a child, and from it to others, is opened again. A child that one cannot be opened for goes on without.
fn doors_of(record: &Record, reopened: &mut Reopened) -> Doors {
    let published = Published::take(&record.publish).unwrap_or_else(|failure| {
        tracing::warn!(child = %record.id, %failure, "a child's ports lead to it no more");
        Vec::new()
    });
    reopened.doors(published, &record.egress, &record.process)
}
