//! Makes the timer end a child's calls that the capture of the parent interrupted, each after its remaining time.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use farfork_sys::clock;
use farfork_sys::process::{self, ProcStatus};
use farfork_wire::descriptor::{Descriptor, RestartableCall, Thread};

use super::{CallExpiry, CallSite};
use crate::capture::{self, restart};

/// Makes the timer end calls of a child's threads. `pid` is the child's first process, which has run for `age`. Does not
/// wait.
pub fn watch_child_calls(pid: i32, descriptor: &Descriptor, age: Duration) {
    let began_ns = clock::monotonic_ns().saturating_sub(age.as_nanos() as u64);
    let limited: BTreeMap<u32, (CallSite, RestartableCall)> =
        descriptor.all_threads().filter_map(limited_call).collect();
    if limited.is_empty() {
        return;
    }
    let watch = move || {
        for tid in threads_of_tree(pid) {
            let inner_tid = ProcStatus::read(tid).ok().and_then(|status| status.namespace_ids.last().copied());
            if let Some((site, left)) = inner_tid.and_then(|inner_tid| limited.get(&inner_tid)) {
                let end =
                    CallExpiry { deadline_ns: began_ns.saturating_add(left.remaining_ns), result: left.timeout_result };
                capture::remember_marked_end(tid, *site, end.deadline_ns);
                super::watch_call(tid, *site, end);
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("child-waits".to_owned()).spawn(watch) {
        tracing::warn!(pid, %error, "interrupted calls of a child restart with their full time limits");
    }
}

fn limited_call(thread: &Thread) -> Option<(u32, (CallSite, RestartableCall))> {
    let (number, mark, rsp, rip) = restart::call_site(&thread.registers)?;
    Some((thread.tid, (CallSite { number, mark: Some(mark), rsp, rip }, thread.interrupted_call?)))
}

/// Returns the threads of a process and of all its descendants.
fn threads_of_tree(pid: i32) -> Vec<i32> {
    let (mut threads, mut processes) = (Vec::new(), vec![pid]);
    while let Some(pid) = processes.pop() {
        for tid in process::thread_ids(pid).unwrap_or_default() {
            threads.push(tid);
            processes.extend(process::children_of_thread(pid, tid));
        }
    }
    threads
}
