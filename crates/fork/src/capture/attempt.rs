//! One attempt at a capture, from the first look to the descriptor. It runs in a thread of its own, which stays the
//! template's tracer.
//!
//! ```text
//!  running   survey ─ open shared memory
//!  ┌ pause   stop all ─ registers ─ ask ─ contents of files ─ shared memory ─ clone ─ let go
//!  └ running                     template: apart ─ ask ─ files ─ memory ─ eager pages ─ descriptor
//! ```

use std::fs::File;
use std::time::{Duration, Instant};

use farfork_sys::clock::Clocks;
use farfork_sys::priority::RealTime;
use farfork_wire::descriptor::{Descriptor, Origin};

use super::ask::{self, Answers};
use super::deadline::Deadline;
use super::error::CaptureError;
use super::files::{self, Contents, Files, ProgramSockets};
use super::inherited::{Inherited, Subject};
use super::inject::{Injector, SIGTRAP, Step};
use super::lifeline::Lifeline;
use super::memory::MemoryMap;
use super::shared::{SharedCopies, SharedCopy, SharedSources};
use super::state::{self, Standing};
use super::stop::{self, Snapshot, Stopped};
use super::survey::{Depth, Profile, Survey};
use super::template::{self, Clone};
use super::turn::Turn;
use super::{CaptureOptions, CaptureTimes, eager};

/// How often a process is looked at anew that changed between the look and the pause.
const ATTEMPTS_MAX: usize = 4;

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

    /// What is left to do before it is parked: a parent's registers are put back at once, so that it would run on
    /// unharmed if we died.
    fn settle(&mut self) {
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
}

/// All that an attempt yields.
pub(super) struct Outcome {
    pub(super) held: Held,
    pub(super) descriptor: Descriptor,
    pub(super) shared_copies: Vec<SharedCopy>,
    pub(super) times: CaptureTimes,
}

/// Captures `pid`, again if it changed its files or shared memory at the wrong moment.
pub(super) fn capture(pid: i32, options: &mut CaptureOptions) -> Result<Outcome, CaptureError> {
    let deadline = Deadline::after(options.timeout);
    let timed_out =
        || CaptureError::TimedOut { pid, limit: options.timeout, phase: "waiting for another capture of it" };
    let turn = Turn::wait(pid, options.timeout).ok_or_else(timed_out)?;
    let mut left = ATTEMPTS_MAX;
    loop {
        left -= 1;
        match attempt(pid, options, &deadline, &turn) {
            Err(CaptureError::Unstable { what, .. }) if left > 0 && !deadline.is_over() => {
                tracing::debug!(pid, what, "a process changed while it was looked at; once more");
            }
            other => return other,
        }
    }
}

/// What is at hand before the pause.
struct Prepared {
    survey: Survey,
    shared: SharedSources,
    mem: File,
    oom_score_adj: i32,
}

/// What the pause yields.
struct Paused {
    standing: Vec<Standing>,
    answers: Vec<Answers>,
    lifeline: Lifeline,
    contents: Contents,
    copies: SharedCopies,
    clocks: Clocks,
    clone: Option<Clone>,
}

fn attempt(pid: i32, options: &mut CaptureOptions, deadline: &Deadline, turn: &Turn) -> Result<Outcome, CaptureError> {
    let begun = Instant::now();
    let mut prepared = prepare(pid, &options.sockets)?;
    let mut times = CaptureTimes { survey: begun.elapsed(), ..CaptureTimes::default() };

    // A stop costs some dozen wake-ups; on a busy machine each would wait for its turn. Without the right to, so be it.
    let real_time = RealTime::enter();
    let paused_at = Instant::now();
    let tids = stop::stop_threads(pid, deadline)?;
    times.stop = paused_at.elapsed();
    let mut stopped = Stopped::take(pid, &tids)?;
    let mut injector = Injector::new(pid, prepared.survey.syscall_at, step_for(&stopped, &prepared.survey), deadline);
    let paused = pause(&mut stopped, &mut prepared, &mut injector, options.freeze, &mut times);
    stopped.withhold(&mut injector.withheld);
    let mut paused = paused?;
    let (mut held, snapshot) = match paused.clone.take() {
        Some(clone) => (Held::Clone(clone), stopped.release()),
        None => {
            let snapshot = stopped.snapshot.clone();
            (Held::Parent(stopped), snapshot)
        }
    };
    times.pause = paused_at.elapsed();
    drop(real_time);

    let described = describe(options, &prepared, paused, &snapshot, &held, &mut injector);
    let (descriptor, shared_copies) = match described {
        Ok(described) => described,
        Err(error) => {
            held.end(Some(turn));
            return Err(error);
        }
    };
    held.settle();
    times.threads = descriptor.threads.len();
    times.total = begun.elapsed();
    Ok(Outcome { held, descriptor, shared_copies, times })
}

fn prepare(pid: i32, sockets: &ProgramSockets) -> Result<Prepared, CaptureError> {
    let mut survey = Survey::of(pid, Depth::Quick, sockets)?;
    let refusals = std::mem::take(&mut survey.refusals);
    if !refusals.is_empty() {
        return Err(CaptureError::refused(pid, refusals));
    }
    let shared = SharedSources::open(&survey)?;
    let mem = open_memory(pid, pid)?;
    let oom = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
    let oom = oom.map_err(CaptureError::read(pid, "oom_score_adj"))?;
    Ok(Prepared { survey, shared, mem, oom_score_adj: oom.trim().parse().unwrap_or(0) })
}

fn open_memory(pid: i32, subject: i32) -> Result<File, CaptureError> {
    let mem = File::options().read(true).write(true).open(format!("/proc/{subject}/mem"));
    mem.map_err(CaptureError::read(pid, "the memory"))
}

/// Single steps where the parent's SIGTRAP allows them (see [`super::inject`]).
fn step_for(stopped: &Stopped, survey: &Survey) -> Step {
    let ignores = survey.profiles.get(&survey.pid).is_none_or(|profile| profile.status.ignores(SIGTRAP));
    Step::where_trap(ignores, stopped.snapshot.has_pending(SIGTRAP))
}

/// What must happen while the parent stands still.
fn pause(
    stopped: &mut Stopped,
    prepared: &mut Prepared,
    injector: &mut Injector<'_>,
    freeze: bool,
    times: &mut CaptureTimes,
) -> Result<Paused, CaptureError> {
    let mut lap = Lap::start();
    let clocks = Clocks::now();
    let standing: Result<Vec<Standing>, _> =
        stopped.snapshot.threads.iter().map(|one| Standing::read(one.tid)).collect();
    let standing = standing?;
    look_at_new_threads(stopped, &mut prepared.survey)?;
    times.registers = lap.take();
    stopped.snapshot.leader().block_signals(injector)?;
    let lifeline = Lifeline::throw(&stopped.snapshot, &standing, &prepared.mem, injector)?;
    let asked = ask::ask(&stopped.snapshot, &standing, &prepared.survey, (&lifeline, &prepared.mem), injector);
    times.ask = lap.take();
    let shared = asked.and_then(|answers| {
        let shared = share(stopped, prepared, &lifeline, injector, freeze, times);
        shared.map(|(contents, copies, clone)| (answers, contents, copies, clone))
    });
    if !freeze || shared.is_err() {
        let leader = stopped.snapshot.leader();
        lifeline.haul_in(leader.tid, &leader.registers, injector)?;
    }
    let (answers, contents, copies, clone) = shared?;
    Ok(Paused { standing, answers, lifeline, contents, copies, clocks, clone })
}

/// A thread that was born since the survey.
fn look_at_new_threads(stopped: &Stopped, survey: &mut Survey) -> Result<(), CaptureError> {
    for thread in &stopped.snapshot.threads {
        if !survey.profiles.contains_key(&thread.tid) {
            let profile = Profile::read(thread.tid).map_err(CaptureError::read(survey.pid, "a new thread"))?;
            survey.profiles.insert(thread.tid, profile);
        }
    }
    Ok(())
}

/// Clones the parent, and copies what a clone shares, at the same time: the leader copies its page tables by itself.
fn share(
    stopped: &mut Stopped,
    prepared: &mut Prepared,
    lifeline: &Lifeline,
    injector: &mut Injector<'_>,
    freeze: bool,
    times: &mut CaptureTimes,
) -> Result<(Contents, SharedCopies, Option<Clone>), CaptureError> {
    let mut lap = Lap::start();
    let leader = stopped.snapshot.leader();
    let base = lifeline.base(0, &leader.registers);
    let started = if freeze { None } else { Some(template::begin(leader.tid, &base, injector)?) };
    stopped.restore_others();
    let snapshot = &stopped.snapshot;
    let contents = Contents::read(snapshot.pid, &prepared.survey.fds);
    let copies = std::mem::take(&mut prepared.shared).copy(snapshot.pid, injector.deadline());
    times.shared = lap.take();
    // Born before any error is looked at: a clone under way must not be left alone.
    let ticks = prepared.survey.stat.start_ticks;
    let clone = started.map(|started| Clone::born(started, snapshot, ticks, injector)).transpose()?;
    times.clone = lap.take();
    Ok((contents?, copies?, clone))
}

/// The descriptor, from the pause and from what can be read of the template at leisure.
fn describe(
    options: &mut CaptureOptions,
    prepared: &Prepared,
    mut paused: Paused,
    snapshot: &Snapshot,
    held: &Held,
    injector: &mut Injector<'_>,
) -> Result<(Descriptor, Vec<SharedCopy>), CaptureError> {
    let (pid, subject) = (snapshot.pid, held.pid());
    injector.call_in_vdso();
    let registers = match held {
        Held::Clone(clone) => {
            clone.set_apart(injector)?;
            if let Some(on_template) = &mut options.on_template {
                on_template(subject);
            }
            clone.registers
        }
        Held::Parent(_) => snapshot.leader().registers,
    };
    let mem = open_memory(pid, subject);
    let answers = paused.lifeline.answers(0);
    let inherited = mem.and_then(|mem| {
        let who = Subject { pid: subject, registers: &registers, mem: &mem, answers };
        Inherited::ask(&who, injector).map(|inherited| (inherited, mem))
    });
    paused.lifeline.haul_in(subject, &registers, injector)?;
    let (inherited, mem) = inherited?;
    paused.answers[0].alt_stack = inherited.alt_stack;
    let root = state::link(pid, subject, "root")?;
    let fds = files::open_fds(subject, &options.sockets)?;
    let refusals = files::refusals(pid, subject, &fds)?;
    if !refusals.is_empty() {
        return Err(CaptureError::refused(pid, refusals));
    }
    let files = Files::build((pid, subject), &root, &fds, &paused.contents, &paused.copies)?;
    if let Held::Clone(clone) = held {
        clone.close_files(injector)?;
    }
    let mut memory = MemoryMap::build((pid, subject), &root, &paused.copies)?;
    let shared_objects = paused.copies.describe(&mut memory.extents);
    let profiles = &prepared.survey.profiles;
    let threads = state::threads(snapshot, paused.standing, &paused.answers, profiles, inherited.securebits)?;
    let eager = eager::eager(&mem, &threads, &memory.mappings);
    let process = state::process(&prepared.survey, snapshot, subject, inherited, prepared.oom_score_adj)?;
    let clocks = paused.clocks.as_seen_by(pid).map_err(CaptureError::read(pid, "the time namespace"))?;
    let descriptor = Descriptor {
        origin: origin(options, &threads[0].xstate, clocks),
        process,
        threads,
        mappings: memory.mappings,
        extents: memory.extents,
        mapped_files: memory.files,
        shared_objects,
        open_files: files.open_files,
        file_descriptors: files.descriptors,
        eager,
    };
    descriptor.validate()?;
    Ok((descriptor, paused.copies.into_copies()))
}

fn origin(options: &CaptureOptions, xstate: &[u8], clocks: Clocks) -> Origin {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Origin {
        node: options.node.clone(),
        kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
        boot_id: boot_id.trim().to_owned(),
        xcr0: state::xcr0(xstate),
        xstate_bytes: xstate.len() as u32,
        monotonic_ns: clocks.monotonic_ns,
        boottime_ns: clocks.boottime_ns,
    }
}

/// Time between two points.
struct Lap(Instant);

impl Lap {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn take(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}
