//! The parent, group and session of each process of a tree, by the ids that the processes themselves know.
//!
//! In a child's container, the first process leads a new session and a new group. Processes that shared the old ones with it
//! share the new ones. A process can be forked into the session that its parent has, or had before setsid(2). It can also
//! have the session of an ended sibling, which forked the process.

use std::collections::BTreeMap;

use farfork_sys::process::{ProcStat, ProcStatus};
use farfork_wire::descriptor::{ProcessRelations, Zombie};

use super::shared_tables::SharedTables;
use super::{ProcessTree, StopReport, TreeProcess, UnreapedChild};
use crate::capture::error::Refusal;
use crate::capture::files::SessionMember;

/// The relations of a tree's processes.
#[derive(Debug, Default)]
pub(in super::super) struct TreeRelations {
    /// For each process but the first.
    pub(super) kinships: Vec<ProcessRelations>,
    /// Whether a signal had stopped each of these processes, and whether the process's parent had waited for the stop.
    pub(super) stop_reports: Vec<Option<StopReport>>,
    pub(super) zombies: Vec<Zombie>,
    /// Inner ids of the processes, by their ids in farfork's pid namespace.
    pub(in super::super) inner_ids: BTreeMap<i32, u32>,
    /// For matching terminals to sessions: the living processes by process number, then the ended ones.
    pub(in super::super) session_members: Vec<SessionMember>,
    /// Groups whose leaders have ended and were reaped, with their sessions.
    leaderless_groups: BTreeMap<u32, u32>,
}

/// A process whose relations are built.
#[derive(Debug, Clone, Copy)]
struct RelatedProcess<'a> {
    pid: i32,
    stat: &'a ProcStat,
    /// `None` if the process has ended.
    status: Option<&'a ProcStatus>,
}

impl<'a> RelatedProcess<'a> {
    fn living(one: &'a TreeProcess) -> Self {
        let leader = one.prepared.survey.profiles.get(&one.pid());
        Self { pid: one.pid(), stat: &one.stat, status: leader.map(|leader| &leader.status) }
    }

    fn ended(one: &'a UnreapedChild) -> Self {
        Self { pid: one.pid, stat: &one.stat, status: None }
    }
}

impl TreeRelations {
    /// Builds the relations of a stopped tree. Returns a refusal for each relation that cannot be rebuilt.
    pub(in super::super) fn from_tree(tree: &ProcessTree) -> Result<Self, Vec<Refusal>> {
        let ProcessTree { processes, unreaped: dead, .. } = tree;
        let living = processes.iter().map(|one| (one.pid(), one.prepared.survey.inner_id()));
        let ids: BTreeMap<i32, u32> = living.chain(dead.iter().map(|one| (one.pid, one.inner_id))).collect();
        let mut tree_relations = Self { inner_ids: ids, ..Self::default() };
        let (first, others) = processes.split_at(1);
        let first = RelatedProcess::living(&first[0]);
        let own = tree_relations.inner_ids[&first.pid];
        tree_relations.session_members.push(session_member(first, own, own));
        let mut refusals = Vec::new();
        for one in others {
            let process = RelatedProcess::living(one);
            match tree_relations.build_relations(first, process, one.parent) {
                Ok(process_relations) => {
                    let SharedTables { directory, files, memory, handlers } = one.shared_tables;
                    tree_relations.session_members.push(session_member(
                        process,
                        process_relations.session,
                        process_relations.group,
                    ));
                    tree_relations.kinships.push(ProcessRelations {
                        shares_fs: directory,
                        shares_files: files,
                        shares_memory: memory,
                        shares_handlers: handlers,
                        ..process_relations
                    });
                }
                Err(refusal) => refusals.push(refusal),
            }
            tree_relations.stop_reports.push(one.stop_report);
        }
        for one in dead {
            let process = RelatedProcess::ended(one);
            match tree_relations.build_relations(first, process, one.parent) {
                Ok(process_relations) => {
                    let ended = session_member(process, process_relations.session, process_relations.group);
                    tree_relations.session_members.push(SessionMember { has_ended: true, ..ended });
                    tree_relations.zombies.push(build_zombie(one, process_relations));
                }
                Err(refusal) => refusals.push(refusal),
            }
        }
        if refusals.is_empty() {
            tree_relations.check_sessions(tree, &mut refusals);
            tree_relations.add_group_leaders(tree, &mut refusals);
            tree_relations.check_shared_memory_sessions(tree, &mut refusals);
        }
        if refusals.is_empty() { Ok(tree_relations) } else { Err(refusals) }
    }

    /// Selects the items of processes that do not share their parent's memory. `all` has one item per process.
    pub(in super::super) fn with_own_memory<'a, T>(&'a self, all: &'a [T]) -> impl Iterator<Item = &'a T> {
        let (first, others) = all.split_at(1);
        let others =
            others.iter().zip(&self.kinships).filter(|(_, process_relations)| !process_relations.shares_memory);
        first.iter().chain(others.map(|(one, _)| one))
    }

    /// Builds the relations of `process`, whose parent has the index `parent`. `first` is the tree's first process.
    fn build_relations(
        &mut self,
        first: RelatedProcess<'_>,
        process: RelatedProcess<'_>,
        parent: usize,
    ) -> Result<ProcessRelations, Refusal> {
        let RelatedProcess { pid, stat, status } = process;
        let known = |id: i32, of_first: i32| {
            let known = if id == of_first { self.inner_ids.get(&first.pid) } else { self.inner_ids.get(&id) };
            known.copied()
        };
        let refuse = |what: &str, id: i32| {
            let reason =
                format!("the process that leads its {what} ({id}) has ended, or is no descendant of pid {}", first.pid);
            Refusal::new(format!("pid {pid}"), reason)
        };
        let session = known(stat.session, first.stat.session);
        let session = session.or_else(|| inner_id_of_ended_leader(stat.session, &status?.session_ids));
        let session = session.ok_or_else(|| refuse("session", stat.session))?;
        let group = match known(stat.group, first.stat.group) {
            Some(group) => group,
            None => {
                let group = status.and_then(|status| inner_id_of_ended_leader(stat.group, &status.group_ids));
                let group = group.ok_or_else(|| refuse("process group", stat.group))?;
                self.leaderless_groups.insert(group, session);
                group
            }
        };
        Ok(ProcessRelations { exit_signal: stat.exit_signal, ..bare_relations(parent as u32, group, session) })
    }

    /// Adds a short-lived leader for each group whose leader has ended. The short-lived leader ends when the other processes
    /// have joined the group. It is a child of the session's leader, or of any process in the session.
    fn add_group_leaders(&mut self, tree: &ProcessTree, refusals: &mut Vec<Refusal>) {
        for (group, session) in std::mem::take(&mut self.leaderless_groups) {
            // The short-lived leader of a session also leads the session's first group.
            if self.zombies.iter().any(|zombie| zombie.pid == group) {
                continue;
            }
            let leads = |one: &TreeProcess| self.inner_ids.get(&one.pid()) == Some(&session);
            let is_inside = || {
                self.kinships
                    .iter()
                    .position(|process_relations| process_relations.session == session)
                    .map(|index| index + 1)
            };
            let Some(parent) = tree.processes.iter().position(leads).or_else(is_inside) else {
                let reason = format!("no process of its session {session} is left that could make it again");
                refusals.push(Refusal::new(format!("process group {group}"), reason));
                continue;
            };
            self.zombies.push(short_lived_leader(group, bare_relations(parent as u32, group, session)));
        }
    }

    /// Adds a short-lived leader for the foreground group of a session's terminal, if all processes of the group have ended
    /// and were reaped. The session's leader forks the short-lived leader. The group's inner id is known only if inner ids
    /// are the same as ids in farfork's pid namespace.
    pub(in super::super) fn add_foreground_leader(&mut self, session: i32, group: i32) {
        let leader = self
            .session_members
            .iter()
            .position(|session_member| (session_member.pid, session_member.has_ended) == (session, false));
        let Some(parent) = leader.filter(|number| *number == 0 || !self.kinships[number - 1].shares_memory) else {
            return;
        };
        let (inner_session, inner_group) = (self.session_members[parent].session.1, group.unsigned_abs());
        let knows_ours = inner_session == session.unsigned_abs() && group > 0;
        let is_taken = self.session_members.iter().any(|session_member| session_member.group.0 == group)
            || self
                .inner_ids
                .values()
                .chain(self.zombies.iter().map(|zombie| &zombie.pid))
                .any(|id| *id == inner_group);
        if knows_ours && !is_taken {
            let (session, group) = ((session, inner_session), (group, inner_group));
            self.session_members.push(SessionMember { pid: group.0, session, group, terminal: None, has_ended: true });
            self.zombies.push(short_lived_leader(group.1, bare_relations(parent as u32, group.1, session.1)));
        }
    }

    /// Checks that each process can be forked into its session. If the session's leader has ended, a short-lived leader
    /// makes the session, forks the process, and ends. The process is then a child of the leader's parent.
    fn check_sessions(&mut self, tree: &ProcessTree, refusals: &mut Vec<Refusal>) {
        // By process number: the session into which a process is forked, and the session that it has.
        let mut sessions = vec![(0, self.inner_ids[&tree.processes[0].pid()])];
        for (index, one) in tree.processes[1..].iter().enumerate() {
            let (pid, mut kinship) = (self.inner_ids[&one.pid()], self.kinships[index]);
            kinship.is_session_orphan =
                !can_have_session(&kinship, pid, &sessions) && self.can_inherit_session(&kinship);
            self.kinships[index] = kinship;
            let (_, has) = sessions[kinship.parent as usize];
            if kinship.is_session_orphan {
                sessions.push((kinship.session, kinship.session));
                continue;
            }
            if !can_have_session(&kinship, pid, &sessions) {
                refusals.push(session_refusal(one.pid(), &kinship));
            }
            let fork_session = if kinship.session == pid || kinship.session == has {
                has
            } else {
                sessions[kinship.parent as usize].0
            };
            sessions.push((fork_session, kinship.session));
        }
        for (zombie, dead) in self.zombies.iter().zip(&tree.unreaped) {
            if !can_have_session(&zombie.relations, zombie.pid, &sessions) {
                refusals.push(session_refusal(dead.pid, &zombie.relations));
            }
        }
    }

    /// Checks processes that share their parent's memory. They are forked after the parent's memory was built, into the
    /// session that the parent has by then. `refuse_late_fork` refuses their living children with own memory; this function
    /// refuses their ended children.
    fn check_shared_memory_sessions(&self, tree: &ProcessTree, refusals: &mut Vec<Refusal>) {
        let session_of = |number: u32| match number.checked_sub(1) {
            Some(member) => self.kinships[member as usize].session,
            None => self.inner_ids[&tree.processes[0].pid()],
        };
        let has_parents_memory = |number: u32| tree.processes[number as usize].shares_memory();
        for (one, process_relations) in tree.processes[1..]
            .iter()
            .zip(&self.kinships)
            .filter(|(_, process_relations)| process_relations.shares_memory)
        {
            if ![self.inner_ids[&one.pid()], session_of(process_relations.parent)].contains(&process_relations.session)
            {
                refusals.push(session_refusal(one.pid(), process_relations));
            }
        }
        for zombie in self.zombies.iter().filter(|zombie| has_parents_memory(zombie.relations.parent)) {
            let parent = tree.processes[zombie.relations.parent as usize].pid();
            let reason = format!(
                "it has ended, and its parent, pid {parent}, has its address space from another (CLONE_VM); that is not carried"
            );
            refusals.push(Refusal::new(format!("pid {}", zombie.pid), reason));
        }
    }

    /// Whether the session's leader was a child of the same parent and has ended, so that it can have forked the process and
    /// left the process to that parent. Adds a short-lived leader if the leader was reaped.
    fn can_inherit_session(&mut self, process: &ProcessRelations) -> bool {
        if process.shares_fs || process.shares_files || process.shares_memory {
            return false;
        }
        if let Some(leader) = self.zombies.iter().find(|zombie| zombie.pid == process.session) {
            return leader.relations.parent == process.parent && leader.relations.session == leader.pid;
        }
        let is_alive = self.inner_ids.values().any(|id| *id == process.session);
        if !is_alive {
            self.zombies.push(short_lived_leader(
                process.session,
                bare_relations(process.parent, process.session, process.session),
            ));
        }
        !is_alive
    }

    /// Checks that a process with an ended session leader becomes a child of its parent when the short-lived leader ends.
    /// `reapers`: for each process its inner id, and whether it adopts orphans.
    pub(in super::super) fn check_reapers(&self, reapers: &[(u32, bool)]) -> Result<(), Vec<Refusal>> {
        let session_orphans = self.kinships.iter().zip(&reapers[1..]).filter(|(kinship, _)| kinship.is_session_orphan);
        let lost = session_orphans.filter(|(kinship, _)| !reapers[kinship.parent as usize].1);
        let refusals: Vec<Refusal> = lost.map(|(kinship, (pid, _))| session_refusal(*pid as i32, kinship)).collect();
        if refusals.is_empty() { Ok(()) } else { Err(refusals) }
    }
}

/// Returns the relations of a process that shares nothing with its parent.
fn bare_relations(parent: u32, group: u32, session: u32) -> ProcessRelations {
    ProcessRelations {
        parent,
        group,
        session,
        exit_signal: 0,
        shares_fs: false,
        shares_files: false,
        shares_memory: false,
        shares_handlers: false,
        is_session_orphan: false,
    }
}

/// Returns the inner id of a group or session whose leader has ended. `ids`: its id in each pid namespace, outermost first.
fn inner_id_of_ended_leader(id: i32, ids: &[u32]) -> Option<u32> {
    let inner = ids.last().filter(|inner| **inner != 0)?;
    (ids.first() == Some(&id.unsigned_abs())).then_some(*inner)
}

/// Whether a process leads its session, or has one of its parent's: the session into which the parent was forked, or its
/// present one.
fn can_have_session(process_relations: &ProcessRelations, pid: u32, sessions: &[(u32, u32)]) -> bool {
    let (initial, present) = sessions[process_relations.parent as usize];
    [pid, initial, present].contains(&process_relations.session)
}

fn session_refusal(pid: i32, process_relations: &ProcessRelations) -> Refusal {
    let reason =
        format!("its session {} is not its parent's, and cannot be made again by setsid(2)", process_relations.session);
    Refusal::new(format!("pid {pid}"), reason)
}

/// Builds an ended process whose id remains only as the id of a group or a session.
fn short_lived_leader(pid: u32, process_relations: ProcessRelations) -> Zombie {
    Zombie { pid, relations: process_relations, status: 0, name: Vec::new(), is_reaped: true }
}

fn session_member(process: RelatedProcess<'_>, session: u32, group: u32) -> SessionMember {
    let RelatedProcess { pid, stat, .. } = process;
    SessionMember {
        pid,
        session: (stat.session, session),
        group: (stat.group, group),
        terminal: stat.terminal,
        has_ended: false,
    }
}

fn build_zombie(dead: &UnreapedChild, process_relations: ProcessRelations) -> Zombie {
    let (pid, status, name) = (dead.inner_id, dead.stat.exit_code, dead.stat.name.clone());
    Zombie { pid, relations: process_relations, status, name, is_reaped: false }
}
