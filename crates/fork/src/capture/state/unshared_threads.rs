//! Refuses processes whose threads have their own descriptors, root and current directory, or namespaces
//! (unshare(2), setns(2)). The threads of a child share all of these.

use std::fs;
use std::path::PathBuf;

use farfork_sys::process::{self, SharedResource};

use crate::capture::error::Refusal;

/// Tables that threads usually share.
const TABLES: [(SharedResource, &str); 2] = [
    (SharedResource::Files, "it has descriptors of its own (unshare(2), CLONE_FILES)"),
    (SharedResource::FileSystem, "it has a root and a current directory of its own (unshare(2), CLONE_FS)"),
];

/// Namespaces that a thread can enter, or make for its children, while it keeps its directory.
const NAMESPACES: [&str; 5] = ["net", "ipc", "uts", "pid_for_children", "time_for_children"];

/// Refuses threads of a running process that have their own tables or namespaces. Omits threads that end during the call.
pub(in crate::capture) fn refuse_unshared_threads(pid: i32, tids: impl Iterator<Item = i32>) -> Vec<Refusal> {
    let mut others = tids.filter(|tid| *tid != pid).peekable();
    if others.peek().is_none() {
        return Vec::new();
    }
    let common = read_namespaces(pid);
    others
        .filter_map(|tid| refuse_unshared_table(pid, tid).or_else(|| refuse_own_namespace(pid, &common, tid)))
        .collect()
}

/// Refuses a thread that has its own tables. Fast enough for the pause.
pub(in crate::capture) fn refuse_unshared_table(pid: i32, tid: i32) -> Option<Refusal> {
    let (_, reason) =
        TABLES.into_iter().find(|(table, _)| matches!(process::share_resource(pid, tid, *table), Ok(false)))?;
    Some(thread_refusal(pid, tid, reason))
}

fn refuse_own_namespace(pid: i32, common: &[Option<PathBuf>], tid: i32) -> Option<Refusal> {
    let own = read_namespaces(tid);
    let is_own = |at: &usize| common[*at].is_some() && own[*at] != common[*at];
    let name = NAMESPACES[(0..NAMESPACES.len()).find(is_own)?];
    // The link of a pid namespace without processes cannot be read. Neither can any link of a thread that ends.
    fs::read_link(format!("/proc/{tid}/ns/net")).ok()?;
    let difference = match name.strip_suffix("_for_children") {
        Some(kind) => format!("its children get another {kind} namespace than those of the other threads"),
        None => format!("it is in another {name} namespace than the other threads"),
    };
    Some(thread_refusal(pid, tid, &difference))
}

fn read_namespaces(tid: i32) -> [Option<PathBuf>; NAMESPACES.len()] {
    NAMESPACES.map(|name| fs::read_link(format!("/proc/{tid}/ns/{name}")).ok())
}

fn thread_refusal(pid: i32, tid: i32, reason: &str) -> Refusal {
    Refusal::new(format!("pid {pid}, thread {tid}"), format!("{reason}, which is not carried"))
}
