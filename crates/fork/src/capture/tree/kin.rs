//! Who is whose child, in which group and in which session, by the ids that the processes themselves know.
//!
//! The session and the group of the first process are not in a child's container: there it leads its own, and who shared
//! them with it shares these. A process can be born into the session that its parent has, or had before it began one.

use std::collections::BTreeMap;

use farfork_sys::process::Stat;
use farfork_wire::descriptor::{Kinship, Zombie};

use super::{Dead, Family};
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
            match kin.kinship(first, (one.pid(), &one.stat), one.parent) {
                Ok(kinship) => {
                    kin.members.push(Kinship { shares_directory: one.shares_directory, ..kinship });
                }
                Err(refusal) => refusals.push(refusal),
            }
            kin.are_stopped.push(one.is_stopped);
        }
        for one in dead {
            match kin.kinship(first, (one.pid, &one.stat), one.parent) {
                Ok(kinship) => kin.zombies.push(zombie(one, kinship)),
                Err(refusal) => refusals.push(refusal),
            }
        }
        if refusals.is_empty() {
            kin.require_births(family, &mut refusals);
        }
        if refusals.is_empty() { Ok(kin) } else { Err(refusals) }
    }

    fn kinship(&self, first: (i32, &Stat), (pid, stat): (i32, &Stat), parent: usize) -> Result<Kinship, Refusal> {
        let id = |what: &str, id: i32, of_first: i32| {
            let known = if id == of_first { self.ids.get(&first.0) } else { self.ids.get(&id) };
            let reason = || {
                format!("the process that leads its {what} ({id}) has ended, or is no descendant of pid {}", first.0)
            };
            known.copied().ok_or_else(|| Refusal::new(format!("pid {pid}"), reason()))
        };
        Ok(Kinship {
            parent: parent as u32,
            group: id("process group", stat.group, first.1.group)?,
            session: id("session", stat.session, first.1.session)?,
            exit_signal: stat.exit_signal,
            shares_directory: false,
        })
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
    Zombie { pid: dead.inner_id, kinship, status: dead.stat.exit_code, name: dead.stat.name.clone() }
}
