//! Checks a running process and its descendants without changing them: what a capture would carry and refuse.

use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::process::ProcStatus;

use super::descriptor_size::DescriptorSize;
use super::error::{CaptureError, Refusal};
use super::files::{self, CheckedProcess, DaemonSockets, OpenFd, RunningFileCheck, TreeStreams};
use super::shared::SharedSources;
use super::state::namespaces::NamespacePolicy;
use super::state::tree_root::TreeRoot;
use super::survey::{Survey, SurveyDepth};
use super::tree;
use super::volume_objects::{self, VolumeObject, list_volume_objects};

/// The state that a capture of a process would carry, and the state that it would refuse.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct CheckReport {
    /// Pid of the first process.
    pub pid: i32,
    /// Number of processes: the first one and its descendants.
    pub processes: usize,
    /// Number of threads, of all processes.
    pub threads: usize,
    /// Number of mappings.
    pub mappings: usize,
    /// Resident memory, in bytes.
    pub memory_bytes: u64,
    /// Number of file descriptors.
    pub file_descriptors: usize,
    /// Everything that prevents a capture; empty if nothing does.
    pub refusals: Vec<Refusal>,
    /// Files and directories of volumes that the processes use. A child needs the same volumes at the same paths.
    pub volume_objects: Vec<VolumeObject>,
    /// Notes for the user: state that is not carried, and state that will differ.
    pub notes: Vec<String>,
}

/// Assumptions about the capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// Whether the process is a child of a seed, or was forked by such a child, and a pager of this node serves its missing
    /// pages.
    pub is_pager_served: bool,
    /// Policy for a process with namespaces that its children would lack.
    pub namespaces: NamespacePolicy,
}

/// How long `check` retries processes that change while they are checked, by execve(2) for example. A tree under `make -j`
/// has such processes all the time, and most of them end within milliseconds.
const STABLE_LIMIT: Duration = Duration::from_secs(2);

/// Time between two checks of a process that changed.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Checks a process tree without stopping or changing it. Retries processes that change, for at most two seconds in total.
/// After that, a note names each descendant that still changes; the first process gets a refusal.
///
/// # Errors
/// If the process cannot be read. State that cannot be carried is no error: the report lists it.
pub fn check(pid: i32, options: CheckOptions) -> Result<CheckReport, CaptureError> {
    let mut report = CheckReport { pid, ..CheckReport::default() };
    let deadline = Instant::now() + STABLE_LIMIT;
    let survey = match retry_unstable(deadline, || survey_process(pid, options, None)) {
        Ok(survey) => survey,
        Err(CaptureError::Refused { refusals, .. }) => return Ok(CheckReport { refusals, ..report }),
        Err(CaptureError::Unstable { pid, what }) => {
            let reason =
                format!("it kept changing for {} s during the check: {what}; try again", STABLE_LIMIT.as_secs());
            return Ok(CheckReport { refusals: vec![Refusal::new(format!("pid {pid}"), reason)], ..report });
        }
        Err(error) => return Err(error),
    };
    let processes = tree::list_tree(pid)?;
    let streams = TreeStreams::from_fds(pid, &survey.fds).resolve_inner_pipes(|| Ok(processes.clone()))?;
    let mut tree_check = TreeCheck { options, streams: &streams, open_files: RunningFileCheck::default() };
    report.refusals.extend(running_refusals(&survey, pid, &mut tree_check.open_files)?);
    let mut files = vec![report.add_survey(survey)?];
    let descendants = &processes[1..];
    for (index, descendant) in descendants.iter().enumerate() {
        let mut add = || report.add_descendant(*descendant, &processes[..=index], &mut tree_check);
        match retry_unstable(deadline, &mut add) {
            Ok(of_one) => files.extend(of_one),
            // The descendant has ended, or a process with which it was compared has.
            Err(CaptureError::ProcessGone { .. }) => {}
            Err(CaptureError::Unstable { pid, what }) => {
                report.notes.push(format!("pid {pid} was not checked, because it kept changing: {what}"));
            }
            Err(error) => return Err(error),
        }
    }
    let fds = files.iter().map(|(pid, fds)| (*pid, &fds[..]));
    report.refusals.extend(files::unpaired_terminals(fds)?);
    let epoll_targets = tree_check.open_files.check_epoll_targets();
    report.refusals.extend(epoll_targets.refusals);
    report.notes.extend(epoll_targets.notes);
    let size = DescriptorSize { threads: report.threads, mappings: report.mappings };
    report.refusals.extend(size.refusal(pid));
    report.notes.extend(files::outside_end_notes(&files)?);
    if !descendants.is_empty() {
        report.notes.insert(0, format!("its {} living descendants are carried with it", descendants.len()));
    }
    Ok(report)
}

/// State of a check that all processes of the tree share.
struct TreeCheck<'a> {
    options: CheckOptions,
    streams: &'a TreeStreams,
    /// The open files that were already checked.
    open_files: RunningFileCheck,
}

/// Calls `look` until it returns something other than `Unstable`, or until the deadline.
fn retry_unstable<T>(deadline: Instant, mut look: impl FnMut() -> Result<T, CaptureError>) -> Result<T, CaptureError> {
    loop {
        match look() {
            Err(CaptureError::Unstable { .. }) if Instant::now() < deadline => thread::sleep(RETRY_INTERVAL),
            outcome => return outcome,
        }
    }
}

fn survey_process(pid: i32, options: CheckOptions, streams: Option<&TreeStreams>) -> Result<Survey, CaptureError> {
    let depth = SurveyDepth::Thorough { is_served: options.is_pager_served };
    let mut survey = Survey::read(pid, depth, &DaemonSockets::default(), streams)?;
    if !options.is_pager_served {
        survey.compare_namespaces(streams.is_none(), options.namespaces)?;
    }
    Ok(survey)
}

/// Returns refusals that a capture finds only once the process is stopped. Returns none if the process changes or ends
/// during the call.
fn running_refusals(
    survey: &Survey,
    first: i32,
    looked_at: &mut RunningFileCheck,
) -> Result<Vec<Refusal>, CaptureError> {
    let pid = survey.pid;
    let mut look = || {
        let of = CheckedProcess { pid, root: TreeRoot::find(first)?, fds: &survey.fds, profiles: &survey.profiles };
        let mut refusals = looked_at.refusals(of)?;
        refusals.extend(SharedSources::open(survey)?.size_refusal(pid)?);
        Ok(refusals)
    };
    let looked = look();
    if tree::has_ended(pid) || !survey.program.matches(pid)? {
        return Ok(Vec::new());
    }
    match looked {
        Err(CaptureError::Unstable { .. }) => Ok(Vec::new()),
        looked => looked,
    }
}

impl CheckReport {
    /// Adds a descendant and returns its descriptors. `others` are the tree's processes before the descendant, the first
    /// process first. Adds nothing if the descendant has ended.
    fn add_descendant(
        &mut self,
        pid: i32,
        others: &[i32],
        tree_check: &mut TreeCheck<'_>,
    ) -> Result<Option<(i32, Vec<OpenFd>)>, CaptureError> {
        let survey = survey_process(pid, tree_check.options, Some(tree_check.streams));
        let of_running = match &survey {
            Ok(survey) => running_refusals(survey, others[0], &mut tree_check.open_files),
            Err(_) => Ok(Vec::new()),
        };
        let refusals = tree::refuse_unsupported_sharing(pid, others);
        if tree::has_ended(pid) {
            return Ok(None);
        }
        // Return all errors before the report changes, so that the call can be repeated after an error.
        let (of_running, refusals) = (of_running?, refusals?);
        let files = match survey {
            Ok(survey) => Some(self.add_survey(survey)?),
            Err(CaptureError::Refused { refusals, .. }) => {
                self.refusals.extend(refusals);
                None
            }
            Err(error) => return Err(error),
        };
        self.refusals.extend(of_running);
        self.refusals.extend(refusals);
        Ok(files)
    }

    /// Adds the survey of one process and returns its descriptors.
    fn add_survey(&mut self, survey: Survey) -> Result<(i32, Vec<OpenFd>), CaptureError> {
        let pid = survey.pid;
        self.processes += 1;
        self.threads += survey.profiles.len();
        self.mappings += survey.maps.len();
        // Zero if the process has ended since its survey.
        self.memory_bytes += ProcStatus::read(pid).map_or(0, |status| status.resident_bytes);
        self.file_descriptors += survey.fds.len();
        self.notes.extend(survey.notes.iter().map(|note| survey.format_note(self.pid, note)));
        let volumes = volume_objects::read_volumes(TreeRoot::find(self.pid)?)?;
        self.volume_objects.extend(list_volume_objects(pid, &volumes, &survey.fds, &survey.maps));
        self.refusals.extend(survey.refusals);
        Ok((pid, survey.fds))
    }
}
