//! The pause of one process, from its stop to its release. It does as little as possible, and as much as possible at the
//! same time.
//!
//! `tree_pause` calls `run_pause`. Results that can be checked later are returned unchecked (`PauseOutcome`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use farfork_sys::clock::Clocks;
use farfork_wire::descriptor::PosixTimer;

use super::CaptureTimes;
use super::error::{CaptureError, Refusal};
use super::files::versions::HeldFileMap;
use super::files::{DaemonSockets, OpenFileStates};
use super::inheritance::TemplateSearch;
use super::injection::injector::Injector;
use super::injection::pages::{InjectionLayout, InjectionPages, OfferedPages, ThreadScript};
use super::injection::script::{self, EndSignal, RunningScript};
use super::injection::sigreturn_frame::{self, Gadgets, SigreturnFrame};
use super::injection::thread_queries::{self, ThreadAnswers};
use super::shared::{SharedCopies, SharedSources};
use super::state::ThreadExtendedState;
use super::state::process_root::ProcessRoot;
use super::state::seccomp::{self, SeccompFilters};
use super::state::timers::{self, ListedTimer};
use super::state::unshared_threads;
use super::stop::stop_guard::{ProcessSnapshot, StopGuard};
use super::survey::{Survey, ThreadProfile};
use super::template::clone_call;
use super::template::cloning::CloneOutcome;
use super::tracer::deadline::Deadline;
use crate::phase;

/// State that was prepared before the pause.
pub(super) struct PreparedProcess {
    pub(super) survey: Survey,
    pub(super) shared_sources: SharedSources,
    pub(super) mem: File,
    /// Its connections to the daemon.
    pub(super) daemon_sockets: DaemonSockets,
    /// Pages that the process offers for injected calls.
    pub(super) offered_pages: Option<OfferedPages>,
    /// Code of the program that makes injected calls safer. Not searched for if the process offers pages.
    pub(super) gadgets: Option<Gadgets>,
    /// Its open files, held so that they stay available.
    pub(super) held_files: HeldFileMap,
    /// Finds the clone among the address spaces of the pager, if a pager serves the process.
    pub(super) template_search: Option<TemplateSearch>,
}

impl PreparedProcess {
    /// Whether this is still valid for the stopped process, which may have executed another program.
    pub(super) fn is_current(&self) -> Result<bool, CaptureError> {
        let Survey { pid, program, syscall_address: syscall_at, .. } = &self.survey;
        // Memory of an address space that has ended cannot be read.
        let can_read = self.mem.read_at(&mut [0], *syscall_at).is_ok_and(|bytes| bytes == 1);
        Ok(can_read && program.matches(*pid)?)
    }
}

/// Results of the pause. Whatever can be checked later is not checked yet.
pub(super) struct PauseOutcome {
    pub(super) extended_states: Vec<ThreadExtendedState>,
    pub(super) pages: InjectionPages,
    pub(super) file_states: Result<OpenFileStates, CaptureError>,
    pub(super) shared_copies: Result<SharedCopies, CaptureError>,
    pub(super) root: Result<ProcessRoot, CaptureError>,
    pub(super) clocks: Clocks,
    pub(super) posix_timers: Result<Vec<PosixTimer>, CaptureError>,
    pub(super) filters: SeccompFilters,
    pub(super) cloned: CloneOutcome,
    /// Whether the injection pages were unmapped.
    pub(super) unmap_result: Result<(), CaptureError>,
    results: ThreadResults,
}

/// Results of the threads, in their order.
struct ThreadResults {
    scripts: Vec<ThreadScript>,
    /// Addresses that needed no query.
    tid_addresses: Vec<Option<u64>>,
    /// For each thread the script with its results, and the answers.
    slots: Vec<(Vec<u8>, Vec<u8>)>,
}

impl PauseOutcome {
    /// The contents of the threads' slots.
    pub(super) fn slots(&self) -> &[(Vec<u8>, Vec<u8>)] {
        &self.results.slots
    }

    /// Parses the threads' answers. Fails if one of their calls failed.
    pub(super) fn parse_answers(&self, snapshot: &ProcessSnapshot) -> Result<Vec<ThreadAnswers>, CaptureError> {
        let ThreadResults { scripts, tid_addresses, slots } = &self.results;
        let mut all = Vec::with_capacity(slots.len());
        for (index, ((thread_script, (script, answers)), tid_address)) in
            scripts.iter().zip(slots).zip(tid_addresses).enumerate()
        {
            for (position, call) in thread_script.calls.iter().enumerate() {
                call.check_result(snapshot.threads[index].tid, script::result_of(script, position))?;
            }
            all.push(ThreadAnswers::parse((script, answers), index == 0, *tid_address));
        }
        Ok(all)
    }
}

//  leader    map pages ─ queries, clones itself ·············································· unmap pages
//  others              ─ queries ─ registers restored
//  tracer    registers ─ · · · · · · · · · file states, shared memory ─ root · · · · · · · · · · · · · · · release
/// The whole pause between stop and release.
pub(super) async fn run_pause(
    stopped: &mut StopGuard,
    prepared: &mut PreparedProcess,
    injector: &mut Injector<'_>,
    freeze: bool,
    times: &mut CaptureTimes,
) -> Result<PauseOutcome, CaptureError> {
    let (started_at, clocks) = (Instant::now(), Clocks::now());
    let extended_states: Result<Vec<ThreadExtendedState>, _> =
        stopped.snapshot.threads.iter().map(|one| ThreadExtendedState::read(one.tid)).collect();
    let extended_states = extended_states?;
    survey_new_threads(&stopped.snapshot, &mut prepared.survey)?;
    let filters = suspend_filters(&stopped.snapshot, &prepared.survey)?;
    let end = choose_end_signal(&stopped.snapshot, &prepared.survey)?;
    times.registers = started_at.elapsed();
    let (pages, rescue) = phase!(await "prepare.lifeline", map_injection_pages(&stopped.snapshot, prepared, &extended_states, end, injector))?;
    let reached = (&pages, rescue.as_ref());
    let worked =
        run_work(stopped, prepared, (&extended_states, reached, end, started_at), injector, freeze, times).await;
    let mut unmapped = Ok(());
    if !freeze || worked.is_err() {
        let leader = stopped.snapshot.leader();
        let thread = (leader.tid, &leader.registers);
        let rescued = (rescue.as_ref(), &prepared.mem);
        unmapped = phase!(await "prepare.unmap", pages.unmap(thread, rescued, injector));
        sigreturn_frame::disarm_leader(leader, rescued);
        stopped.mark_leader_restored();
    }
    let PauseWork { results, file_states, shared_copies, root, cloned, posix_timers } = worked?;
    Ok(PauseOutcome {
        extended_states,
        pages,
        file_states,
        shared_copies,
        root,
        clocks,
        posix_timers,
        filters,
        cloned,
        unmap_result: unmapped,
        results,
    })
}

/// The pages for injected calls: those that the process offers, or else pages that are mapped in it. The frame restores the
/// process if this one dies during the calls that map them.
async fn map_injection_pages(
    snapshot: &ProcessSnapshot,
    prepared: &PreparedProcess,
    extended_states: &[ThreadExtendedState],
    end: EndSignal,
    injector: &mut Injector<'_>,
) -> Result<(InjectionPages, Option<SigreturnFrame>), CaptureError> {
    let PreparedProcess { survey, mem, offered_pages: offer, .. } = prepared;
    let layout = InjectionLayout::for_threads(extended_states);
    let offered =
        offer.as_ref().and_then(|offer| InjectionPages::from_offer(offer, layout, end, (snapshot, &survey.maps, mem)));
    if let Some(injection_pages) = offered {
        return Ok((injection_pages, None));
    }
    let gadgets = prepared.gadgets.or_else(|| Gadgets::find(survey.pid, &survey.maps));
    let rescue = SigreturnFrame::prepare(snapshot.leader(), &extended_states[0], gadgets, &survey.maps, mem);
    let rescued = (rescue.as_ref(), mem);
    let mapped = match sigreturn_frame::arm_leader(snapshot.leader(), end, rescued) {
        Ok(()) => InjectionPages::map(snapshot, layout, end, rescued, injector).await,
        Err(error) => Err(error),
    };
    if mapped.is_err() {
        sigreturn_frame::disarm_leader(snapshot.leader(), rescued);
    }
    mapped.map(|injection_pages| (injection_pages, rescue))
}

/// Reads the profiles of threads that are new since the survey.
fn survey_new_threads(snapshot: &ProcessSnapshot, survey: &mut Survey) -> Result<(), CaptureError> {
    for thread in &snapshot.threads {
        if !survey.profiles.contains_key(&thread.tid) {
            let profile = ThreadProfile::read(survey.pid, thread.tid)
                .map_err(CaptureError::reading(survey.pid, "a new thread"))?;
            survey.profiles.insert(thread.tid, profile);
        }
    }
    Ok(())
}

/// Suspends the seccomp filters, so that they do not judge injected calls.
fn suspend_filters(snapshot: &ProcessSnapshot, survey: &Survey) -> Result<SeccompFilters, CaptureError> {
    let mut filters = SeccompFilters::default();
    for thread in &snapshot.threads {
        let profile = survey.profiles.get(&thread.tid).ok_or(CaptureError::ProcessGone { pid: survey.pid })?;
        if let Some(refusal) = seccomp::refusal(survey.pid, thread.tid, &profile.status) {
            return Err(CaptureError::refused(survey.pid, vec![refusal]));
        }
        seccomp::suspend(thread.tid, &profile.status)?;
        filters.add_thread(survey.pid, thread.tid, &profile.status)?;
    }
    Ok(filters)
}

fn choose_end_signal(snapshot: &ProcessSnapshot, survey: &Survey) -> Result<EndSignal, CaptureError> {
    let leader = survey.profiles.get(&survey.pid).ok_or(CaptureError::ProcessGone { pid: survey.pid })?;
    Ok(EndSignal::choose(&leader.status, snapshot))
}

struct PauseWork {
    results: ThreadResults,
    file_states: Result<OpenFileStates, CaptureError>,
    shared_copies: Result<SharedCopies, CaptureError>,
    root: Result<ProcessRoot, CaptureError>,
    cloned: CloneOutcome,
    posix_timers: Result<Vec<PosixTimer>, CaptureError>,
}

/// Runs the threads' scripts, and meanwhile reads what the tracer can read itself.
async fn run_work(
    stopped: &mut StopGuard,
    prepared: &mut PreparedProcess,
    (extended_states, (injection_pages, rescue), end, started_at): (
        &[ThreadExtendedState],
        (&InjectionPages, Option<&SigreturnFrame>),
        EndSignal,
        Instant,
    ),
    injector: &mut Injector<'_>,
    freeze: bool,
    times: &mut CaptureTimes,
) -> Result<PauseWork, CaptureError> {
    let mut lap = Stopwatch::start();
    let pid = stopped.snapshot.pid;
    let (mut scripts, tid_addresses) =
        thread_queries::build_scripts(&stopped.snapshot, extended_states, &prepared.survey, injection_pages);
    scripts[0].calls.extend((!freeze).then(clone_call));
    injection_pages.write(&stopped.snapshot, extended_states, &scripts, &prepared.mem)?;
    let mut running =
        start_scripts(&stopped.snapshot, &scripts, injection_pages, (rescue, &prepared.mem), end, injector)?;
    injector.wait_scripts(&mut running, |one| one.tid() != pid).await?;
    stopped.restore_others();
    times.queries = lap.lap();
    let apart: Vec<Refusal> = stopped.snapshot.threads[1..]
        .iter()
        .filter_map(|one| unshared_threads::refuse_unshared_table(pid, one.tid))
        .collect();
    let Survey { fds, diagnosis, .. } = &prepared.survey;
    let file_states = OpenFileStates::read(pid, (fds, &prepared.daemon_sockets), diagnosis.as_ref());
    let shared_copies = copy_shared(prepared, file_states.as_ref().ok(), injector.deadline());
    let listed = timers::list_timers(pid);
    times.shared = lap.lap();
    let root = ProcessRoot::read(pid);
    injector.wait_scripts(&mut running, |_| true).await?;
    let slots = injection_pages
        .read_slots(scripts.len(), &prepared.mem)
        .map_err(CaptureError::reading(pid, "the answers of its threads"))?;
    let (leader, made) = (stopped.snapshot.leader(), (&scripts[0], slots[0].0.as_slice()));
    let cloned = if freeze {
        CloneOutcome::without_dontfork(None)
    } else {
        CloneOutcome::finish_clone(made, leader, prepared, injection_pages, injector).await?
    };
    times.clone = lap.lap();
    let timers = match listed {
        _ if !apart.is_empty() => Err(CaptureError::refused(pid, apart)),
        Ok(listed) => read_posix_timers(stopped, prepared, &listed, (injection_pages, started_at), injector).await,
        Err(error) => Err(error),
    };
    Ok(PauseWork {
        results: ThreadResults { scripts, tid_addresses, slots },
        file_states,
        shared_copies,
        root,
        cloned,
        posix_timers: timers,
    })
}

fn copy_shared(
    prepared: &mut PreparedProcess,
    contents: Option<&OpenFileStates>,
    deadline: &Deadline,
) -> Result<SharedCopies, CaptureError> {
    let (pid, mut shared) = (prepared.survey.pid, std::mem::take(&mut prepared.shared_sources));
    if let Some(contents) = contents {
        shared
            .add_inflight(contents.inflight())
            .map_err(CaptureError::reading(pid, "shared memory in flight in a socket"))?;
    }
    shared.copy_all(pid, deadline)
}

/// Reads POSIX timers, if there are any, and signals that arrived after the stop, such as those of timers.
async fn read_posix_timers(
    stopped: &mut StopGuard,
    prepared: &PreparedProcess,
    listed: &[ListedTimer],
    (pages, started_at): (&InjectionPages, Instant),
    injector: &mut Injector<'_>,
) -> Result<Vec<PosixTimer>, CaptureError> {
    let survey = &prepared.survey;
    let refusals = timers::refusals(survey.pid, listed, &survey.inner_ids());
    if !refusals.is_empty() {
        return Err(CaptureError::refused(survey.pid, refusals));
    }
    let inner_id = |tid: i32| survey.profiles.get(&tid).map(ThreadProfile::inner_id);
    let leader = (stopped.snapshot.leader(), survey.inner_id());
    let timers = timers::read_remaining(leader, listed, inner_id, (pages, &prepared.mem, started_at), injector).await?;
    stopped.read_late_signals()?;
    Ok(timers)
}

/// Starts the scripts of all threads. The leader is first, because its clone takes longest.
fn start_scripts(
    snapshot: &ProcessSnapshot,
    scripts: &[ThreadScript],
    injection_pages: &InjectionPages,
    (rescue, mem): (Option<&SigreturnFrame>, &File),
    end: EndSignal,
    injector: &Injector<'_>,
) -> Result<Vec<RunningScript>, CaptureError> {
    let mut all = Vec::with_capacity(scripts.len());
    for (index, (thread, task)) in snapshot.threads.iter().zip(scripts).enumerate() {
        let running = injection_pages.script_of(index, thread.tid, task.calls.len());
        injector.point_to_script(&running, &thread.registers)?;
        // Only now: if this process dies, the thread's script unblocks them.
        thread.block_signals(end)?;
        // Its clone would inherit the armed frame.
        if index == 0
            && let Some(rescue) = rescue
        {
            rescue.disarm(mem);
        }
        injector.resume(&running)?;
        all.push(running);
    }
    Ok(all)
}

/// Measures the time between two calls of `lap`.
struct Stopwatch(Instant);

impl Stopwatch {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}
