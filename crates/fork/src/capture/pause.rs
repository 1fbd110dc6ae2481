//! What happens while the parent stands still, and nothing else: as little as can be, as much as possible at once.
//!
//! ```text
//!  leader    map pages ─ asks, clones itself ············································· unmap pages
//!  others              ─ ask ─ registers back
//!  we        registers ─ · · · · · · · · · contents of files, shared memory ─ likeness · · · let go
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use farfork_sys::clock::Clocks;
use farfork_wire::descriptor::PosixTimer;

use super::CaptureTimes;
use super::calls::ask::{self, Answers};
use super::calls::inject::Injector;
use super::calls::lifeline::{Lifeline, Offer, Room, Task};
use super::calls::rescue::{self, Gadgets, Rescue};
use super::calls::script::{self, EndSignal, Running};
use super::error::{CaptureError, Refusal};
use super::files::versions::HeldFiles;
use super::files::{Contents, ProgramSockets};
use super::lineage::Search;
use super::shared::{SharedCopies, SharedSources};
use super::state::Standing;
use super::state::apart;
use super::state::filters::{self, Filters};
use super::state::likeness::Likeness;
use super::state::timers::{self, Listed};
use super::stop::stopped::{Snapshot, Stopped};
use super::survey::{Profile, Survey};
use super::template::born::Born;
use super::template::clone_call;
use super::tracer::deadline::Deadline;
use crate::phase;

/// What is at hand before the pause.
pub(super) struct Prepared {
    pub(super) survey: Survey,
    pub(super) shared: SharedSources,
    pub(super) mem: File,
    /// Its connections to the daemon.
    pub(super) sockets: ProgramSockets,
    /// Pages that the process offers for its calls.
    pub(super) offer: Option<Offer>,
    /// Code of the program's that makes calls in it safer; not looked for where pages are offered.
    pub(super) gadgets: Option<Gadgets>,
    /// Files that it has open, held so that they stay to be had.
    pub(super) held_files: HeldFiles,
    /// What finds the clone among what a pager serves, where the process is served by one.
    pub(super) search: Option<Search>,
}

impl Prepared {
    /// Whether all this is still of the process, now that it stands: it may have begun another program.
    pub(super) fn is_current(&self) -> Result<bool, CaptureError> {
        let Survey { pid, program, syscall_at, .. } = &self.survey;
        // Of an address space that has ended nothing can be read.
        let can_read = self.mem.read_at(&mut [0], *syscall_at).is_ok_and(|bytes| bytes == 1);
        Ok(can_read && program.is_that_of(*pid)?)
    }
}

/// What the pause yields. What can be judged later is judged later.
pub(super) struct Paused {
    pub(super) standing: Vec<Standing>,
    pub(super) lifeline: Lifeline,
    pub(super) contents: Result<Contents, CaptureError>,
    pub(super) copies: Result<SharedCopies, CaptureError>,
    pub(super) likeness: Result<Likeness, CaptureError>,
    pub(super) clocks: Clocks,
    pub(super) timers: Result<Vec<PosixTimer>, CaptureError>,
    pub(super) filters: Filters,
    pub(super) born: Born,
    /// Whether nothing of the lifeline stays.
    pub(super) unmapped: Result<(), CaptureError>,
    asked: Asked,
}

/// What the threads did, in their order.
struct Asked {
    tasks: Vec<Task>,
    /// Addresses that needed not be asked for.
    tid_addresses: Vec<Option<u64>>,
    /// Scripts with results, and answers.
    desks: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Paused {
    /// What the threads have on their desks.
    pub(super) fn desks(&self) -> &[(Vec<u8>, Vec<u8>)] {
        &self.asked.desks
    }

    /// What the threads answered; fails where a call of theirs did.
    pub(super) fn answers(&self, snapshot: &Snapshot) -> Result<Vec<Answers>, CaptureError> {
        let Asked { tasks, tid_addresses, desks } = &self.asked;
        let mut all = Vec::with_capacity(desks.len());
        for (index, ((task, (script, answers)), tid_address)) in tasks.iter().zip(desks).zip(tid_addresses).enumerate()
        {
            for (position, call) in task.calls.iter().enumerate() {
                call.checked(snapshot.threads[index].tid, script::result(script, position))?;
            }
            all.push(Answers::parse((script, answers), index == 0, *tid_address));
        }
        Ok(all)
    }
}

/// All of the pause between stop and release.
pub(super) async fn pause(
    stopped: &mut Stopped,
    prepared: &mut Prepared,
    injector: &mut Injector<'_>,
    freeze: bool,
    times: &mut CaptureTimes,
) -> Result<Paused, CaptureError> {
    let (begun, clocks) = (Instant::now(), Clocks::now());
    let standing: Result<Vec<Standing>, _> =
        stopped.snapshot.threads.iter().map(|one| Standing::read(one.tid)).collect();
    let standing = standing?;
    look_at_new_threads(&stopped.snapshot, &mut prepared.survey)?;
    let filters = take_filters(&stopped.snapshot, &prepared.survey)?;
    let end = end_signal(&stopped.snapshot, &prepared.survey)?;
    times.registers = begun.elapsed();
    let (lifeline, rescue) =
        phase!(await "prepare.lifeline", reach(&stopped.snapshot, prepared, &standing, end, injector))?;
    let reached = (&lifeline, rescue.as_ref());
    let worked = work(stopped, prepared, (&standing, reached, end, begun), injector, freeze, times).await;
    let mut unmapped = Ok(());
    if !freeze || worked.is_err() {
        let leader = stopped.snapshot.leader();
        let thread = (leader.tid, &leader.registers);
        let rescued = (rescue.as_ref(), &prepared.mem);
        unmapped = phase!(await "prepare.unmap", lifeline.unmap(thread, rescued, injector));
        rescue::leave(leader, rescued);
        stopped.note_restored_leader();
    }
    let Work { asked, contents, copies, likeness, born, timers } = worked?;
    Ok(Paused { standing, lifeline, contents, copies, likeness, clocks, timers, filters, born, unmapped, asked })
}

/// The pages for the threads' calls: those that the process offers, or some that are mapped in it, with what brings it back
/// from the calls that do that.
async fn reach(
    snapshot: &Snapshot,
    prepared: &Prepared,
    standing: &[Standing],
    end: EndSignal,
    injector: &mut Injector<'_>,
) -> Result<(Lifeline, Option<Rescue>), CaptureError> {
    let Prepared { survey, mem, offer, .. } = prepared;
    let room = Room::of(standing);
    let offered = offer.as_ref().and_then(|offer| Lifeline::offered(offer, room, end, (snapshot, &survey.maps, mem)));
    if let Some(lifeline) = offered {
        return Ok((lifeline, None));
    }
    let gadgets = prepared.gadgets.or_else(|| Gadgets::find(survey.pid, &survey.maps));
    let rescue = Rescue::prepare(snapshot.leader(), &standing[0], gadgets, &survey.maps, mem);
    let rescued = (rescue.as_ref(), mem);
    let mapped = match rescue::enter(snapshot.leader(), end, rescued) {
        Ok(()) => Lifeline::map(snapshot, room, end, rescued, injector).await,
        Err(error) => Err(error),
    };
    if mapped.is_err() {
        rescue::leave(snapshot.leader(), rescued);
    }
    mapped.map(|lifeline| (lifeline, rescue))
}

/// A thread that was born since the survey.
fn look_at_new_threads(snapshot: &Snapshot, survey: &mut Survey) -> Result<(), CaptureError> {
    for thread in &snapshot.threads {
        if !survey.profiles.contains_key(&thread.tid) {
            let profile =
                Profile::read(survey.pid, thread.tid).map_err(CaptureError::read(survey.pid, "a new thread"))?;
            survey.profiles.insert(thread.tid, profile);
        }
    }
    Ok(())
}

/// Filters of system calls, which from here on do not judge.
fn take_filters(snapshot: &Snapshot, survey: &Survey) -> Result<Filters, CaptureError> {
    let mut filters = Filters::default();
    for thread in &snapshot.threads {
        let profile = survey.profiles.get(&thread.tid).ok_or(CaptureError::Gone { pid: survey.pid })?;
        if let Some(refusal) = filters::refusal(survey.pid, thread.tid, &profile.status) {
            return Err(CaptureError::refused(survey.pid, vec![refusal]));
        }
        filters::suspend(thread.tid, &profile.status)?;
        filters.read(survey.pid, thread.tid, &profile.status)?;
    }
    Ok(filters)
}

fn end_signal(snapshot: &Snapshot, survey: &Survey) -> Result<EndSignal, CaptureError> {
    let leader = survey.profiles.get(&survey.pid).ok_or(CaptureError::Gone { pid: survey.pid })?;
    Ok(EndSignal::for_process(&leader.status, snapshot))
}

struct Work {
    asked: Asked,
    contents: Result<Contents, CaptureError>,
    copies: Result<SharedCopies, CaptureError>,
    likeness: Result<Likeness, CaptureError>,
    born: Born,
    timers: Result<Vec<PosixTimer>, CaptureError>,
}

/// The threads do theirs, and we what we can meanwhile.
async fn work(
    stopped: &mut Stopped,
    prepared: &mut Prepared,
    (standing, (lifeline, rescue), end, begun): (&[Standing], (&Lifeline, Option<&Rescue>), EndSignal, Instant),
    injector: &mut Injector<'_>,
    freeze: bool,
    times: &mut CaptureTimes,
) -> Result<Work, CaptureError> {
    let mut lap = Lap::start();
    let pid = stopped.snapshot.pid;
    let (mut tasks, tid_addresses) = ask::tasks(&stopped.snapshot, standing, &prepared.survey, lifeline);
    tasks[0].calls.extend((!freeze).then(clone_call));
    lifeline.fill(&stopped.snapshot, standing, &tasks, &prepared.mem)?;
    let mut running = start(&stopped.snapshot, &tasks, lifeline, (rescue, &prepared.mem), end, injector)?;
    injector.finish(&mut running, |one| one.tid() != pid).await?;
    stopped.restore_others();
    times.ask = lap.take();
    let apart: Vec<Refusal> =
        stopped.snapshot.threads[1..].iter().filter_map(|one| apart::with_own_table(pid, one.tid)).collect();
    let Survey { fds, diagnosis, .. } = &prepared.survey;
    let contents = Contents::read(pid, (fds, &prepared.sockets), diagnosis.as_ref());
    let copies = copy_shared(prepared, contents.as_ref().ok(), injector.deadline());
    let listed = timers::list(pid);
    times.shared = lap.take();
    let likeness = Likeness::read(pid);
    injector.finish(&mut running, |_| true).await?;
    let desks =
        lifeline.read(tasks.len(), &prepared.mem).map_err(CaptureError::read(pid, "the answers of its threads"))?;
    let (leader, made) = (stopped.snapshot.leader(), (&tasks[0], desks[0].0.as_slice()));
    let born = if freeze { Born::complete(None) } else { Born::of(made, leader, prepared, lifeline, injector).await? };
    times.clone = lap.take();
    let timers = match listed {
        _ if !apart.is_empty() => Err(CaptureError::refused(pid, apart)),
        Ok(listed) => ask_timers(stopped, prepared, &listed, (lifeline, begun), injector).await,
        Err(error) => Err(error),
    };
    Ok(Work { asked: Asked { tasks, tid_addresses, desks }, contents, copies, likeness, born, timers })
}

fn copy_shared(
    prepared: &mut Prepared,
    contents: Option<&Contents>,
    deadline: &Deadline,
) -> Result<SharedCopies, CaptureError> {
    let (pid, mut shared) = (prepared.survey.pid, std::mem::take(&mut prepared.shared));
    if let Some(contents) = contents {
        shared.join(contents.flights()).map_err(CaptureError::read(pid, "shared memory on its way in a socket"))?;
    }
    shared.copy(pid, deadline)
}

/// POSIX timers, where there are any; and signals that came since the threads stand, such as a timer's.
async fn ask_timers(
    stopped: &mut Stopped,
    prepared: &Prepared,
    listed: &[Listed],
    (lifeline, begun): (&Lifeline, Instant),
    injector: &mut Injector<'_>,
) -> Result<Vec<PosixTimer>, CaptureError> {
    let survey = &prepared.survey;
    let refusals = timers::refusals(survey.pid, listed, &survey.inner_ids());
    if !refusals.is_empty() {
        return Err(CaptureError::refused(survey.pid, refusals));
    }
    let inner_id = |tid: i32| survey.profiles.get(&tid).map(Profile::inner_id);
    let leader = (stopped.snapshot.leader(), survey.inner_id());
    let timers = timers::ask(leader, listed, inner_id, (lifeline, &prepared.mem, begun), injector).await?;
    stopped.take_late_signals()?;
    Ok(timers)
}

/// Lets all threads run their scripts, the leader first, whose clone takes longest.
fn start(
    snapshot: &Snapshot,
    tasks: &[Task],
    lifeline: &Lifeline,
    (rescue, mem): (Option<&Rescue>, &File),
    end: EndSignal,
    injector: &Injector<'_>,
) -> Result<Vec<Running>, CaptureError> {
    let mut all = Vec::with_capacity(tasks.len());
    for (index, (thread, task)) in snapshot.threads.iter().zip(tasks).enumerate() {
        let running = lifeline.running(index, thread.tid, task.calls.len());
        injector.aim(&running, &thread.registers)?;
        // Only now: should we die, its script unblocks them.
        thread.block_signals(end)?;
        // Its clone would have it, too.
        if index == 0
            && let Some(rescue) = rescue
        {
            rescue.disarm(mem);
        }
        injector.go(&running)?;
        all.push(running);
    }
    Ok(all)
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
