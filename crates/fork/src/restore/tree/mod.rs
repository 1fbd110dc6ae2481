//! The plans of a tree of processes: who forks whom and when, and who takes which open file from whom.
//!
//! ```text
//!  memfd   plan of the first ┊ plan of process 1 ┊ plan of process 2 ┊ …     each begins on a page
//!            └ kin: 1, 2        └ kin: a zombie                               where the plan of each child stands
//! ```
//!
//! A process alone is a tree, too: its memfd is its plan.

use std::collections::HashMap;
use std::ops::Range;

use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{
    Backing, Descriptor, FileDescriptor, Kinship, Mapping, Member, PendingSignal, Process, Zombie,
};
use rustix::process::Signal;
use zerocopy::IntoBytes;

use super::descriptors::PAYLOAD_FD;
use super::layout::{
    KIN_AFTER_SESSION, KIN_CORE, KIN_FORGOTTEN, KIN_GROUP_LEADER, KIN_HEIR, KIN_SAME_DIRECTORY, KIN_SAME_FILES,
    KIN_SAME_HANDLERS, KIN_SAME_MEMORY, KIN_SESSION_LEADER, KIN_STOPPED, KIN_UNHEARD, KIN_ZOMBIE, PLAN_GROUP_LEADER,
    PLAN_SAME_MEMORY, PLAN_SESSION_LEADER, PLAN_SHARED_FILES, PLAN_STOPPED, PLAN_SUBREAPER, PlanKin,
};
use super::objects::Objects;
use super::plan::{self, Plan, Wishes};
use super::stub_map::StubMap;
use super::{LocalNode, RestoreError};

/// First number for farfork's own descriptors while it restores, when the processes have few.
const FD_BASE_MIN: u32 = 64;

/// In a wait status: a core was written.
const CORE_BIT: u32 = 0x80;

/// Whether a core that is written on this node is a file of its directory, by a name that the restorer knows.
fn names_cores_plainly() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern");
    pattern.is_ok_and(|pattern| matches!(pattern.trim_end(), "core" | "core.%p"))
}

/// Where a process stands in its tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// Its number.
    pub(super) number: u32,
    /// First number for farfork's own descriptors while they are restored.
    pub(super) fd_base: u32,
    tree: &'a Descriptor,
    /// Open files that the first process has made by calls, by the descriptors that it has for them.
    made: &'a HashMap<u32, u32>,
    /// The addresses, start and end, at which something is in the memory that it has from its parent, restorers of others too.
    pub(super) occupied: &'a [(u64, u64)],
}

/// The plans of all processes, in one file.
#[derive(Debug)]
pub(super) struct Plans {
    /// What the stub, and the processes it becomes, map.
    pub(super) bytes: Vec<u8>,
    /// All numbers that open files have while they are made are below this.
    pub(super) descriptors: u32,
    /// The addresses that each process registers with userfaultfd.
    pub(super) registered: Vec<Vec<Range<u64>>>,
    /// Where the first one's restorer is: start and length.
    pub(super) region: (u64, u64),
}

/// Compiles the plans of a descriptor's processes for the stub whose map is `stub`.
pub(super) fn compile(
    descriptor: &Descriptor,
    node: &LocalNode,
    stub: &StubMap,
    objects: &Objects,
    wishes: &Wishes<'_>,
) -> Result<Plans, RestoreError> {
    let nothing = HashMap::new();
    let fd_base = fd_base(descriptor, wishes.payload.is_some(), objects.count() as u32);
    let place = Place { number: 0, fd_base, tree: descriptor, made: &nothing, occupied: &[] };
    let mut first = plan::compile(descriptor, node, stub, objects, (wishes, &place))?;
    let made = std::mem::take(&mut first.made);
    let mut plans = vec![first];
    // The payload is for the first.
    let wishes = Wishes { payload: None, paused: false, ..*wishes };
    for (member, number) in descriptor.members.iter().zip(1..) {
        let holder = descriptor.memory_of(number);
        let has_own = holder == number;
        let occupied = if has_own { &[][..] } else { &plans[holder as usize].occupied };
        let place = Place { number, fd_base, tree: descriptor, made: &made, occupied };
        // Where the functions of another kernel's vdso lead is a matter of who builds the memory.
        let wishes = Wishes { bridge: wishes.bridge.filter(|_| has_own), ..wishes };
        let plan = plan::compile(&descriptor.with_first(member), node, stub, objects, (&wishes, &place))?;
        if !has_own {
            let (start, bytes) = plan.region;
            plans[holder as usize].occupied.push((start, start + bytes));
        }
        plans.push(plan);
    }
    Ok(join(plans, descriptor))
}

/// Above all that any of the processes will have, and above where a stub gets what it is `passed`: it is one number for all, as they may
/// have one table.
fn fd_base(descriptor: &Descriptor, has_payload: bool, passed: u32) -> u32 {
    let tables = descriptor.members.iter().map(|member| &member.file_descriptors);
    let last = |table: &Vec<FileDescriptor>| table.last().map_or(0, |entry| entry.number + 1);
    let own = std::iter::once(&descriptor.file_descriptors).chain(tables).map(last).max().unwrap_or(0);
    own.max(if has_payload { PAYLOAD_FD + 1 } else { 0 }).max(FD_BASE_MIN + passed)
}

/// Puts plans behind one another, and into each where those of its children stand.
fn join(mut plans: Vec<Plan>, descriptor: &Descriptor) -> Plans {
    let mut places = Vec::with_capacity(plans.len());
    let mut end = 0_u64;
    for plan in &plans {
        places.push(end);
        end = (end + plan.bytes.len() as u64).next_multiple_of(PAGE_SIZE);
    }
    for (number, plan) in plans.iter_mut().enumerate() {
        for (index, child) in children(descriptor, number as u32).enumerate() {
            let at = plan.kin.offset as usize + index * size_of::<PlanKin>();
            plan.bytes[at..at + size_of::<u64>()].copy_from_slice(places[child].as_bytes());
        }
    }
    let region = plans[0].region;
    // Their own plan is behind what is passed for as long as they are born.
    let descriptors = plans.iter().map(|plan| plan.descriptors + 1).max().unwrap_or(0);
    let mut bytes = Vec::with_capacity(end as usize);
    let mut registered = Vec::with_capacity(plans.len());
    for (plan, place) in plans.into_iter().zip(places) {
        bytes.resize(place as usize, 0);
        bytes.extend_from_slice(&plan.bytes);
        registered.push(plan.registered);
    }
    Plans { bytes, descriptors, registered, region }
}

/// What a process has in common with its parent.
fn in_common(kinship: &Kinship) -> u32 {
    [
        (kinship.shares_directory, KIN_SAME_DIRECTORY),
        (kinship.shares_files, KIN_SAME_FILES),
        (kinship.shares_memory, KIN_SAME_MEMORY),
        (kinship.shares_handlers, KIN_SAME_HANDLERS),
    ]
    .into_iter()
    .filter(|(is_shared, _)| *is_shared)
    .fold(0, |flags, (_, flag)| flags | flag)
}

/// The numbers of a process's children that live.
fn children(descriptor: &Descriptor, number: u32) -> impl Iterator<Item = usize> {
    let members = descriptor.members.iter().enumerate();
    members.filter(move |(_, member)| member.kinship.parent == number).map(|(index, _)| index + 1)
}

impl Place<'_> {
    /// How many processes there are.
    pub(super) fn count(&self) -> u32 {
        self.tree.process_count() as u32
    }

    /// All of them.
    pub(super) fn tree(&self) -> &Descriptor {
        self.tree
    }

    fn member(&self) -> Option<&Member> {
        self.tree.members.get((self.number as usize).checked_sub(1)?)
    }

    fn process(&self) -> &Process {
        self.member().map_or(&self.tree.process, |member| &member.process)
    }

    /// The number of the process that places its descriptors: of those who have them in common, the first.
    pub(super) fn table(&self) -> u32 {
        self.tree.table_of(self.number)
    }

    /// How many processes have its descriptors.
    pub(super) fn table_users(&self) -> u32 {
        let table = self.table();
        (0..self.count()).filter(|number| self.tree.table_of(*number) == table).count() as u32
    }

    /// How many processes build an address space.
    pub(super) fn spaces(&self) -> u32 {
        (0..self.count()).filter(|number| self.tree.memory_of(*number) == *number).count() as u32
    }

    /// The processes that have its descriptors, but do not place them.
    pub(super) fn sharers(&self) -> impl Iterator<Item = &Member> {
        let members = self.tree.members.iter().zip(1..);
        members
            .filter(|(_, number)| *number != self.number && self.tree.table_of(*number) == self.number)
            .map(|(member, _)| member)
    }

    /// How it begins. The session and group that the first process had are not in the container: it leads its own.
    pub(super) fn flags(&self) -> u32 {
        let process = self.process();
        let (session, group) = self.member().map_or((process.pid, process.pid), |member| {
            let Kinship { session, group, .. } = member.kinship;
            (session, group)
        });
        let mut flags = if process.is_subreaper { PLAN_SUBREAPER } else { 0 };
        if session == process.pid {
            flags |= PLAN_SESSION_LEADER;
        } else if group == process.pid {
            flags |= PLAN_GROUP_LEADER;
        }
        if self.member().is_some_and(is_to_stop) {
            flags |= PLAN_STOPPED;
        }
        if self.tree.members.iter().any(|member| member.kinship.shares_files) {
            flags |= PLAN_SHARED_FILES;
        }
        if self.member().is_some_and(|member| member.kinship.shares_memory) {
            flags |= PLAN_SAME_MEMORY;
        }
        flags
    }

    /// The process group that it joins; 0 where it leads one.
    pub(super) fn group(&self) -> u32 {
        let of_other = |member: &&Member| member.kinship.group != member.process.pid;
        self.member().filter(of_other).map_or(0, |member| member.kinship.group)
    }

    /// Its children, the living first; where their plans stand is filled in later.
    pub(super) fn kin(&self) -> Vec<PlanKin> {
        let living = children(self.tree, self.number).map(|child| self.living(&self.tree.members[child - 1]));
        let zombies = self.tree.zombies.iter().filter(|zombie| zombie.kinship.parent == self.number);
        living.chain(zombies.map(|zombie| self.zombie(zombie))).collect()
    }

    fn living(&self, member: &Member) -> PlanKin {
        let pid = member.process.pid;
        let mut flags = self.birth(pid, &member.kinship) | in_common(&member.kinship);
        if member.kinship.is_heir {
            flags |= KIN_HEIR;
        }
        if is_to_stop(member) {
            // A stop that has not come yet was not waited for.
            let unheard = if member.has_unreported_stop || !member.is_stopped { KIN_UNHEARD } else { 0 };
            flags |= KIN_STOPPED | unheard;
        }
        let group = if member.kinship.is_heir { member.kinship.session } else { 0 };
        PlanKin {
            plan_at: 0,
            pid,
            exit_signal: member.kinship.exit_signal,
            flags,
            status: 0,
            group,
            name: [0; 16],
            reserved: 0,
        }
    }

    fn zombie(&self, zombie: &Zombie) -> PlanKin {
        let Zombie { pid, kinship, status, name: text, is_forgotten } = zombie;
        let mut name = [0; 16];
        name[..text.len()].copy_from_slice(text);
        let (leads_session, leads_group) = (kinship.session == *pid, kinship.group == *pid);
        let core = if status & CORE_BIT != 0 && names_cores_plainly() { KIN_CORE } else { 0 };
        let forgotten = if *is_forgotten { KIN_FORGOTTEN } else { 0 };
        let flags = self.birth(*pid, kinship) | KIN_ZOMBIE | core | forgotten;
        let own = if leads_session { KIN_SESSION_LEADER } else { 0 } | if leads_group { KIN_GROUP_LEADER } else { 0 };
        PlanKin {
            plan_at: 0,
            pid: *pid,
            exit_signal: kinship.exit_signal,
            flags: flags | own,
            status: *status,
            group: if leads_group { 0 } else { kinship.group },
            name,
            reserved: 0,
        }
    }

    /// Into the session that this process has, where it is not of the one that this was born into.
    fn birth(&self, pid: u32, kinship: &Kinship) -> u32 {
        let session = self.member().map_or(self.tree.process.pid, |member| member.kinship.session);
        let is_after = kinship.session == session || kinship.session == pid;
        if is_after { KIN_AFTER_SESSION } else { 0 }
    }

    /// Whether no earlier process has a shared object mapped, and this one has, or nobody.
    pub(super) fn attaches_first(&self, object: u32) -> bool {
        let is_it = |mapping: &Mapping| matches!(mapping.backing, Backing::SharedMemory { object: other, .. } if other == object);
        let members = self.tree.members.iter().map(|member| &member.mappings);
        let first = std::iter::once(&self.tree.mappings).chain(members).position(|all| all.iter().any(is_it));
        first.unwrap_or(0) == self.number as usize
    }

    /// The process, by its id, that this one takes an open file from, and its number there; `None` where it has its own way.
    pub(super) fn taken_from(&self, open_file: u32) -> Option<(u32, u32)> {
        if self.number == 0 {
            return None;
        }
        if let Some(number) = self.made.get(&open_file) {
            return Some((self.tree.process.pid, *number));
        }
        let has =
            |files: &[FileDescriptor]| files.iter().find(|file| file.open_file == open_file).map(|file| file.number);
        if let Some(number) = has(&self.tree.file_descriptors) {
            return Some((self.tree.process.pid, number));
        }
        let older = &self.tree.members[..self.number as usize - 1];
        older.iter().find_map(|member| Some((member.process.pid, has(&member.file_descriptors)?)))
    }
}

/// Whether a process is stopped when it is complete: it was, or had not yet taken the signal that stops it.
pub(super) fn is_to_stop(member: &Member) -> bool {
    let of_threads = member.threads.iter().flat_map(|thread| &thread.pending_signals);
    member.is_stopped || member.process.pending_signals.iter().chain(of_threads).any(is_sigstop)
}

/// Whether a pending signal is SIGSTOP.
pub(super) fn is_sigstop(signal: &PendingSignal) -> bool {
    let number = signal.siginfo.first_chunk().map(|word| i32::from_ne_bytes(*word));
    number == Some(Signal::STOP.as_raw())
}
