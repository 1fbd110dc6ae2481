//! Checks the open files of a running process for what a capture would refuse, with the functions that decide in the pause.
//! The data in pipes, sockets and terminals is not checked, because the process keeps changing it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use farfork_sys::pidfd;
use farfork_sys::process::{EpollEntry, EpollSlot, FdDirectory, FdInfo, TaskFd};
use rustix::time::timerfd_gettime;

use super::anon_inode::LockHolder;
use super::builder::{FOREIGN_OWNER_REASON, PidTranslation, bound_path_refusal};
use super::epoll_targets::{self, WatchingEpoll};
use super::open_file_index::{KnownOpenFile, OpenFileIndex};
use super::states::{self, O_ASYNC};
use super::{FdKind, OpenFd, anon_inode, fd_object, fd_read_error, sockets};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::state::tree_root::TreeRoot;
use crate::capture::survey::ThreadProfile;

/// The open files of a tree, checked one process after the other.
#[derive(Debug, Default)]
pub(in crate::capture) struct RunningFileCheck {
    /// Each open file is checked with its first descriptor, as in a capture.
    index: OpenFileIndex,
    epolls: Vec<WatchingEpoll>,
    sockets: Vec<TaskFd>,
}

/// The findings of a check about the registrations of epoll instances.
#[derive(Debug, Default)]
pub(in crate::capture) struct EpollTargetReport {
    pub(in crate::capture) refusals: Vec<Refusal>,
    pub(in crate::capture) notes: Vec<String>,
}

/// A process whose files are checked.
#[derive(Debug, Clone, Copy)]
pub(in crate::capture) struct CheckedProcess<'a> {
    pub(in crate::capture) pid: i32,
    /// Root of the tree.
    pub(in crate::capture) root: TreeRoot,
    pub(in crate::capture) fds: &'a [OpenFd],
    pub(in crate::capture) profiles: &'a BTreeMap<i32, ThreadProfile>,
}

/// A running process whose open files can be inspected.
#[derive(Debug)]
struct ProcessHandles {
    infos: FdDirectory,
    /// Pidfd of the process.
    process: OwnedFd,
}

impl ProcessHandles {
    fn open(pid: i32) -> io::Result<Self> {
        Ok(Self { infos: FdDirectory::open_infos(pid)?, process: pidfd::open(pid)? })
    }
}

impl RunningFileCheck {
    /// Checks the files of one more process.
    pub(in crate::capture) fn refusals(&mut self, of: CheckedProcess<'_>) -> Result<Vec<Refusal>, CaptureError> {
        let pid = of.pid;
        let handles = ProcessHandles::open(pid).map_err(CaptureError::reading(pid, "the open files"))?;
        let mut refusals = Vec::new();
        for fd in of.fds {
            if fd.is_standard_stream {
                self.index.add_stream(KnownOpenFile { first: TaskFd { pid, fd: fd.number }, index: 0 });
                continue;
            }
            let reasons = match handles.infos.info(fd.number) {
                Ok(info) => self.fd_refusals(of, fd, info, &handles),
                Err(error) => Err(error),
            };
            match reasons {
                Ok(reasons) => {
                    refusals.extend(reasons.into_iter().map(|why| Refusal::new(fd_object(pid, fd.number), why)))
                }
                // The descriptor was closed during the check.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(fd_read_error(pid, fd.number, error)),
            }
        }
        Ok(refusals)
    }

    /// Refuses epoll instances that watch a file that no process of the tree has open. Call it after the last process. A
    /// registration that was removed since its instance was read is ignored. If a socket has unread data, the file may be in
    /// flight in it, which only a capture finds out: a note names the instance.
    pub(in crate::capture) fn check_epoll_targets(&self) -> EpollTargetReport {
        let is_found = |(entry, slot): &(&EpollEntry, EpollSlot)| {
            let number = TaskFd { pid: slot.epoll.pid, fd: entry.number };
            epoll_targets::is_target(number, *slot).unwrap_or(true)
                || self.index.find_epoll_target(entry, *slot).is_some()
        };
        let lost = |epoll: &WatchingEpoll| {
            let entry = epoll.slots().find(|slot| !is_found(slot)).map(|(entry, _)| entry);
            entry.map(|entry| epoll.refusal(entry))
        };
        let refusals: Vec<Refusal> = self.epolls.iter().filter_map(lost).collect();
        if refusals.is_empty() || !self.sockets.iter().any(|socket| has_unread_messages(*socket)) {
            return EpollTargetReport { refusals, notes: Vec::new() };
        }
        let note = |refusal: Refusal| format!("{refusal}; carried if the file is in flight in a socket (SCM_RIGHTS)");
        EpollTargetReport { refusals: Vec::new(), notes: refusals.into_iter().map(note).collect() }
    }

    fn fd_refusals(
        &mut self,
        of: CheckedProcess<'_>,
        fd: &OpenFd,
        mut info: FdInfo,
        handles: &ProcessHandles,
    ) -> io::Result<Vec<String>> {
        let ProcessHandles { infos, process } = handles;
        let (identity, descriptor) = (fd.open_file_key(&info), TaskFd { pid: of.pid, fd: fd.number });
        let holder = LockHolder::new(of.pid, of.profiles);
        let lock_refusal = |entry| anon_inode::build_lock(holder, fd, entry).err();
        match self.index.find(identity, descriptor) {
            Ok(known) if known.first.pid == of.pid => return Ok(Vec::new()),
            Ok(_) => return Ok(info.process_locks().filter_map(lock_refusal).collect()),
            Err(position) => self.index.insert(identity, position, KnownOpenFile { first: descriptor, index: 0 }),
        }
        let mut reasons: Vec<String> = info.locks.iter().filter_map(lock_refusal).collect();
        if fd.has_shared_state() && (info.flags & O_ASYNC != 0 || fd.kind == FdKind::Socket) {
            let owner = states::read_signal_owner(fd.duplicate(process)?.as_fd(), info.flags)?;
            let threads = PidTranslation { pid: of.pid, profiles: of.profiles, inner_ids: &BTreeMap::new() };
            let is_foreign = owner.is_some_and(|owner| threads.translate_owner(fd.number, &owner).is_none());
            reasons.extend(is_foreign.then(|| FOREIGN_OWNER_REASON.to_owned()));
        }
        match fd.kind {
            FdKind::TimerFd => {
                timerfd_gettime(fd.duplicate(process)?)?;
                info = infos.info(fd.number)?;
                reasons.extend(anon_inode::build_timer_fd(&info, info.flags).err());
            }
            FdKind::SignalFd => reasons.extend(anon_inode::build_signal_fd(&info, info.flags).err()),
            FdKind::Inotify => reasons.extend(anon_inode::build_inotify(of.root, &info, 0, info.flags).err()),
            FdKind::Socket => {
                self.sockets.push(descriptor);
                let path = sockets::own_bound_path(fd.duplicate(process)?.as_fd())?;
                reasons.extend(path.and_then(|path| bound_path_refusal(of.root, &path)));
            }
            FdKind::Epoll => {
                self.epolls.push(WatchingEpoll { open_file: 0, first: descriptor, entries: info.epoll });
            }
            _ => {}
        }
        Ok(reasons)
    }
}

/// Whether a Unix socket has unread messages, or has reached the end of its stream. False if it was closed.
fn has_unread_messages(socket: TaskFd) -> bool {
    let copy = pidfd::open(socket.pid).and_then(|process| pidfd::get_fd(&process, socket.fd));
    copy.is_ok_and(|copy| {
        sockets::is_unix(copy.as_fd()).unwrap_or(false)
            && farfork_sys::poll::poll_read(copy.as_fd()).is_ok_and(|readiness| readiness.is_some())
    })
}
