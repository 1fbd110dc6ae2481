//! Refuses threads that Landlock confines (landlock(7)). A domain cannot be read, so a child would not be confined. A domain
//! belongs to a thread, so each thread is asked: it compares a process outside of its domain with itself (kcmp(2)).
//!
//! `pause` prepares the probes before the stop, and adds their calls to the threads' scripts.

use std::collections::BTreeMap;
use std::io;

use farfork_sys::landlock::{self, ReferenceIds, ReferenceProcess};
use farfork_sys::process::ProcStatus;
use farfork_sys::user_namespace;

use crate::capture::error::{CaptureError, Refusal};
use crate::capture::injection::injector::InjectedCall;
use crate::capture::survey::ThreadProfile;

/// kcmp(2).
const KCMP: u64 = 312;

/// The processes with which the threads of a process find out whether they are confined.
#[derive(Debug)]
pub(in crate::capture) struct DomainProbes {
    pid: i32,
    /// Whether the process has a user namespace of its own. All of its threads are in it (setns(2)).
    has_own_users: bool,
    /// For threads without CAP_SYS_PTRACE: processes with the same user and group, each with its pid in the namespace of the
    /// threads.
    references: BTreeMap<ReferenceIds, (ReferenceProcess, u32)>,
}

impl DomainProbes {
    /// Prepares probes for the threads of a process.
    pub(in crate::capture) fn new(pid: i32) -> Self {
        Self { pid, has_own_users: !user_namespace::is_own_namespace(pid), references: BTreeMap::new() }
    }

    /// Adds the processes that these threads need. Does nothing if the kernel does not enforce Landlock.
    pub(in crate::capture) fn add_threads<'a>(
        &mut self,
        profiles: impl Iterator<Item = &'a ThreadProfile>,
    ) -> Result<(), CaptureError> {
        for profile in profiles.filter(|_| landlock::is_enabled()) {
            let ids = reference_ids(&profile.status);
            if !self.may_trace_this_process(&profile.status) && !self.references.contains_key(&ids) {
                let started = self.start_reference(ids);
                let reference = started.map_err(CaptureError::reading(self.pid, "whether Landlock confines it"))?;
                self.references.insert(ids, reference);
            }
        }
        Ok(())
    }

    /// The call by which a thread finds out whether it is confined; `None` if the kernel does not enforce Landlock.
    pub(in crate::capture) fn call(&self, profile: &ThreadProfile) -> Option<InjectedCall> {
        const KCMP_FILES: u64 = 2;
        if !landlock::is_enabled() {
            return None;
        }
        let other = match self.references.get(&reference_ids(&profile.status)) {
            Some((_, inner_pid)) if !self.may_trace_this_process(&profile.status) => *inner_pid,
            _ => std::process::id(),
        };
        let [other, kind] = [u64::from(other), KCMP_FILES];
        Some(InjectedCall::new("kcmp", KCMP, [other, other, kind, 0, 0]).never_failing())
    }

    /// Starts a process with these ids in the namespaces of the threads. Returns it with its pid there.
    fn start_reference(&self, ids: ReferenceIds) -> io::Result<(ReferenceProcess, u32)> {
        let inner = if self.has_own_users { translate_ids(self.pid, ids)? } else { ids };
        let reference = ReferenceProcess::start(landlock::open_target(self.pid)?, self.has_own_users, inner)?;
        let inner_pid = ProcStatus::read(reference.pid())?.namespace_ids.last().copied().unwrap_or(0);
        Ok((reference, inner_pid))
    }

    /// Whether a thread may inspect this process unless it is confined: it has CAP_SYS_PTRACE in the same namespaces. Most
    /// threads of root may, so they need no other process.
    fn may_trace_this_process(&self, status: &ProcStatus) -> bool {
        const CAP_SYS_PTRACE: u64 = 1 << 19;
        let [_, _, effective, ..] = status.capabilities;
        let is_in_own_pid_namespace = status.namespace_ids.len() == 1;
        effective & CAP_SYS_PTRACE != 0 && is_in_own_pid_namespace && !self.has_own_users
    }
}

/// Refuses a thread if one of its calls is a probe, and its result shows that the thread is confined.
pub(in crate::capture) fn refuse_confined(pid: i32, tid: i32, call: &InjectedCall, result: u64) -> Option<Refusal> {
    const EPERM: i64 = 1;
    let reason = "Landlock or another security module confines it; the kernel does not show the rules, so a child would not be confined: prepare it before it confines itself (landlock_restrict_self(2))";
    (call.number == KCMP && result.cast_signed() == -EPERM)
        .then(|| Refusal::new(format!("pid {pid}, thread {tid}"), reason))
}

/// The real ids of a thread, which kcmp(2) compares.
fn reference_ids(status: &ProcStatus) -> ReferenceIds {
    ReferenceIds { uid: status.uids[0], gid: status.gids[0] }
}

/// Translates ids of this process's user namespace to ids of the user namespace of `pid`.
fn translate_ids(pid: i32, ids: ReferenceIds) -> io::Result<ReferenceIds> {
    Ok(ReferenceIds {
        uid: user_namespace::user_inside(pid, ids.uid)?,
        gid: user_namespace::group_inside(pid, ids.gid)?,
    })
}
