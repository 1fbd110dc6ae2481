//! One capture attempt: surveys, stops, reads and clones a process tree, then releases it. After an attempt, only mapping
//! flags can still cause a refusal.
//!
//! `owner_thread` calls `capture_tree` in the tracer thread, which stays the template's tracer.
//! `describe` builds the descriptor afterwards.

use std::fs::File;
use std::ops::Range;
use std::time::{Duration, Instant};

use farfork_sys::clock::{self, Clocks};
use farfork_sys::priority::RealTimeGuard;
use farfork_sys::process;
use farfork_wire::descriptor::PosixTimer;

use super::descriptor_size::DescriptorSize;
use super::error::CaptureError;
use super::files::tree_files::{ProcessFileState, TreeFiles};
use super::files::versions::HeldFileMap;
use super::files::{OpenFileTable, ProcessFiles};
use super::inheritance::{InheritedPages, MissingPages};
use super::injection::injector::Injector;
use super::injection::pages::InjectionPages;
use super::injection::script_runner::{InjectionTarget, ScriptRunner};
use super::injection::sigreturn_frame::RescueFrame;
use super::injection::thread_queries::ThreadAnswers;
use super::memory::TemplateMemory;
use super::memory::seals::SealProbes;
use super::pause::{PauseOutcome, PreparedProcess};
use super::shared::SharedCopies;
use super::state;
use super::state::inherited_state::SessionDetach;
use super::state::process_root::ProcessRoot;
use super::state::seccomp::SeccompFilters;
use super::stop::stop_guard::{ProcessSnapshot, StopGuard};
use super::survey::Survey;
use super::template::TemplateClone;
use super::tracer::cpu_pin::CpuPin;
use super::tracer::deadline::Deadline;
use super::tracer::executor::run_ready;
use super::tracer::trace_lock::TraceLock;
use super::tree::{ProcessTree, TreeRelations};
use super::tree_pause::{PausedProcess, ReleasedProcess, pause_tree};
use super::{CaptureOptions, CaptureTimes, open_memory};
use crate::phase;

/// Maximum number of attempts per capture. An attempt fails if the process changes between its survey and its pause.
const ATTEMPTS_MAX: usize = 4;

/// Time limit for unmapping the injection pages from a frozen parent whose capture is aborted.
const ABORT_UNMAP_LIMIT: Duration = Duration::from_millis(500);

/// Maximum size of anonymous memory that is scanned while the clone leaves the parent's session, in bytes. Such a scan takes
/// no longer than the injected calls that the clone makes at the same time.
const EARLY_SCAN_BYTES_MAX: u64 = 16 << 20;

/// The process that holds the memory of one captured process while the seed exists.
#[derive(Debug)]
pub(super) enum TemplateProcess {
    /// A clone.
    Clone(TemplateClone),
    /// The parent itself, which stays stopped.
    Parent(StopGuard),
}

impl TemplateProcess {
    /// Pid of the process that holds the memory.
    pub(super) fn pid(&self) -> i32 {
        match self {
            Self::Clone(clone) => clone.pid,
            Self::Parent(stopped) => stopped.snapshot.pid,
        }
    }

    /// Returns the process as a target of injected calls. `snapshot` and `survey` are the parent's.
    pub(super) fn injection_target<'a>(
        &'a self,
        snapshot: &'a ProcessSnapshot,
        survey: &Survey,
        mem: &'a File,
    ) -> InjectionTarget<'a> {
        match self {
            Self::Clone(clone) => clone.injection_target(mem),
            Self::Parent(_) => InjectionTarget::leader(snapshot, survey, mem),
        }
    }

    /// The clone; `None` for a stopped parent.
    pub(super) fn as_clone(&self) -> Option<&TemplateClone> {
        match self {
            Self::Clone(clone) => Some(clone),
            Self::Parent(_) => None,
        }
    }

    /// Restores the registers of a stopped parent before it is parked. If this process dies, the parent continues unharmed.
    pub(super) fn restore_parent(&mut self) {
        if let Self::Parent(stopped) = self {
            stopped.restore();
        }
    }

    /// Kills a clone. A stopped parent is released when this value is dropped. `trace_lock` is the parent's lock, if the
    /// caller holds it.
    pub(super) fn release(&mut self, trace_lock: Option<&TraceLock>) {
        if let Self::Clone(clone) = self {
            clone.kill(trace_lock);
        }
    }

    /// Releases the process after a failed capture. A stopped parent still has the injection pages, so they are unmapped
    /// first.
    pub(super) fn abort(mut self, injection_pages: &InjectionPages, syscall_at: u64, trace_lock: Option<&TraceLock>) {
        if let Self::Parent(stopped) = &mut self {
            let pid = stopped.snapshot.pid;
            let deadline = Deadline::after(ABORT_UNMAP_LIMIT);
            let mut injector = Injector::new(pid, syscall_at, &deadline);
            let registers = &stopped.snapshot.leader().registers;
            let unmapped = open_memory(pid).and_then(|mem| {
                let rescue = RescueFrame::without_frame(&mem);
                run_ready(injection_pages.unmap(pid, registers, rescue, &mut injector))
            });
            if let Err(error) = unmapped {
                tracing::warn!(pid, %error, "cannot unmap the injection pages from the process; they stay mapped");
            }
            stopped.add_withheld(&mut injector.withheld_signals);
        }
        self.release(trace_lock);
    }
}

/// The result of an attempt. Both lists have one element per process of the tree, starting with the first process.
pub(super) struct CaptureAttempt {
    pub(super) templates: Vec<TemplateProcess>,
    pub(super) processes: Vec<CapturedProcess>,
    pub(super) shared: SharedTreeState,
    pub(super) times: CaptureTimes,
}

/// State that the processes of a tree share.
pub(super) struct SharedTreeState {
    pub(super) shared_copies: SharedCopies,
    pub(super) open_files: OpenFileTable,
    pub(super) held_files: HeldFileMap,
    pub(super) relations: TreeRelations,
    /// [`clock::file_time_ns`] when all processes were stopped.
    pub(super) stopped_ns: i64,
    /// The clocks at the end of the pause, from which children continue.
    pub(super) clocks: Clocks,
}

/// State of one process that was read before the reply. Only its mapping flags can still cause a refusal.
pub(super) struct CapturedProcess {
    pub(super) snapshot: ProcessSnapshot,
    pub(super) survey: Survey,
    pub(super) extended_states: Vec<state::ThreadExtendedState>,
    pub(super) answers: Vec<ThreadAnswers>,
    pub(super) pages: InjectionPages,
    /// Ranges with MADV_DONTFORK that the template has, although fork(2) omits such ranges.
    pub(super) dontfork_ranges: Vec<Range<u64>>,
    /// Bytes to write back to the slots of the offered pages in the template.
    pub(super) offered_contents: Vec<u8>,
    /// `/proc/PID/mem` of the template.
    pub(super) mem: File,
    pub(super) root: ProcessRoot,
    /// Program and arguments.
    pub(super) arguments: Vec<String>,
    pub(super) files: ProcessFiles,
    pub(super) posix_timers: Vec<PosixTimer>,
    pub(super) filters: SeccompFilters,
    pub(super) memory: TemplateMemory,
    /// Pages that the template lacks because other seeds hold them.
    pub(super) inherited: InheritedPages,
}

impl CapturedProcess {
    /// Size in bytes of the pages that hold data, including inherited ones. Before the first scan, counts the memory that
    /// the process had written at its survey.
    pub(super) fn populated_bytes(&self) -> u64 {
        self.memory.populated_bytes().unwrap_or_else(|| anonymous_bytes(&self.survey)) + self.inherited.bytes()
    }
}

/// Collects the notes for the user. A note starts with the pid of its process, unless that is the first process of the tree.
pub(super) fn collect_notes(processes: &[CapturedProcess]) -> Vec<String> {
    let first = processes[0].survey.pid;
    let of_one = |survey: &Survey| survey.notes.iter().map(|note| survey.format_note(first, note)).collect::<Vec<_>>();
    processes.iter().flat_map(|one| of_one(&one.survey)).collect()
}

/// Memory that a process had written at its survey, in bytes.
fn anonymous_bytes(survey: &Survey) -> u64 {
    survey.profiles.get(&survey.pid).map_or(0, |leader| leader.status.anonymous_bytes)
}

/// Captures the process tree of `pid`. Retries if a process changes its files or shared memory between its survey and its
/// pause.
pub(super) fn capture_tree(pid: i32, options: &CaptureOptions) -> Result<CaptureAttempt, CaptureError> {
    let started_at = Instant::now();
    let trace_lock = TraceLock::acquire(pid, options.timeout)?;
    let mut left = ATTEMPTS_MAX;
    loop {
        left -= 1;
        match attempt_capture(pid, options, &trace_lock) {
            Err(CaptureError::Unstable { what, .. }) if left > 0 && started_at.elapsed() < options.timeout => {
                tracing::debug!(pid, what, "a process changed during its survey; trying again");
            }
            other => return other,
        }
    }
}

//  running   survey ─ open shared memory
//  ┌ pause   stop all ─ registers ─ queries ─ file states ─ shared memory ─ root ─ clone ─ files ─ release
//  └ running                     template: map ─ own session, probes for sealed mappings
fn attempt_capture(pid: i32, options: &CaptureOptions, trace_lock: &TraceLock) -> Result<CaptureAttempt, CaptureError> {
    let started_at = Instant::now();
    let mut tree = phase!("prepare.survey", ProcessTree::survey(pid, options))?;
    let mut times = CaptureTimes { survey: started_at.elapsed(), ..CaptureTimes::default() };

    // The limit starts here: the process is not stopped during the survey, which may take long on a busy machine.
    let deadline = Deadline::after(options.timeout);
    // A stop takes some dozen wake-ups, and on a busy machine each would wait for a CPU, so raise this thread's priority.
    // Failure is harmless.
    let real_time = RealTimeGuard::enter();
    // A process that requests its own checkpoint waits for the reply and leaves its CPU idle, so this thread always moves to
    // that CPU.
    let asks_itself = options.daemon_sockets.caller.is_some();
    let mut cpu_pin = if asks_itself { CpuPin::pin_to(&tree.processes[0].prepared.survey.stat) } else { None };
    let paused_at = Instant::now();
    let tids = phase!("prepare.stop", tree.stop(options, &deadline))?;
    times.stop = paused_at.elapsed();
    let stopped_ns = clock::file_time_ns();
    cpu_pin = cpu_pin.or_else(|| CpuPin::pin_to_busy(pid, times.stop / tree.processes.len() as u32));
    let mut paused_processes = pause_tree(&mut tree, &tids, options, &deadline, trace_lock, &mut times)?;
    let files = phase!("prepare.files", TreeFiles::read(&tree, &mut paused_processes));
    // Children continue from these clocks. All timers were read before: a timer that had expired then has expired for a child,
    // too, and no other one expires early.
    let clocks = Clocks::now();
    let released = paused_processes.into_iter().map(PausedProcess::release);
    let (templates, mut released): (Vec<TemplateProcess>, Vec<ReleasedProcess>) =
        phase!("prepare.release", released.unzip());
    times.pause = paused_at.elapsed();
    drop(real_time);
    // A process that did not request its own checkpoint needs its CPU again, so end the pinning.
    let mut cpu_pin = cpu_pin.filter(|_| asks_itself);
    if let Some(cpu_pin) = &mut cpu_pin {
        templates.iter().filter_map(TemplateProcess::as_clone).for_each(|clone| cpu_pin.pin_template(clone.pid));
    }

    released
        .iter_mut()
        .filter_map(|one| one.outcome.cloned.discarded.take())
        .for_each(|mut clone| clone.kill(Some(trace_lock)));
    let mut rollback = CaptureRollback { templates, pages: injection_pages(&tree, &released), lock: trace_lock };
    let (processes, shared) =
        read_templates(tree, released, &rollback.templates, files?, stopped_ns, clocks, &deadline)?;
    times.total = started_at.elapsed();
    Ok(CaptureAttempt { templates: std::mem::take(&mut rollback.templates), processes, shared, times })
}

/// Templates of an attempt that may still fail. Drop aborts those that were not taken out.
struct CaptureRollback<'a> {
    templates: Vec<TemplateProcess>,
    /// The injection pages of each template, with the address of a `syscall` instruction.
    pages: Vec<(InjectionPages, u64)>,
    lock: &'a TraceLock,
}

impl Drop for CaptureRollback<'_> {
    fn drop(&mut self) {
        for (template, (pages, syscall_at)) in self.templates.drain(..).zip(&self.pages) {
            template.abort(pages, *syscall_at, Some(self.lock));
        }
    }
}

fn injection_pages(tree: &ProcessTree, released: &[ReleasedProcess]) -> Vec<(InjectionPages, u64)> {
    let syscalls = tree.processes.iter().map(|one| one.prepared.survey.syscall_address);
    released.iter().map(|one| one.outcome.pages.clone()).zip(syscalls).collect()
}

/// Before the reply, reads the state that can still cause a refusal, from all templates. `stopped_ns` is when all processes
/// were stopped.
fn read_templates(
    tree: ProcessTree,
    released: Vec<ReleasedProcess>,
    templates: &[TemplateProcess],
    files: TreeFiles,
    stopped_ns: i64,
    clocks: Clocks,
    deadline: &Deadline,
) -> Result<(Vec<CapturedProcess>, SharedTreeState), CaptureError> {
    let TreeFiles { processes: file_states, table: open_files, shared_copies, relations } = files;
    let mut held_files = HeldFileMap::default();
    let mut processes = Vec::with_capacity(templates.len());
    let members = tree.processes.into_iter().zip(released).zip(templates).zip(file_states);
    for (((tree_process, released), template), file_state) in members {
        let mut prepared = tree_process.prepared;
        held_files.merge(std::mem::take(&mut prepared.held_files));
        processes.push(read_template(prepared, released, template, file_state, &shared_copies, deadline)?);
    }
    // The processes may have grown since their surveys.
    let size = processes
        .iter()
        .fold(DescriptorSize::default(), |size, one| size.add(one.snapshot.threads.len(), one.memory.mappings().len()));
    if let Some(refusal) = size.refusal(processes[0].survey.pid) {
        return Err(CaptureError::refused(processes[0].survey.pid, vec![refusal]));
    }
    relations
        .check_reapers(&list_reapers(&processes))
        .map_err(|refusals| CaptureError::refused(processes[0].survey.pid, refusals))?;
    Ok((processes, SharedTreeState { shared_copies, open_files, held_files, relations, stopped_ns, clocks }))
}

/// Returns for each process its inner id, and whether it adopts orphaned descendants (a subreaper, or pid 1).
fn list_reapers(processes: &[CapturedProcess]) -> Vec<(u32, bool)> {
    let reaps = |one: &CapturedProcess| one.answers[0].is_subreaper || one.survey.inner_id() == 1;
    processes.iter().map(|one| (one.survey.inner_id(), reaps(one))).collect()
}

/// Before the reply, reads the state that can still cause a refusal, from one template. Parses the answers of the threads,
/// reads the template's mappings and their populated pages, and moves a clone out of the parent's session.
fn read_template(
    prepared: PreparedProcess,
    released: ReleasedProcess,
    template: &TemplateProcess,
    file_state: ProcessFileState,
    shared_copies: &SharedCopies,
    deadline: &Deadline,
) -> Result<CapturedProcess, CaptureError> {
    let ReleasedProcess { outcome: paused, snapshot } = released;
    let (pid, subject) = (snapshot.pid, template.pid());
    let PreparedProcess { mut survey, template_search: search, .. } = prepared;
    let (answers, mem) = (paused.parse_answers(&snapshot)?, open_memory(subject)?);
    let offered_contents = read_offered_contents(&paused, pid, &mem)?;
    let PauseOutcome { extended_states, pages, posix_timers: timers, filters, cloned, unmap_result: unmapped, .. } =
        paused;
    let dontfork_ranges = unmapped.and(cloned.dontfork_ranges)?;
    // First release the template's address space from the pager, so that all later steps see an ordinary process.
    let missing_pages = match (search, cloned.address_space?) {
        (Some(search), Some(space)) => Some(phase!("prepare.leave", search.release_address_space(space))?),
        _ => None,
    };
    let posix_timers = timers?;
    let file_systems = &mut survey.file_systems;
    let mut space = TemplateMemory::read(pid, subject, pages.mapped_range(), shared_copies, file_systems)?;
    let arguments = state::read_arguments(pid, subject)?;
    let injection_target = template.injection_target(&snapshot, &survey, &mem);
    let personality = answers[0].personality;
    let mut injector = Injector::new(pid, survey.syscall_address, deadline);
    let mut runner = ScriptRunner { pages: &pages, injector: &mut injector };
    phase!(
        "prepare.apart",
        match template {
            TemplateProcess::Clone(_) => {
                let is_small = anonymous_bytes(&survey) <= EARLY_SCAN_BYTES_MAX;
                detach_clone(&injection_target, &mut space, personality, is_small, &mut runner)
            }
            TemplateProcess::Parent(_) => apply_parent_flags(&mut space),
        }
    )?;
    let inherited = find_inherited_pages(missing_pages, &mut space)?;
    Ok(CapturedProcess {
        snapshot,
        survey,
        extended_states,
        answers,
        pages,
        dontfork_ranges,
        offered_contents,
        mem,
        root: file_state.root,
        arguments,
        files: file_state.files,
        posix_timers,
        filters,
        memory: space,
        inherited,
    })
}

/// Returns the bytes to write back to the pages that the process offers; empty if it offers none.
fn read_offered_contents(paused: &PauseOutcome, pid: i32, mem: &File) -> Result<Vec<u8>, CaptureError> {
    let mut contents = paused.pages.final_contents(paused.slots(), pid, mem)?;
    if let (Some(saved_slots), false) = (&paused.cloned.saved_slots, contents.is_empty()) {
        contents[..saved_slots.len()].copy_from_slice(saved_slots);
    }
    Ok(contents)
}

/// Returns the pages that a template lacks, because it is a child of other seeds.
fn find_inherited_pages(
    missing_pages: Option<MissingPages>,
    space: &mut TemplateMemory,
) -> Result<InheritedPages, CaptureError> {
    let Some(missing_pages) = missing_pages else { return Ok(InheritedPages::default()) };
    phase!("prepare.scan", space.ensure_scanned())?;
    missing_pages.inherited_pages(space.pid(), space)
}

/// Moves a clone out of the parent's session, and probes it for sealed mappings. If `is_small`, scans its pages while the
/// clone makes these calls. A longer scan would delay the reply.
fn detach_clone(
    injection_target: &InjectionTarget<'_>,
    space: &mut TemplateMemory,
    personality: u32,
    is_small: bool,
    runner: &mut ScriptRunner<'_, '_>,
) -> Result<(), CaptureError> {
    let probes = SealProbes::for_mappings(personality, space.mappings());
    let session_detach = SessionDetach::start(injection_target, probes.first_calls(), runner)?;
    let found = is_small.then(|| phase!("prepare.scan", space.scan_pages()));
    let results = session_detach.finish(injection_target, runner)?;
    probes.run(space.pid(), injection_target, results, runner)?;
    // If the scan failed, it is repeated later.
    found.into_iter().flatten().for_each(|found| space.set_regions(found));
    Ok(())
}

/// Reads the mapping flags of a stopped parent.
fn apply_parent_flags(space: &mut TemplateMemory) -> Result<(), CaptureError> {
    let pid = space.pid();
    let areas = process::read_smaps(pid).map_err(CaptureError::reading(pid, "the memory map"))?;
    space.apply_flags(&areas, &[])
}
