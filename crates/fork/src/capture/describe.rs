//! The descriptor of one process, from what was taken and from what can be read of the template at leisure: while the answer travels.
//! Nothing is refused here any more but what only the kernel's own flags of an area tell.
//!
//! ```text
//!  template   without files ─ asked ─ its pages ─ flags of its areas ─ memory ─ threads, process ─ eager pages ─ descriptor
//! ```

use std::ops::Range;

use farfork_sys::clock::Clocks;
use farfork_sys::process;
use farfork_wire::descriptor::{Descriptor, Origin};

use super::attempt::{Held, Shared, Taken};
use super::calls::inject::{Call, Injector};
use super::error::CaptureError;
use super::memory::MemoryMap;
use super::memory::eager;
use super::shared::{SharedCopies, SharedCopy};
use super::state::inherited::{self, Inherited};
use super::template::twin;
use super::tracer::deadline::Deadline;
use super::tracer::post::at_once;
use super::{CaptureOptions, state, tree};
use crate::{kernel, phase};

/// Makes the descriptors of all processes one, and what holds their memory ready to be parked.
pub(super) fn describe_all(
    options: &CaptureOptions,
    held: &mut [Held],
    taken: Vec<Taken>,
    shared: Shared,
    deadline: &Deadline,
) -> Result<(Descriptor, Vec<SharedCopy>), CaptureError> {
    let Shared { mut copies, open_files, kin } = shared;
    let mut descriptors = Vec::with_capacity(taken.len());
    for (held, taken) in held.iter_mut().zip(taken) {
        descriptors.push(describe(options, held, taken, &copies, deadline)?);
    }
    let mut extents = Vec::new();
    let objects = copies.describe(&mut extents);
    let first = descriptors.remove(0);
    let (semaphore_sets, message_queues) = copies.take_queues();
    let first = Descriptor { semaphore_sets, message_queues, ..first };
    let descriptor = tree::merge(first, descriptors, kin, open_files, (objects, extents));
    descriptor.validate()?;
    Ok((descriptor, copies.into_copies()))
}

/// The descriptor of one process, without what is everybody's.
fn describe(
    options: &CaptureOptions,
    held: &mut Held,
    mut taken: Taken,
    copies: &SharedCopies,
    deadline: &Deadline,
) -> Result<Descriptor, CaptureError> {
    let mut injector = Injector::new(held.pid(), taken.survey.syscall_at, deadline);
    if let Held::Clone(clone) = held {
        phase!("prepare.close", inherited::leave_files(clone, &mut injector))?;
    }
    // Inherited, until a clone gets its own.
    let oom_score_adj = oom_score_adj(taken.snapshot.pid, held.pid())?;
    let subject = held.subject(&taken.snapshot, &taken.survey, &taken.mem);
    let asked = phase!("prepare.inherited", Inherited::ask(&subject, (&taken.lifeline, &mut injector)));
    let flagged = phase!("prepare.scan", taken.space.scan());
    let flagged = flagged.and_then(|()| phase!("prepare.flags", flags(held, &mut taken, &mut injector)));
    let tidied = phase!("prepare.tidy", tidy(held, &taken, &mut injector));
    held.settle();
    flagged.and(tidied)?;
    let inherited = asked?;
    let (pid, subject) = (taken.snapshot.pid, held.pid());
    let Taken { snapshot, survey, clocks, standing, mut answers, mem, likeness, files, space, .. } = taken;
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
    let asked = (answers[0].is_subreaper, answers[0].personality);
    let process = state::process(&survey, &snapshot, (subject, likeness), inherited, timers, asked, oom_score_adj)?;
    let clocks = clocks.as_seen_by(subject).map_err(CaptureError::read(pid, "the time namespace"))?;
    drop(entered);
    let eager = phase!(
        "prepare.eager",
        eager::eager(&eager::Own { mem: &mem, inheritance: &inheritance }, &threads, &process.mm, &memory.mappings)
    );
    Ok(Descriptor {
        origin: origin(options, &threads[0].xstate, clocks),
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
        file_descriptors: files.descriptors,
        file_locks: files.locks,
        file_owners: files.owners,
        eager,
        members: Vec::new(),
        zombies: Vec::new(),
    })
}

fn oom_score_adj(pid: i32, subject: i32) -> Result<i32, CaptureError> {
    let line = process::read_line(&format!("/proc/{subject}/oom_score_adj"));
    Ok(line.map_err(CaptureError::read(pid, "oom_score_adj"))?.parse().unwrap_or(0))
}

/// Reads the flags of a clone's areas: of a twin where there is much memory, else of the clone itself. A parent's are known.
fn flags(held: &Held, taken: &mut Taken, injector: &mut Injector<'_>) -> Result<(), CaptureError> {
    let Held::Clone(clone) = held else { return Ok(()) };
    let large = taken.space.large(twin::AREAS_MAX);
    let marked: Vec<u64> = large.iter().map(|entry| entry.start).collect();
    let mut areas = None;
    if !large.is_empty() {
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

/// The lifeline's pages go, or hold what the parent has there; a clone gets its place in the OOM order.
fn tidy(held: &Held, taken: &Taken, injector: &mut Injector<'_>) -> Result<(), CaptureError> {
    let registers = match held {
        Held::Clone(clone) => {
            clone.lower_in_oom_order()?;
            &clone.registers
        }
        Held::Parent(_) => &taken.snapshot.leader().registers,
    };
    let left = taken.lifeline.give_back(&taken.leftovers, &taken.mem);
    left.map_err(CaptureError::read(taken.snapshot.pid, "the pages that it offers"))?;
    at_once(taken.lifeline.unmap((held.pid(), registers), (None, &taken.mem), injector))
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

fn origin(options: &CaptureOptions, xstate: &[u8], clocks: Clocks) -> Origin {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Origin {
        node: options.node.clone(),
        kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
        boot_id: boot_id.trim().to_owned(),
        vdso_build_id: kernel::vdso_build_id().to_vec(),
        vdso_image: kernel::vdso_image().to_vec(),
        xcr0: state::xcr0(xstate),
        xstate_bytes: xstate.len() as u32,
        cpu_features: farfork_sys::cpu::features(),
        monotonic_ns: clocks.monotonic_ns,
        boottime_ns: clocks.boottime_ns,
    }
}
