//! Who is whose child, in which group and in which session, by the ids that the processes themselves know.
//!
//! The session and the group of the first process are not in a child's container: there it leads its own, and who shared
//! them with it shares these. A process can be born into the session that its parent has, or had before it began one; or into that of
//! a child of its parent which has ended since, and left it to that.

use std::collections::BTreeMap;

use farfork_sys::process::{Stat, Status};
use farfork_wire::descriptor::{Kinship, Zombie};

use super::one_of_all::Common;
use super::{Dead, Family, Relative, StopReport};
use crate::capture::error::Refusal;
use crate::capture::files::Seat;

/// How the processes of a tree belong together.
#[derive(Debug, Default)]
pub(in super::super) struct Kin {
    /// Of each process but the first.
    pub(super) members: Vec<Kinship>,
    /// Whether a signal had stopped each of them, and whether its parent had waited for that.
    pub(super) stops: Vec<Option<StopReport>>,
    pub(super) zombies: Vec<Zombie>,
    /// The ids that processes know, by those that we do.
    pub(in super::super) ids: BTreeMap<i32, u32>,
    /// For whose a terminal is: of the living by their numbers, then of those who have ended.
    pub(in super::super) seats: Vec<Seat>,
    /// Groups whose leaders have ended and were waited for, with their sessions.
    leaderless: BTreeMap<u32, u32>,
}

impl Kin {
    /// Those of a tree that stood; or what cannot be made again.
    pub(in super::super) fn of(family: &Family) -> Result<Self, Vec<Refusal>> {
        let Family { relatives, dead, .. } = family;
        let living = relatives.iter().map(|one| (one.pid(), one.prepared.survey.inner_id()));
        let ids: BTreeMap<i32, u32> = living.chain(dead.iter().map(|one| (one.pid, one.inner_id))).collect();
        let mut kin = Self { ids, ..Self::default() };
        let (first, others) = relatives.split_at(1);
        let first = (first[0].pid(), &first[0].stat);
        let own = kin.ids[&first.0];
        kin.seats.push(seat(first, own, own));
        let mut refusals = Vec::new();
        for one in others {
            let status = one.prepared.survey.profiles.get(&one.pid()).map(|leader| &leader.status);
            match kin.kinship(first, (one.pid(), &one.stat, status), one.parent) {
                Ok(kinship) => {
                    let Common { directory, files, memory, handlers } = one.common;
                    kin.seats.push(seat((one.pid(), &one.stat), kinship.session, kinship.group));
                    kin.members.push(Kinship {
                        shares_directory: directory,
                        shares_files: files,
                        shares_memory: memory,
                        shares_handlers: handlers,
                        ..kinship
                    });
                }
                Err(refusal) => refusals.push(refusal),
            }
            kin.stops.push(one.stop);
        }
        for one in dead {
            match kin.kinship(first, (one.pid, &one.stat, None), one.parent) {
                Ok(kinship) => {
                    let ended = seat((one.pid, &one.stat), kinship.session, kinship.group);
                    kin.seats.push(Seat { has_ended: true, ..ended });
                    kin.zombies.push(zombie(one, kinship));
                }
                Err(refusal) => refusals.push(refusal),
            }
        }
        if refusals.is_empty() {
            kin.require_births(family, &mut refusals);
            kin.remember_leaders(family, &mut refusals);
            kin.require_late_births(family, &mut refusals);
        }
        if refusals.is_empty() { Ok(kin) } else { Err(refusals) }
    }

    /// Of something of each process, that of those whose memory is not their parents'.
    pub(in super::super) fn with_own_memory<'a, T>(&'a self, all: &'a [T]) -> impl Iterator<Item = &'a T> {
        let (first, others) = all.split_at(1);
        let others = others.iter().zip(&self.members).filter(|(_, kinship)| !kinship.shares_memory);
        first.iter().chain(others.map(|(one, _)| one))
    }

    /// `status` is known of the living.
    fn kinship(
        &mut self,
        first: (i32, &Stat),
        (pid, stat, status): (i32, &Stat, Option<&Status>),
        parent: usize,
    ) -> Result<Kinship, Refusal> {
        let known = |id: i32, of_first: i32| {
            let known = if id == of_first { self.ids.get(&first.0) } else { self.ids.get(&id) };
            known.copied()
        };
        let refuse = |what: &str, id: i32| {
            let reason =
                format!("the process that leads its {what} ({id}) has ended, or is no descendant of pid {}", first.0);
            Refusal::new(format!("pid {pid}"), reason)
        };
        let session = known(stat.session, first.1.session);
        let session = session.or_else(|| outlived(stat.session, &status?.session_ids));
        let session = session.ok_or_else(|| refuse("session", stat.session))?;
        let group = match known(stat.group, first.1.group) {
            Some(group) => group,
            None => {
                let group = status.and_then(|status| outlived(stat.group, &status.group_ids));
                let group = group.ok_or_else(|| refuse("process group", stat.group))?;
                self.leaderless.insert(group, session);
                group
            }
        };
        Ok(Kinship { exit_signal: stat.exit_signal, ..alone(parent as u32, group, session) })
    }

    /// A group whose leader has ended needs somebody to lead it for a moment, until others have joined it: a child of who leads its
    /// session, or of anybody in that.
    fn remember_leaders(&mut self, family: &Family, refusals: &mut Vec<Refusal>) {
        for (group, session) in std::mem::take(&mut self.leaderless) {
            // Who made the session leads its first group, too.
            if self.zombies.iter().any(|zombie| zombie.pid == group) {
                continue;
            }
            let leads = |one: &Relative| self.ids.get(&one.pid()) == Some(&session);
            let is_inside =
                || self.members.iter().position(|kinship| kinship.session == session).map(|index| index + 1);
            let Some(parent) = family.relatives.iter().position(leads).or_else(is_inside) else {
                let reason = format!("nobody is in its session {session} who could make it again");
                refusals.push(Refusal::new(format!("process group {group}"), reason));
                continue;
            };
            self.zombies.push(momentary(group, alone(parent as u32, group, session)));
        }
    }

    /// A group may be in the foreground of a session's terminal still when all of it have ended and were waited for: until that is so
    /// again, a child of who leads the session leads it. Its number is known only where processes know the ids that we do.
    pub(in super::super) fn revive(&mut self, session: i32, group: i32) {
        let leader = self.seats.iter().position(|seat| (seat.pid, seat.has_ended) == (session, false));
        let Some(parent) = leader.filter(|number| *number == 0 || !self.members[number - 1].shares_memory) else {
            return;
        };
        let (inner_session, inner_group) = (self.seats[parent].session.1, group.unsigned_abs());
        let knows_ours = inner_session == session.unsigned_abs() && group > 0;
        let is_taken = self.seats.iter().any(|seat| seat.group.0 == group)
            || self.ids.values().chain(self.zombies.iter().map(|zombie| &zombie.pid)).any(|id| *id == inner_group);
        if knows_ours && !is_taken {
            let (session, group) = ((session, inner_session), (group, inner_group));
            self.seats.push(Seat { pid: group.0, session, group, terminal: None, has_ended: true });
            self.zombies.push(momentary(group.1, alone(parent as u32, group.1, session.1)));
        }
    }

    /// Whether each process can be born into its session. Where who made that has ended, one who ends again does, and leaves those
    /// who inherited it to its parent.
    fn require_births(&mut self, family: &Family, refusals: &mut Vec<Refusal>) {
        // By number: the session that a process is born into, and the one that it has.
        let mut sessions = vec![(0, self.ids[&family.relatives[0].pid()])];
        for (index, one) in family.relatives[1..].iter().enumerate() {
            let (pid, mut kinship) = (self.ids[&one.pid()], self.members[index]);
            kinship.is_heir = !is_born_of(&kinship, pid, &sessions) && self.leave(&kinship);
            self.members[index] = kinship;
            let (_, has) = sessions[kinship.parent as usize];
            if kinship.is_heir {
                sessions.push((kinship.session, kinship.session));
                continue;
            }
            if !is_born_of(&kinship, pid, &sessions) {
                refusals.push(strange(one.pid(), &kinship));
            }
            let birth = if kinship.session == pid || kinship.session == has {
                has
            } else {
                sessions[kinship.parent as usize].0
            };
            sessions.push((birth, kinship.session));
        }
        for (zombie, dead) in self.zombies.iter().zip(&family.dead) {
            if !is_born_of(&zombie.kinship, zombie.pid, &sessions) {
                refusals.push(strange(dead.pid, &zombie.kinship));
            }
        }
    }

    /// Whether who has its parent's memory can be born when that is there: into the session that its parent has by then. What it
    /// forked with memory of its own is refused before; what has ended since, here.
    fn require_late_births(&self, family: &Family, refusals: &mut Vec<Refusal>) {
        let session_of = |number: u32| match number.checked_sub(1) {
            Some(member) => self.members[member as usize].session,
            None => self.ids[&family.relatives[0].pid()],
        };
        let has_parents_memory = |number: u32| family.relatives[number as usize].has_parents_memory();
        for (one, kinship) in
            family.relatives[1..].iter().zip(&self.members).filter(|(_, kinship)| kinship.shares_memory)
        {
            if ![self.ids[&one.pid()], session_of(kinship.parent)].contains(&kinship.session) {
                refusals.push(strange(one.pid(), kinship));
            }
        }
        for zombie in self.zombies.iter().filter(|zombie| has_parents_memory(zombie.kinship.parent)) {
            let parent = family.relatives[zombie.kinship.parent as usize].pid();
            let reason = format!(
                "it has ended, and its parent, pid {parent}, has its address space from another (CLONE_VM); that is not carried"
            );
            refusals.push(Refusal::new(format!("pid {}", zombie.pid), reason));
        }
    }

    /// Whether who led a process's session, and has ended, was a child of its parent, and can have left it to that.
    fn leave(&mut self, heir: &Kinship) -> bool {
        if heir.shares_directory || heir.shares_files || heir.shares_memory {
            return false;
        }
        if let Some(leader) = self.zombies.iter().find(|zombie| zombie.pid == heir.session) {
            return leader.kinship.parent == heir.parent && leader.kinship.session == leader.pid;
        }
        let is_alive = self.ids.values().any(|id| *id == heir.session);
        if !is_alive {
            self.zombies.push(momentary(heir.session, alone(heir.parent, heir.session, heir.session)));
        }
        !is_alive
    }

    /// Whether those who inherited sessions go to their parents when those who leave them end. `reapers`: of each process its id,
    /// and whether others' children come to it.
    pub(in super::super) fn require_reapers(&self, reapers: &[(u32, bool)]) -> Result<(), Vec<Refusal>> {
        let heirs = self.members.iter().zip(&reapers[1..]).filter(|(kinship, _)| kinship.is_heir);
        let lost = heirs.filter(|(kinship, _)| !reapers[kinship.parent as usize].1);
        let refusals: Vec<Refusal> = lost.map(|(kinship, (heir, _))| strange(*heir as i32, kinship)).collect();
        if refusals.is_empty() { Ok(()) } else { Err(refusals) }
    }
}

/// Somebody without anything in common with its parent.
fn alone(parent: u32, group: u32, session: u32) -> Kinship {
    Kinship {
        parent,
        group,
        session,
        exit_signal: 0,
        shares_directory: false,
        shares_files: false,
        shares_memory: false,
        shares_handlers: false,
        is_heir: false,
    }
}

/// The id of a group or session, as its members know it, whose leader has ended: `ids` are what its id is in each pid namespace.
fn outlived(id: i32, ids: &[u32]) -> Option<u32> {
    let inner = ids.last().filter(|inner| **inner != 0)?;
    (ids.first() == Some(&id.unsigned_abs())).then_some(*inner)
}

/// Whether a process makes its session, or has it from its parent, who had it when it was born or has it now.
fn is_born_of(kinship: &Kinship, pid: u32, sessions: &[(u32, u32)]) -> bool {
    let (born, has) = sessions[kinship.parent as usize];
    [pid, born, has].contains(&kinship.session)
}

fn strange(pid: i32, kinship: &Kinship) -> Refusal {
    let reason = format!("its session {} is not its parent's: what made it so cannot be done again", kinship.session);
    Refusal::new(format!("pid {pid}"), reason)
}

/// Somebody who has ended, and of whom only an id is left, that of a group or a session.
fn momentary(pid: u32, kinship: Kinship) -> Zombie {
    Zombie { pid, kinship, status: 0, name: Vec::new(), is_forgotten: true }
}

fn seat((pid, stat): (i32, &Stat), session: u32, group: u32) -> Seat {
    Seat {
        pid,
        session: (stat.session, session),
        group: (stat.group, group),
        terminal: stat.terminal,
        has_ended: false,
    }
}

fn zombie(dead: &Dead, kinship: Kinship) -> Zombie {
    let (pid, status, name) = (dead.inner_id, dead.stat.exit_code, dead.stat.name.clone());
    Zombie { pid, kinship, status, name, is_forgotten: false }
}
