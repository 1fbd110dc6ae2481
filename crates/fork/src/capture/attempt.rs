//! One attempt at a capture, from the first look to the descriptor. It runs in a thread of its own, which stays the
//! template's tracer.
//!
//! ```text
//!  running   survey ─ open shared memory
//!  ┌ pause   stop all ─ registers ─ ask ─ contents of files ─ shared memory ─ clone ─ let go
//!  └ running                     template: apart ─ ask ─ files ─ memory ─ eager pages ─ descriptor
//! ```

use std::time::Instant;

use farfork_sys::clock::Clocks;
use farfork_sys::priority::RealTime;
use farfork_wire::descriptor::{Descriptor, Origin};

use super::deadline::Deadline;
use super::error::CaptureError;
use super::files::{self, Files, ProgramSockets};
use super::inherited::{Inherited, Subject};
use super::inject::Injector;
use super::memory::MemoryMap;
use super::pause::{self, Paused, Prepared};
use super::shared::{SharedCopy, SharedSources};
use super::state;
use super::stop;
use super::stopped::{Snapshot, Stopped};
use super::survey::{Depth, Survey};
use super::template::Clone;
use super::turn::Turn;
use super::{CaptureOptions, CaptureTimes, eager, open_memory};
use crate::kernel;

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
    let mut injector = Injector::new(pid, prepared.survey.syscall_at, deadline);
    let paused = pause::pause(&mut stopped, &mut prepared, &mut injector, options.freeze, &mut times);
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
    let mem = open_memory(pid)?;
    let oom = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
    let oom = oom.map_err(CaptureError::read(pid, "oom_score_adj"))?;
    Ok(Prepared { survey, shared, mem, oom_score_adj: oom.trim().parse().unwrap_or(0) })
}

/// The descriptor, from the pause and from what can be read of the template at leisure.
fn describe(
    options: &mut CaptureOptions,
    prepared: &Prepared,
    paused: Paused,
    snapshot: &Snapshot,
    held: &Held,
    injector: &mut Injector<'_>,
) -> Result<(Descriptor, Vec<SharedCopy>), CaptureError> {
    let (pid, subject) = (snapshot.pid, held.pid());
    let (registers, inner_id) = match held {
        Held::Clone(clone) => {
            clone.set_apart(injector)?;
            if let Some(on_template) = &mut options.on_template {
                on_template(subject);
            }
            (clone.registers, clone.inner_id())
        }
        Held::Parent(_) => (snapshot.leader().registers, prepared.survey.inner_id()),
    };
    let lifeline = paused.lifeline;
    let mem = open_memory(subject)?;
    let inherited = {
        let subject = Subject { pid: subject, registers: &registers, inner_id, mem: &mem };
        Inherited::ask(&subject, &lifeline, injector)
    };
    lifeline.unmap((subject, &registers), (None, &mem), injector)?;
    let inherited = inherited?;
    let mut answers = paused.answers(snapshot, &prepared.survey)?;
    answers[0].alt_stack = inherited.alt_stack;
    let (contents, copies) = (paused.contents?, paused.copies?);
    let root = state::link(pid, subject, "root")?;
    let fds = files::open_fds(subject, &options.sockets)?;
    let refusals = files::refusals(pid, subject, &fds)?;
    if !refusals.is_empty() {
        return Err(CaptureError::refused(pid, refusals));
    }
    let files = Files::build((pid, subject), &root, &fds, &contents, &copies)?;
    if let Held::Clone(clone) = held {
        clone.close_files(injector)?;
    }
    let mut memory = MemoryMap::build((pid, subject), &root, &copies)?;
    let shared_objects = copies.describe(&mut memory.extents);
    let profiles = &prepared.survey.profiles;
    let threads = state::threads(snapshot, paused.standing, &answers, profiles, inherited.securebits)?;
    let process = state::process(&prepared.survey, snapshot, subject, inherited, prepared.oom_score_adj)?;
    let eager = eager::eager(&mem, &threads, &process.mm, &memory.mappings);
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
    Ok((descriptor, copies.into_copies()))
}

fn origin(options: &CaptureOptions, xstate: &[u8], clocks: Clocks) -> Origin {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Origin {
        node: options.node.clone(),
        kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
        boot_id: boot_id.trim().to_owned(),
        vdso_build_id: kernel::vdso_build_id().to_vec(),
        xcr0: state::xcr0(xstate),
        xstate_bytes: xstate.len() as u32,
        cpu_features: farfork_sys::cpu::features(),
        monotonic_ns: clocks.monotonic_ns,
        boottime_ns: clocks.boottime_ns,
    }
}
