//! Whether a descendant can be made in one container with the others: it shares no table with them that it could not be born
//! with, and has no namespace of its own.

use std::fs;

use farfork_sys::process::{self, Stat, Table};

use crate::capture::error::{CaptureError, Refusal};

/// What clone(2) may have left shared and is not carried, and how it is called there.
const REFUSED: [(Table, &str, &str); 2] =
    [(Table::Memory, "its address space", "CLONE_VM"), (Table::Signals, "its signal handlers", "CLONE_SIGHAND")];

/// What is carried where the parent has it, too.
const DIRECTORY: (Table, &str, &str) = (Table::FileSystem, "root and current directory", "CLONE_FS");
const FILES: (Table, &str, &str) = (Table::Files, "its descriptors", "CLONE_FILES");

/// Namespaces in which a process can differ from its parent.
const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

/// What keeps `pid` from being made beside `others`, of which the first is the tree's first process.
pub(in super::super) fn refusals(pid: i32, others: &[i32]) -> Result<Vec<Refusal>, CaptureError> {
    let mut refusals = Vec::new();
    for other in others {
        for (table, what, flag) in REFUSED {
            let shared = process::share_table(pid, *other, table).map_err(CaptureError::read(pid, what))?;
            let reason = || format!("it shares {what} with pid {other} ({flag}), which is not carried");
            refusals.extend(shared.then(|| Refusal::new(format!("pid {pid}"), reason())));
        }
        if !refusals.is_empty() {
            return Ok(refusals);
        }
    }
    for common in [DIRECTORY, FILES] {
        refusals.extend(only_of_others(pid, others, common)?);
    }
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
    let root = |pid: i32| fs::read_link(format!("/proc/{pid}/root")).ok();
    if root(pid) != root(*first) {
        let reason = format!("it has another root than pid {first} (chroot), which is not carried");
        refusals.push(Refusal::new(format!("pid {pid}"), reason));
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
}

impl Common {
    pub(super) fn of(pid: i32, parent: i32) -> Result<Self, CaptureError> {
        Ok(Self { directory: share(pid, parent, DIRECTORY)?, files: share(pid, parent, FILES)? })
    }
}

fn share(pid: i32, other: i32, (table, what, _): (Table, &str, &str)) -> Result<bool, CaptureError> {
    process::share_table(pid, other, table).map_err(CaptureError::read(pid, what))
}

/// A table that a process shares with others, but not with its parent: it is only to be had by birth.
fn only_of_others(pid: i32, others: &[i32], common: (Table, &str, &str)) -> Result<Option<Refusal>, CaptureError> {
    let parent = Stat::read(pid).map_err(|_| CaptureError::Gone { pid })?.parent;
    if others.contains(&parent) && share(pid, parent, common)? {
        return Ok(None);
    }
    for other in others {
        if share(pid, *other, common)? {
            let (_, what, flag) = common;
            let reason =
                format!("it shares {what} with pid {other}, but not with its parent ({flag}), which is not carried");
            return Ok(Some(Refusal::new(format!("pid {pid}"), reason)));
        }
    }
    Ok(None)
}
