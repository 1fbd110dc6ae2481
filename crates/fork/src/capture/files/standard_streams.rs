//! The standard streams of a tree: the files outside the tree that descriptors 0, 1 and 2 of its first process lead to.
//!
//! A descriptor that leads to another process of the tree is an ordinary pipe. Then the standard stream is the descriptor of
//! the same number in the process at the pipe's other end.

use std::io;
use std::os::fd::AsFd;

use farfork_sys::pidfd;
use farfork_sys::process::{self, FdDirectory, TaskFd};

use super::{FdKind, O_ACCMODE, O_RDWR, OpenFd, sockets};
use crate::capture::error::CaptureError;

/// The last standard stream: 2, standard error.
const STREAM_FD_MAX: u32 = 2;

//  bash ─ 1 ─▶ pipe ─▶ 0 ─ tee ─ 1 ─▶ terminal        exec > >(tee log): the tree's output is the output of tee
/// The standard streams of a tree of processes.
#[derive(Debug, Clone)]
pub(in crate::capture) struct TreeStreams {
    /// The tree's first process.
    root_pid: i32,
    streams: Vec<TreeStream>,
}

#[derive(Debug, Clone)]
struct TreeStream {
    /// The descriptor of the first process.
    inner: OpenFd,
    /// The process whose descriptor of this number leads out of the tree: usually the first process itself. `None` if the
    /// stream was redirected into the tree, and no process has the original stream.
    outer: Option<StreamHolder>,
}

/// A process that has a standard stream of the tree.
#[derive(Debug, Clone)]
struct StreamHolder {
    pid: i32,
    fd: OpenFd,
}

/// An end of a pipe.
struct PipeEnd {
    pid: i32,
    number: u32,
    inode: u64,
    access: u32,
}

impl TreeStreams {
    /// Returns the streams of process `pid`, whose descriptors are `fds`. Assumes that the streams lead out of the tree.
    pub(in crate::capture) fn from_fds(pid: i32, fds: &[OpenFd]) -> Self {
        let own = fds.iter().filter(|fd| fd.number <= STREAM_FD_MAX && !fd.is_self_made(pid)).cloned();
        Self {
            root_pid: pid,
            streams: own
                .map(|own| TreeStream { outer: Some(StreamHolder { pid, fd: own.clone() }), inner: own })
                .collect(),
        }
    }

    /// Resolves streams that lead to other processes of the tree. `processes` lists the tree; it is called only if a stream
    /// is a pipe. Ignores processes that end during the call.
    pub(in crate::capture) fn resolve_inner_pipes(
        mut self,
        processes: impl FnOnce() -> Result<Vec<i32>, CaptureError>,
    ) -> Result<Self, CaptureError> {
        if !self.streams.iter().any(|stream| stream.inner.kind == FdKind::Pipe) {
            return Ok(self);
        }
        let mut ends = Vec::new();
        for pid in processes()? {
            match list_pipe_ends(pid) {
                Ok(own) => ends.extend(own),
                Err(_) if pid != self.root_pid => {}
                Err(source) => return Err(CaptureError::reading(pid, "the open files")(source)),
            }
        }
        for TreeStream { inner, outer } in &mut self.streams {
            let holder = find_outer_holder(self.root_pid, inner.number, &ends);
            if holder != Some(self.root_pid) {
                *outer = holder.and_then(|pid| StreamHolder::read(pid, inner.number).ok());
            }
        }
        Ok(self)
    }

    /// Whether a stream leads to another process of the tree.
    pub(in crate::capture) fn has_inner_stream(&self) -> bool {
        self.streams.iter().any(|stream| stream.is_inner(self.root_pid))
    }

    /// Updates the streams to the present descriptors of the first process. Returns `None` if its streams were redirected
    /// since the survey.
    pub(in crate::capture) fn refresh(&self, fds: &[OpenFd]) -> Option<Self> {
        let mut now = Self::from_fds(self.root_pid, fds);
        for before in self.streams.iter().filter(|stream| stream.is_inner(self.root_pid)) {
            let stream = now.streams.iter_mut().find(|stream| stream.inner.has_same_target(&before.inner))?;
            stream.outer.clone_from(&before.outer);
        }
        // A new pipe may lead into the tree.
        let is_known = |own: &OpenFd| self.streams.iter().any(|before| before.inner.has_same_target(own));
        now.streams.iter().all(|stream| stream.inner.kind != FdKind::Pipe || is_known(&stream.inner)).then_some(now)
    }

    /// The first process.
    pub(in crate::capture) fn root_pid(&self) -> i32 {
        self.root_pid
    }

    /// Returns the numbers of the streams that a descriptor of a process leads to.
    pub(super) fn matching_streams(&self, pid: i32, fd: &OpenFd) -> impl Iterator<Item = u32> {
        let outer = self.streams.iter().filter_map(|stream| stream.outer.as_ref());
        outer.filter(move |holder| holder.has_same_stream(pid, fd)).map(|holder| holder.fd.number)
    }

    /// Marks the descriptors that are standard streams. Even `/dev/null` counts as one, because children of a parent that
    /// was started in the background must be reachable. Also marks descriptors with the same open file as a stream, and
    /// pipes, terminals and sockets with the same inode.
    pub(in crate::capture) fn mark_standard(&self, pid: i32, fds: &mut [OpenFd]) {
        for fd in fds.iter_mut() {
            let is_led = self.matching_streams(pid, fd).next().is_some();
            fd.is_standard_stream = is_led;
        }
    }
}

impl TreeStream {
    fn is_inner(&self, first: i32) -> bool {
        self.outer.as_ref().is_none_or(|holder| holder.pid != first)
    }
}

impl StreamHolder {
    fn read(pid: i32, number: u32) -> io::Result<Self> {
        Ok(Self { pid, fd: OpenFd::read(&FdDirectory::open_links(pid)?, number)? })
    }

    /// Whether a descriptor of process `pid` leads to the same file as the stream.
    fn has_same_stream(&self, pid: i32, fd: &OpenFd) -> bool {
        let stream = &self.fd;
        let (checked, held) = (TaskFd { pid, fd: fd.number }, TaskFd { pid: self.pid, fd: stream.number });
        if checked == held {
            return true;
        }
        // `/dev/null` under another number counts as another file, even if it is the same open file.
        let is_same_inode = (fd.device, fd.inode) == (stream.device, stream.inode) && fd.kind != FdKind::Device;
        let is_same_file = || process::is_same_open_file_across(checked, held).unwrap_or(false);
        is_same_inode && (fd.has_one_stream_per_inode() || is_same_file())
    }
}

impl OpenFd {
    /// Whether the process itself made the file, so that it is no stream. In a process that was started without streams, the
    /// first files that it opens get the numbers 0, 1 and 2.
    fn is_self_made(&self, pid: i32) -> bool {
        match &self.kind {
            FdKind::EventFd | FdKind::Epoll | FdKind::TimerFd | FdKind::SignalFd | FdKind::Inotify | FdKind::PidFd => {
                true
            }
            FdKind::Directory | FdKind::DeletedDirectory(_) | FdKind::TerminalMaster | FdKind::DaemonSocket { .. } => {
                true
            }
            FdKind::Other(_) => self.link.starts_with(b"anon_inode:"),
            FdKind::Socket => pidfd::open(pid)
                .and_then(|process| self.duplicate(&process))
                .and_then(|socket| sockets::is_created_by(socket.as_fd(), pid))
                .unwrap_or(false),
            FdKind::Regular | FdKind::Pipe | FdKind::NamedPipe | FdKind::Memory | FdKind::Device | FdKind::Terminal => {
                false
            }
        }
    }

    /// Whether both have the same number and inode.
    fn has_same_target(&self, other: &Self) -> bool {
        (self.number, self.device, self.inode) == (other.number, other.device, other.inode)
    }
}

/// The pipe ends of a process.
fn list_pipe_ends(pid: i32) -> io::Result<Vec<PipeEnd>> {
    let (links, infos) = (FdDirectory::open_links(pid)?, FdDirectory::open_infos(pid)?);
    let mut ends = Vec::new();
    for number in links.numbers()? {
        let Ok(fd) = OpenFd::read(&links, number) else { continue };
        if fd.kind != FdKind::Pipe {
            continue;
        }
        let Ok(info) = infos.info(number) else { continue };
        ends.push(PipeEnd { pid, number, inode: fd.inode, access: info.flags & O_ACCMODE });
    }
    Ok(ends)
}

/// Follows pipes from descriptor `number` of the first process, to find the process whose descriptor of that number leads
/// out of the tree. Returns the first process if its own descriptor leads out, and `None` if the pipes form a cycle.
fn find_outer_holder(first: i32, number: u32, ends: &[PipeEnd]) -> Option<i32> {
    let mut pid = first;
    let mut seen = vec![pid];
    loop {
        let end = ends.iter().find(|end| (end.pid, end.number) == (pid, number));
        let Some(other) = end.and_then(|end| find_peer_process(end, ends)) else {
            return Some(pid);
        };
        if seen.contains(&other) {
            return None;
        }
        seen.push(other);
        pid = other;
    }
}

/// Returns the process with the other end of a pipe. Prefers a process other than the one with `end`, then a process that
/// has the other end as a standard stream.
fn find_peer_process(end: &PipeEnd, ends: &[PipeEnd]) -> Option<i32> {
    let is_other = |one: &&PipeEnd| one.inode == end.inode && one.access != end.access && one.access != O_RDWR;
    let others = ends.iter().filter(is_other).filter(|_| end.access != O_RDWR);
    others.min_by_key(|one| (one.pid == end.pid, one.number > STREAM_FD_MAX)).map(|one| one.pid)
}

#[cfg(test)]
mod tests {
    use super::super::{O_RDONLY, O_WRONLY};
    use super::*;

    fn end(pid: i32, number: u32, inode: u64, access: u32) -> PipeEnd {
        PipeEnd { pid, number, inode, access }
    }

    #[test]
    fn the_outer_end_of_a_stream_is_found_through_the_tree() {
        let out = [end(1, 1, 7, O_WRONLY), end(1, 0, 5, O_RDONLY)];
        assert_eq!(find_outer_holder(1, 1, &out), Some(1), "no process of the tree reads it");
        let one = [end(1, 1, 7, O_WRONLY), end(2, 0, 7, O_RDONLY), end(2, 1, 8, O_WRONLY)];
        assert_eq!(find_outer_holder(1, 1, &one), Some(2));
        let two = [end(1, 1, 7, O_WRONLY), end(2, 0, 7, O_RDONLY), end(2, 1, 8, O_WRONLY), end(3, 0, 8, O_RDONLY)];
        assert_eq!(find_outer_holder(1, 1, &two), Some(3));
        let input = [end(1, 0, 7, O_RDONLY), end(2, 1, 7, O_WRONLY)];
        assert_eq!(find_outer_holder(1, 0, &input), Some(2));
    }

    #[test]
    fn a_stream_that_returns_to_its_process_has_no_outer_end() {
        let own = [end(1, 1, 7, O_WRONLY), end(1, 9, 7, O_RDONLY)];
        assert_eq!(find_outer_holder(1, 1, &own), None);
        let round = [end(1, 1, 7, O_WRONLY), end(2, 0, 7, O_RDONLY), end(2, 1, 8, O_WRONLY), end(1, 5, 8, O_RDONLY)];
        assert_eq!(find_outer_holder(1, 1, &round), None);
        let both = [end(1, 1, 7, O_RDWR), end(2, 0, 7, O_RDONLY)];
        assert_eq!(find_outer_holder(1, 1, &both), Some(1), "open in both directions");
    }

    #[test]
    fn a_process_that_reads_standard_input_is_preferred() {
        let ends = [end(1, 1, 7, O_WRONLY), end(1, 9, 7, O_RDONLY), end(4, 8, 7, O_RDONLY), end(3, 0, 7, O_RDONLY)];
        assert_eq!(find_outer_holder(1, 1, &ends), Some(3));
    }
}
