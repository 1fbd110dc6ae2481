//! Whether a descendant can be made in one container with the others: it shares no table with them that it could not be born
//! with, and has no namespace of its own.

use std::fs;

use farfork_sys::process::{self, Stat, Table};

use crate::capture::error::{CaptureError, Refusal};

/// What clone(2) may have left shared, and how it is called there. It is carried where the parent has it, too.
const MEMORY: (Table, &str, &str) = (Table::Memory, "its address space", "CLONE_VM");
const HANDLERS: (Table, &str, &str) = (Table::Signals, "its signal handlers", "CLONE_SIGHAND");
const DIRECTORY: (Table, &str, &str) = (Table::FileSystem, "root and current directory", "CLONE_FS");
const FILES: (Table, &str, &str) = (Table::Files, "its descriptors", "CLONE_FILES");

/// Namespaces in which a process can differ from its parent.
const NAMESPACES: [&str; 8] = ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"];

/// What keeps `pid` from being made beside `others`, of which the first is the tree's first process.
pub(in super::super) fn refusals(pid: i32, others: &[i32]) -> Result<Vec<Refusal>, CaptureError> {
    let mut refusals = Vec::new();
    for common in [MEMORY, HANDLERS, DIRECTORY, FILES] {
        refusals.extend(only_of_others(pid, others, common)?);
    }
    refusals.extend(born_too_late(pid, others)?);
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

/// What a process has in common with its parent, as it was born with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Common {
    /// Root, current directory and mask (CLONE_FS).
    pub(super) directory: bool,
    /// Descriptors (CLONE_FILES).
    pub(super) files: bool,
    /// Address space (CLONE_VM).
    pub(super) memory: bool,
    /// Signal handlers (CLONE_SIGHAND).
    pub(super) handlers: bool,
}

impl Common {
    pub(super) fn of(pid: i32, parent: i32) -> Result<Self, CaptureError> {
        Self { directory: true, files: true, memory: true, handlers: true }.still(pid, parent)
    }

    /// What of it they have in common still. Nobody comes to share what it did not.
    pub(super) fn still(self, pid: i32, parent: i32) -> Result<Self, CaptureError> {
        let has = |was_shared: bool, common| Ok::<_, CaptureError>(was_shared && share(pid, parent, common)?);
        Ok(Self {
            directory: has(self.directory, DIRECTORY)?,
            files: has(self.files, FILES)?,
            memory: has(self.memory, MEMORY)?,
            handlers: has(self.handlers, HANDLERS)?,
        })
    }
}

fn share(pid: i32, other: i32, (table, what, _): (Table, &str, &str)) -> Result<bool, CaptureError> {
    process::share_table(pid, other, table).map_err(CaptureError::read(pid, what))
}

/// A process with memory of its own whose parent has none: when that is born in a child, nobody can be forked any more.
fn born_too_late(pid: i32, others: &[i32]) -> Result<Option<Refusal>, CaptureError> {
    let parent_of = |pid: i32| Ok::<_, CaptureError>(Stat::read(pid).map_err(|_| CaptureError::Gone { pid })?.parent);
    let parent = parent_of(pid)?;
    if !others.contains(&parent) || share(pid, parent, MEMORY)? {
        return Ok(None);
    }
    let before = parent_of(parent)?;
    if !others.contains(&before) || !share(parent, before, MEMORY)? {
        return Ok(None);
    }
    let reason = format!(
        "its parent, pid {parent}, has its address space from pid {before} (CLONE_VM), and it has not; that is not carried"
    );
    Ok(Some(Refusal::new(format!("pid {pid}"), reason)))
}

/// A table that a process shares with others, but not with its parent: it is only to be had by birth.
fn only_of_others(pid: i32, others: &[i32], common: (Table, &str, &str)) -> Result<Option<Refusal>, CaptureError> {
    let parent = Stat::read(pid).map_err(|_| CaptureError::Gone { pid })?.parent;
    if others.contains(&parent) && share(pid, parent, common)? {
        return Ok(None);
    }
    for other in others {
        let shared = match share(pid, *other, common) {
            // Who has ended meanwhile, and not `pid`, shares nothing any more.
            Err(CaptureError::Gone { .. }) if super::has_ended(*other) => false,
            shared => shared?,
        };
        if shared {
            let (_, what, flag) = common;
            let reason =
                format!("it shares {what} with pid {other}, but not with its parent ({flag}), which is not carried");
            return Ok(Some(Refusal::new(format!("pid {pid}"), reason)));
        }
    }
    Ok(None)
}
