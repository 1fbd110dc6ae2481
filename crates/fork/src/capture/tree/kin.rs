//! Who is whose child, in which group and in which session, by the ids that the processes themselves know.
//!
//! The session and the group of the first process are not in a child's container: there it leads its own, and who shared
//! them with it shares these. A process can be born into the session that its parent has, or had before it began one.

use std::collections::BTreeMap;

use farfork_sys::process::Stat;
use farfork_wire::descriptor::{Kinship, Zombie};

use super::one_of_all::Common;
use super::{Dead, Family, Relative};
use crate::capture::error::Refusal;

/// How the processes of a tree belong together.
#[derive(Debug, Default)]
pub(in super::super) struct Kin {
    /// Of each process but the first.
    pub(super) members: Vec<Kinship>,
    /// Whether a signal had stopped each of them.
    pub(super) are_stopped: Vec<bool>,
    pub(super) zombies: Vec<Zombie>,
    /// The ids that processes know, by those that we do.
    pub(in super::super) ids: BTreeMap<i32, u32>,
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
        let mut refusals = Vec::new();
        for one in others {
            let groups = one.prepared.survey.profiles.get(&one.pid()).map(|leader| leader.status.group_ids.as_slice());
            match kin.kinship(first, (one.pid(), &one.stat, groups.unwrap_or(&[])), one.parent) {
                Ok(kinship) => {
                    let Common { directory, files } = one.common;
                    kin.members.push(Kinship { shares_directory: directory, shares_files: files, ..kinship });
                }
                Err(refusal) => refusals.push(refusal),
            }
            kin.are_stopped.push(one.is_stopped);
        }
        for one in dead {
            match kin.kinship(first, (one.pid, &one.stat, &[]), one.parent) {
                Ok(kinship) => kin.zombies.push(zombie(one, kinship)),
                Err(refusal) => refusals.push(refusal),
            }
        }
        if refusals.is_empty() {
            kin.require_births(family, &mut refusals);
            kin.remember_leaders(family, &mut refusals);
        }
        if refusals.is_empty() { Ok(kin) } else { Err(refusals) }
    }

    /// `groups` are the ids of its process group in each pid namespace, where they are known.
    fn kinship(
        &mut self,
        first: (i32, &Stat),
        (pid, stat, groups): (i32, &Stat, &[u32]),
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
        let session = known(stat.session, first.1.session).ok_or_else(|| refuse("session", stat.session))?;
        let group = match (known(stat.group, first.1.group), groups.first(), groups.last()) {
            (Some(group), ..) => group,
            (None, Some(outer), Some(inner)) if *outer == stat.group.unsigned_abs() => {
                self.leaderless.insert(*inner, session);
                *inner
            }
            (None, ..) => return Err(refuse("process group", stat.group)),
        };
        let (parent, exit_signal) = (parent as u32, stat.exit_signal);
        Ok(Kinship { parent, group, session, exit_signal, shares_directory: false, shares_files: false })
    }

    /// A group whose leader has ended needs somebody to lead it for a moment, until others have joined it: a child of who leads its
    /// session.
    fn remember_leaders(&mut self, family: &Family, refusals: &mut Vec<Refusal>) {
        for (group, session) in std::mem::take(&mut self.leaderless) {
            let leads = |one: &Relative| self.ids.get(&one.pid()) == Some(&session);
            let Some(parent) = family.relatives.iter().position(leads) else {
                let reason =
                    format!("the process that leads its session {session} has ended, and so has that of a group in it");
                refusals.push(Refusal::new(format!("process group {group}"), reason));
                continue;
            };
            let parent = parent as u32;
            let (shares_directory, shares_files) = (false, false);
            let kinship = Kinship { parent, group, session, exit_signal: 0, shares_directory, shares_files };
            self.zombies.push(Zombie { pid: group, kinship, status: 0, name: Vec::new(), is_forgotten: true });
        }
    }

    /// Whether each process can be born into its session.
    fn require_births(&self, family: &Family, refusals: &mut Vec<Refusal>) {
        let pid_of = |number: usize| self.ids[&family.relatives[number].pid()];
        // By number: the session that a process is born into, and the one that it has.
        let mut sessions = vec![(0, pid_of(0))];
        let mut require = |pid: u32, outer: i32, kinship: &Kinship| {
            let (born, has) = sessions[kinship.parent as usize];
            let is_leader = kinship.session == pid;
            if !is_leader && kinship.session != has && kinship.session != born {
                let reason = format!(
                    "its session {} is not its parent's: what made it so cannot be done again",
                    kinship.session
                );
                refusals.push(Refusal::new(format!("pid {outer}"), reason));
            }
            let birth = if is_leader || kinship.session == has { has } else { born };
            sessions.push((birth, kinship.session));
        };
        for (index, kinship) in self.members.iter().enumerate() {
            require(pid_of(index + 1), family.relatives[index + 1].pid(), kinship);
        }
        for (zombie, dead) in self.zombies.iter().zip(&family.dead) {
            require(zombie.pid, dead.pid, &zombie.kinship);
        }
    }
}

fn zombie(dead: &Dead, kinship: Kinship) -> Zombie {
    let (pid, status, name) = (dead.inner_id, dead.stat.exit_code, dead.stat.name.clone());
    Zombie { pid, kinship, status, name, is_forgotten: false }
}
