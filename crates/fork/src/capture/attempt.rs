//! One attempt at a capture, from the first look until the parent runs again and nothing stands against it any
//! more. It runs in a thread of its own, which stays the template's tracer; [`describe`](super::describe) does the rest.
//!
//! ```text
//!  running   survey ─ open shared memory
//!  ┌ pause   stop all ─ registers ─ ask ─ contents of files ─ shared memory ─ likeness ─ clone ─ files ─ let go
//!  └ running                     template: map ─ set apart, asked
//! ```

use std::fs::File;
use std::ops::Range;
use std::time::{Duration, Instant};

use farfork_sys::clock::Clocks;
use farfork_sys::priority::RealTime;
use farfork_sys::process;
use farfork_wire::descriptor::PosixTimer;

use super::calls::ask::Answers;
use super::calls::inject::Injector;
use super::calls::lifeline::Lifeline;
use super::calls::rescue::Gadgets;
use super::error::{CaptureError, Refusal};
use super::files::open::Open;
use super::files::versions::HeldFiles;
use super::files::{Files, OpenFiles, ProgramSockets, Streams};
use super::lineage::Inheritance;
use super::memory::AddressSpace;
use super::memory::seals::Probes;
use super::pause::{Paused, Prepared};
use super::shared::{SharedCopies, SharedSources};
use super::stand::{Read, Standing, stand};
use super::state;
use super::state::filters::Filters;
use super::state::inherited::{Apart, Subject};
use super::state::likeness::Likeness;
use super::stop::stopped::{Snapshot, Stopped};
use super::survey::{Depth, Survey};
use super::template::Clone;
use super::tracer::beside::Beside;
use super::tracer::deadline::Deadline;
use super::tracer::post::at_once;
use super::tracer::turn::Turn;
use super::tree::{Family, Kin};
use super::{CaptureOptions, CaptureTimes, open_memory};
use crate::phase;

/// How often a process is looked at anew that changed between the look and the pause.
const ATTEMPTS_MAX: usize = 4;

/// How long a frozen parent's main thread may take to unmap what was mapped for a capture that is given up.
const GIVE_UP_LIMIT: Duration = Duration::from_millis(500);

/// Most memory, in bytes, that is looked through before the answer: it takes no longer than what a template is asked meanwhile.
const LOOK_BYTES_MAX: u64 = 16 << 20;

/// What the owner keeps while the seed lives.
#[derive(Debug)]
pub(super) enum Held {
    /// A clone.
    Clone(Clone),
    /// The parent itself, standing still.
    Parent(Stopped),
}

impl Held {
    /// The process that holds the memory.
    pub(super) fn pid(&self) -> i32 {
        match self {
            Self::Clone(clone) => clone.pid,
            Self::Parent(stopped) => stopped.snapshot.pid,
        }
    }

    /// It, for calls made in it, with what was known of the parent.
    pub(super) fn subject<'a>(&'a self, snapshot: &'a Snapshot, survey: &Survey, mem: &'a File) -> Subject<'a> {
        let (registers, inner_id) = match self {
            Self::Clone(clone) => (&clone.registers, clone.inner_id()),
            Self::Parent(_) => (&snapshot.leader().registers, survey.inner_id()),
        };
        Subject { pid: self.pid(), registers, inner_id, mem }
    }

    /// The clone, where it is one.
    pub(super) fn clone(&self) -> Option<&Clone> {
        match self {
            Self::Clone(clone) => Some(clone),
            Self::Parent(_) => None,
        }
    }

    /// What is left to do before it is parked: a parent's registers are put back at once, so that it would run on
    /// unharmed if we died.
    pub(super) fn settle(&mut self) {
        if let Self::Parent(stopped) = self {
            stopped.restore();
        }
    }

    /// Ends a clone; lets a parent go. `turn` is that of the parent, where the caller has it.
    pub(super) fn end(&mut self, turn: Option<&Turn>) {
        if let Self::Clone(clone) = self {
            clone.end(turn);
        }
    }

    /// The same before it was described: a parent still has the `lifeline`, which must not stay.
    pub(super) fn give_up(mut self, lifeline: &Lifeline, syscall_at: u64, turn: Option<&Turn>) {
        if let Self::Parent(stopped) = &mut self {
            let pid = stopped.snapshot.pid;
            let deadline = Deadline::after(GIVE_UP_LIMIT);
            let mut injector = Injector::new(pid, syscall_at, &deadline);
            let registers = &stopped.snapshot.leader().registers;
            let unmapped =
                open_memory(pid).and_then(|mem| at_once(lifeline.unmap((pid, registers), (None, &mem), &mut injector)));
            if let Err(error) = unmapped {
                tracing::warn!(pid, %error, "pages that were mapped for its capture stay in a process");
            }
            stopped.withhold(&mut injector.withheld);
        }
        self.end(turn);
    }
}

/// What an attempt yields: of each process of the tree, the first one first.
pub(super) struct Attempted {
    pub(super) held: Vec<Held>,
    pub(super) taken: Vec<Taken>,
    pub(super) shared: Shared,
    pub(super) times: CaptureTimes,
}

/// What processes of a tree have in common.
pub(super) struct Shared {
    pub(super) copies: SharedCopies,
    pub(super) open_files: OpenFiles,
    pub(super) held_files: HeldFiles,
    pub(super) kin: Kin,
}

/// All that had to be taken at once; nothing of it is refused.
pub(super) struct Taken {
    pub(super) snapshot: Snapshot,
    pub(super) survey: Survey,
    pub(super) clocks: Clocks,
    pub(super) standing: Vec<state::Standing>,
    pub(super) answers: Vec<Answers>,
    pub(super) lifeline: Lifeline,
    /// What a fork would not have handed down, and the template has.
    pub(super) unforked: Vec<Range<u64>>,
    /// What its desks must hold in the end.
    pub(super) leftovers: Vec<u8>,
    /// The memory of what holds it.
    pub(super) mem: File,
    pub(super) likeness: Likeness,
    /// The process's program and arguments.
    pub(super) arguments: Vec<String>,
    pub(super) files: Files,
    pub(super) posix_timers: Vec<PosixTimer>,
    pub(super) filters: Filters,
    pub(super) space: AddressSpace,
    /// What it lacks because other seeds have it.
    pub(super) inheritance: Inheritance,
}

impl Taken {
    /// Pages that hold something, in bytes; while nobody has looked for them, those that the process had written.
    pub(super) fn populated_bytes(&self) -> u64 {
        self.space.populated_bytes().unwrap_or_else(|| written_bytes(&self.survey)) + self.inheritance.bytes()
    }
}

/// What is good to know of the children of a tree; of which process, where it is not the first.
pub(super) fn notes(taken: &[Taken]) -> Vec<String> {
    let first = taken[0].survey.pid;
    let of_one = |survey: &Survey| survey.notes.iter().map(|note| survey.name_note(first, note)).collect::<Vec<_>>();
    taken.iter().flat_map(|one| of_one(&one.survey)).collect()
}

/// What a process had written to before its pause, in bytes.
fn written_bytes(survey: &Survey) -> u64 {
    survey.profiles.get(&survey.pid).map_or(0, |leader| leader.status.anonymous_bytes)
}

/// Captures `pid`, again if it changed its files or shared memory at the wrong moment.
pub(super) fn capture(pid: i32, options: &CaptureOptions) -> Result<Attempted, CaptureError> {
    let begun = Instant::now();
    let timed_out =
        || CaptureError::TimedOut { pid, limit: options.timeout, phase: "waiting for another capture of it" };
    let turn = Turn::wait(pid, options.timeout).ok_or_else(timed_out)?;
    let mut left = ATTEMPTS_MAX;
    loop {
        left -= 1;
        match attempt(pid, options, &turn) {
            Err(CaptureError::Unstable { what, .. }) if left > 0 && begun.elapsed() < options.timeout => {
                tracing::debug!(pid, what, "a process changed while it was looked at; once more");
            }
            other => return other,
        }
    }
}

fn attempt(pid: i32, options: &CaptureOptions, turn: &Turn) -> Result<Attempted, CaptureError> {
    let begun = Instant::now();
    let look = |pid: i32, sockets: &ProgramSockets, streams: Option<&Streams>| prepare(pid, options, sockets, streams);
    let mut family = phase!("prepare.survey", Family::survey(pid, options, look))?;
    let mut times = CaptureTimes { survey: begun.elapsed(), ..CaptureTimes::default() };

    // Nobody stands still for the look, which takes as long as a busy machine has it take.
    let deadline = Deadline::after(options.timeout);
    // A stop costs some dozen wake-ups; on a busy machine each would wait for its turn. Without the right to, so be it.
    let real_time = RealTime::enter();
    // Who asks itself waits for the answer, and has no other use for its processor.
    let asks_itself = options.sockets.caller.is_some();
    let mut beside = if asks_itself { Beside::join(&family.relatives[0].prepared.survey.stat) } else { None };
    let paused_at = Instant::now();
    let tids = phase!("prepare.stop", family.stop(options, &deadline, look))?;
    times.stop = paused_at.elapsed();
    beside = beside.or_else(|| Beside::join_busy(pid, times.stop / family.relatives.len() as u32));
    let mut standing = stand(&mut family, &tids, options, &deadline, turn, &mut times)?;
    let open = phase!("prepare.files", Open::read(&family, &mut standing));
    let released = standing.into_iter().map(Standing::release);
    let (held, mut read): (Vec<Held>, Vec<Read>) = phase!("prepare.release", released.unzip());
    times.pause = paused_at.elapsed();
    drop(real_time);
    // Others need theirs now.
    let mut beside = beside.filter(|_| asks_itself);
    if let Some(beside) = &mut beside {
        held.iter().filter_map(Held::clone).for_each(|clone| beside.take_along(clone.pid));
    }

    read.iter_mut().filter_map(|(paused, _)| paused.born.outdone.take()).for_each(|mut clone| clone.end(Some(turn)));
    let mut given_up = GivenUp { held, lifelines: lifelines(&family, &read), turn };
    let (taken, shared) = take_all(family, read, (&given_up.held, open?), &deadline)?;
    times.threads = taken.iter().map(|taken| taken.snapshot.threads.len()).sum();
    times.total = begun.elapsed();
    Ok(Attempted { held: std::mem::take(&mut given_up.held), taken, shared, times })
}

/// Templates of an attempt that may still fail. Unless they are taken out, they are given up when this is dropped.
struct GivenUp<'a> {
    held: Vec<Held>,
    /// Of each, with the address of a `syscall` instruction.
    lifelines: Vec<(Lifeline, u64)>,
    turn: &'a Turn,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        for (held, (lifeline, syscall_at)) in self.held.drain(..).zip(&self.lifelines) {
            held.give_up(lifeline, *syscall_at, Some(self.turn));
        }
    }
}

fn lifelines(family: &Family, read: &[Read]) -> Vec<(Lifeline, u64)> {
    let syscalls = family.relatives.iter().map(|one| one.prepared.survey.syscall_at);
    read.iter().map(|(paused, _)| paused.lifeline.clone()).zip(syscalls).collect()
}

/// What can still be refused is read of all templates, before anyone hears of them.
fn take_all(
    family: Family,
    read: Vec<Read>,
    (held, open): (&[Held], Open),
    deadline: &Deadline,
) -> Result<(Vec<Taken>, Shared), CaptureError> {
    let Open { own, all: open_files, copies, kin } = open;
    let (mut taken, mut held_files) = (Vec::with_capacity(held.len()), HeldFiles::default());
    for (((relative, (paused, snapshot)), held), own) in family.relatives.into_iter().zip(read).zip(held).zip(own) {
        let mut injector = Injector::new(snapshot.pid, relative.prepared.survey.syscall_at, deadline);
        let mut prepared = relative.prepared;
        held_files.absorb(std::mem::take(&mut prepared.held_files));
        taken.push(take(prepared, paused, snapshot, (held, &mut injector), (&copies, own))?);
    }
    kin.require_reapers(&reapers(&taken)).map_err(|refusals| CaptureError::refused(taken[0].survey.pid, refusals))?;
    Ok((taken, Shared { copies, open_files, held_files, kin }))
}

/// Of each process its id, and whether it is the parent of those that its descendants leave.
fn reapers(taken: &[Taken]) -> Vec<(u32, bool)> {
    let reaps = |one: &Taken| one.answers[0].is_subreaper || one.survey.inner_id() == 1;
    taken.iter().map(|one| (one.survey.inner_id(), reaps(one))).collect()
}

fn prepare(
    pid: i32,
    options: &CaptureOptions,
    sockets: &ProgramSockets,
    streams: Option<&Streams>,
) -> Result<Prepared, CaptureError> {
    let mut survey = Survey::of(pid, Depth::Quick, sockets, streams)?;
    let kept_thread = options.offer.as_ref().and_then(|offer| offer.kept_thread);
    if let (Some(thread), None) = (kept_thread, streams) {
        survey.let_run_anywhere(thread);
    }
    // A child of a seed is in a container like its children's.
    if options.lineage.is_none() {
        survey.compare_namespaces(streams.is_none(), options.namespaces)?;
    }
    let mut refusals = std::mem::take(&mut survey.refusals);
    if options.freeze && options.lineage.is_some() {
        let reason =
            "it is a child of a seed, whose missing pages only a clone of it can do without; leave `--freeze` out";
        refusals.push(Refusal::new(format!("pid {pid}"), reason));
    }
    if !refusals.is_empty() {
        return Err(CaptureError::refused(pid, refusals));
    }
    let shared = SharedSources::open(&survey)?;
    let mem = open_memory(pid)?;
    let search = options.lineage.as_ref().map(|lineage| lineage.search(pid)).transpose()?;
    // The pager knows a clone of a child by pages that nobody else has.
    let offer = options.offer.clone().filter(|_| search.is_none() && streams.is_none());
    let gadgets = if offer.is_none() { Gadgets::find(pid, &survey.maps) } else { None };
    let held_files = phase!("prepare.hold", HeldFiles::open(pid, &survey.fds));
    Ok(Prepared { survey, shared, mem, sockets: sockets.clone(), offer, gadgets, held_files, search })
}

/// What is read of the template before anyone hears of it: what could still be refused (answers of its threads; areas that it had
/// at the pause and not before), and how much memory there is. The template is then apart.
fn take(
    prepared: Prepared,
    paused: Paused,
    snapshot: Snapshot,
    (held, injector): (&Held, &mut Injector<'_>),
    (copies, (files, likeness)): (&SharedCopies, (Files, Likeness)),
) -> Result<Taken, CaptureError> {
    let (pid, subject) = (snapshot.pid, held.pid());
    let Prepared { mut survey, search, .. } = prepared;
    let (answers, mem) = (paused.answers(&snapshot)?, open_memory(subject)?);
    let mut leftovers = paused.lifeline.leftovers(paused.desks(), (pid, &mem))?;
    if let (Some(desks), false) = (&paused.born.desks_before, leftovers.is_empty()) {
        leftovers[..desks.len()].copy_from_slice(desks);
    }
    let Paused { standing, lifeline, clocks, timers, filters, born, unmapped, .. } = paused;
    let unforked = unmapped.and(born.unforked)?;
    // First, so that the template is a process like any other for all that follows.
    let lack = match (search, born.template_space?) {
        (Some(search), Some(space)) => Some(phase!("prepare.leave", search.take(space))?),
        _ => None,
    };
    let posix_timers = timers?;
    let personality = answers[0].personality;
    let known = (copies, &mut survey.file_systems);
    let mut space = AddressSpace::of((pid, subject), lifeline.mapped(), known)?;
    let arguments = state::arguments(pid, subject)?;
    let subject = held.subject(&snapshot, &survey, &mem);
    let apart = (&mut space, personality, written_bytes(&survey));
    phase!("prepare.apart", set_apart(held, &subject, apart, (&lifeline, injector)))?;
    let inheritance = match lack {
        Some(lack) => {
            phase!("prepare.scan", space.scan())?;
            lack.inheritance(pid, &space)?
        }
        None => Inheritance::default(),
    };
    Ok(Taken {
        snapshot,
        survey,
        clocks,
        standing,
        answers,
        lifeline,
        unforked,
        leftovers,
        mem,
        likeness,
        arguments,
        files,
        posix_timers,
        filters,
        space,
        inheritance,
    })
}

/// Sets a clone apart, which is also asked whether areas are sealed; those of a parent are asked for their flags themselves. While the clone
/// is at work its pages are looked for, where they are few: else the answer would have to wait for that.
fn set_apart(
    held: &Held,
    subject: &Subject<'_>,
    (space, personality, written_bytes): (&mut AddressSpace, u32, u64),
    (lifeline, injector): (&Lifeline, &mut Injector<'_>),
) -> Result<(), CaptureError> {
    let pid = space.pid();
    match held {
        Held::Clone(_) => {
            let probes = Probes::of(personality, space.entries());
            let apart = Apart::begin(subject, probes.first(), (lifeline, injector))?;
            let found = (written_bytes <= LOOK_BYTES_MAX).then(|| phase!("prepare.scan", space.look()));
            let results = apart.finish(subject, (lifeline, injector))?;
            probes.finish(pid, subject, results, (lifeline, injector))?;
            // What could not be read is looked for again.
            found.into_iter().flatten().for_each(|found| space.know(found));
            Ok(())
        }
        Held::Parent(_) => {
            let areas = process::smaps(pid).map_err(CaptureError::read(pid, "the memory map"))?;
            space.flag(&areas, &[])
        }
    }
}
