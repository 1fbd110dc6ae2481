//! The pause of one process, from its stop to its release. It only does work that cannot wait, and runs as much of it as
//! possible in parallel.
//!
//! `tree` calls `PreparedProcess::prepare` before the stop, and `tree_pause` calls `run_pause`. Results that can be checked
//! later are returned unchecked (`PauseOutcome`).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use farfork_wire::descriptor::PosixTimer;

use super::error::{CaptureError, Refusal};
use super::files::versions::HeldFileMap;
use super::files::{DaemonSockets, OpenFileStates, TreeStreams};
use super::inheritance::TemplateSearch;
use super::injection::injector::Injector;
use super::injection::pages::{InjectionLayout, InjectionPages, OfferedPages, ThreadScript};
use super::injection::script::{self, EndSignal, RunningScript};
use super::injection::script_runner::{InjectionTarget, ScriptRunner};
use super::injection::sigreturn_frame::{Gadgets, RescueFrame, SigreturnFrame};
use super::injection::thread_queries::{self, ThreadAnswers};
use super::shared::{SharedCopies, SharedSources};
use super::state::ThreadExtendedState;
use super::state::landlock::{self, DomainProbes};
use super::state::process_root::ProcessRoot;
use super::state::seccomp::{self, SeccompFilters};
use super::state::timers::{self, ListedTimer};
use super::state::{unshared_threads, user_dispatch};
use super::stop::stop_guard::{ProcessSnapshot, StopGuard};
use super::survey::{Survey, SurveyDepth, ThreadProfile};
use super::template::clone_call;
use super::template::cloning::CloneOutcome;
use super::tracer::deadline::Deadline;
use super::{CaptureOptions, CaptureTimes, open_memory};
use crate::phase;

/// State that was prepared before the pause.
pub(super) struct PreparedProcess {
    pub(super) survey: Survey,
    pub(super) shared_sources: SharedSources,
    pub(super) mem: File,
    /// Connections of the process to the daemon.
    pub(super) daemon_sockets: DaemonSockets,
    /// Pages that the process offers for injected calls.
    pub(super) offered_pages: Option<OfferedPages>,
    /// Instructions of the program that restore a thread if this process dies. Not searched for if the process offers pages.
    pub(super) gadgets: Option<Gadgets>,
    /// The open files of the process, held open so that they stay available to its children.
    pub(super) held_files: HeldFileMap,
    /// Find out which threads Landlock confines.
    pub(super) domain_probes: DomainProbes,
    /// Finds the clone among the address spaces of the pager, if a pager serves the process.
    pub(super) template_search: Option<TemplateSearch>,
}

impl PreparedProcess {
    /// Surveys a process, and prepares its pause. `streams`: the standard streams of its tree; `None` for the tree's first
    /// process.
    pub(super) fn prepare(
        pid: i32,
        options: &CaptureOptions,
        sockets: &DaemonSockets,
        streams: Option<&TreeStreams>,
    ) -> Result<Self, CaptureError> {
        let mut survey = Survey::read(pid, SurveyDepth::Quick, sockets, streams)?;
        let kept_thread = options.offered_pages.as_ref().and_then(|offer| offer.pinned_thread);
        if let (Some(thread), None) = (kept_thread, streams) {
            survey.clear_pinning(thread);
        }
        // A child of a seed is in the same kind of container as its own children will be.
        if options.serving_pager.is_none() {
            survey.compare_namespaces(streams.is_none(), options.namespaces)?;
        }
        let mut refusals = std::mem::take(&mut survey.refusals);
        if options.freeze && options.serving_pager.is_some() {
            let reason = "it is a child of a seed with missing pages, which cannot be frozen; drop `--freeze`";
            refusals.push(Refusal::new(format!("pid {pid}"), reason));
        }
        if !refusals.is_empty() {
            return Err(CaptureError::refused(pid, refusals));
        }
        let shared = SharedSources::open(&survey)?;
        let mem = open_memory(pid)?;
        let search = options.serving_pager.as_ref().map(|lineage| lineage.start_search(pid)).transpose()?;
        // The pager finds the clone of a child by the address of its injection pages. So these pages must be newly mapped.
        let offer = options.offered_pages.clone().filter(|_| search.is_none() && streams.is_none());
        let gadgets = if offer.is_none() { Gadgets::find(pid, &survey.maps) } else { None };
        let held_files = phase!("prepare.hold", HeldFileMap::open(pid, &survey.fds));
        let mut domain_probes = DomainProbes::new(pid);
        domain_probes.add_threads(survey.profiles.values())?;
        Ok(Self {
            survey,
            shared_sources: shared,
            mem,
            daemon_sockets: sockets.clone(),
            offered_pages: offer,
            gadgets,
            held_files,
            domain_probes,
            template_search: search,
        })
    }

    /// Whether the preparation is still valid for the stopped process, which may have executed another program.
    pub(super) fn is_current(&self) -> Result<bool, CaptureError> {
        let Survey { pid, program, syscall_address: syscall_at, .. } = &self.survey;
        // Memory of an address space that has ended cannot be read.
        let can_read = self.mem.read_at(&mut [0], *syscall_at).is_ok_and(|bytes| bytes == 1);
        Ok(can_read && program.matches(*pid)?)
    }
}

/// Results of the pause. Checks that can wait are made later.
pub(super) struct PauseOutcome {
    pub(super) extended_states: Vec<ThreadExtendedState>,
    pub(super) pages: InjectionPages,
    pub(super) file_states: Result<OpenFileStates, CaptureError>,
    pub(super) shared_copies: Result<SharedCopies, CaptureError>,
    pub(super) root: Result<ProcessRoot, CaptureError>,
    pub(super) posix_timers: Result<Vec<PosixTimer>, CaptureError>,
    pub(super) filters: SeccompFilters,
    pub(super) cloned: CloneOutcome,
    /// Whether the injection pages were unmapped.
    pub(super) unmap_result: Result<(), CaptureError>,
    results: ThreadResults,
}

/// Results of the threads' scripts, in the order of the threads.
struct ThreadResults {
    scripts: Vec<ThreadScript>,
    /// `clear_child_tid` address of each thread, if it was known without a query.
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
        let mut refusals = Vec::new();
        for (index, ((thread_script, (script, answers)), tid_address)) in
            scripts.iter().zip(slots).zip(tid_addresses).enumerate()
        {
            for (position, call) in thread_script.calls.iter().enumerate() {
                let (tid, result) = (snapshot.threads[index].tid, script::result_of(script, position));
                call.check_result(tid, result)?;
                refusals.extend(landlock::refuse_confined(snapshot.pid, tid, call, result));
            }
            all.push(ThreadAnswers::parse((script, answers), index == 0, *tid_address));
        }
        if refusals.is_empty() { Ok(all) } else { Err(CaptureError::refused(snapshot.pid, refusals)) }
    }
}

//  leader    map pages ─ queries, clones itself ·············································· unmap pages
//  others              ─ queries ─ registers restored
//  tracer    registers ─ · · · · · · · · · file states, shared memory ─ root · · · · · · · · · · · · · · · release
/// Does the work between stop and release.
pub(super) async fn run_pause(
    stopped: &mut StopGuard,
    prepared: &mut PreparedProcess,
    injector: &mut Injector<'_>,
    freeze: bool,
    times: &mut CaptureTimes,
) -> Result<PauseOutcome, CaptureError> {
    let started_at = Instant::now();
    let extended_states: Result<Vec<ThreadExtendedState>, _> =
        stopped.snapshot.threads.iter().map(|one| ThreadExtendedState::read(one.tid)).collect();
    let extended_states = extended_states?;
    survey_new_threads(&stopped.snapshot, prepared)?;
    let filters = suspend_filters(&stopped.snapshot, &prepared.survey)?;
    user_dispatch::refuse_blocked_calls(&stopped.snapshot, &extended_states, &prepared.survey, &prepared.mem)?;
    let end = choose_end_signal(&stopped.snapshot, &prepared.survey)?;
    times.registers = started_at.elapsed();
    let (pages, frame) = phase!(await "prepare.lifeline", map_injection_pages(&stopped.snapshot, prepared, &extended_states, end, injector))?;
    let setup = InjectionSetup {
        extended_states: &extended_states,
        pages: &pages,
        frame: frame.as_ref(),
        makes_clone: !freeze,
    };
    let worked = run_work(stopped, prepared, &setup, injector, times).await;
    let mut unmapped = Ok(());
    if !freeze || worked.is_err() {
        let leader = stopped.snapshot.leader();
        let rescue = RescueFrame { frame: frame.as_ref(), mem: &prepared.mem };
        unmapped = phase!(await "prepare.unmap", pages.unmap(leader.tid, &leader.registers, rescue, injector));
        rescue.disarm_leader(leader);
        stopped.mark_leader_restored();
    }
    let PauseWork { results, file_states, shared_copies, root, cloned, posix_timers } = worked?;
    Ok(PauseOutcome {
        extended_states,
        pages,
        file_states,
        shared_copies,
        root,
        posix_timers,
        filters,
        cloned,
        unmap_result: unmapped,
        results,
    })
}

/// Returns the pages for injected calls: the offered pages if they are usable, otherwise newly mapped ones. The frame
/// restores the parent if this process dies during the mapping calls.
async fn map_injection_pages(
    snapshot: &ProcessSnapshot,
    prepared: &PreparedProcess,
    extended_states: &[ThreadExtendedState],
    end: EndSignal,
    injector: &mut Injector<'_>,
) -> Result<(InjectionPages, Option<SigreturnFrame>), CaptureError> {
    let PreparedProcess { survey, mem, offered_pages: offer, .. } = prepared;
    let layout = InjectionLayout::for_threads(extended_states);
    if let Some(offer) = offer.as_ref().filter(|offer| offer.is_usable(layout, snapshot, &survey.maps, mem)) {
        return Ok((InjectionPages::from_offer(offer, layout, end), None));
    }
    let gadgets = prepared.gadgets.or_else(|| Gadgets::find(survey.pid, &survey.maps));
    let frame = SigreturnFrame::prepare(snapshot.leader(), &extended_states[0], gadgets, &survey.maps, mem);
    let rescue = RescueFrame { frame: frame.as_ref(), mem };
    let mapped = match rescue.arm_leader(snapshot.leader(), end) {
        Ok(()) => InjectionPages::map(snapshot, layout, end, rescue, injector).await,
        Err(error) => Err(error),
    };
    if mapped.is_err() {
        rescue.disarm_leader(snapshot.leader());
    }
    mapped.map(|injection_pages| (injection_pages, frame))
}

/// Reads the profiles of threads that are new since the survey.
fn survey_new_threads(snapshot: &ProcessSnapshot, prepared: &mut PreparedProcess) -> Result<(), CaptureError> {
    let PreparedProcess { survey, domain_probes, .. } = prepared;
    for thread in &snapshot.threads {
        if !survey.profiles.contains_key(&thread.tid) {
            let profile = ThreadProfile::read(survey.pid, thread.tid)
                .map_err(CaptureError::reading(survey.pid, "a new thread"))?;
            domain_probes.add_threads(std::iter::once(&profile))?;
            survey.profiles.insert(thread.tid, profile);
        }
    }
    Ok(())
}

/// Suspends the seccomp filters, so that they do not judge injected calls, and reads them.
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

/// Parameters for running the scripts of a stopped process's threads.
struct InjectionSetup<'a> {
    /// Extended state of each thread, the leader first.
    extended_states: &'a [ThreadExtendedState],
    pages: &'a InjectionPages,
    /// The frame that protects the leader until its script starts.
    frame: Option<&'a SigreturnFrame>,
    /// Whether the leader clones itself. Not in freeze mode.
    makes_clone: bool,
}

struct PauseWork {
    results: ThreadResults,
    file_states: Result<OpenFileStates, CaptureError>,
    shared_copies: Result<SharedCopies, CaptureError>,
    root: Result<ProcessRoot, CaptureError>,
    cloned: CloneOutcome,
    posix_timers: Result<Vec<PosixTimer>, CaptureError>,
}

/// Runs the threads' scripts. While they run, reads the state that a tracer can read.
async fn run_work(
    stopped: &mut StopGuard,
    prepared: &mut PreparedProcess,
    setup: &InjectionSetup<'_>,
    injector: &mut Injector<'_>,
    times: &mut CaptureTimes,
) -> Result<PauseWork, CaptureError> {
    let mut lap = Stopwatch::start();
    let (pid, pages) = (stopped.snapshot.pid, setup.pages);
    let (mut scripts, tid_addresses) =
        thread_queries::build_scripts(&stopped.snapshot, setup.extended_states, prepared, pages);
    scripts[0].calls.extend(setup.makes_clone.then(clone_call));
    pages.write(&stopped.snapshot, setup.extended_states, &scripts, &prepared.mem)?;
    let rescue = RescueFrame { frame: setup.frame, mem: &prepared.mem };
    let mut running = start_scripts(&stopped.snapshot, &scripts, pages, rescue, injector)?;
    injector.wait_scripts(&mut running, |one| one.tid() != pid).await?;
    stopped.restore_others();
    times.queries = lap.lap();
    let apart: Vec<Refusal> = stopped.snapshot.threads[1..]
        .iter()
        .filter_map(|one| unshared_threads::refuse_unshared_table(pid, one.tid))
        .collect();
    let Survey { fds, diagnosis, .. } = &prepared.survey;
    let file_states = OpenFileStates::read(pid, fds, &prepared.daemon_sockets, diagnosis.as_ref());
    let shared_copies = copy_shared(prepared, file_states.as_ref().ok(), injector.deadline());
    let listed = timers::list_timers(pid);
    times.shared = lap.lap();
    let root = ProcessRoot::read(pid);
    injector.wait_scripts(&mut running, |_| true).await?;
    let slots = pages
        .read_slots(scripts.len(), &prepared.mem)
        .map_err(CaptureError::reading(pid, "the answers of its threads"))?;
    let mut runner = ScriptRunner { pages, injector };
    let cloned = if setup.makes_clone {
        CloneOutcome::finish_clone(&scripts[0], &slots[0].0, &stopped.snapshot, prepared, &mut runner).await?
    } else {
        CloneOutcome::without_dontfork(None)
    };
    times.clone = lap.lap();
    let timers = match listed {
        _ if !apart.is_empty() => Err(CaptureError::refused(pid, apart)),
        Ok(listed) => read_posix_timers(stopped, prepared, &listed, &mut runner).await,
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

/// Reads POSIX timers, if there are any, and signals that arrived after the stop, such as timer signals.
async fn read_posix_timers(
    stopped: &mut StopGuard,
    prepared: &PreparedProcess,
    listed: &[ListedTimer],
    runner: &mut ScriptRunner<'_, '_>,
) -> Result<Vec<PosixTimer>, CaptureError> {
    let survey = &prepared.survey;
    let threads = match listed {
        [] => BTreeMap::new(),
        _ => stopped_inner_ids(&stopped.snapshot, survey),
    };
    let others = threads.iter().filter(|(tid, _)| **tid != survey.pid).map(|(_, inner_id)| *inner_id);
    let inner_ids: Vec<u32> = std::iter::once(survey.inner_id()).chain(others).collect();
    let refusals = timers::refusals(survey.pid, listed, &inner_ids);
    if !refusals.is_empty() {
        return Err(CaptureError::refused(survey.pid, refusals));
    }
    let inner_id = |tid: i32| threads.get(&tid).copied();
    let leader = InjectionTarget::leader(&stopped.snapshot, survey, &prepared.mem);
    let timers = timers::read_remaining(&leader, listed, inner_id, runner).await?;
    stopped.read_late_signals()?;
    Ok(timers)
}

/// The inner ids of the stopped threads. The survey also has threads that ended before the stop.
fn stopped_inner_ids(snapshot: &ProcessSnapshot, survey: &Survey) -> BTreeMap<i32, u32> {
    let inner_id = |tid: i32| Some((tid, survey.profiles.get(&tid)?.inner_id()));
    snapshot.threads.iter().filter_map(|thread| inner_id(thread.tid)).collect()
}

/// Starts the scripts of all threads. The leader is first, because its clone takes longest.
fn start_scripts(
    snapshot: &ProcessSnapshot,
    scripts: &[ThreadScript],
    injection_pages: &InjectionPages,
    rescue: RescueFrame<'_>,
    injector: &Injector<'_>,
) -> Result<Vec<RunningScript>, CaptureError> {
    let mut all = Vec::with_capacity(scripts.len());
    for (index, (thread, task)) in snapshot.threads.iter().zip(scripts).enumerate() {
        let running = injection_pages.script_of(index, thread.tid, task.calls.len());
        injector.point_to_script(&running, &thread.registers)?;
        // Only now: if this process dies from here on, the thread's script unblocks the signals.
        thread.block_signals(injection_pages.end_signal())?;
        // Disarm the leader's frame first, because its clone would inherit an armed frame.
        if index == 0 {
            rescue.disarm();
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
