//! What a capture would refuse of the open files of a process that runs, by the functions that decide when it stands. What waits in pipes,
//! sockets and terminals is not looked at: the process goes on with it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use farfork_sys::pidfd;
use farfork_sys::process::{FdDirectory, FdInfo};
use rustix::time::timerfd_gettime;

use super::build::{FOREIGN_OWNER, Threads};
use super::contents::O_ASYNC;
use super::firsts::Firsts;
use super::made::LockHolder;
use super::{Kind, OpenFd, made, object, unread};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::state::root::Root;
use crate::capture::survey::Profile;

/// The open files of a tree, looked at one process after the other.
#[derive(Debug, Default)]
pub(in crate::capture) struct RunningFiles {
    /// An open file is looked at where it is met first, as in a capture.
    firsts: Firsts,
}

/// A process whose files are looked at.
#[derive(Debug, Clone, Copy)]
pub(in crate::capture) struct FileOwningProcess<'a> {
    pub(in crate::capture) pid: i32,
    /// What shows the tree's files.
    pub(in crate::capture) root: Root,
    pub(in crate::capture) fds: &'a [OpenFd],
    pub(in crate::capture) profiles: &'a BTreeMap<i32, Profile>,
}

impl RunningFiles {
    /// What of the files of one more process would be refused.
    pub(in crate::capture) fn refusals(&mut self, of: FileOwningProcess<'_>) -> Result<Vec<Refusal>, CaptureError> {
        let pid = of.pid;
        let infos = FdDirectory::infos(pid).map_err(CaptureError::read(pid, "the open files"))?;
        let links = FdDirectory::links(pid).map_err(CaptureError::read(pid, "the open files"))?;
        let process = pidfd::open(pid).map_err(CaptureError::read(pid, "the open files"))?;
        let mut refusals = Vec::new();
        for fd in of.fds.iter().filter(|fd| !fd.is_standard) {
            let reasons = match infos.info(fd.number) {
                Ok(info) => self.reasons((of, fd), info, (&infos, &links, &process)),
                Err(error) => Err(error),
            };
            match reasons {
                Ok(reasons) => {
                    refusals.extend(reasons.into_iter().map(|why| Refusal::new(object(pid, fd.number), why)))
                }
                // It was closed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(unread(pid, fd.number, error)),
            }
        }
        Ok(refusals)
    }

    fn reasons(
        &mut self,
        (of, fd): (FileOwningProcess<'_>, &OpenFd),
        mut info: FdInfo,
        (infos, links, process): (&FdDirectory, &FdDirectory, &OwnedFd),
    ) -> io::Result<Vec<String>> {
        let (identity, descriptor) = (fd.identity(&info), (of.pid, fd.number));
        match self.firsts.of(identity, descriptor) {
            Ok(_) => return Ok(Vec::new()),
            Err(place) => self.firsts.add(identity, place, (descriptor, 0)),
        }
        let holder = LockHolder::of(of.pid, of.profiles);
        let mut reasons: Vec<String> =
            info.locks.iter().filter_map(|entry| made::lock(holder, fd.number, entry).err()).collect();
        if fd.has_contents() && info.flags & O_ASYNC != 0 {
            let owner = farfork_sys::owner::of_file(fd.copy_of(process)?.as_fd())?;
            let threads = Threads { pid: of.pid, profiles: of.profiles, ids: &BTreeMap::new() };
            reasons.extend(threads.owner(fd.number, &owner).is_none().then(|| FOREIGN_OWNER.to_owned()));
        }
        // Opened since the table was read, where it is not there.
        let is_open = |number: u32, inode: u64| {
            of.fds.iter().any(|other| (other.number, other.inode) == (number, inode))
                || OpenFd::read(links, number).is_ok_and(|now| now.inode == inode)
        };
        match fd.kind {
            Kind::TimerFd => {
                timerfd_gettime(fd.copy_of(process)?)?;
                info = infos.info(fd.number)?;
                reasons.extend(made::timer_fd(&info, info.flags).err());
            }
            Kind::SignalFd => reasons.extend(made::signal_fd(&info, info.flags).err()),
            Kind::Inotify => reasons.extend(made::inotify(of.root, &info, 0, info.flags).err()),
            Kind::Epoll => reasons.extend(made::lost_targets(&info, is_open)),
            _ => {}
        }
        Ok(reasons)
    }
}
