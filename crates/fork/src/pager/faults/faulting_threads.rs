//! Finds the thread that a fault message names. The message has the thread's id in the thread's own pid namespace, so
//! several threads may match.

use std::fs;
use std::iter;

use farfork_sys::process::{self, ProcStatus};

/// The kernel function in which a thread waits for a page that another process installs.
const FAULT_WAIT_CHANNEL: &str = "handle_userfault";

/// Finds the threads that wait for a page and have this id in their own pid namespace. Threads of the process `near`,
/// if given, are first, then threads of other processes in its namespace. A thread whose fault was just read may not
/// sleep yet, and is then not found.
pub(super) fn find_faulting_threads(near: Option<i32>, id: u32) -> impl Iterator<Item = i32> {
    threads_near(near)
        .filter(|tid| process::is_waiting_in(*tid, FAULT_WAIT_CHANNEL))
        .filter(move |tid| has_namespace_tid(*tid, id))
}

fn has_namespace_tid(tid: i32, id: u32) -> bool {
    ProcStatus::read(tid).is_ok_and(|status| status.namespace_ids.last() == Some(&id))
}

fn threads_near(near: Option<i32>) -> impl Iterator<Item = i32> {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let wanted = near.and_then(namespace);
    let others = iter::once_with(|| process::all_pids().unwrap_or_default()).flatten();
    let others = others.filter(move |pid| Some(*pid) != near && (wanted.is_none() || namespace(*pid) == wanted));
    near.into_iter().chain(others).flat_map(|pid| process::thread_ids(pid).unwrap_or_default())
}
