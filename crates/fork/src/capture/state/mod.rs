//! Builds the threads and the process-wide state of a descriptor.

pub(super) mod attributes;
pub(super) mod auxiliary_vector;
pub(super) mod children_namespaces;
pub(super) mod glibc;
pub(super) mod inherited_state;
pub(super) mod landlock;
pub(super) mod local_descriptors;
pub(super) mod namespaces;
pub(super) mod node_root;
pub(super) mod proc_link;
pub(super) mod process_root;
pub(super) mod seccomp;
pub(super) mod timers;
pub(super) mod tree_root;
pub(super) mod unshared_threads;
pub(super) mod user_dispatch;
pub(super) mod user_namespace;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use farfork_sys::process::{self, DeadlineAttributes, ProcStat, ProcStatus};
use farfork_sys::ptrace;
use farfork_sys::{affinity, cpu};
use farfork_wire::descriptor::{
    Credentials, DeadlineParameters, FileStatus, IntervalTimer, Mm, PendingSignal, PosixTimer, Process, ResourceLimit,
    Rseq, Scheduling, SeccompFilter, Thread, UserDispatch,
};

use super::error::{CaptureError, Refusal};
use super::files::DELETED_SUFFIX;
use super::injection::script::read_word;
use super::injection::thread_queries::ThreadAnswers;
use super::stop::stop_guard::{ProcessSnapshot, StoppedThread};
use super::survey::{Survey, ThreadProfile};
use inherited_state::InheritedState;
use proc_link::read_proc_link;
use process_root::ProcessRoot;

/// SCHED_RESET_ON_FORK, as sched_setscheduler(2) expects it.
const RESET_ON_FORK: u32 = 0x4000_0000;

/// State of a stopped thread, other than its registers, that must be read in the pause.
#[derive(Debug)]
pub(super) struct ThreadExtendedState {
    xstate: Vec<u8>,
    robust_list: (u64, u64),
    user_dispatch: Option<UserDispatch>,
}

impl ThreadExtendedState {
    pub(super) fn read(tid: i32) -> Result<Self, CaptureError> {
        let mut xstate =
            ptrace::read_extended_state(tid).map_err(CaptureError::tracing("read the extended state of", tid))?;
        if components_in_use(&xstate) & cpu::DYNAMIC_COMPONENTS != 0 {
            let reason =
                "it has data in AMX tile registers; prepare when the computation has released them (TILERELEASE)";
            return Err(CaptureError::refused(tid, vec![Refusal::new(format!("thread {tid}"), reason)]));
        }
        xstate.truncate(cpu::default_state_bytes(xcr0(&xstate)));
        let robust_list =
            process::read_robust_list(tid).map_err(CaptureError::tracing("read the robust list of", tid))?;
        Ok(Self { xstate, robust_list, user_dispatch: user_dispatch::read(tid) })
    }

    /// Extended state in the XSAVE layout.
    pub(super) fn xstate(&self) -> &[u8] {
        &self.xstate
    }

    /// Components of the extended state that are enabled (XCR0).
    pub(super) fn xcr0(&self) -> u64 {
        xcr0(&self.xstate)
    }

    /// Address of the robust futex list head, 0 for none.
    pub(super) fn robust_list_head(&self) -> u64 {
        self.robust_list.0
    }
}

/// Reads XCR0 from a copy of the extended state. The kernel stores it among the bytes reserved for software.
pub(super) fn xcr0(xstate: &[u8]) -> u64 {
    const XCR0_OFFSET: usize = 464;
    xstate.get(XCR0_OFFSET..XCR0_OFFSET + 8).map_or(0, |bytes| read_word(bytes, 0))
}

/// Returns the components that are not in their initial state: XSTATE_BV, the first word of the header.
fn components_in_use(xstate: &[u8]) -> u64 {
    const HEADER_OFFSET: usize = 512;
    xstate.get(HEADER_OFFSET..HEADER_OFFSET + 8).map_or(0, |bytes| read_word(bytes, 0))
}

/// Builds the threads of a stopped process, the leader first.
pub(super) fn build_threads(
    snapshot: &ProcessSnapshot,
    extended_states: Vec<ThreadExtendedState>,
    answers: &[ThreadAnswers],
    profiles: &BTreeMap<i32, ThreadProfile>,
    filters: &mut [Vec<u32>],
    securebits: u32,
) -> Result<Vec<Thread>, CaptureError> {
    let leader = build_credentials(&profile_of(profiles, snapshot.pid, snapshot.pid)?.status, securebits);
    let offered = affinity::cpuset_of_process(snapshot.pid);
    let mut threads = Vec::with_capacity(snapshot.threads.len());
    for (((thread, extended_state), answers), filters) in
        snapshot.threads.iter().zip(extended_states).zip(answers).zip(filters)
    {
        let profile = profile_of(profiles, snapshot.pid, thread.tid)?;
        let filters = std::mem::take(filters);
        let described = build_thread(thread, extended_state, answers, profile, &leader);
        let cpus = restricted_cpus(&profile.status.cpus, offered.as_deref());
        threads.push(Thread { cpus, seccomp_filters: filters, ..described });
    }
    Ok(threads)
}

/// Returns the CPU affinity of a thread if it excludes CPUs of the control group, otherwise an empty list. A child on
/// another node must not be bound to the CPUs of the parent's group.
fn restricted_cpus(cpus: &[u32], offered: Option<&[u32]>) -> Vec<u32> {
    let Some(offered) = offered else { return Vec::new() };
    let word = |set: &[u32], index: usize| set.get(index).copied().unwrap_or(0);
    let is_less = (0..offered.len()).any(|index| word(offered, index) & !word(cpus, index) != 0);
    if is_less { cpus[..cpus.len().min(offered.len())].to_vec() } else { Vec::new() }
}

fn profile_of(profiles: &BTreeMap<i32, ThreadProfile>, pid: i32, tid: i32) -> Result<&ThreadProfile, CaptureError> {
    profiles.get(&tid).ok_or_else(|| CaptureError::Unstable { pid, what: format!("thread {tid}") })
}

/// Builds a thread, without its CPU affinity and its seccomp filters. `leader`: the credentials of the main thread.
fn build_thread(
    thread: &StoppedThread,
    thread_extended_state: ThreadExtendedState,
    answers: &ThreadAnswers,
    profile: &ThreadProfile,
    leader: &Credentials,
) -> Thread {
    let own = build_credentials(&profile.status, answers.securebits.unwrap_or(leader.securebits));
    let (registers, pending_call) = thread.child_state();
    Thread {
        tid: profile.inner_id(),
        name: profile.name.clone(),
        registers: registers.to_words().to_vec(),
        xstate: thread_extended_state.xstate,
        signal_mask: thread.signal_mask,
        pending_signals: build_pending_signals(&thread.pending_signals),
        alt_stack: answers.alt_stack,
        robust_list_head: thread_extended_state.robust_list.0,
        robust_list_bytes: thread_extended_state.robust_list.1,
        clear_child_tid: answers.clear_child_tid,
        rseq: thread.rseq.map(|rseq| Rseq { address: rseq.address, bytes: rseq.bytes, signature: rseq.signature }),
        scheduling: Scheduling {
            policy: profile.scheduling.policy | if profile.scheduling.resets_on_fork { RESET_ON_FORK } else { 0 },
            nice: profile.scheduling.nice,
            priority: profile.scheduling.priority,
            deadline: profile.scheduling.deadline.as_ref().map(build_deadline),
        },
        is_tsc_disabled: answers.is_tsc_forbidden,
        store_bypass: profile.status.store_bypass,
        indirect_branch: profile.status.indirect_branch,
        personality: answers.personality,
        credentials: (own != *leader).then_some(own),
        parent_death_signal: answers.parent_death_signal,
        timer_slack_ns: profile.timer_slack_ns.unwrap_or(answers.timer_slack_ns),
        cpus: Vec::new(),
        seccomp_filters: Vec::new(),
        interrupted_call: pending_call,
    }
}

fn build_deadline(attributes: &DeadlineAttributes) -> DeadlineParameters {
    let DeadlineAttributes { flags, runtime_ns, deadline_ns, period_ns } = *attributes;
    DeadlineParameters { flags, runtime_ns, deadline_ns, period_ns }
}

fn build_credentials(status: &ProcStatus, securebits: u32) -> Credentials {
    let [inheritable, permitted, effective, bounding, ambient] = status.capabilities;
    Credentials {
        uids: status.uids,
        gids: status.gids,
        groups: status.groups.clone(),
        capabilities_inheritable: inheritable,
        capabilities_permitted: permitted,
        capabilities_effective: effective,
        capabilities_bounding: bounding,
        capabilities_ambient: ambient,
        securebits,
        no_new_privileges: status.no_new_privileges,
    }
}

fn build_pending_signals(signals: &[[u8; ptrace::SIGINFO_BYTES]]) -> Vec<PendingSignal> {
    signals.iter().map(|info| PendingSignal { siginfo: info.to_vec() }).collect()
}

/// The state of a whole process that is not in its survey.
pub(super) struct ProcessWideState {
    /// The process that holds the state: the template, or the parent in freeze mode.
    pub(super) pid: i32,
    pub(super) root: ProcessRoot,
    /// Program and arguments.
    pub(super) arguments: Vec<String>,
    pub(super) inherited: InheritedState,
    /// The armed interval timers.
    pub(super) interval_timers: Vec<IntervalTimer>,
    pub(super) posix_timers: Vec<PosixTimer>,
    /// The filters of all threads.
    pub(super) seccomp_filters: Vec<SeccompFilter>,
    pub(super) is_subreaper: bool,
    /// OOM score adjustment of the parent.
    pub(super) oom_score_adj: i32,
}

impl ProcessWideState {
    /// Builds the process: its ids are the parent's, and the rest is the template's. Does not set `exe_object`.
    pub(super) fn build_process(self, survey: &Survey, snapshot: &ProcessSnapshot) -> Result<Process, CaptureError> {
        let Self { pid: subject, inherited, .. } = self;
        let pid = survey.pid;
        let read = |what: &'static str| CaptureError::reading(pid, what);
        let status = ProcStatus::read(subject).map_err(read("status"))?;
        let leader = profile_of(&survey.profiles, pid, pid)?;
        let limits = process::read_limits(subject).map_err(read("limits"))?;
        let limit =
            |(resource, (soft, hard)): (usize, (u64, u64))| ResourceLimit { resource: resource as u32, soft, hard };
        Ok(Process {
            pid: leader.inner_id(),
            is_group_leader: survey.stat.group == pid,
            is_session_leader: survey.stat.session == pid,
            exe: read_proc_link(pid, subject, "exe")?,
            exe_object: None,
            cwd: read_proc_link(pid, subject, "cwd")?,
            root: Some(self.root.root).filter(|root| root != tree_root::ROOT_PATH),
            deleted_cwd: deleted_directory_status(subject, "cwd").map_err(read("cwd"))?,
            arguments: self.arguments,
            umask: status.umask,
            dumpable: inherited.dumpable,
            oom_score_adj: self.oom_score_adj,
            credentials: build_credentials(&leader.status, inherited.securebits),
            limits: limits.into_iter().enumerate().map(limit).collect(),
            signal_actions: inherited.signal_actions,
            pending_signals: build_pending_signals(&snapshot.pending_signals),
            mm: read_mm(pid, subject, inherited.brk)?,
            interval_timers: self.interval_timers,
            posix_timers: self.posix_timers,
            seccomp_filters: self.seccomp_filters,
            membarrier_registrations: inherited.memory_barriers,
            is_thp_disabled: status.is_thp_disabled,
            is_subreaper: self.is_subreaper,
        })
    }
}

/// Reads the program name and arguments from `subject`, which holds the memory of `pid`.
pub(super) fn read_arguments(pid: i32, subject: i32) -> Result<Vec<String>, CaptureError> {
    let cmdline = process::read_bytes(&format!("/proc/{subject}/cmdline"));
    let cmdline = cmdline.map_err(CaptureError::reading(pid, "cmdline"))?;
    let argument = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let arguments = cmdline.split_inclusive(|byte| *byte == 0);
    Ok(arguments.map(|one| argument(one.strip_suffix(b"\0").unwrap_or(one))).collect())
}

fn read_mm(pid: i32, subject: i32, brk: u64) -> Result<Mm, CaptureError> {
    let stat = ProcStat::read(subject).map_err(CaptureError::reading(pid, "stat"))?;
    let auxv = process::read_bytes(&format!("/proc/{subject}/auxv")).map_err(CaptureError::reading(pid, "auxv"))?;
    let (words, _) = auxv.as_chunks::<8>();
    Ok(Mm {
        start_code: stat.start_code,
        end_code: stat.end_code,
        start_data: stat.start_data,
        end_data: stat.end_data,
        start_brk: stat.start_brk,
        brk,
        start_stack: stat.start_stack,
        arg_start: stat.arg_start,
        arg_end: stat.arg_end,
        env_start: stat.env_start,
        env_end: stat.env_end,
        auxv: words.iter().map(|word| u64::from_ne_bytes(*word)).collect(),
    })
}

/// Mode and owner of the deleted directory that a link of /proc refers to; `None` if it was not deleted.
fn deleted_directory_status(subject: i32, name: &str) -> io::Result<Option<FileStatus>> {
    const PERMISSIONS: u32 = 0o7777;
    let link = format!("/proc/{subject}/{name}");
    if !fs::read_link(&link)?.as_os_str().as_bytes().ends_with(DELETED_SUFFIX) {
        return Ok(None);
    }
    let found = fs::metadata(link)?;
    let status = FileStatus { mode: found.mode() & PERMISSIONS, uid: found.uid(), gid: found.gid() };
    Ok((found.nlink() == 0).then_some(status))
}
