//! Compiles the lists of system calls that create the child's resources, such as timers, named pipes and sockets. The
//! child makes the calls itself, before its threads start: `restorer/syscalls.c` runs each list in order. A descriptor
//! cannot choose a call: all numbers are in `abi`, and a descriptor supplies only values.

mod abi;
mod accept_queue;
mod ancillary_messages;
mod append_only_files;
mod deleted_directory;
mod disconnected_tcp;
mod file_locks;
mod inotify;
mod named_pipe;
mod open_files;
mod process_settings;
mod refused_connection;
mod reuse_port;
mod shared_memory;
mod socket;
mod socket_file;
mod socket_options;
mod stream_memory;
mod system_v_ipc;
mod tcp_connection;
mod terminal_settings;
mod timers;
mod unix_closed_peer;
mod unix_datagram;
mod unix_pair;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::RestoreError;
use super::address_space::PlanScope;
use super::plan::PlanInputs;
use super::plan_layout::{PASSED_RESERVED_COUNT, PlanSpan, PlanSyscall, SYSCALL_ANY_RESULT, SYSCALL_MAY_FAIL};
use super::plan_writer::PlanWriter;

use file_locks::RestorerFiles;
use socket::SocketContext;
pub(super) use socket::{SocketCreators, peer_credentials};

pub(super) use file_locks::O_ASYNC;
pub(super) use shared_memory::is_mapped_by_shmat;

/// The lists of calls of a plan, by the time at which they run.
#[derive(Debug, Clone, Copy)]
pub(super) struct SyscallLists {
    /// Calls for named shared memory. In a tree, the first process creates it before others attach it.
    pub(super) before_mappings: PlanSpan,
    /// Calls that create objects. Each is created as descriptor 0, which is still free, and moved above all numbers
    /// that the child will have. Then it is placed like the objects that the daemon passes.
    pub(super) before_files: PlanSpan,
    /// Calls that enter the process's own root, after all processes of the tree have opened their paths.
    pub(super) after_paths: PlanSpan,
    /// Calls for timers, locks, file owners and CPU affinity. They run when the child has its threads, files and
    /// credentials.
    pub(super) before_start: PlanSpan,
}

/// The parts of an address space that system calls change.
pub(super) struct PatchedMemory<'a> {
    /// Address range of a bridge's vdso.
    pub(super) vdso_range: Option<Range<u64>>,
    /// Start addresses of private mappings with written pages.
    pub(super) overlaid_mappings: &'a BTreeSet<u64>,
}

/// Slots for objects that the child creates. They continue the numbers of the passed descriptors.
#[derive(Debug)]
pub(super) struct CreatedFiles {
    slots: HashMap<u32, u32>,
    /// The first free slot. Some lower slots are in use only until the child runs.
    next_slot: u32,
}

impl CreatedFiles {
    /// Slots of the objects that a process has created, by open file.
    pub(super) fn slots(&self) -> &HashMap<u32, u32> {
        &self.slots
    }

    /// The first free slot.
    pub(super) fn next_slot(&self) -> u32 {
        self.next_slot
    }

    /// Returns the slot of an open file's object; `None` if no system call creates the object.
    pub(super) fn slot_of_open_file(&self, index: u32) -> Option<u32> {
        self.slots.get(&index).copied()
    }
}

impl SyscallLists {
    /// Compiles the calls for one process. `memory`: a bridged vdso, and private file mappings with written pages.
    pub(super) fn compile(
        inputs: &PlanInputs<'_>,
        creators: SocketCreators<'_>,
        memory: PatchedMemory<'_>,
        writer: &mut PlanWriter,
    ) -> Result<(Self, CreatedFiles), RestoreError> {
        let PlanInputs { descriptor, objects, plan_options, position: place, .. } = *inputs;
        let fd_base = place.fd_base;
        // The first process of a tree creates the objects that all share. A zygote has none.
        let is_first = place.process_index == 0 && plan_options.scope != PlanScope::Zygote;
        let passed = PASSED_RESERVED_COUNT + objects.count() as u32;
        let mut syscall_builder = SyscallBuilder::new(writer);
        process_settings::disable_huge_pages(descriptor, &mut syscall_builder);
        process_settings::merge_memory(descriptor, &mut syscall_builder);
        if is_first {
            shared_memory::create_shared_memory(descriptor, objects, place, &mut syscall_builder)?;
        } else if place.process_index > 0 {
            shared_memory::attach_segments(descriptor, place, &mut syscall_builder);
        }
        let before_mappings = syscall_builder.finish()?;
        let PatchedMemory { vdso_range: vdso, overlaid_mappings: overlaid } = memory;
        let mut syscall_builder = SyscallBuilder::new(writer);
        if let Some(place) = vdso {
            shared_memory::protect_vdso_code(&place, &mut syscall_builder);
        }
        shared_memory::write_private_pages(objects, place, overlaid, &mut syscall_builder);
        if is_first {
            shared_memory::add_deferred_seals(descriptor, objects, fd_base, &mut syscall_builder);
            shared_memory::set_times(descriptor, objects, fd_base, &mut syscall_builder)?;
        }
        // If processes share a descriptor table, only the owner of the table opens files.
        if place.fd_table_owner() == place.process_index {
            process_settings::set_oom_scores(descriptor, place, inputs.is_zygote_copy(), &mut syscall_builder)?;
            process_settings::set_core_filters(descriptor, place, &mut syscall_builder)?;
        }
        process_settings::set_local_descriptors(descriptor, &mut syscall_builder)?;
        deleted_directory::enter_deleted_directory(descriptor, &mut syscall_builder)?;
        let made = match is_first {
            true => {
                system_v_ipc::create_ipc_objects(descriptor, &mut syscall_builder)?;
                let sockets = SocketContext { descriptor, objects, creators };
                open_files::create_open_files(descriptor, fd_base, passed, sockets, &mut syscall_builder)?
            }
            false => CreatedFiles { slots: HashMap::new(), next_slot: passed },
        };
        if is_first && plan_options.untrusted {
            process_settings::make_proc_read_only(&mut syscall_builder)?;
        }
        // The child enters its own user namespace after these calls.
        if plan_options.user_namespace.is_some() {
            process_settings::raise_scheduling_limits(descriptor, &mut syscall_builder)?;
        }
        let before_files = syscall_builder.finish()?;
        let mut syscall_builder = SyscallBuilder::new(writer);
        process_settings::enter_root(descriptor, &mut syscall_builder)?;
        let after_paths = syscall_builder.finish()?;
        let mut syscall_builder = SyscallBuilder::new(writer);
        append_only_files::truncate_append_only_files(descriptor, objects, place, &mut syscall_builder)?;
        let restorer_files = RestorerFiles { objects, created_files: &made, fd_base };
        file_locks::take_locks(descriptor, restorer_files, &mut syscall_builder)?;
        file_locks::set_file_owners(descriptor, &mut syscall_builder)?;
        process_settings::register_membarriers(descriptor, &mut syscall_builder);
        process_settings::set_cpu_affinity(descriptor, &mut syscall_builder)?;
        timers::create_timers(descriptor, &mut syscall_builder)?;
        terminal_settings::set_foreground_group(place, objects, descriptor.process.pid, &mut syscall_builder)?;
        Ok((Self { before_mappings, before_files, after_paths, before_start: syscall_builder.finish()? }, made))
    }
}

/// An argument of a system call.
#[derive(Debug, Clone, Copy)]
enum SyscallArgument {
    Value(u64),
    /// The address of the data at this offset in the plan.
    PlanOffset(u32),
}

/// Builds one list of system calls.
#[derive(Debug)]
struct SyscallBuilder<'a> {
    writer: &'a mut PlanWriter,
    syscalls: Vec<PlanSyscall>,
    /// The current step and its object, for error reports.
    step_and_object: (u32, u32),
}

impl<'a> SyscallBuilder<'a> {
    fn new(writer: &'a mut PlanWriter) -> Self {
        Self { writer, syscalls: Vec::new(), step_and_object: (0, 0) }
    }

    /// Sets the step of the following calls, and the number of its object.
    fn set_step(&mut self, step: u32, object: u32) {
        self.step_and_object = (step, object);
    }

    /// Adds a call that must return `expected`.
    fn call_expecting(&mut self, expected: u64, number: u32, arguments: &[SyscallArgument]) {
        let (step, object) = self.step_and_object;
        let mut row = PlanSyscall { arguments: [0; 6], expected, number, pointer_mask: 0, step, object };
        for (index, argument) in arguments.iter().enumerate() {
            row.arguments[index] = match *argument {
                SyscallArgument::Value(value) => value,
                SyscallArgument::PlanOffset(offset) => {
                    row.pointer_mask |= 1 << index;
                    u64::from(offset)
                }
            };
        }
        self.syscalls.push(row);
    }

    /// Adds a call that must succeed.
    fn call(&mut self, number: u32, arguments: &[SyscallArgument]) {
        self.call_expecting(SYSCALL_ANY_RESULT, number, arguments);
    }

    /// Adds a call that may fail.
    fn call_may_fail(&mut self, number: u32, arguments: &[SyscallArgument]) {
        self.call_expecting(SYSCALL_MAY_FAIL, number, arguments);
    }

    /// Stores a text in the plan, as a pointer argument.
    fn text_argument(&mut self, text: &str) -> Result<SyscallArgument, RestoreError> {
        Ok(SyscallArgument::PlanOffset(self.writer.write_text(text)?))
    }

    /// Stores bytes in the plan, as a pointer argument.
    fn bytes_argument(&mut self, bytes: &[u8]) -> Result<SyscallArgument, RestoreError> {
        Ok(SyscallArgument::PlanOffset(self.writer.write_bytes(bytes)?))
    }

    /// Stores words in the plan, as a pointer argument.
    fn words_argument(&mut self, words: &[u64]) -> Result<SyscallArgument, RestoreError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.bytes_argument(&bytes)
    }

    fn finish(self) -> Result<PlanSpan, RestoreError> {
        self.writer.write_table(&self.syscalls)
    }
}

/// Converts a number to an argument.
fn value(value: impl Into<u64>) -> SyscallArgument {
    SyscallArgument::Value(value.into())
}
