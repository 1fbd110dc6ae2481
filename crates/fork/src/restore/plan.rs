//! Compiles a descriptor into a restore plan: flat tables, all addresses checked, for one container on one node.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use farfork_container::PRIVATE_DIR;
use farfork_sys::user_namespace::Numbers;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{Credentials, Deadline, Descriptor, Mm, PendingSignal, Process, Thread};

use zerocopy::IntoBytes;

use super::address_space::{AddressSpace, Part};
use super::calls::{Calls, Made, PatchedMemory, SocketOwner};
use super::confinement;
use super::descriptors;
use super::filters;
use super::frame::{self, FS_BASE, GS_BASE};
use super::layout::{
    CODE_BYTES_MAX, CREDENTIALS_AS_THEY_ARE, PASSED_OWN, PLAN_COPY, PLAN_EXE_PASSED, PLAN_MAGIC, PLAN_PAUSED,
    PLAN_ZYGOTE, PlanAction, PlanCredentials, PlanEager, PlanHeader, PlanLimit, PlanRange, PlanSpecial, PlanThread,
    SIGINFO_BYTES, Span,
};
use super::objects::Objects;
use super::region::Region;
use super::stub_map::StubMap;
use super::tree::{self, Place};
use super::vdso::{self, Bridge};
use super::writer::PlanWriter;
use super::{LocalNode, RestoreError};

/// A plan, ready for a stub.
#[derive(Debug)]
pub(super) struct Plan {
    /// What the stub maps.
    pub(super) bytes: Vec<u8>,
    /// The addresses that the child registers with userfaultfd; empty when there is nothing to page.
    pub(super) registered: Vec<Range<u64>>,
    /// Where its restorer is: start and length.
    pub(super) region: (u64, u64),
    /// The addresses, start and end, at which something is in its memory, with the restorer.
    pub(super) occupied: Vec<(u64, u64)>,
    /// Where it says whom it forks.
    pub(super) kin: Span,
    /// Where open files stand that it makes by calls, as descriptors for others to take.
    pub(super) made: HashMap<u32, u32>,
    /// All numbers of open files that it needs while it is made are below this.
    pub(super) descriptors: u32,
}

/// What a child shall have beyond what its seed says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wishes<'a> {
    /// Path of the payload inside the container.
    pub(super) payload: Option<&'a Path>,
    /// Whether the child waits before its first instruction.
    pub(super) paused: bool,
    /// Whether the child can write nothing of /proc.
    pub(super) untrusted: bool,
    /// The users that it has instead of the node's.
    pub(super) users: Option<Users>,
    /// To the vdso of the kernel here, where the parent's had another.
    pub(super) bridge: Option<&'a Bridge>,
    /// Which part of its address space is planned, and whose: a zygote has nothing else of what is planned.
    pub(super) part: Part,
}

/// Users of a container's own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Users {
    /// Where the process stands, among the passed descriptors, whose user namespace is entered.
    pub(super) passed: u32,
    /// What they are outside.
    pub(super) numbers: Numbers,
}

/// Where each table stands; the header is written last, when the region is known.
struct Tables {
    space: AddressSpace,
    mappings: Span,
    files: Span,
    specials: Span,
    registered: Span,
    eager: Span,
    guards: Span,
    locked: Span,
    descriptors: Span,
    epolls: Span,
    calls: Calls,
    made: Made,
    kin: Span,
    actions: Span,
    limits: Span,
    credentials: Span,
    pending: Span,
    auxv: Span,
    fd_base: u32,
    exe: u32,
    cwd: u32,
}

/// Compiles the plan of `descriptor`, a process at its `place` in a tree, for the stub whose map is `stub`.
pub(super) fn compile(
    descriptor: &Descriptor,
    node: &LocalNode,
    stub: &StubMap,
    objects: &Objects,
    (wishes, place): (&Wishes<'_>, &Place<'_>),
) -> Result<Plan, RestoreError> {
    let mut writer = PlanWriter::new();
    let (credentials, credential_index) = credential_table(descriptor, node);
    let tables = write_tables(descriptor, node, stub, objects, &credentials, (wishes, place), &mut writer)?;
    let mut threads = thread_table(descriptor, &credential_index, &mut writer)?;

    let frame_bytes = frame::frame_bytes(descriptor.threads.iter().map(|t| t.xstate.len()).max().unwrap_or(0));
    let threads_span = writer.table(&threads)?;
    let filter_bytes = filters::bytes(descriptor);
    let frames_bytes = frame_bytes * threads.len() as u64;
    let frames = writer.append(&vec![0; (frames_bytes + filter_bytes.next_multiple_of(PAGE_SIZE)) as usize])?;
    let parking = tables.space.specials.iter().map(|special| special.bytes).sum();
    let mut occupied = occupied(descriptor, stub, &tables.space.specials, place);
    let region = Region::lay_out(
        threads.len() as u64,
        (frame_bytes, filter_bytes),
        writer.len(),
        parking,
        objects.gate().is_some(),
    )
    .place(&occupied)?;
    occupied.push((region.start, region.start + region.bytes));
    writer.resolve(region.start + region.plan);

    for (index, (planned, thread)) in threads.iter_mut().zip(&descriptor.threads).enumerate() {
        planned.frame = region.frame(index);
        planned.stack_top = region.stack_top(index);
        let bytes = frame::build(thread, planned.frame, frame_bytes, node.processor.state.xcr0)?;
        writer.put(frames + (index as u64 * frame_bytes) as u32, &bytes);
    }
    let filters = filters::build(descriptor, region.start + region.filters);
    writer.put(frames + frames_bytes as u32, &filters.bytes);
    for (thread, own) in threads.iter_mut().zip(filters.own) {
        (thread.filters, thread.common_filters) = (own, filters.common);
    }
    writer.put(threads_span.offset, threads.as_bytes());
    let process = Here {
        place,
        gate: objects.gate(),
        terminal: objects.controlling(descriptor.process.pid),
        plan_file: tables.fd_base + PASSED_OWN + objects.count() as u32,
    };
    let header = header(descriptor, &tables, &region, (threads_span, frames), writer.len(), (wishes, process));
    let registered = tables.space.registered.iter().map(|range| range.start..range.start + range.bytes).collect();
    let made = tables.made.slots().iter().map(|(file, slot)| (*file, tables.fd_base + slot)).collect();
    let region = (region.start, region.bytes);
    let descriptors = tables.fd_base + tables.made.end();
    Ok(Plan { bytes: writer.finish(&header), registered, region, occupied, kin: tables.kin, made, descriptors })
}

fn occupied(descriptor: &Descriptor, stub: &StubMap, specials: &[PlanSpecial], place: &Place<'_>) -> Vec<(u64, u64)> {
    let future = descriptor.mappings.iter().map(|mapping| (mapping.start, mapping.end));
    let moved = specials.iter().map(|special| (special.to, special.to + special.bytes));
    future.chain(stub.ranges()).chain(moved).chain(place.occupied.iter().copied()).collect()
}

fn write_tables(
    descriptor: &Descriptor,
    node: &LocalNode,
    stub: &StubMap,
    objects: &Objects,
    credentials: &[Credentials],
    (wishes, place): (&Wishes<'_>, &Place<'_>),
    writer: &mut PlanWriter,
) -> Result<Tables, RestoreError> {
    let process = &descriptor.process;
    let has_memory = matches!(wishes.part, Part::Copy { .. });
    // The files that a copy maps itself are shared ones, which are always mapped from here.
    let is_here = if has_memory { Vec::new() } else { super::address_space::files_that_are_here(descriptor, node) };
    let space = AddressSpace::plan(descriptor, &is_here, objects, (stub, wishes.bridge, wishes.part), writer)?;
    let fd_base = place.fd_base;
    let owner = Some(&process.credentials).filter(|wanted| **wanted != node.credentials);
    let numbered = wishes.users.and_then(|users| Some(confinement::outside(owner?, users.numbers)));
    let groups_before = &node.credentials.groups;
    let owner = numbered.as_ref().or(owner).map(|credentials| SocketOwner { credentials, groups_before });
    let bridged = space.vdso.as_ref().and_then(|_| vdso::old_place(descriptor));
    let makes_shared = place.number == 0 && wishes.part != Part::Zygote;
    let protection = (wishes.untrusted, wishes.users.is_some());
    let memory = PatchedMemory { vdso: bridged.clone(), overlaid: &space.overlaid };
    let whose = (makes_shared, memory, has_memory, protection);
    let (calls, made) = Calls::plan(descriptor, (objects, fd_base), owner, whose, place, writer)?;
    let files = (objects, &made, place);
    let (planned_descriptors, epolls) = descriptors::tables(descriptor, files, wishes.payload, writer)?;
    let mut eager = if has_memory { Vec::new() } else { eager_table(descriptor, writer)? };
    if let (Some(image), Some(place)) = (&space.vdso, bridged) {
        eager.push(PlanEager { address: place.start, offset: writer.append(image)?, bytes: image.len() as u32 });
    }
    let actions: Vec<PlanAction> = process
        .signal_actions
        .iter()
        .map(|action| PlanAction {
            signal: action.signal.into(),
            handler: action.handler,
            flags: action.flags,
            restorer: action.restorer,
            mask: action.mask,
        })
        .collect();
    let limits: Vec<PlanLimit> = process
        .limits
        .iter()
        .map(|limit| PlanLimit { resource: limit.resource.into(), soft: limit.soft, hard: limit.hard })
        .collect();
    let credentials = planned_credentials(credentials, writer)?;
    Ok(Tables {
        mappings: writer.table(&space.mappings)?,
        files: writer.table(&space.files)?,
        specials: writer.table(&space.specials)?,
        registered: writer.table(&space.registered)?,
        guards: writer.table(&space.guards)?,
        locked: writer.table(&space.locked)?,
        eager: writer.table(&eager)?,
        descriptors: writer.table(&planned_descriptors)?,
        epolls: writer.table(&epolls)?,
        actions: writer.table(&actions)?,
        limits: writer.table(&limits)?,
        credentials: writer.table(&credentials)?,
        pending: pending_table(&process.pending_signals, writer)?,
        auxv: writer.table(&process.mm.auxv)?,
        kin: writer.table(&place.kin())?,
        calls,
        made,
        fd_base,
        exe: match process.exe_object {
            Some(object) => objects.of_shared(object),
            None => writer.text(&process.exe)?,
        },
        cwd: writer.text(if process.deleted_cwd.is_some() { PRIVATE_DIR } else { &process.cwd })?,
        space,
    })
}

fn eager_table(descriptor: &Descriptor, writer: &mut PlanWriter) -> Result<Vec<PlanEager>, RestoreError> {
    descriptor
        .eager
        .iter()
        .map(|eager| {
            let offset = writer.append(&eager.bytes)?;
            Ok(PlanEager { address: eager.address, offset, bytes: eager.bytes.len() as u32 })
        })
        .collect()
}

/// But SIGSTOP, which cannot be blocked: whoever raised it would stand before it is complete (`tree` has it stop when it is).
fn pending_table(signals: &[PendingSignal], writer: &mut PlanWriter) -> Result<Span, RestoreError> {
    let mut rows = Vec::new();
    for signal in signals.iter().filter(|signal| !tree::is_sigstop(signal)) {
        let row: [u8; SIGINFO_BYTES] = signal.siginfo.as_slice().try_into().map_err(|_| RestoreError::PendingSignal)?;
        rows.push(row);
    }
    writer.table(&rows)
}

/// The distinct credentials of a process that differ from what the stub has, and which each thread takes.
fn credential_table(descriptor: &Descriptor, node: &LocalNode) -> (Vec<Credentials>, Vec<u32>) {
    let mut table: Vec<Credentials> = Vec::new();
    let index_of = |thread: &Thread| {
        let wanted = thread.credentials.as_ref().unwrap_or(&descriptor.process.credentials);
        if *wanted == node.credentials {
            return CREDENTIALS_AS_THEY_ARE;
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

fn planned_credentials(
    credentials: &[Credentials],
    writer: &mut PlanWriter,
) -> Result<Vec<PlanCredentials>, RestoreError> {
    credentials
        .iter()
        .map(|c| {
            Ok(PlanCredentials {
                uids: c.uids,
                gids: c.gids,
                groups: writer.table(&c.groups)?,
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

fn thread_table(
    descriptor: &Descriptor,
    credential_index: &[u32],
    writer: &mut PlanWriter,
) -> Result<Vec<PlanThread>, RestoreError> {
    let planned = |(thread, credentials): (&Thread, &u32)| {
        let mut name = [0; 16];
        name[..thread.name.len()].copy_from_slice(&thread.name);
        let rseq = thread.rseq;
        Ok(PlanThread {
            frame: 0,
            filters: 0,
            common_filters: 0,
            stack_top: 0,
            fs_base: thread.registers[FS_BASE],
            gs_base: thread.registers[GS_BASE],
            clear_child_tid: thread.clear_child_tid,
            robust_list: thread.robust_list_head,
            robust_list_bytes: thread.robust_list_bytes,
            rseq: rseq.map_or(0, |r| r.address),
            rseq_bytes: rseq.map_or(0, |r| r.bytes),
            rseq_signature: rseq.map_or(0, |r| r.signature),
            timer_slack_ns: thread.timer_slack_ns,
            tid: thread.tid,
            parent_death_signal: thread.parent_death_signal,
            policy: thread.scheduling.policy,
            nice: thread.scheduling.nice,
            priority: thread.scheduling.priority,
            credentials: *credentials,
            attributes: scheduling_attributes(thread, writer)?,
            forbids_time_stamps: thread.forbids_time_stamps.into(),
            personality: thread.personality,
            reserved: 0,
            pending: pending_table(&thread.pending_signals, writer)?,
            name,
        })
    };
    descriptor.threads.iter().zip(credential_index).map(planned).collect()
}

/// `struct sched_attr`, where a thread is scheduled by deadlines; else 0.
fn scheduling_attributes(thread: &Thread, writer: &mut PlanWriter) -> Result<u32, RestoreError> {
    const SCHED_DEADLINE: u64 = 6;
    const BYTES: u64 = 48;
    let Some(deadline) = thread.scheduling.deadline else { return Ok(0) };
    let Deadline { flags, runtime_ns, deadline_ns, period_ns } = deadline;
    let nice_and_priority = 0;
    let words = [BYTES | SCHED_DEADLINE << 32, flags, nice_and_priority, runtime_ns, deadline_ns, period_ns];
    Ok(writer.table(&words)?.offset)
}

/// Where a process stands.
struct Here<'a> {
    place: &'a Place<'a>,
    gate: Option<u32>,
    /// Where the terminal stands that controls its session, if it leads one.
    terminal: Option<u32>,
    /// The descriptor of the file that all plans are in, behind those that are passed.
    plan_file: u32,
}

/// What it is to be, and the region of the zygote that it is a copy of.
fn flags(process: &Process, wishes: &Wishes<'_>, place: &Place<'_>) -> (u32, PlanRange) {
    let paused = if wishes.paused { PLAN_PAUSED } else { 0 };
    let exe = if process.exe_object.is_some() { PLAN_EXE_PASSED } else { 0 };
    let (part, (start, bytes)) = match wishes.part {
        Part::Whole => (place.flags(), (0, 0)),
        // It was born into a session of its own.
        Part::Zygote => (PLAN_ZYGOTE, (0, 0)),
        Part::Copy { zygote } => (place.flags() | PLAN_COPY, zygote),
    };
    (part | paused | exe, PlanRange { start, bytes })
}

fn header(
    descriptor: &Descriptor,
    tables: &Tables,
    region: &Region,
    (threads, frames): (Span, u32),
    plan_bytes: u64,
    (wishes, Here { place, gate, terminal, plan_file }): (&Wishes<'_>, Here<'_>),
) -> PlanHeader {
    let process = &descriptor.process;
    let (flags, zygote) = flags(process, wishes, place);
    PlanHeader {
        magic: PLAN_MAGIC,
        plan_bytes,
        region_start: region.start,
        region_bytes: region.bytes,
        keep_bytes: region.plan,
        code_bytes: CODE_BYTES_MAX,
        frame_bytes: region.frame_bytes,
        plan_offset: region.plan,
        leader_stack_offset: region.leader_stack,
        parking_offset: region.parking,
        scratch_offset: region.scratch,
        gate_offset: region.gate,
        process: place.number,
        process_count: place.count(),
        group: place.group(),
        gate: gate.unwrap_or(0),
        table: place.table(),
        table_users: place.table_users(),
        flags,
        terminal: terminal.unwrap_or(0),
        spaces: place.spaces(),
        plan_file,
        users: wishes.users.map_or(0, |users| users.passed),
        fd_base: tables.fd_base,
        umask: process.umask,
        personality: descriptor.threads[0].personality,
        dumpable: process.dumpable,
        exe: tables.exe,
        cwd: tables.cwd,
        frames,
        mappings: tables.mappings,
        files: tables.files,
        specials: tables.specials,
        eager: tables.eager,
        registered: tables.registered,
        descriptors: tables.descriptors,
        epolls: tables.epolls,
        actions: tables.actions,
        limits: tables.limits,
        credentials: tables.credentials,
        threads,
        pending: tables.pending,
        guards: tables.guards,
        calls_before_maps: tables.calls.before_maps,
        calls_before_files: tables.calls.before_files,
        calls_behind_paths: tables.calls.behind_paths,
        calls_at_last: tables.calls.at_last,
        mm: addresses(&process.mm),
        auxv: tables.auxv,
        kin: tables.kin,
        locked: tables.locked,
        zygote,
    }
}

/// In the order of `struct prctl_mm_map`.
fn addresses(mm: &Mm) -> [u64; 11] {
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
