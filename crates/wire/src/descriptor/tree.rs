//! The other processes of a seed that captures a process tree.
//!
//! Processes are numbered. The first process has number 0, its descendants have the numbers from 1 on. A parent has a lower
//! number than its children.

use serde::{Deserialize, Serialize};

use super::validate::{ProcessView, require};
use super::{
    Descriptor, EagerBytes, FileDescriptor, FileLock, FileOwner, InvalidDescriptor, Mapping, Process,
    ProcessAttributes, Thread,
};

/// Maximum number of processes of one seed, zombies included. A process with memory of its own needs a template, and an
/// address space in a pager.
pub const PROCESSES_MAX: usize = 256;

/// The kernel's highest signal number.
const SIGNAL_MAX: u32 = 64;

/// Relations of a process to the other processes of its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRelations {
    /// Number of the parent process.
    pub parent: u32,
    /// Id of its process group.
    pub group: u32,
    /// Id of its session.
    pub session: u32,
    /// The signal that its parent gets when it ends; 0 for none.
    pub exit_signal: u32,
    /// Whether it shares root, current directory and file mode creation mask with its parent (CLONE_FS).
    pub shares_fs: bool,
    /// Whether it shares its parent's table of descriptors (CLONE_FILES). Its own list is then empty.
    pub shares_files: bool,
    /// Whether it shares its parent's address space (CLONE_VM). Its own memory map is then empty.
    pub shares_memory: bool,
    /// Whether it shares its parent's signal handlers (CLONE_SIGHAND). Its own list is then empty.
    pub shares_handlers: bool,
    /// Whether the process was orphaned by its session's leader. The leader is a zombie, and a child of this process's
    /// current parent.
    pub is_session_orphan: bool,
}

//  descriptor ─┬─ process, threads, mappings, ...   the first process, from which all others descend
//              ├─ descendants   each with its own such lists; extents, files and objects are one table for all
//              └─ zombies       processes that have ended, see `Zombie`

/// A process other than the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescendantProcess {
    /// Relations to the other processes.
    pub relations: ProcessRelations,
    /// Whether a signal has stopped it.
    pub is_stopped: bool,
    /// Whether its parent can still wait for this stop (WUNTRACED).
    pub has_unreported_stop: bool,
    /// State of the process as a whole.
    pub process: Process,
    /// Its threads; the first is the leader.
    pub threads: Vec<Thread>,
    /// Its memory map, in ascending order of address.
    pub mappings: Vec<Mapping>,
    /// File descriptors, ascending.
    pub file_descriptors: Vec<FileDescriptor>,
    /// File locks that it holds.
    pub file_locks: Vec<FileLock>,
    /// The threads that get signals about the readiness of files.
    pub file_owners: Vec<FileOwner>,
    /// Bytes that must be in place before it runs.
    pub eager_bytes: Vec<EagerBytes>,
}

/// A process that has ended. Its parent has not waited for it, or other processes are still in the group that it led.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zombie {
    /// Its id.
    pub pid: u32,
    /// Relations to the other processes.
    pub relations: ProcessRelations,
    /// The status that wait(2) will return.
    pub status: u32,
    /// Its name (comm), at most 15 bytes.
    pub name: Vec<u8>,
    /// Whether its parent has already waited for it. Then the seed contains it only because processes are still in the group
    /// that it led.
    pub is_reaped: bool,
}

impl Descriptor {
    /// Number of threads of all processes, plus zombies.
    pub fn task_count(&self) -> u64 {
        let of_members: usize = self.descendants.iter().map(|member| member.threads.len()).sum();
        (self.threads.len() + of_members + self.zombies.len()) as u64
    }

    /// Number of processes, without zombies.
    pub fn process_count(&self) -> usize {
        1 + self.descendants.len()
    }

    /// Returns the number of the process that owns a process's table of descriptors: itself or an ancestor.
    pub fn fd_table_owner(&self, number: u32) -> u32 {
        self.nearest_unshared(number, |process_relations| process_relations.shares_files)
    }

    /// Returns the number of the process that owns a process's address space: itself or an ancestor.
    pub fn address_space_owner(&self, number: u32) -> u32 {
        self.nearest_unshared(number, |process_relations| process_relations.shares_memory)
    }

    /// Returns the number of the nearest process, from `number` towards the ancestors, for which `has_parents` is false.
    fn nearest_unshared(&self, number: u32, has_parents: impl Fn(&ProcessRelations) -> bool) -> u32 {
        let mut origin = number;
        while let Some(member) = self.descendant(origin).filter(|member| has_parents(&member.relations)) {
            origin = member.relations.parent;
        }
        origin
    }

    fn descendant(&self, number: u32) -> Option<&DescendantProcess> {
        self.descendants.get(number.checked_sub(1)? as usize)
    }

    /// Returns a copy of the descriptor with a descendant as the first process. Code for one process can then be used for
    /// the descendant.
    pub fn rooted_at(&self, member: &DescendantProcess) -> Self {
        let attributes = self.attributes_of(member);
        let member = member.clone();
        Self {
            attributes: attributes.map(|one| ProcessAttributes { process: 0, ..one.clone() }).into_iter().collect(),
            process: member.process,
            threads: member.threads,
            mappings: member.mappings,
            file_descriptors: member.file_descriptors,
            file_locks: member.file_locks,
            file_owners: member.file_owners,
            eager_bytes: member.eager_bytes,
            origin: self.origin.clone(),
            extents: self.extents.clone(),
            layers: self.layers.clone(),
            mapped_files: self.mapped_files.clone(),
            shared_objects: self.shared_objects.clone(),
            semaphore_sets: self.semaphore_sets.clone(),
            message_queues: self.message_queues.clone(),
            terminals: self.terminals.clone(),
            open_files: self.open_files.clone(),
            file_versions: self.file_versions.clone(),
            descendants: Vec::new(),
            zombies: Vec::new(),
            volumes: self.volumes.clone(),
            moved_epoll_targets: self.moved_epoll_targets.clone(),
            open_file_attributes: self.open_file_attributes.clone(),
        }
    }

    /// The processes, the first one first.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.process_views().map(|part| part.process)
    }

    /// The threads of all processes.
    pub fn all_threads(&self) -> impl Iterator<Item = &Thread> {
        self.process_views().flat_map(|part| part.threads)
    }

    /// The parts of the descriptor that belong to each process, the first process first.
    pub(super) fn process_views(&self) -> impl Iterator<Item = ProcessView<'_>> {
        let first = ProcessView {
            descriptor: self,
            process: &self.process,
            threads: &self.threads,
            mappings: &self.mappings,
            file_descriptors: &self.file_descriptors,
            file_locks: &self.file_locks,
            file_owners: &self.file_owners,
            eager: &self.eager_bytes,
        };
        let others = self.descendants.iter().map(|member| ProcessView {
            descriptor: self,
            process: &member.process,
            threads: &member.threads,
            mappings: &member.mappings,
            file_descriptors: &member.file_descriptors,
            file_locks: &member.file_locks,
            file_owners: &member.file_owners,
            eager: &member.eager_bytes,
        });
        std::iter::once(first).chain(others)
    }

    /// Checks that the processes are a tree, that what they share is consistent, and that all thread ids are unique.
    pub(super) fn validate_tree(&self) -> Result<(), InvalidDescriptor> {
        let count = self.process_count() + self.zombies.len();
        require(count <= PROCESSES_MAX, || format!("it has {count} processes, {PROCESSES_MAX} at most"))?;
        for (index, member) in self.descendants.iter().enumerate() {
            let is_after_parent = member.relations.parent as usize <= index;
            require(is_after_parent, || format!("process {} precedes its parent", member.process.pid))?;
            member.relations.validate(member.process.pid)?;
            member.validate_inheritance(&self.zombies)?;
            member.validate_memory(self)?;
        }
        for zombie in &self.zombies {
            let ProcessRelations { parent, shares_files, shares_memory, .. } = zombie.relations;
            let is_alone = !shares_files && !shares_memory;
            let has_parent =
                (parent as usize) < self.process_count() && self.address_space_owner(parent) == parent && is_alone;
            require(has_parent && zombie.name.len() < 16 && zombie.pid > 1, || {
                format!("zombie {} has an invalid id, name or parent", zombie.pid)
            })?;
            zombie.relations.validate(zombie.pid)?;
        }
        let threads = self.process_views().flat_map(|part| part.threads.iter().map(|thread| thread.tid));
        let mut ids: Vec<u32> = threads.chain(self.zombies.iter().map(|zombie| zombie.pid)).collect();
        ids.sort_unstable();
        require(ids.windows(2).all(|pair| pair[0] != pair[1]), || "two threads or zombies have the same id".into())
    }
}

impl DescendantProcess {
    /// Checks what the process inherits by fork: session, root, table of descriptors.
    fn validate_inheritance(&self, zombies: &[Zombie]) -> Result<(), InvalidDescriptor> {
        let ProcessRelations {
            parent,
            session,
            shares_fs: shares_directory,
            shares_files,
            is_session_orphan: is_heir,
            ..
        } = self.relations;
        let leads = |zombie: &Zombie| zombie.pid == session && zombie.relations.session == session;
        let is_left = || zombies.iter().any(|zombie| leads(zombie) && zombie.relations.parent == parent);
        // The zombie created this process, so the current parent shares nothing with this process.
        let has_origin = !is_heir || !shares_directory && !shares_files && is_left();
        require(has_origin, || {
            format!(
                "process {}: no zombie of its parent led its session, or it shares state with its parent",
                self.process.pid
            )
        })?;
        let has_one_root = !shares_directory || self.process.root.is_none();
        require(has_one_root, || format!("process {} shares a root and has its own", self.process.pid))?;
        let has_one_table = !shares_files || self.file_descriptors.is_empty();
        require(has_one_table, || format!("process {} has two tables of descriptors", self.process.pid))
    }

    /// Checks which processes share memory. A process that shares its parent's memory is created after that memory is built,
    /// which is too late to create processes with other memory. So all its children must share the memory too.
    fn validate_memory(&self, tree: &Descriptor) -> Result<(), InvalidDescriptor> {
        let ProcessRelations { parent, session, shares_memory, shares_handlers, is_session_orphan: is_heir, .. } =
            self.relations;
        let pid = self.process.pid;
        require(shares_memory || tree.address_space_owner(parent) == parent, || {
            format!("process {pid} must share its parent's memory")
        })?;
        let has_one = !shares_memory || self.mappings.is_empty() && self.eager_bytes.is_empty() && !is_heir;
        require(has_one, || format!("process {pid} has two address spaces"))?;
        let of_parent = tree.descendant(parent).map_or(tree.process.pid, |parent| parent.relations.session);
        let has_session = !shares_memory || [pid, of_parent].contains(&session);
        require(has_session, || {
            format!("process {pid} shares memory, but has neither its own nor its parent's session")
        })?;
        let has_handlers = !shares_handlers || shares_memory && self.process.signal_actions.is_empty();
        require(has_handlers, || format!("process {pid} shares signal handlers without memory, or also has its own"))
    }
}

impl ProcessRelations {
    fn validate(&self, pid: u32) -> Result<(), InvalidDescriptor> {
        let fits = self.group > 0 && self.session > 0 && self.exit_signal <= SIGNAL_MAX;
        require(fits, || format!("process {pid} has an invalid group, session or exit signal"))
    }
}
