//! A process and all that descends from it, captured as one.
//!
//! ```text
//!  running   survey: the first, its children, theirs …
//!  ┌ pause   stop: the first ─ its children, listed while it stands ─ theirs …
//!  │         each is paused and cloned; all stand until the last has been
//!  └ running                                    kin: who is whose child ─ merge: one descriptor
//! ```
//!
//! A process that stands makes no others, so that the lists are complete when the last one stands, however many were born
//! meanwhile. How one process is captured is the business of the modules above; a process without children is a tree, too.

mod brood;
mod kin;
mod merge;
mod one_of_all;

use std::collections::BTreeMap;
use std::time::Duration;

use farfork_sys::process::{self, Stat};
use farfork_sys::ptrace;
use farfork_wire::descriptor::PROCESSES_MAX;

use super::CaptureOptions;
use super::error::{CaptureError, Refusal};
use super::files::{self, ProgramSockets, Streams};
use super::pause::Prepared;
use super::stop::{self, Told};
use crate::capture::state::program::Program;
use crate::capture::stop::vfork;
use crate::capture::tracer::deadline::Deadline;
use crate::capture::tracer::turn::Turn;
use brood::{Brood, Found};
use one_of_all::Common;

pub(super) use kin::Kin;
pub(super) use merge::merge;
pub(super) use one_of_all::refusals;

/// Looks at one process: by its id, its connections to the daemon, and where the standard streams of its tree lead, if it is
/// not the first.
pub(super) trait Prepare: Fn(i32, &ProgramSockets, Option<&Streams>) -> Result<Prepared, CaptureError> {}

impl<F: Fn(i32, &ProgramSockets, Option<&Streams>) -> Result<Prepared, CaptureError>> Prepare for F {}

/// A running process and its living descendants, each behind its parent.
pub(super) fn all(pid: i32) -> Result<Vec<i32>, CaptureError> {
    let mut found = vec![pid];
    let mut index = 0;
    while index < found.len() && found.len() < PROCESSES_MAX {
        let parent = found[index];
        let tids = process::threads(parent).unwrap_or_default();
        for child in Brood::open(parent, tids.into_iter()).read()? {
            if let Found::Living(child, _) = child {
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
    /// The next wait tells of it.
    Waiting,
    /// A wait has told of it.
    Taken,
}

/// One process of a tree.
pub(super) struct Relative {
    pub(super) prepared: Prepared,
    /// Number of the process whose child it is.
    parent: usize,
    /// As it stood in the pause; of the first process, before it.
    stat: Stat,
    /// Of one that a signal had stopped.
    stop: Option<StopReport>,
    /// What it has in common with its parent.
    common: Common,
    brood: Brood,
    /// That of the first process is with whoever captures.
    _turn: Option<Turn>,
}

/// A child that has ended and has not been waited for.
#[derive(Debug)]
pub(super) struct Dead {
    pid: i32,
    parent: usize,
    inner_id: u32,
    stat: Stat,
}

/// A process and all that descends from it.
pub(super) struct Family {
    /// The first process, then others, each behind its parent.
    pub(super) relatives: Vec<Relative>,
    dead: Vec<Dead>,
    /// Where the standard streams of all of them lead.
    pub(super) streams: Streams,
}

impl Relative {
    pub(super) fn pid(&self) -> i32 {
        self.prepared.survey.pid
    }

    /// Whether its memory is its parent's (CLONE_VM).
    pub(super) fn has_parents_memory(&self) -> bool {
        self.common.memory
    }

    fn of(prepared: Prepared, parent: usize, turn: Option<Turn>) -> Self {
        let survey = &prepared.survey;
        let brood = Brood::open(survey.pid, survey.profiles.keys().copied());
        let stat = survey.stat.clone();
        Self { prepared, parent, stat, stop: None, common: Common::default(), brood, _turn: turn }
    }

    /// Notes how it stands, now that it and its parent do.
    fn note_standing(&mut self, parent: i32) -> Result<(), CaptureError> {
        let pid = self.pid();
        // What it had in common was with the parent that it had when it was looked at.
        let is_parent_still = self.stat.parent == parent;
        let common = if is_parent_still { self.common.still(pid, parent)? } else { Common::of(pid, parent)? };
        if self.common != common {
            let what = "what it shared with its parent was made its own".to_owned();
            return Err(CaptureError::Unstable { pid, what });
        }
        self.stat = Stat::read(pid).map_err(CaptureError::read(pid, "stat"))?;
        if self.stat.start_ticks != self.prepared.survey.stat.start_ticks {
            return Err(CaptureError::Unstable { pid, what: "the process of its number".to_owned() });
        }
        let is_stopped = ptrace::is_stopped_by_signal(pid).map_err(CaptureError::trace("look at the stop of", pid))?;
        // The kernel keeps the signal of a stop until the parent has waited for it.
        let report = if self.stat.exit_code == 0 { StopReport::Taken } else { StopReport::Waiting };
        self.stop = is_stopped.then_some(report);
        Ok(())
    }
}

impl Family {
    /// Looks at a running process, and at all that descends from it; `prepare` looks at one.
    pub(super) fn survey(pid: i32, options: &CaptureOptions, prepare: impl Prepare) -> Result<Self, CaptureError> {
        let mut first = prepare(pid, &options.sockets, None)?;
        first.shared.prepare(pid, std::iter::empty())?;
        let streams = Streams::of(pid, &first.survey.fds).led_inside(|| all(pid))?;
        if streams.lead_inside() {
            streams.mark(pid, &mut first.survey.fds);
        }
        let mut family = Self { relatives: vec![Relative::of(first, 0, None)], dead: Vec::new(), streams };
        let (mut index, mut refusals) = (0, Vec::new());
        while index < family.relatives.len() {
            for found in family.relatives[index].brood.read()? {
                let Found::Living(child, _) = found else { continue };
                match family.join(child, index, options, (options.timeout, &prepare)) {
                    Ok(()) | Err(CaptureError::Unstable { .. }) => {}
                    Err(CaptureError::Gone { .. }) => {}
                    Err(_) if has_ended(child) => {}
                    Err(CaptureError::Refused { refusals: its, .. }) => refusals.extend(its),
                    Err(error) => return Err(error),
                }
            }
            index += 1;
        }
        let fds = family.relatives.iter().map(|one| (one.pid(), &one.prepared.survey.fds[..]));
        refusals.extend(files::unpaired_terminals(fds)?);
        if refusals.is_empty() { Ok(family) } else { Err(CaptureError::refused(pid, refusals)) }
    }

    /// Stops all of them, and whoever was born meanwhile. Gives the threads of each.
    pub(super) fn stop(
        &mut self,
        options: &CaptureOptions,
        deadline: &Deadline,
        prepare: impl Prepare,
    ) -> Result<Vec<Vec<i32>>, CaptureError> {
        let mut standing = Vec::new();
        let mut told = Told::default();
        if self.relatives.len() > 1 {
            self.relatives.iter().for_each(|one| told.tell(one.pid()));
        }
        let stopped = self.stop_all(options, deadline, (&prepare, &mut told), &mut standing);
        told.let_go();
        if stopped.is_err() {
            // Nothing of them was changed.
            standing.iter().flatten().for_each(|tid| drop(ptrace::detach(*tid)));
        }
        stopped?;
        let (first, others) = self.relatives.split_at_mut(1);
        others.iter_mut().for_each(|one| first[0].prepared.shared.absorb(std::mem::take(&mut one.prepared.shared)));
        Ok(standing)
    }

    fn stop_all(
        &mut self,
        options: &CaptureOptions,
        deadline: &Deadline,
        (prepare, told): (&impl Prepare, &mut Told),
        standing: &mut Vec<Vec<i32>>,
    ) -> Result<(), CaptureError> {
        let surveyed = self.relatives.drain(1..).map(|one| (one.pid(), one));
        let mut surveyed: BTreeMap<i32, Relative> = surveyed.collect();
        self.dead.clear();
        let mut orphans_possible = true;
        while orphans_possible {
            if deadline.is_over() {
                let (pid, phase) = (self.relatives[0].pid(), "stopping a tree whose processes come and go");
                return Err(CaptureError::TimedOut { pid, limit: deadline.limit(), phase });
            }
            // The children of who ended meanwhile are others' by now, whose lists were read already.
            orphans_possible = false;
            let mut index = 0;
            while index < self.relatives.len() {
                if index == standing.len() {
                    let pid = self.relatives[index].pid();
                    let stood = stop::stop_told(pid, deadline, told);
                    let stood =
                        stood.map(|tids| standing.push(tids)).and_then(|()| self.renew(index, options, prepare));
                    match stood {
                        Ok(()) => {}
                        Err(error) if index > 0 && is_of_an_end(pid, &error) => {
                            standing.truncate(index);
                            self.bury(index)?;
                            orphans_possible = true;
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                let known = (&mut surveyed, &*told);
                let all_lived = self.list_children(index, &standing[index], options, (known, prepare))?;
                orphans_possible |= !all_lived;
                index += 1;
            }
        }
        let pids: Vec<i32> = self.relatives.iter().map(Relative::pid).collect();
        self.relatives[1..].iter_mut().try_for_each(|one| one.note_standing(pids[one.parent]))
    }

    /// Adds the children of a process that stands, as far as they are not known yet. Tells whether none ended meanwhile.
    fn list_children(
        &mut self,
        index: usize,
        tids: &[i32],
        options: &CaptureOptions,
        ((surveyed, told), prepare): ((&mut BTreeMap<i32, Relative>, &Told), &impl Prepare),
    ) -> Result<bool, CaptureError> {
        let (pid, mut all_lived) = (self.relatives[index].pid(), true);
        // Who was told to stop is nobody's template, and whether it has ended since is heard when it is waited for.
        let is_known = |child: i32| surveyed.contains_key(&child) && told.knows(child);
        for found in self.relatives[index].brood.read_all(pid, tids, is_known)? {
            match found {
                Found::Known(child) => {
                    let known = surveyed.remove(&child);
                    self.relatives.extend(known.map(|known| Relative { parent: index, ..known }));
                }
                Found::Dead(pid, inner_id, stat) => {
                    if !self.dead.iter().any(|known| known.pid == pid) {
                        self.dead.push(Dead { pid, parent: index, inner_id, stat });
                    }
                }
                // It is a zombie at the next look.
                Found::Dying => all_lived = false,
                Found::Living(child, _) if self.relatives.iter().any(|known| known.pid() == child) => {}
                Found::Living(child, stat) => {
                    let known = surveyed.remove(&child);
                    match known.filter(|known| known.prepared.survey.stat.start_ticks == stat.start_ticks) {
                        Some(known) => self.relatives.push(Relative { parent: index, ..known }),
                        None => match self.join(child, index, options, (Duration::ZERO, prepare)) {
                            Err(error) if is_of_an_end(child, &error) => {
                                self.note_end(child, index)?;
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

    /// One that has ended while the others were stopped. Nobody knew it as a parent yet.
    fn bury(&mut self, index: usize) -> Result<(), CaptureError> {
        let Relative { parent, prepared, .. } = self.relatives.remove(index);
        let pid = prepared.survey.pid;
        // Where it was traced already, its parent hears of its end only now.
        let _ = ptrace::reap(pid);
        self.note_end(pid, parent)
    }

    fn note_end(&mut self, pid: i32, parent: usize) -> Result<(), CaptureError> {
        if let Some(Found::Dead(pid, inner_id, stat)) = brood::look(pid).map_err(CaptureError::read(pid, "stat"))? {
            self.dead.push(Dead { pid, parent, inner_id, stat });
        }
        Ok(())
    }

    /// Adds a process that is a child of another.
    fn join(
        &mut self,
        pid: i32,
        parent: usize,
        options: &CaptureOptions,
        (patience, prepare): (Duration, &impl Prepare),
    ) -> Result<(), CaptureError> {
        let first = self.relatives[0].pid();
        if self.relatives.len() == PROCESSES_MAX {
            let reason = format!("it and its descendants are more than {PROCESSES_MAX} processes");
            return Err(CaptureError::refused(first, vec![Refusal::new(format!("pid {first}"), reason)]));
        }
        let unstable = || CaptureError::Unstable { pid, what: "another capture of it is under way".to_owned() };
        let turn = Turn::wait(pid, patience).ok_or_else(unstable)?;
        let (prepared, common) = self.look_at(pid, parent, options, prepare)?;
        self.relatives.push(Relative { common, ..Relative::of(prepared, parent, Some(turn)) });
        Ok(())
    }

    /// Looks once more at one that stands, where it has begun another program since it was looked at.
    fn renew(&mut self, index: usize, options: &CaptureOptions, prepare: &impl Prepare) -> Result<(), CaptureError> {
        let Relative { prepared, parent, .. } = &self.relatives[index];
        let pid = prepared.survey.pid;
        if prepared.is_current()? {
            return Ok(());
        }
        if index == 0 {
            return Err(Program::changed(pid));
        }
        let (prepared, common) = self.look_at(pid, *parent, options, prepare)?;
        let renewed = &mut self.relatives[index];
        (renewed.prepared, renewed.common) = (prepared, common);
        Ok(())
    }

    /// Looks at a process that is a child of another.
    fn look_at(
        &self,
        pid: i32,
        parent: usize,
        options: &CaptureOptions,
        prepare: impl Prepare,
    ) -> Result<(Prepared, Common), CaptureError> {
        let mut prepared = prepare(pid, &options.sockets.of_descendant(), Some(&self.streams))?;
        let others = || self.relatives.iter().filter(|one| one.pid() != pid);
        prepared.shared.prepare(pid, others().map(|one| &one.prepared.shared))?;
        let refusals = refusals(pid, &others().map(Relative::pid).collect::<Vec<_>>())?;
        if !refusals.is_empty() {
            return Err(CaptureError::refused(self.relatives[0].pid(), refusals));
        }
        let parent_pid = self.relatives[parent].pid();
        let common = Common::of(pid, parent_pid)?;
        if prepared.survey.stat.parent != parent_pid {
            return Err(CaptureError::Unstable { pid, what: "its parent".to_owned() });
        }
        if common.memory && waits_in_vfork(parent_pid) {
            let what = "its parent waits for it in vfork(2)".to_owned();
            return Err(CaptureError::Unstable { pid, what });
        }
        if common.memory && options.freeze {
            let reason =
                "it has its parent's address space (CLONE_VM), which cannot be frozen twice; leave `--freeze` out";
            let refusal = Refusal::new(format!("pid {pid}"), reason);
            return Err(CaptureError::refused(self.relatives[0].pid(), vec![refusal]));
        }
        Ok((prepared, common))
    }
}

/// Whether a process has a child for a moment that it will have no more when it stands.
fn waits_in_vfork(pid: i32) -> bool {
    process::threads(pid).unwrap_or_default().into_iter().any(vfork::holds)
}

/// Whether an error is about a process that has ended meanwhile, or is about to.
fn is_of_an_end(pid: i32, error: &CaptureError) -> bool {
    matches!(error, CaptureError::Gone { .. }) || has_ended(pid)
}

/// Whether there is no such process any more, or it is about to end.
pub(super) fn has_ended(pid: i32) -> bool {
    !Stat::read(pid).is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X') && !stat.is_exiting())
}
