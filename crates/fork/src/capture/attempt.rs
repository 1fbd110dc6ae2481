//! One attempt at a capture, from the first look until the parent runs again and nothing stands against it any
//! more. It runs in a thread of its own, which stays the template's tracer; [`describe`](super::describe) does the rest.
//!
//! ```text
//!  running   survey ─ open shared memory
//!  ┌ pause   stop all ─ registers ─ ask ─ contents of files ─ shared memory ─ clone ─ let go
//!  └ running                     template: map ─ set apart, asked ∥ files, scan
//! ```

use std::fs::File;
use std::time::{Duration, Instant};

use farfork_sys::clock::Clocks;
use farfork_sys::priority::RealTime;
use farfork_sys::process;
use farfork_wire::descriptor::PosixTimer;

use super::ask::Answers;
use super::beside::Beside;
use super::deadline::Deadline;
use super::error::{CaptureError, Refusal};
use super::files::{self, Contents, Files, Threads};
use super::filters::Filters;
use super::inherited::{self, Subject};
use super::inject::Injector;
use super::lifeline::Lifeline;
use super::lineage::Inheritance;
use super::memory::AddressSpace;
use super::pause::{self, Paused, Prepared};
use super::rescue::Gadgets;
use super::seals::Probes;
use super::shared::{SharedCopies, SharedSources};
use super::state::{self, Standing};
use super::stop;
use super::stopped::{Snapshot, Stopped};
use super::survey::{Depth, Survey};
use super::template::Clone;
use super::turn::Turn;
use super::{CaptureOptions, CaptureTimes, open_memory};
use crate::phase;

/// How often a process is looked at anew that changed between the look and the pause.
const ATTEMPTS_MAX: usize = 4;

/// How long a frozen parent's main thread may take to unmap what was mapped for a capture that is given up.
const GIVE_UP_LIMIT: Duration = Duration::from_millis(500);

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
                open_memory(pid).and_then(|mem| lifeline.unmap((pid, registers), (None, &mem), &mut injector));
            if let Err(error) = unmapped {
                tracing::warn!(pid, %error, "pages that were mapped for its capture stay in a process");
            }
            stopped.withhold(&mut injector.withheld);
        }
        self.end(turn);
    }
}

/// What an attempt yields.
pub(super) struct Attempted {
    pub(super) held: Held,
    pub(super) taken: Taken,
    pub(super) times: CaptureTimes,
}

/// All that had to be taken at once; nothing of it is refused.
pub(super) struct Taken {
    pub(super) snapshot: Snapshot,
    pub(super) survey: Survey,
    pub(super) clocks: Clocks,
    pub(super) standing: Vec<Standing>,
    pub(super) answers: Vec<Answers>,
    pub(super) copies: SharedCopies,
    pub(super) lifeline: Lifeline,
    /// What its desks must hold in the end.
    pub(super) leftovers: Vec<u8>,
    /// The memory of what holds it.
    pub(super) mem: File,
    /// The directory that the process takes for its root.
    pub(super) root: String,
    pub(super) files: Files,
    pub(super) posix_timers: Vec<PosixTimer>,
    pub(super) filters: Filters,
    pub(super) space: AddressSpace,
    /// What it lacks because other seeds have it.
    pub(super) inheritance: Inheritance,
}

/// Captures `pid`, again if it changed its files or shared memory at the wrong moment.
pub(super) fn capture(pid: i32, options: &CaptureOptions, deadline: &Deadline) -> Result<Attempted, CaptureError> {
    let timed_out =
        || CaptureError::TimedOut { pid, limit: options.timeout, phase: "waiting for another capture of it" };
    let turn = Turn::wait(pid, options.timeout).ok_or_else(timed_out)?;
    let mut left = ATTEMPTS_MAX;
    loop {
        left -= 1;
        match attempt(pid, options, deadline, &turn) {
            Err(CaptureError::Unstable { what, .. }) if left > 0 && !deadline.is_over() => {
                tracing::debug!(pid, what, "a process changed while it was looked at; once more");
            }
            other => return other,
        }
    }
}

fn attempt(pid: i32, options: &CaptureOptions, deadline: &Deadline, turn: &Turn) -> Result<Attempted, CaptureError> {
    let begun = Instant::now();
    let mut prepared = phase!("prepare.survey", prepare(pid, options))?;
    let mut times = CaptureTimes { survey: begun.elapsed(), ..CaptureTimes::default() };

    // A stop costs some dozen wake-ups; on a busy machine each would wait for its turn. Without the right to, so be it.
    let real_time = RealTime::enter();
    let paused_at = Instant::now();
    let tids = phase!("prepare.stop", stop::stop_threads(pid, deadline))?;
    times.stop = paused_at.elapsed();
    let beside = Beside::join(pid, times.stop);
    let mut stopped = phase!("prepare.registers", Stopped::take(pid, &tids))?;
    let mut injector = Injector::new(pid, prepared.survey.syscall_at, deadline);
    let paused = pause::pause(&mut stopped, &mut prepared, &mut injector, options.freeze, &mut times);
    stopped.withhold(&mut injector.withheld);
    let mut paused = paused?;
    let (held, snapshot) = match paused.clone.take() {
        Some(clone) => (Held::Clone(clone), phase!("prepare.release", stopped.release())),
        None => {
            let snapshot = stopped.snapshot.clone();
            (Held::Parent(stopped), snapshot)
        }
    };
    times.pause = paused_at.elapsed();
    drop((beside, real_time));

    let (lifeline, syscall_at) = (paused.lifeline.clone(), prepared.survey.syscall_at);
    let mut injector = Injector::new(pid, syscall_at, deadline);
    let taken = match take(options, prepared, paused, snapshot, &held, &mut injector) {
        Ok(taken) => taken,
        Err(error) => {
            held.give_up(&lifeline, syscall_at, Some(turn));
            return Err(error);
        }
    };
    times.threads = taken.snapshot.threads.len();
    times.total = begun.elapsed();
    Ok(Attempted { held, taken, times })
}

fn prepare(pid: i32, options: &CaptureOptions) -> Result<Prepared, CaptureError> {
    let mut survey = Survey::of(pid, Depth::Quick, &options.sockets)?;
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
    let offer = options.offer.clone().filter(|_| search.is_none());
    let gadgets = if offer.is_none() { Gadgets::find(pid, &survey.maps) } else { None };
    Ok(Prepared { survey, shared, mem, offer, gadgets, search })
}

/// What is read of the template before anyone hears of it: what could still be refused (answers of its threads; files
/// and areas that it had at the pause and not before), and how much memory there is. The template is then apart, but for its
/// files.
fn take(
    options: &CaptureOptions,
    prepared: Prepared,
    paused: Paused,
    snapshot: Snapshot,
    held: &Held,
    injector: &mut Injector<'_>,
) -> Result<Taken, CaptureError> {
    let (pid, subject) = (snapshot.pid, held.pid());
    let Prepared { survey, search, .. } = prepared;
    let (answers, mem) = (paused.answers(&snapshot)?, open_memory(subject)?);
    let leftovers = paused.lifeline.leftovers(paused.desks(), (pid, &mem))?;
    let Paused { standing, lifeline, contents, copies, clocks, timers, filters, template_space, .. } = paused;
    // First, so that the template is a process like any other for all that follows.
    let lack = match (search, template_space?) {
        (Some(search), Some(space)) => Some(phase!("prepare.leave", search.take(space))?),
        _ => None,
    };
    let (contents, copies, posix_timers) = (contents?, copies?, timers?);
    let root = state::link(pid, subject, "root")?;
    let mut space = AddressSpace::of((pid, subject), lifeline.mapped(), &copies)?;
    let files = || phase!("prepare.files", take_files(options, (&survey, subject), &root, &contents, &copies));
    let subject = held.subject(&snapshot, &survey, &mem);
    let files = phase!("prepare.apart", set_apart(held, &subject, &mut space, (&lifeline, injector), files))?;
    let inheritance = lack.map(|lack| lack.inheritance(pid, &space)).transpose()?.unwrap_or_default();
    Ok(Taken {
        snapshot,
        survey,
        clocks,
        standing,
        answers,
        copies,
        lifeline,
        leftovers,
        mem,
        root,
        files,
        posix_timers,
        filters,
        space,
        inheritance,
    })
}

/// Sets a clone apart, takes `files` meanwhile and finds out how much memory there is. A clone is also asked whether areas are
/// sealed; those of a parent are asked for their flags themselves.
fn set_apart(
    held: &Held,
    subject: &Subject<'_>,
    space: &mut AddressSpace,
    (lifeline, injector): (&Lifeline, &mut Injector<'_>),
    files: impl FnOnce() -> Result<Files, CaptureError>,
) -> Result<Files, CaptureError> {
    let pid = space.pid();
    let (files, regions) = match held {
        Held::Clone(clone) => {
            let probes = Probes::of(clone.pid, space.entries());
            let meanwhile = || Ok((files()?, phase!("prepare.scan", space.scan())?));
            let (results, taken) = inherited::set_apart(subject, probes.first(), (lifeline, injector), meanwhile)?;
            probes.finish(pid, subject, results, (lifeline, injector))?;
            taken
        }
        Held::Parent(_) => {
            let areas = process::smaps(pid).map_err(CaptureError::read(pid, "the memory map"))?;
            space.flag(&areas, &[])?;
            (files()?, space.scan()?)
        }
    };
    space.take_regions(regions);
    Ok(files)
}

fn take_files(
    options: &CaptureOptions,
    (survey, subject): (&Survey, i32),
    root: &str,
    contents: &Contents,
    copies: &SharedCopies,
) -> Result<Files, CaptureError> {
    let pid = survey.pid;
    let (fds, infos) = files::copied_fds((pid, subject), &survey.fds, &options.sockets)?;
    let refusals = files::refusals(pid, subject, &fds)?;
    if !refusals.is_empty() {
        return Err(CaptureError::refused(pid, refusals));
    }
    let (group, session) = (survey.stat.group, survey.stat.session);
    let threads = Threads { pid, group, session, profiles: &survey.profiles };
    Files::build((pid, subject), root, (&fds, &infos), contents, copies, threads)
}
