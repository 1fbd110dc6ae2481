//! Builds the descriptors of a tree's processes from the state read in the pause, and from the templates.
//!
//! `owner_thread` calls `describe_tree` after the reply, while the parent runs. A fork may already wait for the descriptor.
//! The only refusals here are about mapping flags, which only `smaps` shows.

use std::ops::Range;
use std::path::PathBuf;

use farfork_sys::clock::Clocks;
use farfork_sys::process::{self, MapEntry};
use farfork_wire::descriptor::{Descriptor, LocalDescriptor, Origin, Process, Thread, VolumeMount};
use rustix::fs::CWD;

use super::attempt::{CapturedProcess, SharedTreeState, TemplateProcess};
use super::error::CaptureError;
use super::files::versions::{HeldFile, VersionCompletion};
use super::injection::injector::{InjectedCall, Injector};
use super::injection::pages::InjectionPages;
use super::injection::script_runner::ScriptRunner;
use super::injection::sigreturn_frame::RescueFrame;
use super::memory::{self, MemoryMap, TemplateMemory, WrittenMappings, eager};
use super::shared::{SharedCopies, SharedCopy};
use super::state::ProcessWideState;
use super::state::attributes::{self, ProcessWideAttributes};
use super::state::inherited_state::{InheritedState, InheritedStateQuery};
use super::state::local_descriptors;
use super::state::node_root::{self, ProcDirectory};
use super::state::tree_root::{ROOT_PATH, TreeRoot};
use super::survey::Survey;
use super::template::flag_probe;
use super::tracer::deadline::Deadline;
use super::tracer::executor::run_ready;
use super::{CaptureOptions, NamespacePolicy, open_memory, state, tree, volume_objects};
use crate::{kernel, phase};

/// Everything of a seed except its templates.
pub(super) struct DescribedTree {
    pub(super) descriptor: Descriptor,
    pub(super) shared_copies: Vec<SharedCopy>,
    /// Held files, in the order of the descriptor's file versions.
    pub(super) held_files: Vec<Option<HeldFile>>,
    pub(super) leftovers: LeftoverPages,
}

/// For each process: the injection pages that are left in its template, with the address of a `syscall` instruction. No
/// child reads them, so no fork waits until they are unmapped.
pub(super) struct LeftoverPages(Vec<(InjectionPages, u64)>);

impl LeftoverPages {
    /// Unmaps the pages from all clones. If that fails, they stay until the template ends.
    pub(super) fn unmap(&self, templates: &[TemplateProcess], deadline: &Deadline) {
        for (clone, (pages, syscall_at)) in
            templates.iter().zip(&self.0).filter_map(|(template, one)| Some((template.as_clone()?, one)))
        {
            let mut injector = Injector::new(clone.pid, *syscall_at, deadline);
            let unmapped = open_memory(clone.pid).and_then(|mem| {
                let rescue = RescueFrame::without_frame(&mem);
                run_ready(pages.unmap(clone.pid, &clone.registers, rescue, &mut injector))
            });
            if let Err(error) = unmapped {
                tracing::debug!(template = clone.pid, %error, "pages that were mapped for a capture stay in a template");
            }
        }
    }
}

/// Builds the descriptors of all processes and merges them into one. Prepares the templates to be parked.
pub(super) fn describe_tree(
    options: &CaptureOptions,
    templates: &mut [TemplateProcess],
    processes: Vec<CapturedProcess>,
    shared: SharedTreeState,
    deadline: &Deadline,
) -> Result<DescribedTree, CaptureError> {
    let SharedTreeState { shared_copies: mut copies, open_files, held_files, relations, stopped_ns, clocks } = shared;
    let template_pids: Vec<i32> = templates.iter().map(TemplateProcess::pid).collect();
    let leftovers =
        LeftoverPages(processes.iter().map(|one| (one.pages.clone(), one.survey.syscall_address)).collect());
    let (mut descriptors, mut written) = (Vec::with_capacity(processes.len()), Vec::with_capacity(processes.len()));
    for (template, captured_process) in templates.iter_mut().zip(processes) {
        let (descriptor, its) = describe_process(options, template, captured_process, &copies, clocks, deadline)?;
        descriptors.push(descriptor);
        written.push(its);
    }
    let shared_objects = copies.build_objects();
    let first = descriptors.remove(0);
    let (semaphore_sets, message_queues) = copies.take_sysv_ipc();
    let first = Descriptor { semaphore_sets, message_queues, ..first };
    let mut descriptor = tree::merge_descriptors(first, descriptors, relations, open_files, shared_objects);
    descriptor.origin.root = find_root(options, template_pids[0])?;
    let node_root = PathBuf::from(descriptor.origin.root.as_deref().unwrap_or(ROOT_PATH));
    let completion = VersionCompletion { held_files, templates: &template_pids, stopped_ns, node_root: &node_root };
    let held_files = phase!("prepare.versions", completion.add_versions(&mut descriptor));
    memory::link_writable_files(&mut descriptor, written);
    descriptor.volumes = find_volumes(&descriptor, template_pids[0])?;
    descriptor.validate()?;
    Ok(DescribedTree { descriptor, shared_copies: copies.into_copies(), held_files, leftovers })
}

/// Returns the directory of the node that is the root of a seed's children, if it is not the node's root.
fn find_root(options: &CaptureOptions, template: i32) -> Result<Option<String>, CaptureError> {
    match &options.serving_pager {
        Some(served) => Ok(served.root.clone()),
        None if options.namespaces == NamespacePolicy::UseNode => Ok(None),
        None => {
            let process = ProcDirectory { directory: CWD, prefix: &format!("/proc/{template}") };
            let root = node_root::find_root_on_node(process).map_err(CaptureError::reading(template, "its root"))?;
            Ok(root.map(|root| root.to_string_lossy().into_owned()))
        }
    }
}

/// Returns the volumes that a seed uses, according to the mounts of its first template.
fn find_volumes(descriptor: &Descriptor, template: i32) -> Result<Vec<VolumeMount>, CaptureError> {
    let root = TreeRoot::find(template).unwrap_or(TreeRoot { pid: template });
    Ok(volume_objects::read_volumes(root)?.used_by(descriptor))
}

//  template   own file table, queries ─ pages ─ mapping flags ─ memory ─ threads, process ─ eager pages ─ descriptor
//  served     without the injection pages, unless the process offers them
/// Builds the descriptor of one process, without the state that the tree shares.
fn describe_process(
    options: &CaptureOptions,
    template_process: &mut TemplateProcess,
    mut captured_process: CapturedProcess,
    copies: &SharedCopies,
    clocks: Clocks,
    deadline: &Deadline,
) -> Result<(Descriptor, WrittenMappings), CaptureError> {
    let mut injector = Injector::new(template_process.pid(), captured_process.survey.syscall_address, deadline);
    // Read before `restore_offered_pages` changes a clone's value: until then, it is the parent's.
    let oom_score_adj = read_oom_score_adj(captured_process.snapshot.pid, template_process.pid())?;
    let TemplateAnswers { inherited, local_descriptors } =
        finish_injected_calls(template_process, &mut captured_process, &mut injector)?;
    let (pid, subject) = (captured_process.snapshot.pid, template_process.pid());
    let CapturedProcess { snapshot, survey, extended_states, mut answers, mem, files, filters, .. } = captured_process;
    answers[0].alt_stack = inherited.alt_stack;
    answers[0].is_tsc_forbidden = inherited.is_tsc_forbidden;
    answers[0].memory_policy.clone_from(&inherited.memory_policy);
    let attributes = ProcessWideAttributes {
        merges_memory: inherited.merges_memory,
        core_filter: attributes::read_core_filter(pid, subject)?,
        local_descriptors,
    };
    let attributes = attributes.build(&snapshot, &extended_states, &answers, &survey.profiles);
    let (space, inheritance) = (captured_process.memory, captured_process.inherited);
    let not_its_own = [space.sysv_ranges(), space.dontfork_ranges()].concat();
    let memory = phase!("prepare.memory", MemoryMap::build(space, copies, &inheritance))?;
    unmap_uninherited(template_process, &not_its_own, &mut injector)?;
    let entered = phase!("prepare.state");
    let (mut thread_filters, securebits) = (filters.thread_filters, inherited.securebits);
    let threads =
        state::build_threads(&snapshot, extended_states, &answers, &survey.profiles, &mut thread_filters, securebits)?;
    let process_state = ProcessWideState {
        pid: subject,
        root: captured_process.root,
        arguments: captured_process.arguments,
        inherited,
        interval_timers: answers[0].interval_timers.clone(),
        posix_timers: captured_process.posix_timers,
        seccomp_filters: filters.table,
        is_subreaper: answers[0].is_subreaper,
        oom_score_adj,
    };
    let mut process = process_state.build_process(&survey, &snapshot)?;
    let reading = |what| CaptureError::reading(pid, what);
    process.exe_object = copies.executable_index(subject).map_err(reading("its executable"))?;
    let clocks = clocks.as_seen_by(subject).map_err(reading("the time namespace"))?;
    drop(entered);
    let local_memory = eager::LocalMemory { mem: &mem, inherited: &inheritance };
    let eager_bytes =
        phase!("prepare.eager", eager::read_eager_pages(&local_memory, &threads, &process.mm, &memory.mappings));
    let descriptor = Descriptor {
        mappings: memory.mappings,
        extents: memory.extents,
        layers: inheritance.layers().to_vec(),
        mapped_files: memory.files,
        file_descriptors: files.descriptors,
        file_locks: files.locks,
        file_owners: files.owners,
        eager_bytes,
        attributes,
        ..empty_descriptor(build_origin(options, &survey, &threads[0].xstate, clocks), process, threads)
    };
    Ok((descriptor, memory.written_mappings))
}

/// The answers of a template to the calls that it makes after the reply.
struct TemplateAnswers {
    inherited: InheritedState,
    local_descriptors: Vec<LocalDescriptor>,
}

/// Makes the calls that a template makes after the reply: queries of the state that fork(2) copies, probes of mapping flags,
/// and the restoration of the pages that the process offers. Then a stopped parent has its own registers again.
fn finish_injected_calls(
    template_process: &mut TemplateProcess,
    captured_process: &mut CapturedProcess,
    injector: &mut Injector<'_>,
) -> Result<TemplateAnswers, CaptureError> {
    let injection_target =
        template_process.injection_target(&captured_process.snapshot, &captured_process.survey, &captured_process.mem);
    let is_clone = template_process.as_clone().is_some();
    let mut runner = ScriptRunner { pages: &captured_process.pages, injector };
    let query = InheritedStateQuery::start(&injection_target, is_clone, &runner);
    // Done while the query runs.
    let small_flags = phase!("prepare.scan", captured_process.memory.ensure_scanned())
        .and_then(|()| read_small_flags(template_process, &captured_process.memory));
    let answer = |query: InheritedStateQuery| query.finish(&injection_target, &mut runner);
    let inherited = phase!("prepare.inherited", query.and_then(answer));
    let local_descriptors = match &inherited {
        Ok(inherited) if inherited.has_local_descriptors => {
            local_descriptors::read_table(&injection_target, runner.injector)
        }
        _ => Ok(Vec::new()),
    };
    let flagged = small_flags.and_then(|small_flags| {
        phase!("prepare.flags", apply_mapping_flags(template_process, small_flags, captured_process, injector))
    });
    let tidied = phase!("prepare.tidy", restore_offered_pages(template_process, captured_process, injector));
    template_process.restore_parent();
    flagged.and(tidied)?;
    Ok(TemplateAnswers { inherited: inherited?, local_descriptors: local_descriptors? })
}

/// Returns a descriptor without memory, files and descendants.
fn empty_descriptor(origin: Origin, process: Process, threads: Vec<Thread>) -> Descriptor {
    Descriptor {
        origin,
        process,
        threads,
        mappings: Vec::new(),
        extents: Vec::new(),
        layers: Vec::new(),
        mapped_files: Vec::new(),
        shared_objects: Vec::new(),
        semaphore_sets: Vec::new(),
        message_queues: Vec::new(),
        terminals: Vec::new(),
        open_files: Vec::new(),
        file_versions: Vec::new(),
        file_descriptors: Vec::new(),
        file_locks: Vec::new(),
        file_owners: Vec::new(),
        eager_bytes: Vec::new(),
        descendants: Vec::new(),
        zombies: Vec::new(),
        volumes: Vec::new(),
        attributes: Vec::new(),
        moved_epoll_targets: Vec::new(),
        open_file_attributes: Vec::new(),
    }
}

fn read_oom_score_adj(pid: i32, subject: i32) -> Result<i32, CaptureError> {
    let line = process::read_line(&format!("/proc/{subject}/oom_score_adj"));
    Ok(line.map_err(CaptureError::reading(pid, "oom_score_adj"))?.parse().unwrap_or(0))
}

/// Reads the mappings of a clone without large mappings, with their flags. Returns `None` if a flag probe must read the
/// flags, or for a stopped parent, whose flags are known.
fn read_small_flags(
    template_process: &TemplateProcess,
    space: &TemplateMemory,
) -> Result<Option<Vec<MapEntry>>, CaptureError> {
    let Some(clone) =
        template_process.as_clone().filter(|_| space.large_mappings(flag_probe::LARGE_MAPPINGS_MAX).is_empty())
    else {
        return Ok(None);
    };
    let areas = phase!("prepare.flags", process::read_smaps(clone.pid));
    areas.map(Some).map_err(CaptureError::reading(space.pid(), "the memory map"))
}

/// Applies mapping flags to a clone's memory: `small_flags`, else the results of a flag probe, else the clone's `smaps`.
/// Does nothing for a stopped parent, whose flags are known.
fn apply_mapping_flags(
    template_process: &TemplateProcess,
    small_flags: Option<Vec<MapEntry>>,
    captured_process: &mut CapturedProcess,
    injector: &mut Injector<'_>,
) -> Result<(), CaptureError> {
    let TemplateProcess::Clone(clone) = template_process else { return Ok(()) };
    let (mut areas, mut marked) = (small_flags, Vec::new());
    if areas.is_none() {
        let large = captured_process.memory.large_mappings(flag_probe::LARGE_MAPPINGS_MAX);
        marked = large.iter().map(|entry| entry.start).collect();
        let mut runner = ScriptRunner { pages: &captured_process.pages, injector };
        let probed = flag_probe::read_flags(clone, &large, &captured_process.mem, &mut runner);
        let unknown = |error| tracing::debug!(template = clone.pid, %error, "cannot probe a template's mapping flags");
        areas = probed.map_err(unknown).ok().filter(|areas| captured_process.memory.is_covered_by(areas));
    }
    let own = || {
        process::read_smaps(clone.pid).map_err(CaptureError::reading(captured_process.snapshot.pid, "the memory map"))
    };
    let areas = areas.map_or_else(own, Ok)?;
    captured_process.memory.apply_flags(&areas, &marked)?;
    captured_process.memory.mark_dontfork(&captured_process.dontfork_ranges);
    captured_process.memory.mark_locked(&captured_process.survey.locked);
    Ok(())
}

/// Restores the contents of pages that a process offers, and sets the OOM score of a clone. Unmaps the injection pages of a
/// stopped parent ([`LeftoverPages`] unmaps a clone's).
fn restore_offered_pages(
    template_process: &TemplateProcess,
    captured_process: &CapturedProcess,
    injector: &mut Injector<'_>,
) -> Result<(), CaptureError> {
    let left = captured_process.pages.restore_slots(&captured_process.offered_contents, &captured_process.mem);
    left.map_err(CaptureError::reading(captured_process.snapshot.pid, "the pages that it offers"))?;
    match template_process {
        TemplateProcess::Clone(clone) => clone.raise_oom_score(),
        TemplateProcess::Parent(_) => {
            let registers = &captured_process.snapshot.leader().registers;
            let rescue = RescueFrame::without_frame(&captured_process.mem);
            run_ready(captured_process.pages.unmap(template_process.pid(), registers, rescue, injector))
        }
    }
}

/// Unmaps `areas` from a clone: System V shared memory, and memory that children lack. The kernel would count the template
/// as attached to the shared memory (`shm_nattch`), and programs read that count. The contents are already copied. The
/// template must not serve memory that children lack.
fn unmap_uninherited(
    template_process: &TemplateProcess,
    areas: &[Range<u64>],
    injector: &mut Injector<'_>,
) -> Result<(), CaptureError> {
    const MUNMAP: u64 = 11;
    let TemplateProcess::Clone(clone) = template_process else { return Ok(()) };
    for area in areas {
        let call = InjectedCall::new("munmap", MUNMAP, [area.start, area.end - area.start]);
        run_ready(injector.call(clone.pid, &clone.registers, call))?;
    }
    Ok(())
}

fn build_origin(options: &CaptureOptions, survey: &Survey, xstate: &[u8], clocks: Clocks) -> Origin {
    Origin {
        node: options.node.clone(),
        root: None,
        parent_pid: survey.pid.cast_unsigned(),
        parent_start_ticks: survey.stat.start_ticks,
        kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
        boot_id: kernel::boot_id().to_owned(),
        vdso_build_id: kernel::vdso_build_id().to_vec(),
        vdso_image: kernel::vdso_image().to_vec(),
        xcr0: state::xcr0(xstate),
        xstate_bytes: xstate.len() as u32,
        cpu_features: farfork_sys::cpu::features(),
        monotonic_ns: clocks.monotonic_ns,
        boottime_ns: clocks.boottime_ns,
    }
}
