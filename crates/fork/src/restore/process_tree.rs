//! Compiles the plans of a process tree into one memfd: which process forks which, when, and from which process it
//! copies open files. `planned_child` and `zygote` call it. `plan` compiles each process's plan. A single process is a
//! tree too: its memfd is its plan.

use std::collections::HashMap;
use std::ops::Range;

use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{
    Backing, DescendantProcess, Descriptor, FileDescriptor, Mapping, PendingSignal, Process, ProcessRelations, Zombie,
};
use rustix::process::Signal;
use zerocopy::IntoBytes;

use super::file_descriptors::PAYLOAD_FD;
use super::passed_objects::PassedObjects;
use super::plan::{self, PlanInputs, PlanOptions, ProcessPlan};
use super::plan_layout::{
    CHILD_AFTER_SESSION, CHILD_CORE_DUMPED, CHILD_GROUP_LEADER, CHILD_REAPED, CHILD_REPARENTED, CHILD_SESSION_LEADER,
    CHILD_SHARES_DIRECTORY, CHILD_SHARES_FILES, CHILD_SHARES_HANDLERS, CHILD_SHARES_MEMORY, CHILD_STOP_UNREPORTED,
    CHILD_STOPPED, CHILD_ZOMBIE, PLAN_GROUP_LEADER, PLAN_SESSION_LEADER, PLAN_SHARES_MEMORY, PLAN_STOPPED,
    PLAN_SUBREAPER, PlanChild,
};
use super::stub_map::StubMap;
use super::{LocalNode, RestoreError};

/// Minimum for the first number of farfork's own descriptors during the restore. The number is higher if the processes have
/// higher descriptors.
const FD_BASE_MIN: u32 = 64;

/// The bit of a wait status that means that a core was written.
const CORE_BIT: u32 = 0x80;

/// Whether this node writes cores into the current directory, under a name that the restorer knows and can remove.
fn has_plain_core_pattern() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern");
    pattern.is_ok_and(|pattern| matches!(pattern.trim_end(), "core" | "core.%p"))
}

/// The position of a process in its tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct TreePosition<'a> {
    /// Its index in the tree; 0 is the first process.
    pub(super) process_index: u32,
    /// First number for farfork's own descriptors during the restore.
    pub(super) fd_base: u32,
    /// The descriptor of the whole tree.
    pub(super) tree: &'a Descriptor,
    /// Open files that the first process creates by system calls, and their descriptors in this process.
    created_fds: &'a HashMap<u32, u32>,
    /// Occupied address ranges in the memory that the process shares with its parent, including other restorers'
    /// regions: start and end.
    pub(super) occupied: &'a [(u64, u64)],
}

/// The plans of all processes, in one file.
#[derive(Debug)]
pub(super) struct TreePlan {
    /// The bytes that the stub, and each process forked from it, map.
    pub(super) bytes: Vec<u8>,
    /// All descriptors that the processes need during the restore are below this number.
    pub(super) fd_limit: u32,
    /// For each process, the address ranges that it registers with its userfaultfd.
    pub(super) userfaultfd_ranges: Vec<Vec<Range<u64>>>,
    /// The first process's restorer region: start and length.
    pub(super) region: (u64, u64),
}

/// Compiles the plans of a descriptor's processes for the stub whose map is `stub`.
pub(super) fn compile(
    descriptor: &Descriptor,
    node: &LocalNode,
    stub: &StubMap,
    objects: &PassedObjects,
    plan_options: &PlanOptions<'_>,
) -> Result<TreePlan, RestoreError> {
    let no_fds = HashMap::new();
    let fd_base = reserved_fd_base(descriptor, plan_options.payload.is_some(), objects.count() as u32);
    let position = TreePosition { process_index: 0, fd_base, tree: descriptor, created_fds: &no_fds, occupied: &[] };
    let mut first = plan::compile(&PlanInputs { descriptor, node, stub, objects, plan_options, position: &position })?;
    let created_fds = std::mem::take(&mut first.created_fds);
    let mut plans = vec![first];
    // Only the first process gets the payload, and waits if the child is paused.
    let plan_options = PlanOptions { payload: None, paused: false, ..*plan_options };
    for (member, number) in descriptor.descendants.iter().zip(1..) {
        let owner = descriptor.address_space_owner(number);
        let has_own_memory = owner == number;
        let occupied = if has_own_memory { &[][..] } else { &plans[owner as usize].occupied };
        let position =
            TreePosition { process_index: number, fd_base, tree: descriptor, created_fds: &created_fds, occupied };
        // The vdso bridge belongs to the process that builds the address space.
        let plan_options = PlanOptions { bridge: plan_options.bridge.filter(|_| has_own_memory), ..plan_options };
        let plan = plan::compile(&PlanInputs {
            descriptor: &descriptor.rooted_at(member),
            node,
            stub,
            objects,
            plan_options: &plan_options,
            position: &position,
        })?;
        if !has_own_memory {
            let (start, bytes) = plan.region;
            plans[owner as usize].occupied.push((start, start + bytes));
        }
        plans.push(plan);
    }
    Ok(concatenate_plans(plans, descriptor))
}

/// Returns the first number for farfork's descriptors: above all descriptors of the processes, and above the `passed`
/// descriptors that a stub receives. It is the same for all processes, because they may share one descriptor table.
fn reserved_fd_base(descriptor: &Descriptor, has_payload: bool, passed: u32) -> u32 {
    let tables = descriptor.descendants.iter().map(|member| &member.file_descriptors);
    let last = |table: &Vec<FileDescriptor>| table.last().map_or(0, |entry| entry.number + 1);
    let used = std::iter::once(&descriptor.file_descriptors).chain(tables).map(last).max().unwrap_or(0);
    let moved = descriptor.moved_epoll_targets.iter().map(|moved| moved.target.number + 1).max().unwrap_or(0);
    used.max(moved).max(if has_payload { PAYLOAD_FD + 1 } else { 0 }).max(FD_BASE_MIN + passed)
}

//  memfd   plan of the first ┊ plan of process 1 ┊ plan of process 2 ┊ …     each begins on a page
//            └ children: 1, 2   └ child: a zombie                             with the offset of each child's plan
/// Concatenates the plans, and writes into each plan the offsets of its children's plans.
fn concatenate_plans(mut plans: Vec<ProcessPlan>, descriptor: &Descriptor) -> TreePlan {
    let mut plan_offsets = Vec::with_capacity(plans.len());
    let mut end = 0_u64;
    for plan in &plans {
        plan_offsets.push(end);
        end = (end + plan.bytes.len() as u64).next_multiple_of(PAGE_SIZE);
    }
    for (number, plan) in plans.iter_mut().enumerate() {
        for (index, child) in live_children(descriptor, number as u32).enumerate() {
            let at = plan.children.offset as usize + index * size_of::<PlanChild>();
            plan.bytes[at..at + size_of::<u64>()].copy_from_slice(plan_offsets[child].as_bytes());
        }
    }
    let region = plans[0].region;
    // Until all processes are forked, the plan file has the number after the passed descriptors.
    let fd_limit = plans.iter().map(|plan| plan.fd_limit + 1).max().unwrap_or(0);
    let mut bytes = Vec::with_capacity(end as usize);
    let mut userfaultfd_ranges = Vec::with_capacity(plans.len());
    for (plan, plan_offset) in plans.into_iter().zip(plan_offsets) {
        bytes.resize(plan_offset as usize, 0);
        bytes.extend_from_slice(&plan.bytes);
        userfaultfd_ranges.push(plan.userfaultfd_ranges);
    }
    TreePlan { bytes, fd_limit, userfaultfd_ranges, region }
}

/// Returns the CHILD_* flags for the resources that a process shares with its parent.
fn sharing_flags(process_relations: &ProcessRelations) -> u32 {
    [
        (process_relations.shares_fs, CHILD_SHARES_DIRECTORY),
        (process_relations.shares_files, CHILD_SHARES_FILES),
        (process_relations.shares_memory, CHILD_SHARES_MEMORY),
        (process_relations.shares_handlers, CHILD_SHARES_HANDLERS),
    ]
    .into_iter()
    .filter(|(is_shared, _)| *is_shared)
    .fold(0, |flags, (_, flag)| flags | flag)
}

/// Returns the indices of a process's live children.
fn live_children(descriptor: &Descriptor, number: u32) -> impl Iterator<Item = usize> {
    let members = descriptor.descendants.iter().enumerate();
    members.filter(move |(_, member)| member.relations.parent == number).map(|(index, _)| index + 1)
}

impl TreePosition<'_> {
    pub(super) fn process_count(&self) -> u32 {
        self.tree.process_count() as u32
    }

    /// The descriptor of the whole tree.
    pub(super) fn tree_descriptor(&self) -> &Descriptor {
        self.tree
    }

    fn member(&self) -> Option<&DescendantProcess> {
        self.tree.descendants.get((self.process_index as usize).checked_sub(1)?)
    }

    fn process(&self) -> &Process {
        self.member().map_or(&self.tree.process, |member| &member.process)
    }

    /// Index of the process that places the descriptors: the first of those that share the table.
    pub(super) fn fd_table_owner(&self) -> u32 {
        self.tree.fd_table_owner(self.process_index)
    }

    /// Returns the number of processes that share this process's descriptor table, including itself.
    pub(super) fn fd_table_users(&self) -> u32 {
        let table = self.fd_table_owner();
        (0..self.process_count()).filter(|number| self.tree.fd_table_owner(*number) == table).count() as u32
    }

    /// Returns the number of processes that build an address space.
    pub(super) fn address_space_count(&self) -> u32 {
        (0..self.process_count()).filter(|number| self.tree.address_space_owner(*number) == *number).count() as u32
    }

    /// Returns the processes that share this process's descriptor table, but do not place the descriptors.
    pub(super) fn fd_table_sharers(&self) -> impl Iterator<Item = &DescendantProcess> {
        let members = self.tree.descendants.iter().zip(1..);
        members
            .filter(|(_, number)| {
                *number != self.process_index && self.tree.fd_table_owner(*number) == self.process_index
            })
            .map(|(member, _)| member)
    }

    /// Returns the PLAN_* flags of the process. The first process leads its own session and group, because the leaders
    /// of the original ones are outside of the container.
    pub(super) fn plan_flags(&self) -> u32 {
        let process = self.process();
        let (session, group) = self.member().map_or((process.pid, process.pid), |member| {
            let ProcessRelations { session, group, .. } = member.relations;
            (session, group)
        });
        let mut flags = if process.is_subreaper { PLAN_SUBREAPER } else { 0 };
        if session == process.pid {
            flags |= PLAN_SESSION_LEADER;
        } else if group == process.pid {
            flags |= PLAN_GROUP_LEADER;
        }
        if self.member().is_some_and(starts_stopped) {
            flags |= PLAN_STOPPED;
        }
        if self.member().is_some_and(|member| member.relations.shares_memory) {
            flags |= PLAN_SHARES_MEMORY;
        }
        flags
    }

    /// Returns the process group that the process joins; 0 if it leads a group.
    pub(super) fn joined_group(&self) -> u32 {
        let of_other = |member: &&DescendantProcess| member.relations.group != member.process.pid;
        self.member().filter(of_other).map_or(0, |member| member.relations.group)
    }

    /// Builds the table of this process's children, live ones first. The offsets of the children's plans are set later.
    pub(super) fn build_child_table(&self) -> Vec<PlanChild> {
        let living = live_children(self.tree, self.process_index)
            .map(|child| self.plan_live_child(&self.tree.descendants[child - 1]));
        let zombies = self.tree.zombies.iter().filter(|zombie| zombie.relations.parent == self.process_index);
        living.chain(zombies.map(|zombie| self.plan_zombie(zombie))).collect()
    }

    fn plan_live_child(&self, member: &DescendantProcess) -> PlanChild {
        let pid = member.process.pid;
        let mut flags = self.session_flag(pid, &member.relations) | sharing_flags(&member.relations);
        if member.relations.is_session_orphan {
            flags |= CHILD_REPARENTED;
        }
        if starts_stopped(member) {
            // If the process was not stopped at capture, the parent cannot have waited for the stop.
            let unreported = if member.has_unreported_stop || !member.is_stopped { CHILD_STOP_UNREPORTED } else { 0 };
            flags |= CHILD_STOPPED | unreported;
        }
        let group_or_session = if member.relations.is_session_orphan { member.relations.session } else { 0 };
        PlanChild {
            plan_offset: 0,
            pid,
            exit_signal: member.relations.exit_signal,
            flags,
            status: 0,
            group_or_session,
            name: [0; 16],
            reserved: 0,
        }
    }

    fn plan_zombie(&self, zombie: &Zombie) -> PlanChild {
        let Zombie { pid, relations: process_relations, status, name: text, is_reaped } = zombie;
        let mut name = [0; 16];
        name[..text.len()].copy_from_slice(text);
        let (leads_session, leads_group) = (process_relations.session == *pid, process_relations.group == *pid);
        let core = if status & CORE_BIT != 0 && has_plain_core_pattern() { CHILD_CORE_DUMPED } else { 0 };
        let reaped = if *is_reaped { CHILD_REAPED } else { 0 };
        let flags = self.session_flag(*pid, process_relations) | CHILD_ZOMBIE | core | reaped;
        let leader =
            if leads_session { CHILD_SESSION_LEADER } else { 0 } | if leads_group { CHILD_GROUP_LEADER } else { 0 };
        PlanChild {
            plan_offset: 0,
            pid: *pid,
            exit_signal: process_relations.exit_signal,
            flags: flags | leader,
            status: *status,
            group_or_session: if leads_group { 0 } else { process_relations.group },
            name,
            reserved: 0,
        }
    }

    /// Returns CHILD_AFTER_SESSION if the child is in this process's session or leads one. Otherwise 0: the child is in
    /// the session in which this process was forked, so it is forked before this process begins its session.
    fn session_flag(&self, pid: u32, process_relations: &ProcessRelations) -> u32 {
        let session = self.member().map_or(self.tree.process.pid, |member| member.relations.session);
        let is_after = process_relations.session == session || process_relations.session == pid;
        if is_after { CHILD_AFTER_SESSION } else { 0 }
    }

    /// Whether this process is the first that maps a shared object. If no process maps it, this holds for the first
    /// process of the tree.
    pub(super) fn is_first_to_attach(&self, object: u32) -> bool {
        let is_it = |mapping: &Mapping| matches!(mapping.backing, Backing::SharedMemory { object: other, .. } if other == object);
        let members = self.tree.descendants.iter().map(|member| &member.mappings);
        let first = std::iter::once(&self.tree.mappings).chain(members).position(|all| all.iter().any(is_it));
        first.unwrap_or(0) == self.process_index as usize
    }

    /// Returns the pid of the process from which this process copies an open file, and the descriptor in that process;
    /// `None` if it opens the file itself.
    pub(super) fn fd_source(&self, open_file: u32) -> Option<(u32, u32)> {
        if self.process_index == 0 {
            return None;
        }
        self.find_fd(open_file, self.process_index as usize - 1)
    }

    /// Returns the process of the whole tree that opens a file, and the file's descriptor there.
    pub(super) fn fd_in_tree(&self, open_file: u32) -> Option<(u32, u32)> {
        self.find_fd(open_file, self.tree.descendants.len())
    }

    /// Searches the first process and this number of descendants.
    fn find_fd(&self, open_file: u32, descendants: usize) -> Option<(u32, u32)> {
        if let Some(number) = self.created_fds.get(&open_file) {
            return Some((self.tree.process.pid, *number));
        }
        let has =
            |files: &[FileDescriptor]| files.iter().find(|file| file.open_file == open_file).map(|file| file.number);
        if let Some(number) = has(&self.tree.file_descriptors) {
            return Some((self.tree.process.pid, number));
        }
        self.tree.descendants[..descendants]
            .iter()
            .find_map(|member| Some((member.process.pid, has(&member.file_descriptors)?)))
    }
}

/// Whether a process must stop as soon as it is complete: at capture it was stopped, or a SIGSTOP was pending.
pub(super) fn starts_stopped(member: &DescendantProcess) -> bool {
    let of_threads = member.threads.iter().flat_map(|thread| &thread.pending_signals);
    member.is_stopped || member.process.pending_signals.iter().chain(of_threads).any(is_sigstop)
}

/// Whether a pending signal is SIGSTOP.
pub(super) fn is_sigstop(signal: &PendingSignal) -> bool {
    let number = signal.siginfo.first_chunk().map(|word| i32::from_ne_bytes(*word));
    number == Some(Signal::STOP.as_raw())
}
