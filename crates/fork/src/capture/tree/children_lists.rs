//! The children of a process, as the kernel lists them: one list per thread, with the children that it forked. The lists are
//! opened while the process runs, and read again when it is stopped.
//!
//! Templates of seeds are children, too, and are skipped: only they have no exit signal and are traced. A template ends by SIGKILL,
//! and a child without an exit signal that was killed so counts as one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use farfork_sys::process::{ProcStat, ProcStatus};
use rustix::process::Signal;

use super::main_thread;
use crate::capture::error::CaptureError;

/// Bytes of a list that are read at a time: the ids of about five hundred children.
const READ_BYTES: usize = 4096;

/// An upper limit of the size of an id in a list, in bytes.
const ID_BYTES: usize = 16;

/// The lists of one process's children.
#[derive(Debug)]
pub(super) struct ChildrenLists {
    lists: Vec<(i32, File)>,
}

/// A listed child.
#[derive(Debug)]
pub(super) enum ListedChild {
    /// A living child, by its id. Its main thread may have ended while other threads run.
    Living(i32, ProcStat),
    /// A zombie: its id in farfork's pid namespace, its id in its own pid namespace, its state.
    Unreaped(i32, u32, ProcStat),
    /// A child that is exiting, and not a zombie yet.
    Exiting,
    /// A known child, which was not inspected.
    Known(i32),
}

impl ChildrenLists {
    /// Opens the lists of a process's threads. Omits threads that have ended: they have no children any more.
    pub(super) fn open(pid: i32, tids: impl Iterator<Item = i32>) -> Self {
        Self { lists: tids.filter_map(|tid| Some((tid, open_list(pid, tid).ok()?))).collect() }
    }

    /// Lists the children of the threads whose lists are open.
    pub(super) fn list(&self) -> Result<Vec<ListedChild>, CaptureError> {
        self.list_new(|_| false)
    }

    /// Lists the children, but does not inspect the known ones.
    fn list_new(&self, is_known: impl Fn(i32) -> bool) -> Result<Vec<ListedChild>, CaptureError> {
        let mut found = Vec::new();
        for (tid, list) in &self.lists {
            let ids = parse_ids(list).map_err(CaptureError::reading(*tid, "the children"));
            for id in ids? {
                if is_known(id) {
                    found.push(ListedChild::Known(id));
                } else {
                    found.extend(inspect_child(id).map_err(CaptureError::reading(id, "stat"))?);
                }
            }
        }
        Ok(found)
    }

    /// Lists all children of a stopped process, whose threads are `tids`. Does not inspect known children.
    pub(super) fn list_all(
        &mut self,
        pid: i32,
        tids: &[i32],
        is_known: impl Fn(i32) -> bool,
    ) -> Result<Vec<ListedChild>, CaptureError> {
        self.lists.retain(|(tid, _)| tids.contains(tid));
        for tid in tids {
            if !self.lists.iter().any(|(known, _)| known == tid) {
                let opened = open_list(pid, *tid).map_err(CaptureError::reading(pid, "the children"))?;
                self.lists.push((*tid, opened));
            }
        }
        self.list_new(is_known)
    }
}

fn open_list(pid: i32, tid: i32) -> io::Result<File> {
    File::open(format!("/proc/{pid}/task/{tid}/children"))
}

fn parse_ids(list: &File) -> io::Result<Vec<i32>> {
    let (mut text, mut piece) = (Vec::new(), [0; READ_BYTES]);
    loop {
        match list.read_at(&mut piece, text.len() as u64) {
            Ok(count) => {
                text.extend_from_slice(&piece[..count]);
                // The kernel ends a read before an id that does not fit.
                if count < READ_BYTES - ID_BYTES {
                    break;
                }
            }
            // The thread has ended.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound) || is_gone(&error) => break,
            Err(error) => return Err(error),
        }
    }
    let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    Ok(words.filter_map(|word| str::from_utf8(word).ok()?.parse().ok()).collect())
}

fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Inspects a child. `None` if it is a template, or was reaped.
pub(super) fn inspect_child(id: i32) -> io::Result<Option<ListedChild>> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound || is_gone(error);
    let stat = match ProcStat::read(id) {
        Ok(stat) => stat,
        Err(error) if gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let has_ended = match stat.state {
        'Z' => !main_thread::has_only_main_thread_ended(id),
        'X' => return Ok(None),
        _ => false,
    };
    let is_template = || match has_ended {
        true => stat.exit_code == Signal::KILL.as_raw() as u32,
        false => ProcStatus::read(id).is_ok_and(|status| status.tracer != 0),
    };
    if stat.exit_signal == 0 && is_template() {
        return Ok(None);
    }
    if !has_ended {
        return Ok(Some(if stat.state != 'Z' && stat.is_exiting() {
            ListedChild::Exiting
        } else {
            ListedChild::Living(id, stat)
        }));
    }
    match ProcStatus::read(id) {
        Ok(status) => Ok(Some(ListedChild::Unreaped(id, status.namespace_ids.last().copied().unwrap_or(0), stat))),
        Err(error) if gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
