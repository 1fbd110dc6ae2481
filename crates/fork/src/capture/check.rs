//! A look at a running process, and at all that descends from it, that changes nothing: what a capture would carry.

use farfork_sys::process::Status;

use super::error::{CaptureError, Refusal};
use super::files::{self, OpenFd, ProgramSockets, Streams};
use super::survey::{Depth, Survey};
use super::tree;

/// What a capture of a process would carry, and what it would refuse.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct CheckReport {
    /// The process.
    pub pid: i32,
    /// How many threads, of all processes.
    pub threads: usize,
    /// How many mappings.
    pub mappings: usize,
    /// Resident memory, in bytes.
    pub memory_bytes: u64,
    /// How many file descriptors.
    pub file_descriptors: usize,
    /// Everything that stands against a capture; empty if nothing does.
    pub refusals: Vec<Refusal>,
    /// What is good to know: what stays behind, what will differ.
    pub notes: Vec<String>,
}

/// Looks at a process without touching it. `is_served`: it is a child of a seed, or was forked by one, and its missing pages
/// are served by a pager of this node.
///
/// # Errors
/// When there is nothing to look at; what cannot be carried is in the report.
pub fn check(pid: i32, is_served: bool) -> Result<CheckReport, CaptureError> {
    let (threads, mappings, memory_bytes, file_descriptors) = (0, 0, 0, 0);
    let (refusals, notes) = (Vec::new(), Vec::new());
    let mut report = CheckReport { pid, threads, mappings, memory_bytes, file_descriptors, refusals, notes };
    let depth = Depth::Thorough { is_served };
    let survey = match Survey::of(pid, depth, &ProgramSockets::default(), None) {
        Ok(survey) => survey,
        Err(CaptureError::Refused { refusals, .. }) => return Ok(CheckReport { refusals, ..report }),
        Err(error) => return Err(error),
    };
    let processes = tree::all(pid)?;
    let streams = Streams::of(pid, &survey.fds).led_inside(|| Ok(processes.clone()))?;
    let mut files = vec![report.take(survey)?];
    let descendants = &processes[1..];
    for (index, descendant) in descendants.iter().enumerate() {
        match report.add(*descendant, &processes[..=index], depth, &streams) {
            Ok(of_one) => files.extend(of_one),
            // Or one of those that it was compared with.
            Err(CaptureError::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let fds = files.iter().map(|(pid, fds)| (*pid, &fds[..]));
    report.refusals.extend(files::unpaired_terminals(fds)?);
    report.notes.extend(files::notes(&files)?);
    if !descendants.is_empty() {
        report.notes.insert(0, format!("its {} living descendants are carried with it", descendants.len()));
    }
    Ok(report)
}

impl CheckReport {
    /// Adds a descendant of `others`, the first of which is the first process; gives its descriptors. One that has ended meanwhile stands
    /// against nothing, whatever it looked like.
    fn add(
        &mut self,
        pid: i32,
        others: &[i32],
        depth: Depth,
        streams: &Streams,
    ) -> Result<Option<(i32, Vec<OpenFd>)>, CaptureError> {
        let survey = Survey::of(pid, depth, &ProgramSockets::default(), Some(streams));
        let refusals = tree::refusals(pid, others);
        if tree::has_ended(pid) {
            return Ok(None);
        }
        let files = match survey {
            Ok(survey) => Some(self.take(survey)?),
            Err(CaptureError::Refused { refusals, .. }) => {
                self.refusals.extend(refusals);
                None
            }
            Err(error) => return Err(error),
        };
        self.refusals.extend(refusals?);
        Ok(files)
    }

    /// Adds what was seen of one process; gives its descriptors.
    fn take(&mut self, survey: Survey) -> Result<(i32, Vec<OpenFd>), CaptureError> {
        let pid = survey.pid;
        self.threads += survey.profiles.len();
        self.mappings += survey.maps.len();
        // Nothing any more of one that has ended meanwhile.
        self.memory_bytes += Status::read(pid).map_or(0, |status| status.resident_bytes);
        self.file_descriptors += survey.fds.len();
        self.refusals.extend(survey.refusals);
        let is_first = pid == self.pid;
        let named = |note: String| if is_first { note } else { format!("pid {pid}: {note}") };
        self.notes.extend(survey.notes.into_iter().map(named));
        Ok((pid, survey.fds))
    }
}
