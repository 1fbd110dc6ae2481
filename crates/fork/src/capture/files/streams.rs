//! The standard streams of a tree of processes: where those of the first one lead out of it.
//!
//! A stream that leads to another process of the tree is a pipe like others. What it was before it was led there is what the
//! process at the pipe's other end has under the same number:
//!
//! ```text
//!  bash ─ 1 ─▶ pipe ─▶ 0 ─ tee ─ 1 ─▶ terminal        exec > >(tee log): the tree's output is that of tee
//! ```

use std::io;

use farfork_sys::process::{self, FdDirectory};

use super::{Kind, O_ACCMODE, O_RDWR, OpenFd};
use crate::capture::error::CaptureError;

/// The last of the three numbers.
const LAST: u32 = 2;

/// The standard streams of a tree of processes.
#[derive(Debug, Clone)]
pub(in crate::capture) struct Streams {
    /// The first process, or its template.
    first: i32,
    /// Who has each of them, and as what; the descriptor's number says which it is.
    all: Vec<(i32, OpenFd)>,
    /// Those of the first process that lead to others of the tree: their numbers, devices and inodes.
    inside: Vec<(u32, u64, u64)>,
}

/// An end of a pipe.
struct End {
    pid: i32,
    number: u32,
    inode: u64,
    access: u32,
}

impl Streams {
    /// Those of `pid`, which has these descriptors, if they lead out of its tree.
    pub(in crate::capture) fn of(pid: i32, fds: &[OpenFd]) -> Self {
        let all = fds.iter().filter(|fd| fd.number <= LAST).map(|fd| (pid, fd.clone())).collect();
        Self { first: pid, all, inside: Vec::new() }
    }

    /// The same where they may lead to each other of `processes`, the first one among them. Who ends meanwhile has none.
    pub(in crate::capture) fn led_inside(mut self, processes: &[i32]) -> Result<Self, CaptureError> {
        if !self.may_lead_inside() {
            return Ok(self);
        }
        let mut ends = Vec::new();
        for pid in processes {
            match pipe_ends(*pid) {
                Ok(own) => ends.extend(own),
                Err(_) if *pid != self.first => {}
                Err(source) => return Err(CaptureError::read(*pid, "the open files")(source)),
            }
        }
        for (pid, fd) in std::mem::take(&mut self.all) {
            let Some(holder) = outermost((pid, fd.number), &ends) else {
                self.all.push((pid, fd));
                continue;
            };
            self.inside.push((fd.number, fd.device, fd.inode));
            let read = |holder: i32| OpenFd::read(&FdDirectory::links(holder)?, fd.number).map(|fd| (holder, fd));
            self.all.extend(holder.and_then(|holder| read(holder).ok()));
        }
        Ok(self)
    }

    /// Whether any leads into a pipe.
    pub(in crate::capture) fn may_lead_inside(&self) -> bool {
        self.all.iter().any(|(_, fd)| fd.kind == Kind::Pipe)
    }

    /// Whether any leads to another process of the tree.
    pub(in crate::capture) fn lead_inside(&self) -> bool {
        !self.inside.is_empty()
    }

    /// The same of templates, by `template_of`, when that of the first process has these descriptors; `None` where its streams have
    /// been led elsewhere since.
    pub(in crate::capture) fn of_templates(
        &self,
        fds: &[OpenFd],
        template_of: impl Fn(i32) -> Option<i32>,
    ) -> Option<Self> {
        let now = Self::of(template_of(self.first)?, fds);
        let leads = |(number, device, inode): (u32, u64, u64)| {
            now.all.iter().any(|(_, fd)| (fd.number, fd.device, fd.inode) == (number, device, inode))
        };
        let is_known = |fd: &OpenFd| {
            let before = self.all.iter().filter(|(pid, _)| *pid == self.first).map(|(_, fd)| (fd.number, fd.inode));
            before
                .chain(self.inside.iter().map(|(number, _, inode)| (*number, *inode)))
                .any(|one| one == (fd.number, fd.inode))
        };
        let is_as_before = self.inside.iter().all(|one| leads(*one))
            && now.all.iter().all(|(_, fd)| fd.kind != Kind::Pipe || is_known(fd));
        let leads_out = |(_, fd): &(i32, OpenFd)| self.inside.iter().all(|(number, ..)| *number != fd.number);
        let of_others = self.all.iter().filter(|(pid, _)| *pid != self.first);
        let of_others = of_others.map(|(pid, fd)| Some((template_of(*pid)?, fd.clone())));
        let of_others: Vec<(i32, OpenFd)> = of_others.collect::<Option<_>>()?;
        let all = now.all.iter().filter(|one| leads_out(one)).cloned().chain(of_others).collect();
        is_as_before.then(|| Self { first: now.first, all, inside: self.inside.clone() })
    }

    /// The first process.
    pub(in crate::capture) fn first(&self) -> i32 {
        self.first
    }

    /// Which of them a descriptor of a process leads to.
    pub(super) fn led_to(&self, pid: i32, fd: &OpenFd) -> impl Iterator<Item = u32> {
        let leads = move |(of, stream): &&(i32, OpenFd)| leads_to((pid, fd), (*of, stream));
        self.all.iter().filter(leads).map(|(_, stream)| stream.number)
    }

    /// Numbers 0, 1 and 2 are standard streams, whatever they lead to: a parent that was started in the background has
    /// `/dev/null` there, and its children are still to be talked to. So is what shares their open file, and a pipe,
    /// terminal or socket that is the same as theirs.
    pub(in crate::capture) fn mark(&self, pid: i32, fds: &mut [OpenFd]) {
        for fd in fds.iter_mut() {
            let is_led = self.led_to(pid, fd).next().is_some();
            fd.is_standard = is_led;
        }
    }
}

/// Whether a descriptor leads where a standard stream does, each given with its process.
fn leads_to((pid, fd): (i32, &OpenFd), (of, stream): (i32, &OpenFd)) -> bool {
    if (pid, fd.number) == (of, stream.number) {
        return true;
    }
    // `/dev/null` under another number is meant as such, even where it is the same open file.
    let is_same_inode = (fd.device, fd.inode) == (stream.device, stream.inode) && fd.kind != Kind::Device;
    let is_same_file = || process::is_one_open_file((pid, fd.number), (of, stream.number)).unwrap_or(false);
    is_same_inode && (fd.is_stream() || is_same_file())
}

/// The ends of pipes that a process has.
fn pipe_ends(pid: i32) -> io::Result<Vec<End>> {
    let (links, infos) = (FdDirectory::links(pid)?, FdDirectory::infos(pid)?);
    let mut ends = Vec::new();
    for number in links.numbers()? {
        let Ok(fd) = OpenFd::read(&links, number) else { continue };
        if fd.kind != Kind::Pipe {
            continue;
        }
        let Ok(info) = infos.info(number) else { continue };
        ends.push(End { pid, number, inode: fd.inode, access: info.flags & O_ACCMODE });
    }
    Ok(ends)
}

/// Who has the stream that a descriptor of the first process was, before it was led to others of the tree; `None` within where nobody has
/// it any more, and `None` where it is what it was.
fn outermost(start: (i32, u32), ends: &[End]) -> Option<Option<i32>> {
    let (mut pid, number) = start;
    let mut seen = vec![pid];
    loop {
        let end = ends.iter().find(|end| (end.pid, end.number) == (pid, number));
        let Some(other) = end.and_then(|end| other_end(end, ends)) else {
            return (seen.len() > 1).then_some(Some(pid));
        };
        if seen.contains(&other) {
            return Some(None);
        }
        seen.push(other);
        pid = other;
    }
}

/// Who has the other end of a pipe: by preference another process, and as a stream of its own.
fn other_end(end: &End, ends: &[End]) -> Option<i32> {
    let is_other = |one: &&End| one.inode == end.inode && one.access != end.access && one.access != O_RDWR;
    let others = ends.iter().filter(is_other).filter(|_| end.access != O_RDWR);
    others.min_by_key(|one| (one.pid == end.pid, one.number > LAST)).map(|one| one.pid)
}

#[cfg(test)]
mod tests {
    use super::super::{O_RDONLY, O_WRONLY};
    use super::*;

    fn end(pid: i32, number: u32, inode: u64, access: u32) -> End {
        End { pid, number, inode, access }
    }

    #[test]
    fn a_stream_is_followed_through_the_tree() {
        let out = [end(1, 1, 7, O_WRONLY), end(1, 0, 5, O_RDONLY)];
        assert_eq!(outermost((1, 1), &out), None, "nobody of the tree reads it");
        let one = [end(1, 1, 7, O_WRONLY), end(2, 0, 7, O_RDONLY), end(2, 1, 8, O_WRONLY)];
        assert_eq!(outermost((1, 1), &one), Some(Some(2)));
        let two = [end(1, 1, 7, O_WRONLY), end(2, 0, 7, O_RDONLY), end(2, 1, 8, O_WRONLY), end(3, 0, 8, O_RDONLY)];
        assert_eq!(outermost((1, 1), &two), Some(Some(3)));
        let input = [end(1, 0, 7, O_RDONLY), end(2, 1, 7, O_WRONLY)];
        assert_eq!(outermost((1, 0), &input), Some(Some(2)));
    }

    #[test]
    fn a_stream_that_leads_back_is_no_stream() {
        let own = [end(1, 1, 7, O_WRONLY), end(1, 9, 7, O_RDONLY)];
        assert_eq!(outermost((1, 1), &own), Some(None));
        let round = [end(1, 1, 7, O_WRONLY), end(2, 0, 7, O_RDONLY), end(2, 1, 8, O_WRONLY), end(1, 5, 8, O_RDONLY)];
        assert_eq!(outermost((1, 1), &round), Some(None));
        let both = [end(1, 1, 7, O_RDWR), end(2, 0, 7, O_RDONLY)];
        assert_eq!(outermost((1, 1), &both), None, "open in both directions");
    }

    #[test]
    fn who_reads_is_preferred_to_who_merely_has_an_end() {
        let ends = [end(1, 1, 7, O_WRONLY), end(1, 9, 7, O_RDONLY), end(4, 8, 7, O_RDONLY), end(3, 0, 7, O_RDONLY)];
        assert_eq!(outermost((1, 1), &ends), Some(Some(3)));
    }
}
