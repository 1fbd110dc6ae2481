//! Open files: what they are, which are refused, what the pause must read of them, and how they stand in a descriptor.
//!
//! fork(2) copies the table of descriptors but shares the open files: position, counter, pipe content go on changing
//! once the parent runs. So all of it is read inside the pause: contents ([`Contents`]) while the process is cloned, the rest
//! when those of the whole tree are known.

mod build;
mod contents;
mod firsts;
mod flights;
mod kind;
mod made;
pub(super) mod open;
pub(super) mod own;
mod running;
mod sockets;
mod streams;
mod terminal;
pub(super) mod versions;
mod watches;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use farfork_sys::process::{FdDirectory, FdInfo};
use farfork_sys::socket_diagnosis::Diagnosis;
use farfork_sys::{pidfd, process};
use farfork_wire::descriptor::FileIdentity;
use rustix::fs::{fstat, readlinkat};

pub(super) use build::{Files, OpenFiles, Threads};
pub(super) use contents::Contents;
pub(super) use flights::Flights;
pub(super) use kind::{DELETED_SUFFIX, Kind, NO_PATH, SHARED_MEMORY_PREFIX};
pub(super) use running::{FileOwningProcess, RunningFiles};
pub(super) use streams::Streams;
pub(super) use terminal::{Seat, describe as describe_terminals, foregrounds, unpaired as unpaired_terminals};

use super::error::{CaptureError, Refusal};
use super::state::root::Root;
use kind::Inode;

/// Most links of `/proc` are shorter, in bytes; others are read once more.
const LINK_BYTES: usize = 128;

/// A process's connections to the daemon, by the inodes of its ends. A child gets others in their place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramSockets {
    /// The one at which the process waits to be told whether it is the parent or a child.
    pub caller: Option<u64>,
    /// The others; a child finds them at their end.
    pub others: Vec<u64>,
    /// Whether files that the process can read are copied in the pause, as deleted ones are.
    pub copies_files: bool,
}

/// A descriptor of another process, without the state of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenFd {
    pub(super) number: u32,
    /// Where its link in /proc leads.
    pub(super) link: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) device: u64,
    pub(super) inode: u64,
    mount: u64,
    is_deleted: bool,
    /// What it was when this was read, of a regular file that its path leads to.
    version: Option<FileIdentity>,
    /// One of the standard streams, or a file that leads where one of them does.
    pub(super) is_standard: bool,
}

/// Every descriptor of a process, ascending. One that is closed meanwhile is left out. `streams`: of the tree whose first
/// process it is not.
pub(super) fn open_fds(
    pid: i32,
    sockets: &ProgramSockets,
    streams: Option<&Streams>,
) -> Result<Vec<OpenFd>, CaptureError> {
    let unread = || CaptureError::read(pid, "the open files");
    let links = FdDirectory::links(pid).map_err(unread())?;
    let numbers = links.numbers().map_err(unread())?;
    let mut fds = Vec::with_capacity(numbers.len());
    for number in numbers {
        match OpenFd::read(&links, number) {
            Ok(fd) => fds.push(OpenFd { kind: sockets.kind_of(&fd, &links).unwrap_or(fd.kind), ..fd }),
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(CaptureError::read(pid, format!("fd {number}"))(source)),
        }
    }
    let own = streams.is_none().then(|| Streams::of(pid, &fds));
    if let Some(streams) = streams.or(own.as_ref()) {
        streams.mark(pid, &mut fds);
    }
    Ok(fds)
}

/// Why a descriptor was not read; where it has been closed since, the process is to be looked at again.
fn unread(pid: i32, number: u32, source: io::Error) -> CaptureError {
    match source.kind() {
        io::ErrorKind::NotFound => CaptureError::Unstable { pid, what: format!("fd {number}") },
        _ => CaptureError::read(pid, format!("fd {number}"))(source),
    }
}

impl ProgramSockets {
    /// The same for a process that descends from the one that may be waiting.
    pub(super) fn of_descendant(&self) -> Self {
        Self {
            caller: None,
            others: self.others.iter().copied().chain(self.caller).collect(),
            copies_files: self.copies_files,
        }
    }

    /// The kind of a socket that is one of these, and of a file that is to be copied.
    fn kind_of(&self, fd: &OpenFd, links: &FdDirectory) -> Option<Kind> {
        if fd.kind == Kind::Regular && self.copies_files && versions::can_be_copied(fd, links) {
            return Some(Kind::Memory);
        }
        let is_caller = self.caller == Some(fd.inode);
        let is_known = fd.kind == Kind::Socket && (is_caller || self.others.contains(&fd.inode));
        is_known.then_some(Kind::Program { is_caller })
    }
}

impl OpenFd {
    pub(super) fn read(links: &FdDirectory, number: u32) -> io::Result<Self> {
        Self::look(links, number, None)
    }

    /// Where `known` tells what it is, only that it is still that.
    fn look(links: &FdDirectory, number: u32, known: Option<&Self>) -> io::Result<Self> {
        let name = number.to_string();
        let link = readlinkat(links, &name, Vec::with_capacity(LINK_BYTES))?.into_bytes();
        let inode = Inode::behind((links, &name), &link)?;
        let is_known = |known: &&Self| {
            (known.device, known.inode, known.mount, &known.link) == (inode.device, inode.number, inode.mount, &link)
        };
        let mut kind = kind::kind((links, &name), &link, &inode);
        match known.filter(is_known) {
            Some(known) if kind.has_path() => kind = known.kind.clone(),
            _ => kind = kind::without_path(&kind, links, &link, &inode).unwrap_or(kind),
        }
        if kind == Kind::Memory && inode.may_be_kernels(&link) {
            kind = kind::of_the_kernels(links, &name, &link).unwrap_or(kind);
        }
        Ok(Self {
            number,
            device: inode.device,
            inode: inode.number,
            mount: inode.mount,
            is_deleted: inode.links == 0,
            version: (kind == Kind::Regular).then(|| inode.version()),
            is_standard: false,
            link,
            kind,
        })
    }

    /// One of a process that stands, of which `fdinfo` tells `info`. `known` is the same from shortly before, which is not looked at
    /// again where that cannot tell anything else; then `links` are needed, and kept.
    fn of_known(
        (pid, number): (i32, u32),
        known: Option<&Self>,
        info: &FdInfo,
        (sockets, links): (&ProgramSockets, &mut Option<FdDirectory>),
    ) -> io::Result<Self> {
        if let Some(known) = known.filter(|known| known.is_surely(info)) {
            return Ok(known.clone());
        }
        let links = match links {
            Some(links) => links,
            None => links.insert(FdDirectory::links(pid)?),
        };
        let fd = Self::look(links, number, known)?;
        let is_standard = known.is_some_and(|known| known.is_standard && known.is_inode_of(&fd));
        Ok(Self { kind: sockets.kind_of(&fd, links).unwrap_or(fd.kind), is_standard, ..fd })
    }

    fn is_inode_of(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether it leads where it did, by what `fdinfo` tells. Inodes without a path are never used twice, and neither
    /// moves what a device's path leads to; files may be renamed or removed meanwhile, and objects of the kernel share an inode.
    fn is_surely(&self, info: &FdInfo) -> bool {
        let is_lasting = match self.kind {
            // A named one has been deleted.
            Kind::Pipe => !self.link.starts_with(b"/"),
            Kind::Socket | Kind::Program { .. } | Kind::Device | Kind::Terminal => true,
            _ => false,
        };
        is_lasting && (self.mount, self.inode) == (info.mount, info.inode)
    }

    /// Whether its number leads where it did.
    fn is_there_still(&self, pid: i32) -> bool {
        let now = FdDirectory::links(pid).and_then(|links| Self::read(&links, self.number));
        now.is_ok_and(|now| (now.device, now.inode, &now.link) == (self.device, self.inode, &self.link))
    }

    /// A copy of it; NotFound where its number was used again meanwhile.
    fn copy_of(&self, process: &OwnedFd) -> io::Result<OwnedFd> {
        let copy = pidfd::get_fd(process, self.number)?;
        let found = fstat(&copy)?;
        let is_it = (found.st_dev, found.st_ino) == (self.device, self.inode);
        is_it.then_some(copy).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether its file's state is shared by fork and goes on changing.
    pub(super) fn has_contents(&self) -> bool {
        match self.kind {
            Kind::Regular
            | Kind::Directory
            | Kind::DeletedDirectory(_)
            | Kind::Pipe
            | Kind::NamedPipe
            | Kind::EventFd
            | Kind::Epoll
            | Kind::TimerFd
            | Kind::SignalFd
            | Kind::Inotify
            | Kind::Process
            | Kind::Socket
            | Kind::Terminal
            | Kind::TerminalMaster
            | Kind::Memory => !self.is_standard,
            Kind::Device | Kind::Program { .. } | Kind::Other(_) => false,
        }
    }

    /// Whether it is a directory that its children find by its path.
    pub(super) fn is_directory_with_path(&self) -> bool {
        self.kind == Kind::Directory && !self.is_standard
    }

    /// Kinds whose openings lead to the same stream when their inode is the same.
    fn is_stream(&self) -> bool {
        matches!(self.kind, Kind::Pipe | Kind::NamedPipe | Kind::Terminal | Kind::Socket)
    }

    fn refusal(&self) -> Option<String> {
        if self.is_standard {
            return None;
        }
        let link = String::from_utf8_lossy(&self.link);
        match &self.kind {
            Kind::Regular if self.is_deleted => {
                Some(format!("{link} was deleted, so that no other node can open it; close it first"))
            }
            Kind::Regular | Kind::Directory | Kind::NamedPipe if str::from_utf8(&self.link).is_err() => {
                Some(format!("the path {link} is not UTF-8"))
            }
            Kind::Other(what) => Some(what.clone()),
            _ => None,
        }
    }
}

/// What of the open files of a process cannot be carried, by name. `root` shows the tree's files.
pub(super) fn refusals((pid, root): (i32, Root), fds: &[OpenFd]) -> Result<Vec<Refusal>, CaptureError> {
    let mut refusals = Vec::new();
    for fd in fds {
        refusals.extend(fd.refusal().map(|reason| Refusal::new(object(pid, fd.number), reason)));
    }
    refusals.extend(strange_sockets(pid, fds)?);
    refusals.extend(terminal::refusals((pid, root), fds)?);
    Ok(refusals)
}

/// A process that asked for its own capture waits at a socket, where its children will be answered: if it has none of
/// that inode, it was another process that asked.
pub(super) fn missing_caller(pid: i32, fds: &[OpenFd], sockets: &ProgramSockets) -> Option<Refusal> {
    let inode = sockets.caller?;
    let waits = fds.iter().any(|fd| fd.kind == Kind::Program { is_caller: true } && !fd.is_standard);
    let reason = format!("it does not wait at the socket (inode {inode}) that a checkpoint was asked for at");
    (!waits).then(|| Refusal::new(format!("pid {pid}"), reason))
}

fn object(pid: i32, number: u32) -> String {
    format!("pid {pid}, fd {number}")
}

/// Pidfds of processes that are not of the tree whose first process is `first`: they are not in a child's container.
pub(super) fn foreign_pidfds(first: i32, pid: i32, fds: &[OpenFd]) -> Result<Vec<Refusal>, CaptureError> {
    let mut refusals = Vec::new();
    for fd in fds.iter().filter(|fd| fd.kind == Kind::Process && !fd.is_standard) {
        let stands_for = match process::FdInfo::read(pid, fd.number) {
            Ok(info) => info.process,
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(CaptureError::read(pid, format!("fd {}", fd.number))(source)),
        };
        if !stands_for.is_some_and(|other| descends_from(other, first)) {
            refusals.push(Refusal::new(object(pid, fd.number), FOREIGN_PIDFD));
        }
    }
    Ok(refusals)
}

const FOREIGN_PIDFD: &str =
    "it is a pidfd of another process, which does not descend from the one captured: not carried; close it first";

fn descends_from(mut pid: i32, first: i32) -> bool {
    while pid > 0 && pid != first {
        pid = process::Stat::read(pid).map_or(0, |stat| stat.parent);
    }
    pid == first
}

/// Sockets of kinds that are not carried, whatever they are doing.
fn strange_sockets(pid: i32, fds: &[OpenFd]) -> Result<Vec<Refusal>, CaptureError> {
    let mut refusals = Vec::new();
    for (fd, copy) in sockets_of(pid, fds).map_err(CaptureError::read(pid, "the sockets"))? {
        let reason = sockets::refusal(copy.as_fd()).map_err(CaptureError::read(pid, format!("fd {}", fd.number)))?;
        refusals.extend(reason.map(|reason| Refusal::new(object(pid, fd.number), reason)));
    }
    Ok(refusals)
}

/// Numbers of sockets that have an address of an interface of their network.
pub(super) fn interface_sockets(pid: i32, fds: &[OpenFd]) -> Result<Vec<u32>, CaptureError> {
    let mut numbers = Vec::new();
    for (fd, copy) in sockets_of(pid, fds).map_err(CaptureError::read(pid, "the sockets"))? {
        let unread = CaptureError::read(pid, format!("fd {}", fd.number));
        numbers.extend(sockets::is_of_an_interface(copy.as_fd()).map_err(unread)?.then_some(fd.number));
    }
    Ok(numbers)
}

/// Asks the kernel about sockets of a process, where it has such whose other end only the kernel knows.
pub(super) fn diagnosis(pid: i32, fds: &[OpenFd]) -> Result<Option<Diagnosis>, CaptureError> {
    let mut all = sockets_of(pid, fds).map_err(CaptureError::read(pid, "the sockets"))?;
    if !all.any(|(_, copy)| sockets::has_hidden_end(copy.as_fd())) {
        return Ok(None);
    }
    Diagnosis::open(pid).map(Some).map_err(CaptureError::read(pid, "the sockets"))
}

/// The sockets beyond the standard streams, each with a copy of the descriptor. One that is closed meanwhile is left out; since the
/// process may go on, and what it closes is open as long as a copy is, each is to be dropped before the next.
fn sockets_of(pid: i32, fds: &[OpenFd]) -> io::Result<impl Iterator<Item = (&OpenFd, OwnedFd)>> {
    let mut wanted = fds.iter().filter(|fd| fd.kind == Kind::Socket && !fd.is_standard).peekable();
    let process = wanted.peek().map(|_| pidfd::open(pid)).transpose()?;
    Ok(wanted.filter_map(move |fd| Some((fd, fd.copy_of(process.as_ref()?).ok()?))))
}

/// What a person should know of the open files of processes, the first one's first, although all of them are carried.
pub(super) fn notes(processes: &[(i32, Vec<OpenFd>)]) -> Result<Vec<String>, CaptureError> {
    let mut ends = Vec::new();
    for (pid, fds) in processes {
        ends.extend(pipe_ends(*pid, fds)?.into_iter().map(|(fd, access)| (*pid, fd, access)));
    }
    let has = |inode: u64, mode: u32| ends.iter().any(|(_, fd, access)| fd.inode == inode && *access == mode);
    let is_two_way = |inode: u64| has(inode, O_RDWR);
    let leads_out = |(_, fd, _): &&(i32, &OpenFd, u32)| {
        !is_two_way(fd.inode) && (!has(fd.inode, O_RDONLY) || !has(fd.inode, O_WRONLY))
    };
    let first = processes.first().map(|(pid, _)| *pid);
    let note = |(pid, fd, _): &(i32, &OpenFd, u32)| {
        let (number, link) = (fd.number, String::from_utf8_lossy(&fd.link));
        let whose = if Some(*pid) == first { String::new() } else { format!("pid {pid}, ") };
        format!("{whose}fd {number}: {link} leads out of the process; its children find the other end closed")
    };
    Ok(ends.iter().filter(leads_out).map(note).collect())
}

/// Descriptors of pipes beyond the standard streams, with their access mode.
fn pipe_ends(pid: i32, fds: &[OpenFd]) -> Result<Vec<(&OpenFd, u32)>, CaptureError> {
    let mut ends = Vec::new();
    for fd in fds.iter().filter(|fd| matches!(fd.kind, Kind::Pipe | Kind::NamedPipe) && !fd.is_standard) {
        match process::FdInfo::read(pid, fd.number) {
            Ok(info) => ends.push((fd, info.flags & O_ACCMODE)),
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(CaptureError::read(pid, format!("fd {}", fd.number))(source)),
        }
    }
    Ok(ends)
}

pub(super) const O_ACCMODE: u32 = 3;
pub(super) const O_RDONLY: u32 = 0;
pub(super) const O_WRONLY: u32 = 1;
pub(super) const O_RDWR: u32 = 2;
