//! Surveys a running process before it is stopped: what would be carried and refused, and what the pause needs. This state
//! may change until the pause. Mappings, files and timers are then read again; the profiles of known threads and the locked
//! ranges are not.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use farfork_sys::process::{self, MapEntry, ProcStat, ProcStatus, SchedulingAttributes, TaskFlags};
use farfork_sys::sock_diag::SockDiag;
use farfork_sys::{companion, fd_query};
use farfork_wire::descriptor::THREADS_MAX;

use super::error::{CaptureError, Refusal};
use super::files::{self, DaemonSockets, OpenFd, TreeStreams};
use super::injection::injector;
use super::memory;
use super::memory::FileSystemCache;
use super::state::auxiliary_vector::AuxiliaryVector;
use super::state::namespaces::{self, NamespacePolicy};
use super::state::proc_link::read_proc_link;
use super::state::tree_root::{self, TreeRoot};
use super::state::{children_namespaces, seccomp, timers, unshared_threads, user_namespace};
use super::stop::{freezer, inexact_waits, interrupted_calls, tracers, vfork};
use super::volume_objects;

/// State of a thread that can be read while it runs.
#[derive(Debug, Clone)]
pub(super) struct ThreadProfile {
    pub(super) name: Vec<u8>,
    pub(super) status: ProcStatus,
    pub(super) scheduling: SchedulingAttributes,
    /// I/O priority (ioprio_get(2)).
    pub(super) io_priority: u32,
    pub(super) flags: TaskFlags,
    /// `None` for the main thread, which is queried in the pause.
    pub(super) timer_slack_ns: Option<u64>,
}

impl ThreadProfile {
    pub(super) fn read(pid: i32, tid: i32) -> std::io::Result<Self> {
        let ProcStat { name, flags, .. } = ProcStat::read_thread(pid, tid)?;
        let profile = Self::from_status(tid, name, flags, ProcStatus::read(tid)?)?;
        Ok(Self { timer_slack_ns: Some(timer_slack_ns(tid)?), ..profile })
    }

    /// The profile of a thread whose name, flags and status were already read.
    fn from_status(tid: i32, name: Vec<u8>, flags: TaskFlags, status: ProcStatus) -> std::io::Result<Self> {
        let (scheduling, io_priority) = (process::read_scheduling(tid)?, fd_query::io_priority(tid)?);
        Ok(Self { name, status, scheduling, io_priority, flags, timer_slack_ns: None })
    }

    /// The thread's id in its innermost pid namespace, as gettid(2) returns it.
    pub(super) fn inner_id(&self) -> u32 {
        self.status.namespace_ids.last().copied().unwrap_or(0)
    }
}

/// Reads the timer slack of a thread, in nanoseconds: the maximum by which the kernel may delay its timers.
pub(super) fn timer_slack_ns(tid: i32) -> std::io::Result<u64> {
    Ok(process::read_line(&format!("/proc/{tid}/timerslack_ns"))?.parse().unwrap_or(0))
}

/// State of a running process.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) pid: i32,
    /// The program that the process ran during the survey.
    pub(super) program: AuxiliaryVector,
    pub(super) stat: ProcStat,
    pub(super) profiles: BTreeMap<i32, ThreadProfile>,
    pub(super) maps: Vec<MapEntry>,
    pub(super) fds: Vec<OpenFd>,
    /// Set if only sock_diag(7) shows the peer or the shut-down directions of one of the sockets.
    pub(super) diagnosis: Option<SockDiag>,
    /// Locked ranges. fork(2) does not lock the copies.
    pub(super) locked: Vec<Range<u64>>,
    /// Private mappings of hugetlbfs huge pages, with their flags. A clone gets ordinary memory instead; `memory::hugetlb`
    /// restores some of the flags.
    pub(super) hugetlb: Vec<MapEntry>,
    pub(super) file_systems: FileSystemCache,
    /// Address of a `syscall` instruction.
    pub(super) syscall_address: u64,
    pub(super) refusals: Vec<Refusal>,
    pub(super) notes: Vec<String>,
}

/// Maximum number of surveys of a process that executes another program during each of them.
const PROGRAMS_MAX: usize = 8;

/// How thorough a survey is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SurveyDepth {
    /// Before a capture: what the capture needs. Reads `smaps` only if necessary.
    Quick,
    /// For a report: with notes. Reads `smaps`, for which the kernel walks over all memory of the process.
    Thorough {
        /// Whether a pager of this node serves the missing pages of the process.
        is_served: bool,
    },
}

impl Survey {
    /// Surveys `pid`. State that cannot be carried is in `refusals`, except for processes that are refused before they are
    /// surveyed: for them, returns `CaptureError::Refused`. `streams`: the standard streams of the tree; `None` for the
    /// tree's first process.
    pub(super) fn read(
        pid: i32,
        depth: SurveyDepth,
        sockets: &DaemonSockets,
        streams: Option<&TreeStreams>,
    ) -> Result<Self, CaptureError> {
        for _ in 0..PROGRAMS_MAX {
            let stat = ProcStat::read(pid).map_err(|_| CaptureError::ProcessGone { pid })?;
            let status = ProcStatus::read(pid).map_err(|_| CaptureError::ProcessGone { pid })?;
            let out_of_question = quick_refusals(pid, &stat, &status, sockets);
            if !out_of_question.is_empty() {
                return Err(CaptureError::refused(pid, out_of_question));
            }
            let program = AuxiliaryVector::read(pid)?;
            let survey = Self::read_program(program.clone(), stat, status, depth, sockets, streams);
            if program.matches(pid)? {
                return survey;
            }
        }
        Err(AuxiliaryVector::changed_error(pid))
    }

    /// Surveys a process that runs this program. The result is invalid if the process runs another program afterwards.
    fn read_program(
        program: AuxiliaryVector,
        stat: ProcStat,
        status: ProcStatus,
        depth: SurveyDepth,
        sockets: &DaemonSockets,
        streams: Option<&TreeStreams>,
    ) -> Result<Self, CaptureError> {
        let pid = status.process;
        let maps = match depth {
            SurveyDepth::Quick => process::read_maps(pid),
            SurveyDepth::Thorough { .. } => process::read_smaps(pid),
        };
        let mut maps = maps.map_err(CaptureError::reading(pid, "the memory map"))?;
        if depth == (SurveyDepth::Thorough { is_served: true }) {
            maps.iter_mut().for_each(|entry| entry.clear_flag("um"));
        }
        let fds = files::list_open_fds(pid, sockets, streams)?;
        let mut file_systems = FileSystemCache::new(sockets.copies_files);
        file_systems.mark_mappings(pid, &mut maps);
        let (locked, huge) = flagged_mappings(pid, &maps, &status)?;
        let profiles = read_profiles(pid, &stat, status)?;
        let mut survey = Self {
            pid,
            program,
            stat,
            profiles,
            syscall_address: 0,
            refusals: Vec::new(),
            notes: Vec::new(),
            diagnosis: files::open_socket_diagnosis(pid, &fds)?,
            locked,
            hugetlb: huge,
            file_systems,
            maps,
            fds,
        };
        survey.find_vdso()?;
        survey.refuse_threads()?;
        survey.refuse_mappings(depth)?;
        survey.refusals.extend(survey.file_systems.refusals(pid, &survey.maps));
        let root = TreeRoot::find(streams.map_or(pid, TreeStreams::root_pid))?;
        survey.refusals.extend(root.refusal(pid, &read_proc_link(pid, pid, "root")?));
        survey.refusals.extend(tree_root::refuse_current_directory(pid));
        survey.refusals.extend(files::refuse_open_files(pid, root, &survey.fds)?);
        survey.refusals.extend(volume_objects::refuse_removed_mappings(pid, root, &survey.maps)?);
        let first = streams.map_or(pid, TreeStreams::root_pid);
        survey.refusals.extend(files::refuse_foreign_pidfds(first, pid, &survey.fds)?);
        survey.refusals.extend(files::refuse_foreign_proc_files(first, pid, &survey.fds));
        survey.refusals.extend(files::check_caller_socket(pid, &survey.fds, sockets));
        // Skipped for a process that requests its own checkpoint, because it already waits. The pause refuses its timers if
        // necessary.
        if depth != SurveyDepth::Quick || sockets.caller.is_none() {
            survey.refusals.extend(timers::refusals(pid, &timers::list_timers(pid)?, &survey.inner_ids()));
        }
        survey.notes.extend(memory::stale_mappings::note_stale_mappings(pid, &survey.fds, &survey.maps));
        if depth == SurveyDepth::Quick {
            survey.profiles.keys().for_each(|tid| interrupted_calls::observe_thread(*tid));
        } else {
            survey.note_not_carried();
            survey.notes.extend(inexact_waits::inexact_notes(survey.profiles.keys().copied()));
        }
        Ok(survey)
    }

    /// Adds refusals and notes about namespaces that children would lack, or have with other contents.
    pub(super) fn compare_namespaces(&mut self, is_first: bool, policy: NamespacePolicy) -> Result<(), CaptureError> {
        let found = namespaces::compare_namespaces(self.pid, &self.fds, is_first, policy)?;
        self.refusals.extend(found.refusals);
        self.notes.extend(found.notes);
        Ok(())
    }

    /// A note, prefixed with the pid unless this is the tree's first process.
    pub(super) fn format_note(&self, first: i32, note: &str) -> String {
        if self.pid == first { note.to_owned() } else { format!("pid {}: {note}", self.pid) }
    }

    /// Ids of the process's threads in its innermost pid namespace, the main thread's first.
    pub(super) fn inner_ids(&self) -> Vec<u32> {
        let others = self.profiles.iter().filter(|(tid, _)| **tid != self.pid).map(|(_, profile)| profile.inner_id());
        std::iter::once(self.inner_id()).chain(others).collect()
    }

    /// The process's id in its innermost pid namespace.
    pub(super) fn inner_id(&self) -> u32 {
        self.profiles.get(&self.pid).map_or(0, ThreadProfile::inner_id)
    }

    /// Sets the CPU affinity of a thread to all CPUs. `thread` is its inner id. The thread is pinned only until it gets its
    /// reply, not by the program's choice.
    pub(super) fn clear_pinning(&mut self, thread: u32) {
        let kept = self.profiles.values_mut().filter(|profile| profile.inner_id() == thread);
        kept.for_each(|profile| profile.status.cpus.fill(u32::MAX));
    }

    /// Finds the `syscall` instruction of the vdso, which injected calls use. Refuses a process without a vdso.
    fn find_vdso(&mut self) -> Result<(), CaptureError> {
        let pid = self.pid;
        let Some(vdso) = self.maps.iter().find(|entry| entry.path == b"[vdso]") else {
            let reason = "it has no vdso (booted with vdso=0, or it unmapped its own)";
            self.refusals.push(Refusal::new(format!("pid {pid}"), reason));
            return Ok(());
        };
        match injector::find_vdso_syscall(pid, vdso).map_err(CaptureError::reading(pid, "the vdso"))? {
            Some(address) => self.syscall_address = address,
            None => self.refusals.push(Refusal::new(format!("pid {pid}"), "its vdso has no system call instruction")),
        }
        Ok(())
    }

    /// Refuses mappings. Only `smaps` shows which mappings children lack, so it is read if a mapping would be refused
    /// otherwise.
    fn refuse_mappings(&mut self, depth: SurveyDepth) -> Result<(), CaptureError> {
        let pid = self.pid;
        let judge = |maps: &[MapEntry]| [memory::refuse_mappings(pid, maps), memory::file_refusals(pid, maps)].concat();
        let mut refusals = judge(&self.maps);
        if depth == SurveyDepth::Quick && !refusals.is_empty() {
            let mut maps = process::read_smaps(pid).map_err(CaptureError::reading(pid, "the memory map"))?;
            // A quick survey does not judge userfaultfd registrations.
            maps.iter_mut().for_each(|entry| ["um", "uw", "ui"].iter().for_each(|flag| entry.clear_flag(flag)));
            self.file_systems.mark_mappings(pid, &mut maps);
            refusals = judge(&maps);
        }
        self.refusals.extend(refusals);
        Ok(())
    }

    fn refuse_threads(&mut self) -> Result<(), CaptureError> {
        let pid = self.pid;
        if !self.profiles.contains_key(&pid) {
            return Err(CaptureError::ProcessGone { pid });
        }
        if self.profiles.len() > THREADS_MAX {
            let reason = format!("it has {} threads, more than {THREADS_MAX}", self.profiles.len());
            self.refusals.push(Refusal::new(format!("pid {pid}"), reason));
        }
        self.refusals.extend(unshared_threads::refuse_unshared_threads(pid, self.profiles.keys().copied()));
        for (tid, profile) in &self.profiles {
            self.refusals.extend(seccomp::refusal(pid, *tid, &profile.status));
            if profile.status.has_shadow_stack {
                let reason = "it has a shadow stack, which is not carried yet";
                self.refusals.push(Refusal::new(format!("pid {pid}, thread {tid}"), reason));
            }
            if *tid == pid && profile.scheduling.deadline.is_some() && !profile.scheduling.resets_on_fork {
                let reason =
                    "it is scheduled by deadlines (SCHED_DEADLINE) and may not fork: give it SCHED_FLAG_RESET_ON_FORK";
                self.refusals.push(Refusal::new(format!("pid {pid}, thread {tid}"), reason));
            }
            // A thread in vfork(2) is in state D, like one that waits for a disk.
            if profile.status.state == "D" && vfork::is_stuck_in_vfork(*tid) {
                let reason =
                    "it waits in vfork(2) for a child that has not yet called exec or exit; try again when that has";
                self.refusals.push(Refusal::new(format!("pid {pid}, thread {tid}"), reason));
            }
        }
        Ok(())
    }

    fn note_not_carried(&mut self) {
        let absent: u64 = self.maps.iter().filter(|entry| memory::is_dontfork(entry)).map(MapEntry::bytes).sum();
        if absent > 0 {
            self.notes.push(format!(
                "{} KiB of its memory are marked MADV_DONTFORK, and are shared, of a file, or marked MADV_DONTDUMP as well: its children lack them, as after fork(2), and fail where they touch them",
                absent >> 10
            ));
        }
        let huge: u64 = self.maps.iter().filter(|entry| entry.has_flag("ht")).map(MapEntry::bytes).sum();
        if huge > 0 {
            self.notes.push(format!(
                "{} KiB of its memory are in huge pages of hugetlbfs: its children have them in ordinary ones",
                huge >> 10
            ));
        }
        if read_proc_link(self.pid, self.pid, "exe").is_ok_and(|exe| exe.as_bytes().ends_with(files::DELETED_SUFFIX)) {
            self.notes.push(
                "its executable was deleted or replaced: its children have a copy, and are restored one by one"
                    .to_owned(),
            );
        }
        self.notes.extend(files::versions::note_unverifiable_files(self.pid, &self.fds, &self.maps));
        if self.stat.state == 'T' {
            self.notes.push("it is stopped by a signal; its children will run".to_owned());
        }
    }
}

/// The locked ranges, and the private hugetlbfs mappings. Only `smaps` of the process itself shows these flags.
fn flagged_mappings(
    pid: i32,
    maps: &[MapEntry],
    status: &ProcStatus,
) -> Result<(Vec<Range<u64>>, Vec<MapEntry>), CaptureError> {
    if status.locked_bytes == 0 && !maps.iter().any(memory::is_private_hugetlb) {
        return Ok((Vec::new(), Vec::new()));
    }
    let areas = process::read_smaps(pid).map_err(CaptureError::reading(pid, "the memory map"))?;
    let locked = areas.iter().filter(|entry| entry.has_flag("lo")).map(|entry| entry.start..entry.end).collect();
    Ok((locked, areas.into_iter().filter(memory::is_private_hugetlb).collect()))
}

/// The kernel has already released a part of the process's state.
pub(super) const MAIN_THREAD_ENDED_REASON: &str = "its main thread has ended while other threads run, which is not carried; \
     let the main thread wait instead of ending, or prepare it before its main thread ends";

/// Returns the refusals that can be decided before the survey.
fn quick_refusals(pid: i32, stat: &ProcStat, status: &ProcStatus, sockets: &DaemonSockets) -> Vec<Refusal> {
    let refuse = |reason: String| vec![Refusal::new(format!("pid {pid}"), reason)];
    if pid == companion::owner_pid() {
        return refuse("it is farfork itself".to_owned());
    }
    if status.process != pid {
        return refuse(format!("it is a thread of pid {}; prepare that", status.process));
    }
    if stat.is_kernel_thread() {
        return refuse("it is a thread of the kernel".to_owned());
    }
    if matches!(stat.state, 'Z' | 'X') {
        let alone = process::thread_ids(pid).is_ok_and(|tids| tids.len() <= 1);
        return refuse(if alone { "it has ended (a zombie)" } else { MAIN_THREAD_ENDED_REASON }.to_owned());
    }
    // The calling thread may trace the process already: it may stop a descendant before it surveys the descendant.
    if let Some(refusal) = tracers::refusal_of_staying(pid, status) {
        return vec![refusal];
    }
    // A process that has just requested its own checkpoint is not frozen. If it is frozen afterwards, its stop fails, and
    // the error says so.
    let is_own_request = sockets.caller.is_some();
    if !is_own_request && let Some(group) = freezer::freezing_group(pid) {
        return refuse(format!("it is frozen by the control group {}; thaw that first", group.display()));
    }
    // The farfork libraries are 64-bit. A 32-bit program with its own implementation of their protocol is detected at the
    // stop.
    if !is_own_request && is_32_bit(pid) {
        return refuse("it is a 32-bit program".to_owned());
    }
    user_namespace::refusal(pid).into_iter().chain(children_namespaces::refusal(pid)).collect()
}

/// Reads the class in the ELF header of the executable. An unreadable header counts as 64-bit: the stop also detects 32-bit
/// code.
fn is_32_bit(pid: i32) -> bool {
    use std::io::Read;
    const ELF_CLASS_32: u8 = 1;
    let mut head = [0; 5];
    let read = fs::File::open(format!("/proc/{pid}/exe")).and_then(|mut exe| exe.read_exact(&mut head));
    read.is_ok() && &head[..4] == b"\x7fELF" && head[4] == ELF_CLASS_32
}

/// Reads the profiles of all threads. Omits threads that end during the call. `stat` and `status` are the leader's.
fn read_profiles(pid: i32, stat: &ProcStat, status: ProcStatus) -> Result<BTreeMap<i32, ThreadProfile>, CaptureError> {
    let mut profiles = BTreeMap::new();
    let leader = ThreadProfile::from_status(pid, stat.name.clone(), stat.flags, status);
    profiles.extend(leader.ok().map(|profile| (pid, profile)));
    if process::thread_count(pid).is_ok_and(|count| count == 1) {
        return Ok(profiles);
    }
    let tids = process::thread_ids(pid).map_err(|_| CaptureError::ProcessGone { pid })?;
    let others = tids.into_iter().filter(|tid| *tid != pid);
    profiles.extend(others.filter_map(|tid| Some((tid, ThreadProfile::read(pid, tid).ok()?))));
    Ok(profiles)
}
