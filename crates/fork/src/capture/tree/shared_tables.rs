//! Checks that a descendant can be made in one container with the others: it shares no table with them that clone(2)
//! could not give it, and has no namespace of its own.

use std::fs;

use farfork_sys::process::{self, ProcStat, SharedResource};

use crate::capture::error::{CaptureError, Refusal};

/// A table that clone(2) can share. It is carried if the process shares it with its parent.
#[derive(Debug, Clone, Copy)]
struct ShareableTable {
    resource: SharedResource,
    /// Name for error messages.
    name: &'static str,
    /// The flag of clone(2).
    clone_flag: &'static str,
}

const MEMORY_TABLE: ShareableTable =
    ShareableTable { resource: SharedResource::Memory, name: "its address space", clone_flag: "CLONE_VM" };
const HANDLERS_TABLE: ShareableTable =
    ShareableTable { resource: SharedResource::Signals, name: "its signal handlers", clone_flag: "CLONE_SIGHAND" };
const DIRECTORY_TABLE: ShareableTable =
    ShareableTable { resource: SharedResource::FileSystem, name: "root and current directory", clone_flag: "CLONE_FS" };
const FILES_TABLE: ShareableTable =
    ShareableTable { resource: SharedResource::Files, name: "its descriptors", clone_flag: "CLONE_FILES" };

/// Namespaces in which a process can differ from its parent.
const NAMESPACES: [&str; 8] = ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"];

/// Returns why `pid` cannot be forked in one container with `others`. The first of `others` is the tree's first process.
pub(in super::super) fn refuse_unsupported_sharing(pid: i32, others: &[i32]) -> Result<Vec<Refusal>, CaptureError> {
    let mut refusals = Vec::new();
    for table in [MEMORY_TABLE, HANDLERS_TABLE, DIRECTORY_TABLE, FILES_TABLE] {
        refusals.extend(refuse_sibling_sharing(pid, others, table)?);
    }
    refusals.extend(refuse_late_fork(pid, others)?);
    let Some(first) = others.first() else { return Ok(refusals) };
    for namespace in NAMESPACES {
        let of = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/{namespace}"));
        let is_same = matches!((of(pid), of(*first)), (Ok(own), Ok(others)) if own == others);
        let reason = || {
            format!(
                "it is in another {namespace} namespace than pid {first}, from which it descends; that is not carried"
            )
        };
        refusals.extend((!is_same).then(|| Refusal::new(format!("pid {pid}"), reason())));
    }
    Ok(refusals)
}

/// The tables that a process shares with its parent since its clone(2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SharedTables {
    /// Root, current directory and mask (CLONE_FS).
    pub(super) directory: bool,
    /// Descriptors (CLONE_FILES).
    pub(super) files: bool,
    /// Address space (CLONE_VM).
    pub(super) memory: bool,
    /// Signal handlers (CLONE_SIGHAND).
    pub(super) handlers: bool,
}

impl SharedTables {
    pub(super) fn read(pid: i32, parent: i32) -> Result<Self, CaptureError> {
        Self { directory: true, files: true, memory: true, handlers: true }.recheck(pid, parent)
    }

    /// Returns the tables that are still shared. A table that was not shared before is never shared later.
    pub(super) fn recheck(self, pid: i32, parent: i32) -> Result<Self, CaptureError> {
        let has = |was_shared: bool, table| Ok::<_, CaptureError>(was_shared && shares_table(pid, parent, table)?);
        Ok(Self {
            directory: has(self.directory, DIRECTORY_TABLE)?,
            files: has(self.files, FILES_TABLE)?,
            memory: has(self.memory, MEMORY_TABLE)?,
            handlers: has(self.handlers, HANDLERS_TABLE)?,
        })
    }
}

fn shares_table(pid: i32, other: i32, table: ShareableTable) -> Result<bool, CaptureError> {
    process::share_resource(pid, other, table.resource).map_err(CaptureError::reading(pid, table.name))
}

/// Refuses a process with its own memory whose parent shares its memory with the grandparent. In a child, such a parent is
/// made so late that no process can be forked any more.
fn refuse_late_fork(pid: i32, others: &[i32]) -> Result<Option<Refusal>, CaptureError> {
    let parent_of =
        |pid: i32| Ok::<_, CaptureError>(ProcStat::read(pid).map_err(|_| CaptureError::ProcessGone { pid })?.parent);
    let parent = parent_of(pid)?;
    if !others.contains(&parent) || shares_table(pid, parent, MEMORY_TABLE)? {
        return Ok(None);
    }
    let before = parent_of(parent)?;
    if !others.contains(&before) || !shares_table(parent, before, MEMORY_TABLE)? {
        return Ok(None);
    }
    let reason = format!(
        "its parent, pid {parent}, has its address space from pid {before} (CLONE_VM), and it has not; that is not carried"
    );
    Ok(Some(Refusal::new(format!("pid {pid}"), reason)))
}

/// Refuses a table that a process shares with others, but not with its parent. Only clone(2) can share a table.
fn refuse_sibling_sharing(pid: i32, others: &[i32], table: ShareableTable) -> Result<Option<Refusal>, CaptureError> {
    let parent = ProcStat::read(pid).map_err(|_| CaptureError::ProcessGone { pid })?.parent;
    if others.contains(&parent) && shares_table(pid, parent, table)? {
        return Ok(None);
    }
    for other in others {
        let shared = match shares_table(pid, *other, table) {
            // If the other process has ended, and not `pid`, it shares nothing any more.
            Err(CaptureError::ProcessGone { .. }) if super::has_ended(*other) => false,
            shared => shared?,
        };
        if shared {
            let ShareableTable { name, clone_flag, .. } = table;
            let reason = format!(
                "it shares {name} with pid {other}, but not with its parent ({clone_flag}), which is not carried"
            );
            return Ok(Some(Refusal::new(format!("pid {pid}"), reason)));
        }
    }
    Ok(None)
}
