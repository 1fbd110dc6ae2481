//! Compiles a descriptor into one process's restore plan: flat tables with checked addresses, for a container on this
//! node. `process_tree` calls it for each process. Other modules compile the single tables; this module assembles them
//! and writes the header.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use farfork_container::PRIVATE_DIR;
use farfork_sys::user_namespace::IdRange;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{
    Credentials, Descriptor, FIRST_SELECTOR_INDEX, MCE_KILL_DEFAULT, Mm, PendingSignal, Process, Thread,
};
use zerocopy::IntoBytes;

use super::address_space::{AddressSpacePlan, PlanScope};
use super::confinement;
use super::file_descriptors;
use super::passed_objects::PassedObjects;
use super::plan_layout::{
    CODE_BYTES_MAX, CREDENTIALS_UNCHANGED, PASSED_RESERVED_COUNT, PLAN_EXE_PASSED, PLAN_MAGIC, PLAN_PAUSED,
    PLAN_ZYGOTE, PLAN_ZYGOTE_COPY, PlanCredentials, PlanEagerBytes, PlanHeader, PlanRange, PlanResourceLimit,
    PlanSignalAction, PlanSpan, PlanSpecialMapping, PlanThread, SIGINFO_BYTES,
};
use super::plan_writer::PlanWriter;
use super::process_tree::{self, TreePosition};
use super::region::RestorerRegion;
use super::seccomp_filters;
use super::signal_frame::{self, FS_BASE_INDEX, GS_BASE_INDEX};
use super::stub_map::StubMap;
use super::syscalls::{CreatedFiles, PatchedMemory, SocketCreators, SyscallLists, peer_credentials};
use super::thread_policies::{write_memory_policy, write_sched_attr};
use super::vdso::{self, VdsoBridge};
use super::{LocalNode, RestoreError};
use crate::futex_words::FutexWords;

/// A plan, ready for a stub.
#[derive(Debug)]
pub(super) struct ProcessPlan {
    /// The bytes of the plan, which the stub maps.
    pub(super) bytes: Vec<u8>,
    /// The addresses that the process registers with its userfaultfd; empty if the pager serves none of its pages.
    pub(super) userfaultfd_ranges: Vec<Range<u64>>,
    /// The restorer's region: start and length.
    pub(super) region: (u64, u64),
    /// Occupied address ranges of the process, including the restorer's region: start and end.
    pub(super) occupied: Vec<(u64, u64)>,
    /// The table of children that the process forks.
    pub(super) children: PlanSpan,
    /// The open files that the process creates by system calls, each with its descriptor. Other processes copy these
    /// descriptors.
    pub(super) created_fds: HashMap<u32, u32>,
    /// All descriptors that the process needs during the restore are below this number.
    pub(super) fd_limit: u32,
}

/// The properties of a child that its seed's state does not determine.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanOptions<'a> {
    /// Path of the payload inside the container.
    pub(super) payload: Option<&'a Path>,
    /// Whether the child waits before its first instruction.
    pub(super) paused: bool,
    /// Whether the child cannot write to /proc.
    pub(super) untrusted: bool,
    /// The child's own user namespace, if it has one.
    pub(super) user_namespace: Option<UserNamespaceTarget>,
    /// The bridge to this kernel's vdso, if the parent's kernel was another build.
    pub(super) bridge: Option<&'a VdsoBridge>,
    /// The part of the address space that is planned. A zygote has no other state.
    pub(super) scope: PlanScope,
}

/// The user namespace of a container.
#[derive(Debug, Clone, Copy)]
pub(super) struct UserNamespaceTarget {
    /// Index, among the passed descriptors, of the pidfd of the process whose user namespace is entered.
    pub(super) passed_index: u32,
    /// The range of ids outside of the namespace to which its users are mapped.
    pub(super) id_map: IdRange,
}

/// All inputs of the plan of one process.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanInputs<'a> {
    /// The process's state.
    pub(super) descriptor: &'a Descriptor,
    pub(super) node: &'a LocalNode,
    /// Memory map of the stub that becomes the process.
    pub(super) stub: &'a StubMap,
    /// Objects that the daemon passes to the stub.
    pub(super) objects: &'a PassedObjects,
    pub(super) plan_options: &'a PlanOptions<'a>,
    pub(super) position: &'a TreePosition<'a>,
}

impl PlanInputs<'_> {
    /// Whether the process is forked from a zygote, so that it already has its private memory.
    pub(super) fn is_zygote_copy(&self) -> bool {
        matches!(self.plan_options.scope, PlanScope::ZygoteCopy { .. })
    }
}

/// The offset and length of each table. The header is written last, when the region is placed.
struct PlanTables {
    address_space: AddressSpacePlan,
    mappings: PlanSpan,
    files: PlanSpan,
    special_mappings: PlanSpan,
    userfaultfd_ranges: PlanSpan,
    eager: PlanSpan,
    guards: PlanSpan,
    locked_ranges: PlanSpan,
    file_descriptors: PlanSpan,
    epolls: PlanSpan,
    syscalls: SyscallLists,
    created_files: CreatedFiles,
    children: PlanSpan,
    signal_actions: PlanSpan,
    resource_limits: PlanSpan,
    credentials: PlanSpan,
    pending_signals: PlanSpan,
    auxv: PlanSpan,
    fd_base: u32,
    exe: u32,
    cwd: u32,
}

/// Compiles the plan of one process.
pub(super) fn compile(inputs: &PlanInputs<'_>) -> Result<ProcessPlan, RestoreError> {
    let PlanInputs { descriptor, node, objects, .. } = *inputs;
    let mut writer = PlanWriter::new();
    let (credentials, credential_index) = collect_credentials(descriptor, node);
    let tables = write_tables(inputs, &credentials, &mut writer)?;
    let mut threads = build_thread_table(descriptor, &credential_index, &mut writer)?;

    let frame_bytes = signal_frame::frame_bytes(descriptor.threads.iter().map(|t| t.xstate.len()).max().unwrap_or(0));
    let threads_span = writer.write_table(&threads)?;
    let filter_bytes = seccomp_filters::table_bytes(descriptor);
    let frames_bytes = frame_bytes * threads.len() as u64;
    let frames = writer.write_bytes(&vec![0; (frames_bytes + filter_bytes.next_multiple_of(PAGE_SIZE)) as usize])?;
    let staging_bytes = tables.address_space.special_mappings.iter().map(|special| special.bytes).sum();
    let mut occupied = occupied_ranges(inputs, &tables.address_space.special_mappings);
    let region = RestorerRegion::lay_out(
        threads.len() as u64,
        (frame_bytes, filter_bytes),
        writer.len(),
        staging_bytes,
        objects.barrier().is_some(),
    )
    .place(&occupied)?;
    occupied.push((region.start, region.start + region.bytes));
    writer.relocate(region.start + region.plan);

    for (index, (planned, thread)) in threads.iter_mut().zip(&descriptor.threads).enumerate() {
        planned.frame = region.frame_address(index);
        planned.stack_top = region.stack_top(index);
        let bytes = signal_frame::build_frame(thread, planned.frame, frame_bytes, node.processor.state.xcr0)?;
        writer.overwrite(frames + (index as u64 * frame_bytes) as u32, &bytes);
    }
    let filters = seccomp_filters::build_table(descriptor, region.start + region.filters);
    writer.overwrite(frames + frames_bytes as u32, &filters.bytes);
    for (thread, list) in threads.iter_mut().zip(filters.thread_lists) {
        (thread.filters, thread.common_filters) = (list, filters.common_list);
    }
    writer.overwrite(threads_span.offset, threads.as_bytes());
    let process = ProcessContext {
        threads: threads_span,
        frames,
        barrier: objects.barrier(),
        confinement_filters: filters.confinement_list,
        controlling_terminal: objects.controlling_terminal(descriptor.process.pid),
        plan_file: tables.fd_base + PASSED_RESERVED_COUNT + objects.count() as u32,
    };
    let header = build_header(inputs, &tables, &region, writer.len(), process);
    let userfaultfd_ranges =
        tables.address_space.userfaultfd_ranges.iter().map(|range| range.start..range.start + range.bytes).collect();
    let created_fds = tables.created_files.slots().iter().map(|(file, slot)| (*file, tables.fd_base + slot)).collect();
    let region = (region.start, region.bytes);
    // An epoll's registration may need a temporary descriptor.
    let fd_limit =
        tables.fd_base + tables.created_files.next_slot() + inputs.descriptor.moved_epoll_targets.len() as u32;
    Ok(ProcessPlan {
        bytes: writer.finish(&header),
        userfaultfd_ranges,
        region,
        occupied,
        children: tables.children,
        created_fds,
        fd_limit,
    })
}

fn occupied_ranges(inputs: &PlanInputs<'_>, specials: &[PlanSpecialMapping]) -> Vec<(u64, u64)> {
    let PlanInputs { stub, position, .. } = *inputs;
    let future = inputs.descriptor.mappings.iter().map(|mapping| (mapping.start, mapping.end));
    let moved = specials.iter().map(|special| (special.to, special.to + special.bytes));
    future.chain(stub.ranges()).chain(moved).chain(position.occupied.iter().copied()).collect()
}

fn write_tables(
    inputs: &PlanInputs<'_>,
    credentials: &[Credentials],
    writer: &mut PlanWriter,
) -> Result<PlanTables, RestoreError> {
    let PlanInputs { descriptor, node, objects, plan_options, position, .. } = *inputs;
    let process = &descriptor.process;
    let has_memory = inputs.is_zygote_copy();
    // Only private file mappings depend on the matching files, and a copy of a zygote plans none.
    let matching_files =
        if has_memory { Vec::new() } else { super::address_space::find_matching_files(descriptor, node) };
    let address_space = AddressSpacePlan::compile(inputs, &matching_files, writer)?;
    let id_map = plan_options.user_namespace.map(|users| users.id_map);
    let mapped_credentials = id_map.map(|id_map| confinement::map_credentials(&process.credentials, id_map));
    let child = peer_credentials(mapped_credentials.as_ref().unwrap_or(&process.credentials));
    let creators = SocketCreators { child: &child, stub: &peer_credentials(&node.credentials) };
    let vdso_range = address_space.bridge_image.as_ref().and_then(|_| vdso::parent_vdso_range(descriptor));
    let memory = PatchedMemory { vdso_range: vdso_range.clone(), overlaid_mappings: &address_space.overlaid_mappings };
    let (syscalls, created_files) = SyscallLists::compile(inputs, creators, memory, writer)?;
    let (planned_descriptors, epolls) = file_descriptors::build_fd_tables(inputs, &created_files, writer)?;
    let mut eager = if has_memory { Vec::new() } else { build_eager_table(descriptor, writer)? };
    if let (Some(image), Some(range)) = (&address_space.bridge_image, vdso_range) {
        eager.push(PlanEagerBytes {
            address: range.start,
            offset: writer.write_bytes(image)?,
            bytes: image.len() as u32,
        });
    }
    let limits: Vec<_> = process
        .limits
        .iter()
        .map(|limit| PlanResourceLimit { resource: limit.resource.into(), soft: limit.soft, hard: limit.hard })
        .collect();
    let credentials = build_credential_table(credentials, writer)?;
    Ok(PlanTables {
        mappings: writer.write_table(&address_space.mappings)?,
        files: writer.write_table(&address_space.files)?,
        special_mappings: writer.write_table(&address_space.special_mappings)?,
        userfaultfd_ranges: writer.write_table(&address_space.userfaultfd_ranges)?,
        guards: writer.write_table(&address_space.guards)?,
        locked_ranges: writer.write_table(&address_space.locked_ranges)?,
        eager: writer.write_table(&eager)?,
        file_descriptors: writer.write_table(&planned_descriptors)?,
        epolls: writer.write_table(&epolls)?,
        signal_actions: writer.write_table(&build_signal_actions(process))?,
        resource_limits: writer.write_table(&limits)?,
        credentials: writer.write_table(&credentials)?,
        pending_signals: write_pending_signals(&process.pending_signals, writer)?,
        auxv: writer.write_table(&process.mm.auxv)?,
        children: writer.write_table(&position.build_child_table())?,
        syscalls,
        created_files,
        fd_base: position.fd_base,
        exe: match process.exe_object {
            Some(object) => objects.slot_of_shared_object(object),
            None => writer.write_text(&process.exe)?,
        },
        cwd: writer.write_text(if process.deleted_cwd.is_some() { PRIVATE_DIR } else { &process.cwd })?,
        address_space,
    })
}

fn build_signal_actions(process: &Process) -> Vec<PlanSignalAction> {
    let actions = process.signal_actions.iter().map(|action| PlanSignalAction {
        signal: action.signal.into(),
        handler: action.handler,
        flags: action.flags,
        restorer: action.restorer,
        mask: action.mask,
    });
    actions.collect()
}

fn build_eager_table(descriptor: &Descriptor, writer: &mut PlanWriter) -> Result<Vec<PlanEagerBytes>, RestoreError> {
    descriptor
        .eager_bytes
        .iter()
        .map(|eager| {
            let offset = writer.write_bytes(&eager.bytes)?;
            Ok(PlanEagerBytes { address: eager.address, offset, bytes: eager.bytes.len() as u32 })
        })
        .collect()
}

/// Writes the pending signals except SIGSTOP, which cannot be blocked and would stop the process before it is complete.
/// `process_tree` makes the process stop afterwards.
fn write_pending_signals(signals: &[PendingSignal], writer: &mut PlanWriter) -> Result<PlanSpan, RestoreError> {
    let mut rows = Vec::new();
    for signal in signals.iter().filter(|signal| !process_tree::is_sigstop(signal)) {
        let row: [u8; SIGINFO_BYTES] =
            signal.siginfo.as_slice().try_into().map_err(|_| RestoreError::PendingSignalSize)?;
        rows.push(row);
    }
    writer.write_table(&rows)
}

/// Returns the distinct credentials that differ from the stub's, and for each thread the index of its credentials.
fn collect_credentials(descriptor: &Descriptor, node: &LocalNode) -> (Vec<Credentials>, Vec<u32>) {
    let mut table: Vec<Credentials> = Vec::new();
    let index_of = |thread: &Thread| {
        let wanted = thread.credentials.as_ref().unwrap_or(&descriptor.process.credentials);
        if *wanted == node.credentials {
            return CREDENTIALS_UNCHANGED;
        }
        let known = table.iter().position(|known| known == wanted);
        known.unwrap_or_else(|| {
            table.push(wanted.clone());
            table.len() - 1
        }) as u32
    };
    let index = descriptor.threads.iter().map(index_of).collect();
    (table, index)
}

fn build_credential_table(
    credentials: &[Credentials],
    writer: &mut PlanWriter,
) -> Result<Vec<PlanCredentials>, RestoreError> {
    credentials
        .iter()
        .map(|c| {
            Ok(PlanCredentials {
                uids: c.uids,
                gids: c.gids,
                groups: writer.write_table(&c.groups)?,
                inheritable: c.capabilities_inheritable,
                permitted: c.capabilities_permitted,
                effective: c.capabilities_effective,
                bounding: c.capabilities_bounding,
                ambient: c.capabilities_ambient,
                securebits: c.securebits,
                no_new_privileges: c.no_new_privileges.into(),
            })
        })
        .collect()
}

fn build_thread_table(
    descriptor: &Descriptor,
    credential_index: &[u32],
    writer: &mut PlanWriter,
) -> Result<Vec<PlanThread>, RestoreError> {
    let planned = |(thread, credentials): (&Thread, &u32)| {
        let mut name = [0; 16];
        name[..thread.name.len()].copy_from_slice(&thread.name);
        let attributes = descriptor.thread_attributes(thread.tid).cloned().unwrap_or_default();
        let selector = |index: usize| thread.registers[FIRST_SELECTOR_INDEX + index] as u16;
        Ok(PlanThread {
            frame: 0,
            filters: 0,
            common_filters: 0,
            stack_top: 0,
            fs_base: thread.registers[FS_BASE_INDEX],
            gs_base: thread.registers[GS_BASE_INDEX],
            clear_child_tid: thread.clear_child_tid,
            robust_list: thread.robust_list_head,
            robust_list_bytes: thread.robust_list_bytes,
            rseq: thread.rseq.map_or(0, |r| r.address),
            futex_words: FutexWords::of_registers(&thread.registers).into(),
            rseq_bytes: thread.rseq.map_or(0, |r| r.bytes),
            rseq_signature: thread.rseq.map_or(0, |r| r.signature),
            timer_slack_ns: thread.timer_slack_ns,
            tid: thread.tid,
            parent_death_signal: thread.parent_death_signal,
            policy: thread.scheduling.policy,
            nice: thread.scheduling.nice,
            priority: thread.scheduling.priority,
            credentials: *credentials,
            sched_attr: write_sched_attr(thread, writer)?,
            forbids_tsc: thread.is_tsc_disabled.into(),
            store_bypass: thread.store_bypass,
            indirect_branch: thread.indirect_branch,
            personality: thread.personality,
            memory_policy: write_memory_policy(attributes.memory_policy.as_ref(), writer)?,
            selectors: std::array::from_fn(selector),
            io_priority: attributes.io_priority,
            mce_kill: attributes.mce_kill.unwrap_or(MCE_KILL_DEFAULT),
            is_io_flusher: attributes.is_io_flusher.into(),
            reserved: 0,
            pending_signals: write_pending_signals(&thread.pending_signals, writer)?,
            name,
        })
    };
    descriptor.threads.iter().zip(credential_index).map(planned).collect()
}

/// Values of the plan's header that are known only after the tables are written.
struct ProcessContext {
    /// The table of threads.
    threads: PlanSpan,
    /// Offset of the signal frames in the plan.
    frames: u32,
    barrier: Option<u32>,
    /// Index of the session's controlling terminal, if the process leads a session that has one.
    controlling_terminal: Option<u32>,
    /// Descriptor of the file with all plans: the number after the passed descriptors.
    plan_file: u32,
    /// Address of the list of confinement filters; 0 for none.
    confinement_filters: u64,
}

/// Returns the PLAN_* flags of a process, and the region of its zygote if it is a copy.
fn plan_flags(process: &Process, plan_options: &PlanOptions<'_>, position: &TreePosition<'_>) -> (u32, PlanRange) {
    let paused = if plan_options.paused { PLAN_PAUSED } else { 0 };
    let exe = if process.exe_object.is_some() { PLAN_EXE_PASSED } else { 0 };
    let (scope, (start, bytes)) = match plan_options.scope {
        PlanScope::Whole => (position.plan_flags(), (0, 0)),
        // A zygote is forked into its own session, and needs no flag for it.
        PlanScope::Zygote => (PLAN_ZYGOTE, (0, 0)),
        PlanScope::ZygoteCopy { zygote_region } => (position.plan_flags() | PLAN_ZYGOTE_COPY, zygote_region),
    };
    (scope | paused | exe, PlanRange { start, bytes })
}

fn build_header(
    inputs: &PlanInputs<'_>,
    tables: &PlanTables,
    region: &RestorerRegion,
    plan_bytes: u64,
    context: ProcessContext,
) -> PlanHeader {
    let PlanInputs { descriptor, plan_options, position, .. } = *inputs;
    let ProcessContext { threads, frames, barrier, controlling_terminal, plan_file, confinement_filters } = context;
    let process = &descriptor.process;
    let (flags, zygote_region) = plan_flags(process, plan_options, position);
    PlanHeader {
        magic: PLAN_MAGIC,
        plan_bytes,
        region_start: region.start,
        region_bytes: region.bytes,
        retained_bytes: region.plan,
        code_bytes: CODE_BYTES_MAX,
        frame_bytes: region.frame_bytes,
        plan_offset: region.plan,
        leader_stack_offset: region.leader_stack,
        staging_offset: region.staging,
        scratch_offset: region.scratch,
        barrier_offset: region.barrier,
        process_index: position.process_index,
        process_count: position.process_count(),
        process_group: position.joined_group(),
        barrier_fd: barrier.unwrap_or(0),
        fd_table_owner: position.fd_table_owner(),
        fd_table_users: position.fd_table_users(),
        flags,
        controlling_terminal: controlling_terminal.unwrap_or(0),
        address_space_count: position.address_space_count(),
        plan_file,
        user_namespace: plan_options.user_namespace.map_or(0, |users| users.passed_index),
        fd_base: tables.fd_base,
        umask: process.umask,
        personality: descriptor.threads[0].personality,
        dumpable: process.dumpable,
        exe: tables.exe,
        cwd: tables.cwd,
        frames,
        mappings: tables.mappings,
        files: tables.files,
        special_mappings: tables.special_mappings,
        eager: tables.eager,
        userfaultfd_ranges: tables.userfaultfd_ranges,
        file_descriptors: tables.file_descriptors,
        epolls: tables.epolls,
        signal_actions: tables.signal_actions,
        resource_limits: tables.resource_limits,
        credentials: tables.credentials,
        threads,
        pending_signals: tables.pending_signals,
        guards: tables.guards,
        syscalls_before_mappings: tables.syscalls.before_mappings,
        syscalls_before_files: tables.syscalls.before_files,
        syscalls_after_paths: tables.syscalls.after_paths,
        syscalls_before_start: tables.syscalls.before_start,
        mm: prctl_mm_words(&process.mm),
        auxv: tables.auxv,
        children: tables.children,
        locked_ranges: tables.locked_ranges,
        zygote_region,
        confinement_filters,
    }
}

/// Returns the addresses in the order of `struct prctl_mm_map`.
fn prctl_mm_words(mm: &Mm) -> [u64; 11] {
    [
        mm.start_code,
        mm.end_code,
        mm.start_data,
        mm.end_data,
        mm.start_brk,
        mm.brk,
        mm.start_stack,
        mm.arg_start,
        mm.arg_end,
        mm.env_start,
        mm.env_end,
    ]
}
