//! The descriptor of one process, from what was taken and from what can be read of the template at leisure: while the answer travels.
//! Nothing is refused here any more but what only the kernel's own flags of an area tell.
//!
//! ```text
//!  template   without files, asked ─ its pages ─ flags of its areas ─ memory ─ threads, process ─ eager pages ─ descriptor
//!  served     without the lifeline's pages
//! ```

use std::ops::Range;

use farfork_sys::clock::Clocks;
use farfork_sys::process::{self, MapEntry};
use farfork_wire::descriptor::{Descriptor, Origin};

use super::attempt::{Held, Shared, Taken};
use super::calls::inject::{Call, Injector};
use super::calls::lifeline::Lifeline;
use super::error::CaptureError;
use super::files::versions::{Completion, HeldFile};
use super::memory::{self, AddressSpace, MemoryMap, WrittenFiles, eager};
use super::shared::{SharedCopies, SharedCopy};
use super::state::inherited::Asked;
use super::survey::Survey;
use super::template::twin;
use super::tracer::deadline::Deadline;
use super::tracer::post::at_once;
use super::{CaptureOptions, open_memory, state, tree};
use crate::{kernel, phase};

/// All of a seed but its templates.
pub(super) struct Described {
    pub(super) descriptor: Descriptor,
    pub(super) shared_copies: Vec<SharedCopy>,
    /// In the order of the file versions.
    pub(super) held_files: Vec<Option<HeldFile>>,
    pub(super) leftovers: Leftovers,
}

/// Of each process, pages of its template that are no process's own, with the place of a `syscall` instruction. Nobody reads them, so that
/// no fork waits for their end.
pub(super) struct Leftovers(Vec<(Lifeline, u64)>);

impl Leftovers {
    /// Unmaps them. Where that fails they stay as long as the template does.
    pub(super) fn clear(&self, held: &[Held], deadline: &Deadline) {
        for (clone, (lifeline, syscall_at)) in
            held.iter().zip(&self.0).filter_map(|(held, one)| Some((held.clone()?, one)))
        {
            let mut injector = Injector::new(clone.pid, *syscall_at, deadline);
            let unmapped = open_memory(clone.pid)
                .and_then(|mem| at_once(lifeline.unmap((clone.pid, &clone.registers), (None, &mem), &mut injector)));
            if let Err(error) = unmapped {
                tracing::debug!(template = clone.pid, %error, "pages that were mapped for a capture stay in a template");
            }
        }
    }
}

/// Makes the descriptors of all processes one, and what holds their memory ready to be parked.
pub(super) fn describe_all(
    options: &CaptureOptions,
    held: &mut [Held],
    taken: Vec<Taken>,
    shared: Shared,
    deadline: &Deadline,
) -> Result<Described, CaptureError> {
    let Shared { mut copies, open_files, held_files, kin } = shared;
    let paused_ns = taken[0].clocks.realtime_coarse_ns;
    let templates: Vec<i32> = held.iter().map(Held::pid).collect();
    let leftovers = Leftovers(taken.iter().map(|one| (one.lifeline.clone(), one.survey.syscall_at)).collect());
    let (mut descriptors, mut written) = (Vec::with_capacity(taken.len()), Vec::with_capacity(taken.len()));
    for (held, taken) in held.iter_mut().zip(taken) {
        let (descriptor, its) = describe(options, held, taken, &copies, deadline)?;
        descriptors.push(descriptor);
        written.push(its);
    }
    let mut extents = Vec::new();
    let objects = copies.describe(&mut extents);
    let first = descriptors.remove(0);
    let (semaphore_sets, message_queues) = copies.take_queues();
    let first = Descriptor { semaphore_sets, message_queues, ..first };
    let mut descriptor = tree::merge(first, descriptors, kin, open_files, (objects, extents));
    let completion = Completion { held: held_files, templates: &templates, paused_ns };
    let held_files = phase!("prepare.versions", completion.complete(&mut descriptor));
    memory::follow_writable_files(&mut descriptor, written);
    descriptor.validate()?;
    Ok(Described { descriptor, shared_copies: copies.into_copies(), held_files, leftovers })
}

/// The descriptor of one process, without what is everybody's.
fn describe(
    options: &CaptureOptions,
    held: &mut Held,
    mut taken: Taken,
    copies: &SharedCopies,
    deadline: &Deadline,
) -> Result<(Descriptor, WrittenFiles), CaptureError> {
    let mut injector = Injector::new(held.pid(), taken.survey.syscall_at, deadline);
    // Inherited, until a clone gets its own.
    let oom_score_adj = oom_score_adj(taken.snapshot.pid, held.pid())?;
    let subject = held.subject(&taken.snapshot, &taken.survey, &taken.mem);
    let is_clone = held.clone().is_some();
    let asking = Asked::begin(&subject, is_clone, (&taken.lifeline, &injector));
    // While it answers.
    let told = phase!("prepare.scan", taken.space.scan()).and_then(|()| own_flags(held, &taken.space));
    let answer = |asking: Asked| asking.finish(&subject, (&taken.lifeline, &mut injector));
    let asked = phase!("prepare.inherited", asking.and_then(answer));
    let flagged = told.and_then(|told| phase!("prepare.flags", flags(held, told, &mut taken, &mut injector)));
    let tidied = phase!("prepare.tidy", tidy(held, &taken, &mut injector));
    held.settle();
    flagged.and(tidied)?;
    let inherited = asked?;
    let (pid, subject) = (taken.snapshot.pid, held.pid());
    let Taken { snapshot, survey, clocks, standing, mut answers, mem, likeness, arguments, files, space, .. } = taken;
    answers[0].alt_stack = inherited.alt_stack;
    answers[0].forbids_time_stamps = inherited.forbids_time_stamps;
    let inheritance = taken.inheritance;
    let not_its_own = [space.segments(), space.left_out()].concat();
    let memory = phase!("prepare.memory", MemoryMap::build(space, copies, &inheritance))?;
    leave(held, &not_its_own, &mut injector)?;
    let entered = phase!("prepare.state");
    let mut filters = taken.filters;
    let timers = (answers[0].interval_timers.clone(), taken.posix_timers, filters.table);
    let filters = &mut filters.of_threads;
    let threads = state::threads(&snapshot, standing, &answers, &survey.profiles, filters, inherited.securebits)?;
    let (is_subreaper, known) = (answers[0].is_subreaper, (subject, likeness, arguments));
    let mut process = state::process(&survey, &snapshot, known, inherited, timers, is_subreaper, oom_score_adj)?;
    process.exe_object = copies.index_of_executed(subject).map_err(CaptureError::read(pid, "its executable"))?;
    let clocks = clocks.as_seen_by(subject).map_err(CaptureError::read(pid, "the time namespace"))?;
    drop(entered);
    let eager = phase!(
        "prepare.eager",
        eager::eager(&eager::Own { mem: &mem, inheritance: &inheritance }, &threads, &process.mm, &memory.mappings)
    );
    let descriptor = Descriptor {
        origin: origin(options, &survey, &threads[0].xstate, clocks),
        process,
        threads,
        mappings: memory.mappings,
        extents: memory.extents,
        layers: inheritance.layers().to_vec(),
        mapped_files: memory.files,
        shared_objects: Vec::new(),
        semaphore_sets: Vec::new(),
        message_queues: Vec::new(),
        terminals: Vec::new(),
        open_files: Vec::new(),
        file_versions: Vec::new(),
        file_descriptors: files.descriptors,
        file_locks: files.locks,
        file_owners: files.owners,
        eager,
        members: Vec::new(),
        zombies: Vec::new(),
    };
    Ok((descriptor, memory.written))
}

fn oom_score_adj(pid: i32, subject: i32) -> Result<i32, CaptureError> {
    let line = process::read_line(&format!("/proc/{subject}/oom_score_adj"));
    Ok(line.map_err(CaptureError::read(pid, "oom_score_adj"))?.parse().unwrap_or(0))
}

/// The areas of a clone itself, with their flags, where it has little memory. `None` where a twin is to tell them; a parent's are known.
fn own_flags(held: &Held, space: &AddressSpace) -> Result<Option<Vec<MapEntry>>, CaptureError> {
    let Some(clone) = held.clone().filter(|_| space.large(twin::AREAS_MAX).is_empty()) else { return Ok(None) };
    let areas = phase!("prepare.flags", process::smaps(clone.pid));
    areas.map(Some).map_err(CaptureError::read(space.pid(), "the memory map"))
}

/// Takes the flags of a clone's areas, where they are not `told` yet those of a twin, or else of the clone itself. A parent's are known.
fn flags(
    held: &Held,
    told: Option<Vec<MapEntry>>,
    taken: &mut Taken,
    injector: &mut Injector<'_>,
) -> Result<(), CaptureError> {
    let Held::Clone(clone) = held else { return Ok(()) };
    let (mut areas, mut marked) = (told, Vec::new());
    if areas.is_none() {
        let large = taken.space.large(twin::AREAS_MAX);
        marked = large.iter().map(|entry| entry.start).collect();
        let told = twin::areas(clone, &large, (&taken.lifeline, &taken.mem), injector);
        let unknown = |error| tracing::debug!(template = clone.pid, %error, "no twin of a template tells its flags");
        areas = told.map_err(unknown).ok().filter(|areas| taken.space.is_told_by(areas));
    }
    let own = || process::smaps(clone.pid).map_err(CaptureError::read(taken.snapshot.pid, "the memory map"));
    let areas = areas.map_or_else(own, Ok)?;
    taken.space.flag(&areas, &marked)?;
    taken.space.mark_unforked(&taken.unforked);
    taken.space.lock(&taken.survey.locked);
    Ok(())
}

/// The pages that a process offers hold what it has there; a clone gets its place in the OOM order. Those that were mapped in a parent go
/// ([`Leftovers`] has a clone's).
fn tidy(held: &Held, taken: &Taken, injector: &mut Injector<'_>) -> Result<(), CaptureError> {
    let left = taken.lifeline.give_back(&taken.leftovers, &taken.mem);
    left.map_err(CaptureError::read(taken.snapshot.pid, "the pages that it offers"))?;
    match held {
        Held::Clone(clone) => clone.lower_in_oom_order(),
        Held::Parent(_) => {
            let registers = &taken.snapshot.leader().registers;
            at_once(taken.lifeline.unmap((held.pid(), registers), (None, &taken.mem), injector))
        }
    }
}

/// A template that has a segment of System V shared memory attached is counted by the kernel (`shm_nattch`), and programs look
/// at that: its contents were copied, and it lets go. So it does of what children lack, which nobody shall read in it.
fn leave(held: &Held, areas: &[Range<u64>], injector: &mut Injector<'_>) -> Result<(), CaptureError> {
    const MUNMAP: u64 = 11;
    let Held::Clone(clone) = held else { return Ok(()) };
    for area in areas {
        let call = Call::new("munmap", MUNMAP, [area.start, area.end - area.start]);
        at_once(injector.call(clone.pid, &clone.registers, call))?;
    }
    Ok(())
}

fn origin(options: &CaptureOptions, survey: &Survey, xstate: &[u8], clocks: Clocks) -> Origin {
    Origin {
        node: options.node.clone(),
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
