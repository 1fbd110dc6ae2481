//! Open files: their kinds, which of them are refused, what the pause must read, and their entries in a descriptor.
//!
//! fork(2) copies the descriptor table but shares the open files: positions, counters and pipe contents change once the
//! parent runs. So the files are read in the pause. Their states (`OpenFileStates`) are read while the process is cloned.
//! `tree_files` builds the files when the states of the whole tree are known.

mod anon_inode;
mod builder;
mod closed_ends;
mod epoll_targets;
mod fd_kind;
mod inflight;
mod inotify_watches;
mod kernel_file;
mod open_file_index;
mod outside_ends;
pub(super) mod path_identity;
mod pipe_state;
mod running_check;
mod sockets;
mod standard_streams;
mod states;
mod terminal;
pub(super) mod tree_files;
pub(super) mod versions;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use farfork_sys::process::{FdDirectory, FdInfo};
use farfork_sys::sock_diag::SockDiag;
use farfork_sys::{namespace, pidfd, process};
use farfork_wire::descriptor::{FileIdentity, FileStatus};
use rustix::fs::{CWD, OFlags, fstat, readlinkat};

pub(super) use builder::{OpenFileTable, PidTranslation, ProcessFiles};
pub(super) use fd_kind::{DELETED_SUFFIX, FdKind, NO_PATH_REASON, SHARED_MEMORY_PREFIX};
pub(super) use inflight::InflightFiles;
pub(super) use outside_ends::outside_end_notes;
pub(super) use running_check::{CheckedProcess, RunningFileCheck};
pub(super) use standard_streams::TreeStreams;
pub(super) use states::OpenFileStates;
pub(super) use terminal::{
    SessionMember, describe_terminals, foreground_groups, refuse_unpaired as unpaired_terminals,
};

use super::error::{CaptureError, Refusal};
use super::state::tree_root::TreeRoot;
use super::volume_objects;
use fd_kind::Inode;
use states::LazyFdLinks;

/// Size in bytes of the first buffer for a link of `/proc`. Most links are shorter; longer ones are read a second time.
const LINK_BYTES_GUESS: usize = 128;

/// A process's connections to the daemon, by the inodes of the process's sockets. A child gets other sockets instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DaemonSockets {
    /// The connection on which the process waits for the reply to its checkpoint request.
    pub caller: Option<u64>,
    /// All other connections. A child reads end of file from them.
    pub eof_in_child: Vec<u64>,
    /// Whether files that are open for reading, or mapped shared, are copied in the pause, like deleted files.
    pub copies_files: bool,
}

/// A descriptor of another process, without the state of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenFd {
    pub(super) number: u32,
    /// The target of its link in /proc.
    pub(super) link: Vec<u8>,
    pub(super) kind: FdKind,
    pub(super) device: u64,
    pub(super) inode: u64,
    mount: u64,
    /// Mode and owner of the inode.
    status: FileStatus,
    is_deleted: bool,
    /// Identity of the file when it was read. Set for regular files that children open by path.
    version: Option<FileIdentity>,
    /// Whether the descriptor is a standard stream, or refers to the same file as one.
    pub(super) is_standard_stream: bool,
}

/// Lists all descriptors of a process, in ascending order. Omits descriptors that are closed during the call. `streams`: the
/// standard streams of the tree; `None` for the tree's first process.
pub(super) fn list_open_fds(
    pid: i32,
    sockets: &DaemonSockets,
    streams: Option<&TreeStreams>,
) -> Result<Vec<OpenFd>, CaptureError> {
    let unread = || CaptureError::reading(pid, "the open files");
    let links = FdDirectory::open_links(pid).map_err(unread())?;
    let numbers = links.numbers().map_err(unread())?;
    let mut fds = Vec::with_capacity(numbers.len());
    for number in numbers {
        match OpenFd::read(&links, number) {
            Ok(fd) => fds.push(OpenFd { kind: sockets.override_kind(&fd, &links).unwrap_or(fd.kind), ..fd }),
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(fd_read_error(pid, number, source)),
        }
    }
    let own = streams.is_none().then(|| TreeStreams::from_fds(pid, &fds));
    if let Some(streams) = streams.or(own.as_ref()) {
        streams.mark_standard(pid, &mut fds);
    }
    Ok(fds)
}

/// The kernel does not show such a path, and no process can open the file by it.
const LONG_PATH_REASON: &str = "its path is longer than 4,095 bytes (PATH_MAX), by which a child could not open it: not carried; \
     close it first, or move it to a directory with a shorter path";

/// Returns the error for a descriptor that could not be read. If it was closed, the process must be surveyed again.
fn fd_read_error(pid: i32, number: u32, source: io::Error) -> CaptureError {
    if source.kind() == io::ErrorKind::InvalidFilename {
        return CaptureError::refused(pid, vec![Refusal::new(fd_object(pid, number), LONG_PATH_REASON)]);
    }
    read_error(pid, format!("fd {number}"), source)
}

/// Returns the error for `what`, which could not be read. NotFound means that it has changed since the survey.
fn read_error(pid: i32, what: String, source: io::Error) -> CaptureError {
    match source.kind() {
        io::ErrorKind::NotFound => CaptureError::Unstable { pid, what },
        _ => CaptureError::reading(pid, what)(source),
    }
}

impl DaemonSockets {
    /// Returns the connections of a descendant, which may share them but does not wait for a reply.
    pub(super) fn for_descendant(&self) -> Self {
        Self {
            caller: None,
            eof_in_child: self.eof_in_child.iter().copied().chain(self.caller).collect(),
            copies_files: self.copies_files,
        }
    }

    /// Returns the kind to use instead for a connection to the daemon, or for a file that must be copied.
    fn override_kind(&self, fd: &OpenFd, links: &FdDirectory) -> Option<FdKind> {
        if fd.kind == FdKind::Regular && self.copies_files && versions::is_readable_by_owner(fd, links) {
            return Some(FdKind::Memory);
        }
        let is_caller = self.caller == Some(fd.inode);
        let is_known = fd.kind == FdKind::Socket && (is_caller || self.eof_in_child.contains(&fd.inode));
        is_known.then_some(FdKind::DaemonSocket { is_caller })
    }
}

impl OpenFd {
    pub(super) fn read(links: &FdDirectory, number: u32) -> io::Result<Self> {
        Self::read_known(links, number, None)
    }

    /// Reads a descriptor. If it still refers to the same file as `known`, and that file has a path, keeps the known kind.
    fn read_known(links: &FdDirectory, number: u32, known: Option<&Self>) -> io::Result<Self> {
        let name = number.to_string();
        let mut link = readlinkat(links, &name, Vec::with_capacity(LINK_BYTES_GUESS))?.into_bytes();
        let inode = Inode::read(links, &name, &link)?;
        let mut kind_at_other_path = None;
        match fd_kind::find_other_path(links, &link, &inode) {
            Some(Ok(path)) => link = path,
            Some(Err(refused)) => kind_at_other_path = Some(refused),
            None => {}
        }
        let is_known = |known: &&Self| {
            (known.device, known.inode, known.mount, &known.link) == (inode.device, inode.number, inode.mount, &link)
        };
        let mut kind = fd_kind::detect_kind(links, &name, &link, &inode);
        match known.filter(is_known) {
            Some(known) if kind.has_path() => kind = known.kind.clone(),
            _ => kind = fd_kind::kind_without_path(&kind, links, &link, &inode).unwrap_or(kind),
        }
        if kind == FdKind::Memory && inode.may_be_pseudo_file(&link) {
            kind = fd_kind::pseudo_file_kind(links, &name, &link).unwrap_or(kind);
        }
        let kind = kind_at_other_path.unwrap_or(kind);
        Ok(Self {
            number,
            device: inode.device,
            inode: inode.number,
            mount: inode.mount,
            status: inode.status(),
            is_deleted: inode.links == 0,
            version: (kind == FdKind::Regular).then(|| inode.identity()),
            is_standard_stream: false,
            link,
            kind,
        })
    }

    /// Reads a descriptor of a stopped process, whose `fdinfo` is `info`. Uses `known`, from the survey, if the file cannot
    /// have changed. Otherwise reads the link; `links` stays open for later calls.
    fn reuse_known(
        number: u32,
        known: Option<&Self>,
        info: &FdInfo,
        sockets: &DaemonSockets,
        links: &mut LazyFdLinks,
    ) -> io::Result<Self> {
        if let Some(known) = known.filter(|known| known.matches_fdinfo(info)) {
            return Ok(known.clone());
        }
        let links = links.open()?;
        let fd = Self::read_known(links, number, known)?;
        let is_standard = known.is_some_and(|known| known.is_standard_stream && known.has_same_inode(&fd));
        Ok(Self { kind: sockets.override_kind(&fd, links).unwrap_or(fd.kind), is_standard_stream: is_standard, ..fd })
    }

    fn has_same_inode(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether `fdinfo` proves that the number still refers to the same file. Inode numbers of files without a path are not
    /// reused, and a device file is the same device under any path. Other files may have been renamed or removed, and
    /// anonymous kernel objects share one inode.
    fn matches_fdinfo(&self, info: &FdInfo) -> bool {
        let is_lasting = match self.kind {
            // A named pipe with this kind was deleted.
            FdKind::Pipe => !self.link.starts_with(b"/"),
            FdKind::Socket | FdKind::DaemonSocket { .. } | FdKind::Device | FdKind::Terminal => true,
            _ => false,
        };
        is_lasting && (self.mount, self.inode) == (info.mount, info.inode)
    }

    /// Whether the descriptor's number still refers to the same file.
    fn is_unchanged(&self, pid: i32) -> bool {
        let now = FdDirectory::open_links(pid).and_then(|links| Self::read(&links, self.number));
        now.is_ok_and(|now| (now.device, now.inode, &now.link) == (self.device, self.inode, &self.link))
    }

    /// Duplicates the descriptor into this process. Returns NotFound if its number was reused.
    fn duplicate(&self, process: &OwnedFd) -> io::Result<OwnedFd> {
        let copy = pidfd::get_fd(process, self.number)?;
        let found = fstat(&copy)?;
        let is_it = (found.st_dev, found.st_ino) == (self.device, self.inode);
        is_it.then_some(copy).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether the descriptor's file has state that parent and clone share after fork(2), and that may change.
    pub(super) fn has_shared_state(&self) -> bool {
        match self.kind {
            FdKind::Regular
            | FdKind::Directory
            | FdKind::DeletedDirectory(_)
            | FdKind::Pipe
            | FdKind::NamedPipe
            | FdKind::EventFd
            | FdKind::Epoll
            | FdKind::TimerFd
            | FdKind::SignalFd
            | FdKind::Inotify
            | FdKind::PidFd
            | FdKind::Socket
            | FdKind::Terminal
            | FdKind::TerminalMaster
            | FdKind::Memory => !self.is_standard_stream,
            FdKind::Device | FdKind::DaemonSocket { .. } | FdKind::Other(_) => false,
        }
    }

    /// Whether the file is a directory that children open by its path.
    pub(super) fn is_directory_with_path(&self) -> bool {
        self.kind == FdKind::Directory && !self.is_standard_stream
    }

    /// Whether the path of the file was removed.
    fn is_removed_from_path(&self) -> bool {
        let is_file = matches!(self.kind, FdKind::Memory | FdKind::DeletedDirectory(_));
        self.is_deleted && is_file && !self.is_standard_stream && self.link.ends_with(DELETED_SUFFIX)
    }

    /// Whether all open files of this kind with the same inode are the same stream.
    fn has_one_stream_per_inode(&self) -> bool {
        matches!(self.kind, FdKind::Pipe | FdKind::NamedPipe | FdKind::Terminal | FdKind::Socket)
    }

    fn refusal(&self) -> Option<String> {
        if self.is_standard_stream {
            return None;
        }
        let link = String::from_utf8_lossy(&self.link);
        match &self.kind {
            FdKind::Regular if self.is_deleted => {
                Some(format!("{link} was deleted, so that no other node can open it; close it first"))
            }
            FdKind::Regular | FdKind::Directory | FdKind::NamedPipe if str::from_utf8(&self.link).is_err() => {
                Some(format!("the path {link} is not UTF-8, and is not carried; rename the file, or close it first"))
            }
            FdKind::Other(what) => Some(what.clone()),
            _ => None,
        }
    }
}

/// Refuses open files that cannot be carried. `root` is the root of the tree.
pub(super) fn refuse_open_files(pid: i32, root: TreeRoot, fds: &[OpenFd]) -> Result<Vec<Refusal>, CaptureError> {
    let mut refusals = Vec::new();
    for fd in fds {
        refusals.extend(fd.refusal().map(|reason| Refusal::new(fd_object(pid, fd.number), reason)));
    }
    refusals.extend(refuse_removed_from_volumes(pid, root, fds)?);
    refusals.extend(refuse_unsupported_sockets(pid, fds)?);
    refusals.extend(terminal::refuse_terminals(pid, root, fds)?);
    Ok(refusals)
}

/// Refuses files and directories that were removed from a volume while they were open. A child's copy would miss changes
/// that other nodes make.
fn refuse_removed_from_volumes(pid: i32, root: TreeRoot, fds: &[OpenFd]) -> Result<Vec<Refusal>, CaptureError> {
    let mut removed = fds.iter().filter(|fd| fd.is_removed_from_path()).peekable();
    if removed.peek().is_none() {
        return Ok(Vec::new());
    }
    let volumes = volume_objects::read_volumes(root)?;
    let refuse = |fd: &OpenFd| {
        let reason = volume_objects::removed_reason(&fd.link, volumes.volume_of_mount(fd.mount)?);
        Some(Refusal::new(fd_object(pid, fd.number), reason))
    };
    Ok(removed.filter_map(refuse).collect())
}

/// Refuses a process that lacks the socket on which its own checkpoint was requested: another process made the request. The
/// children get their replies on this socket.
pub(super) fn check_caller_socket(pid: i32, fds: &[OpenFd], sockets: &DaemonSockets) -> Option<Refusal> {
    let inode = sockets.caller?;
    let waits = fds.iter().any(|fd| fd.kind == FdKind::DaemonSocket { is_caller: true } && !fd.is_standard_stream);
    let reason = format!("it does not wait on the socket (inode {inode}) on which the checkpoint was requested");
    (!waits).then(|| Refusal::new(format!("pid {pid}"), reason))
}

fn fd_object(pid: i32, number: u32) -> String {
    format!("pid {pid}, fd {number}")
}

/// Refuses pidfds of threads, and of processes outside the tree of `first`: they are not in a child's container.
pub(super) fn refuse_foreign_pidfds(first: i32, pid: i32, fds: &[OpenFd]) -> Result<Vec<Refusal>, CaptureError> {
    let mut refusals = Vec::new();
    for fd in fds.iter().filter(|fd| fd.kind == FdKind::PidFd && !fd.is_standard_stream) {
        let target = match process::FdInfo::read(pid, fd.number) {
            Ok(info) => (info.process, is_thread_pidfd(&info)),
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(CaptureError::reading(pid, format!("fd {}", fd.number))(source)),
        };
        let (target, is_of_thread) = target;
        if is_of_thread {
            refusals.push(Refusal::new(fd_object(pid, fd.number), THREAD_PIDFD_REASON));
        } else if !target.is_some_and(|other| descends_from(other, first)) {
            refusals.push(Refusal::new(fd_object(pid, fd.number), FOREIGN_PIDFD_REASON));
        }
    }
    Ok(refusals)
}

/// Refuses files of `/proc` that show processes outside the tree of `first`. The numbers in their paths are those of this
/// process's pid namespace if the process is in it; in another one, a child cannot open such a file.
pub(super) fn refuse_foreign_proc_files(first: i32, pid: i32, fds: &[OpenFd]) -> Vec<Refusal> {
    let has_path = |fd: &&OpenFd| fd.kind.has_path() && !fd.is_standard_stream;
    let mut shown =
        fds.iter().filter(has_path).filter_map(|fd| Some((fd, kernel_file::shown_process(&fd.link)?))).peekable();
    if shown.peek().is_none() || !namespace::is_main_thread_namespace(CWD, &format!("/proc/{pid}/ns/pid")) {
        return Vec::new();
    }
    let process_of = |task: i32| process::ProcStatus::read(task).map_or(task, |status| status.process);
    let is_foreign = |(_, task): &(&OpenFd, i32)| !descends_from(process_of(*task), first);
    let refusal = |(fd, other): (&OpenFd, i32)| {
        let reason = format!(
            "{} shows process {other}, which does not descend from the one captured: not carried; close it first",
            String::from_utf8_lossy(&fd.link)
        );
        Refusal::new(fd_object(pid, fd.number), reason)
    };
    shown.filter(is_foreign).map(refusal).collect()
}

const FOREIGN_PIDFD_REASON: &str =
    "it is a pidfd of another process, which does not descend from the one captured: not carried; close it first";

const THREAD_PIDFD_REASON: &str = "it is a pidfd of a single thread (PIDFD_THREAD), which is not carried; close it first, or use a pidfd of the process";

/// Whether a pidfd is for a single thread. The kernel shows PIDFD_THREAD as O_EXCL.
fn is_thread_pidfd(info: &FdInfo) -> bool {
    info.flags & OFlags::EXCL.bits() != 0
}

fn descends_from(mut pid: i32, first: i32) -> bool {
    while pid > 0 && pid != first {
        pid = process::ProcStat::read(pid).map_or(0, |stat| stat.parent);
    }
    pid == first
}

/// Refuses sockets of kinds that are never carried.
fn refuse_unsupported_sockets(pid: i32, fds: &[OpenFd]) -> Result<Vec<Refusal>, CaptureError> {
    let mut refusals = Vec::new();
    for (fd, copy) in open_sockets(pid, fds).map_err(CaptureError::reading(pid, "the sockets"))? {
        let reason =
            sockets::spec_refusal(copy.as_fd()).map_err(CaptureError::reading(pid, format!("fd {}", fd.number)))?;
        refusals.extend(reason.map(|reason| Refusal::new(fd_object(pid, fd.number), reason)));
    }
    Ok(refusals)
}

/// Lists the descriptors of sockets that are bound to the address of a network interface.
pub(super) fn list_interface_sockets(pid: i32, fds: &[OpenFd]) -> Result<Vec<u32>, CaptureError> {
    let mut numbers = Vec::new();
    for (fd, copy) in open_sockets(pid, fds).map_err(CaptureError::reading(pid, "the sockets"))? {
        let unread = CaptureError::reading(pid, format!("fd {}", fd.number));
        numbers.extend(sockets::has_interface_address(copy.as_fd()).map_err(unread)?.then_some(fd.number));
    }
    Ok(numbers)
}

/// Opens a sock_diag(7) socket in the process's network if `sockets::needs_diagnosis` is true for one of its sockets.
pub(super) fn open_socket_diagnosis(pid: i32, fds: &[OpenFd]) -> Result<Option<SockDiag>, CaptureError> {
    let mut all = open_sockets(pid, fds).map_err(CaptureError::reading(pid, "the sockets"))?;
    if !all.any(|(_, copy)| sockets::needs_diagnosis(copy.as_fd())) {
        return Ok(None);
    }
    SockDiag::open(pid).map(Some).map_err(CaptureError::reading(pid, "the sockets"))
}

/// Iterates over the sockets other than standard streams, each with a duplicate. Omits sockets that are closed during the
/// call. Drop each duplicate before the next: the process may run, and a socket that it closes stays open while a duplicate
/// exists.
fn open_sockets(pid: i32, fds: &[OpenFd]) -> io::Result<impl Iterator<Item = (&OpenFd, OwnedFd)>> {
    let mut wanted = fds.iter().filter(|fd| fd.kind == FdKind::Socket && !fd.is_standard_stream).peekable();
    let process = wanted.peek().map(|_| pidfd::open(pid)).transpose()?;
    Ok(wanted.filter_map(move |fd| Some((fd, fd.duplicate(process.as_ref()?).ok()?))))
}

pub(super) const O_ACCMODE: u32 = 3;
pub(super) const O_RDONLY: u32 = 0;
pub(super) const O_WRONLY: u32 = 1;
pub(super) const O_RDWR: u32 = 2;
