//! Open files as a descriptor holds them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use farfork_sys::owner::{Owner, Whom};
use farfork_sys::pidfd;
use farfork_sys::process::{self, FdInfo};
use farfork_wire::descriptor::{
    EpollTarget, FileDescriptor, FileLock, FileLockKind, FileOwner, FileVersion, OpenFile, Sender, Socket,
    StandardStream, Terminal,
};

use super::contents::{Contents, PipeState};
use super::firsts::Firsts;
use super::made::LockHolder;
use super::sockets::{self, Sockets, Usual};
use super::terminal::TerminalEnd;
use super::{FOREIGN_PIDFD, Kind, O_ACCMODE, O_RDONLY, O_WRONLY, OpenFd, Streams, made, object, versions};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::shared::SharedCopies;
use crate::capture::state::root::Root;
use crate::capture::survey::Profile;

const O_CLOEXEC: u32 = 0o2_000_000;

/// The open files of a tree of processes, in the making.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    pub(crate) files: Vec<OpenFile>,
    /// Those that its processes drive, ascending.
    pub(crate) terminals: Vec<Terminal>,
    pub(crate) versions: Vec<FileVersion>,
    firsts: Firsts,
    /// Inodes of sockets, by the files' indices.
    pub(super) sockets: BTreeMap<u32, u64>,
    /// Of the first process.
    streams: Option<Streams>,
    usual_sockets: Usual,
}

impl OpenFiles {
    /// Those of a tree that drives these terminals.
    pub(crate) fn of(terminals: Vec<Terminal>) -> Self {
        Self { terminals, ..Self::default() }
    }

    /// The standard streams of the first process are known.
    pub(crate) fn begin(&mut self, streams: Streams) {
        self.streams = Some(streams);
    }

    /// Where the standard streams of all but the first process lead.
    pub(crate) fn streams(&self) -> Option<&Streams> {
        self.streams.as_ref()
    }
}

/// The files of a process.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) descriptors: Vec<FileDescriptor>,
    pub(crate) locks: Vec<FileLock>,
    pub(crate) owners: Vec<FileOwner>,
}

/// The threads of a process, for who is told of a file's readiness; and the processes of its tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Threads<'a> {
    pub(crate) pid: i32,
    pub(crate) profiles: &'a BTreeMap<i32, Profile>,
    /// The ids that they know, by those that we do.
    pub(crate) ids: &'a BTreeMap<i32, u32>,
}

/// Why a file is refused whose readiness others are told of.
pub(super) const FOREIGN_OWNER: &str =
    "somebody else than the process is told of its readiness (F_SETOWN), which is not carried";

impl Threads<'_> {
    /// `None` where somebody else is told.
    pub(super) fn owner(&self, number: u32, owner: &Owner) -> Option<FileOwner> {
        let signal = owner.signal;
        match owner.whom {
            Whom::Process(pid) if pid == self.pid => Some(FileOwner { number, tid: 0, signal }),
            Whom::Thread(tid) => Some(FileOwner { number, tid: self.profiles.get(&tid)?.inner_id(), signal }),
            Whom::Process(_) | Whom::Group(_) | Whom::Nobody => None,
        }
    }
}

/// Builds them from the table of `subject`: the process's, or ours for what is on its way.
pub(super) struct Builder<'a> {
    /// For messages.
    pub(super) pid: i32,
    pub(super) subject: i32,
    pub(super) root: Root,
    pub(super) fds: &'a [OpenFd],
    pub(super) contents: &'a Contents,
    /// What has pipes and sockets of all processes of the tree.
    pub(super) pool: &'a Contents,
    pub(super) shared: &'a SharedCopies,
    pub(super) threads: Threads<'a>,
    pub(super) files: Files,
    pub(super) all: &'a mut OpenFiles,
    pub(super) refusals: Vec<Refusal>,
    /// Whether the descriptors are our own copies of some that are on their way in sockets.
    pub(super) are_on_their_way: bool,
}

impl Files {
    /// All files of a process that stands; those that no other process has brought are added to `all`. `infos` are those of `fds`. The first process comes first.
    pub(crate) fn build(
        pid: i32,
        root: Root,
        (fds, infos): (&[OpenFd], &[FdInfo]),
        (contents, pool): (&Contents, &Contents),
        shared: &SharedCopies,
        threads: Threads<'_>,
        all: &mut OpenFiles,
    ) -> Result<Self, CaptureError> {
        let (files, refusals) = (Self::default(), Vec::new());
        let are_on_their_way = false;
        let mut builder = Builder {
            pid,
            subject: pid,
            root,
            fds,
            contents,
            pool,
            shared,
            threads,
            files,
            all,
            refusals,
            are_on_their_way,
        };
        for (fd, info) in fds.iter().zip(infos) {
            builder.take(fd, info)?;
        }
        if builder.refusals.is_empty() { Ok(builder.files) } else { Err(CaptureError::refused(pid, builder.refusals)) }
    }
}

impl Builder<'_> {
    fn take(&mut self, fd: &OpenFd, now: &FdInfo) -> Result<(), CaptureError> {
        let open_file = self.index_of(fd, now)?;
        let close_on_exec = self.info(fd, now)?.flags & O_CLOEXEC != 0;
        self.files.descriptors.push(FileDescriptor { number: fd.number, open_file, close_on_exec });
        Ok(())
    }

    /// What was told of a descriptor in the pause, where it was asked; else now.
    fn info<'i>(&'i self, fd: &OpenFd, now: &'i FdInfo) -> Result<&'i FdInfo, CaptureError> {
        match self.contents.infos.get(&fd.number) {
            Some(then) if (then.mount, then.inode) == (now.mount, now.inode) => Ok(then),
            _ if fd.has_contents() => Err(self.unstable(fd)),
            _ => Ok(now),
        }
    }

    /// The open file that a descriptor leads to, which is added where it is new.
    pub(super) fn index_of(&mut self, fd: &OpenFd, now: &FdInfo) -> Result<u32, CaptureError> {
        let info = &self.info(fd, now)?.clone();
        let (identity, descriptor) = (fd.identity(info), (self.subject, fd.number));
        // The three standard streams stay apart.
        let known = if fd.is_standard { Err(None) } else { self.all.firsts.of(identity, descriptor).map_err(Some) };
        Ok(match known {
            Ok(((first, _), index)) => {
                let is_own = first == self.subject;
                let is_duplicate = is_own || self.files.descriptors.iter().any(|known| known.open_file == index);
                if !is_duplicate && !self.are_on_their_way {
                    self.hold_alone(fd, info);
                }
                index
            }
            Err(place) => {
                let file = self.open_file(fd, info)?;
                let index = self.all.files.len() as u32;
                self.all.versions.extend(versions::of_open_file(fd, &file, index));
                self.all.files.push(file);
                if let Some(place) = place {
                    if !self.are_on_their_way {
                        self.hold(fd, info);
                    }
                    self.all.firsts.add(identity, place, (descriptor, index));
                }
                index
            }
        })
    }

    fn unstable(&self, fd: &OpenFd) -> CaptureError {
        CaptureError::Unstable { pid: self.pid, what: format!("fd {}", fd.number) }
    }

    fn open_file(&mut self, fd: &OpenFd, info: &FdInfo) -> Result<OpenFile, CaptureError> {
        if fd.is_standard {
            return Ok(OpenFile::Standard(self.stream_of(fd, info)));
        }
        let flags = info.flags & !O_CLOEXEC;
        let offset = info.offset;
        Ok(match fd.kind {
            Kind::NamedPipe => self.named_pipe(fd, flags)?,
            Kind::TimerFd => self.told(fd, made::timer_fd(info, flags))?,
            Kind::SignalFd => self.told(fd, made::signal_fd(info, flags))?,
            Kind::Inotify => {
                let unread = *self.contents.unread.get(&fd.number).ok_or_else(|| self.unstable(fd))?;
                self.told(fd, made::inotify(self.root, info, unread, flags))?
            }
            Kind::Process => self.pidfd(fd, info, flags)?,
            Kind::Socket => self.socket(fd, flags)?,
            Kind::Regular => OpenFile::Regular { path: self.path(fd), flags, offset },
            Kind::Directory => OpenFile::Directory { path: self.path(fd), flags, offset },
            Kind::DeletedDirectory(status) => OpenFile::DeletedDirectory { status, flags },
            Kind::Device => OpenFile::Device { path: self.path(fd), flags },
            Kind::Pipe => self.pipe(fd, flags)?,
            Kind::EventFd => {
                let counter = info.event_counter.ok_or_else(|| self.unstable(fd))?;
                OpenFile::EventFd { count: counter.count, semaphore: counter.semaphore, flags }
            }
            Kind::Epoll => OpenFile::Epoll { flags, targets: self.epoll_targets(fd, info) },
            Kind::Memory => {
                let object = self.shared.index_of(fd.device, fd.inode).ok_or_else(|| self.unstable(fd))?;
                OpenFile::Memory { object, flags, offset }
            }
            Kind::Program { is_caller } => OpenFile::Program { is_caller, flags },
            Kind::Terminal | Kind::TerminalMaster => {
                let path = self.path(fd);
                let is_master = fd.kind == Kind::TerminalMaster;
                let number = self.contents.terminals.get(&fd.number).and_then(TerminalEnd::number);
                let terminal = self.all.terminals.iter().position(|terminal| Some(terminal.number) == number);
                let terminal = terminal.ok_or_else(|| self.unstable(fd))? as u32;
                OpenFile::Terminal { terminal, path, is_master, flags }
            }
            Kind::Other(_) => return Err(self.unstable(fd)),
        })
    }

    /// Its path, from where all paths of the tree begin.
    fn path(&self, fd: &OpenFd) -> String {
        String::from_utf8_lossy(&fd.link).into_owned()
    }

    /// What was made, or a refusal.
    fn told(&self, fd: &OpenFd, made: Result<OpenFile, String>) -> Result<OpenFile, CaptureError> {
        let refuse = |reason| CaptureError::refused(self.pid, vec![Refusal::new(self.object(fd), reason)]);
        made.map_err(refuse)
    }

    /// A pidfd of a process of the tree; others are not in a child's container.
    fn pidfd(&self, fd: &OpenFd, info: &FdInfo, flags: u32) -> Result<OpenFile, CaptureError> {
        let known = info.process.and_then(|pid| self.threads.ids.get(&pid));
        let made = known.map(|pid| OpenFile::Process { pid: *pid, flags });
        self.told(fd, made.ok_or_else(|| FOREIGN_PIDFD.to_owned()))
    }

    /// Locks by an open file that another process has brought: those that are a process's.
    fn hold_alone(&mut self, fd: &OpenFd, info: &FdInfo) {
        let holder = LockHolder::of(self.pid, self.threads.profiles);
        let locks = info.locks.iter().filter_map(|entry| made::lock(holder, fd.number, entry).ok());
        self.files.locks.extend(locks.filter(|lock| lock.kind == FileLockKind::Process));
    }

    /// What the process holds by an open file that was met for the first time.
    fn hold(&mut self, fd: &OpenFd, info: &FdInfo) {
        let holder = LockHolder::of(self.pid, self.threads.profiles);
        for entry in &info.locks {
            match made::lock(holder, fd.number, entry) {
                Ok(lock) => self.files.locks.push(lock),
                Err(reason) => self.refusals.push(Refusal::new(object(self.pid, fd.number), reason)),
            }
        }
        let Some(owner) = self.contents.owners.get(&fd.number) else { return };
        match self.threads.owner(fd.number, owner) {
            Some(owner) => self.files.owners.push(owner),
            None => self.refusals.push(Refusal::new(object(self.pid, fd.number), FOREIGN_OWNER)),
        }
    }

    fn socket(&mut self, fd: &OpenFd, flags: u32) -> Result<OpenFile, CaptureError> {
        let Some(contents) = self.pool.sockets.get(&fd.inode) else { return Err(self.unstable(fd)) };
        let mut socket = match Sockets(&self.pool.sockets).describe((fd.inode, contents), flags) {
            Ok(socket) => socket,
            Err(reason) => return self.told(fd, Err(reason)),
        };
        if let Err(reason) = self.name_senders(fd.inode, &mut socket).and_then(|()| self.require_name(&socket)) {
            return self.told(fd, Err(reason));
        }
        self.all.sockets.insert(self.all.files.len() as u32, fd.inode);
        let copy = pidfd::open(self.subject).and_then(|process| pidfd::get_fd(&process, fd.number));
        let options = copy.and_then(|copy| sockets::options(copy.as_fd(), &mut self.all.usual_sockets));
        match options.map_err(CaptureError::read(self.pid, format!("the options of fd {}", fd.number)))? {
            Ok(options) => socket.options = options,
            Err(reason) => return self.told(fd, Err(reason)),
        }
        Ok(OpenFile::Socket(socket))
    }

    /// A socket that has a file is bound to its first name again, before the file is where it was.
    fn require_name(&self, socket: &Socket) -> Result<(), String> {
        let Some(name) = socket.bound_path().filter(|_| socket.file.is_some()) else { return Ok(()) };
        let path = Path::new(OsStr::from_bytes(name));
        let is_there = |directory: &Path| directory.is_absolute() && self.root.has_directory(directory);
        if path.parent().is_some_and(is_there) {
            return Ok(());
        }
        Err(format!(
            "it was bound to the name {}, which is relative, or in a directory that is not there from the root of its mount namespace: not carried",
            path.display()
        ))
    }

    /// Who sent what, by ids that they know.
    fn name_senders(&self, inode: u64, socket: &mut Socket) -> Result<(), String> {
        let arrived = self.pool.sockets.get(&inode).map_or(&[][..], |contents| &contents.received);
        for (message, arrived) in socket.received.iter_mut().zip(arrived) {
            let Some(sender) = arrived.sender else { continue };
            let pid = self.threads.ids.get(&sender.pid).ok_or_else(|| {
                format!(
                    "a message waits in it with the credentials of process {}, which does not descend from the one \
                     captured: not carried; let it be read first",
                    sender.pid
                )
            })?;
            message.sender = Some(Sender { pid: *pid, uid: sender.uid, gid: sender.gid });
        }
        Ok(())
    }

    fn named_pipe(&self, fd: &OpenFd, flags: u32) -> Result<OpenFile, CaptureError> {
        let can_read = flags & O_ACCMODE != O_WRONLY;
        let state = match self.pool.pipes.get(&fd.inode) {
            Some(state) => state,
            None if can_read => return Err(self.unstable(fd)),
            None => &PipeState::EMPTY,
        };
        if state.packets.len() > 1 {
            return self.told(fd, Err("packets (O_DIRECT) wait in it, which are not carried".to_owned()));
        }
        let path = self.path(fd);
        let is_first = |file: &OpenFile| matches!(file, OpenFile::NamedPipe { path: other, content, .. } if *other == path && !content.is_empty());
        let has_content = can_read && !self.all.files.iter().any(is_first);
        let content = if has_content { state.content.clone() } else { Vec::new() };
        Ok(OpenFile::NamedPipe { path, flags, capacity: state.capacity, content })
    }

    fn pipe(&self, fd: &OpenFd, flags: u32) -> Result<OpenFile, CaptureError> {
        let is_write_end = flags & O_ACCMODE == O_WRONLY;
        let state = match self.pool.pipes.get(&fd.inode) {
            Some(state) => state,
            // Only the end for writing is here: what was written is whoever's who reads outside.
            None if is_write_end => &PipeState::EMPTY,
            None => return Err(self.unstable(fd)),
        };
        let is_first = !self
            .all
            .files
            .iter()
            .any(|file| matches!(file, OpenFile::Pipe { pipe, is_write_end: false, .. } if *pipe == fd.inode));
        let (content, packets) = if !is_write_end && is_first {
            (state.content.clone(), state.packets.clone())
        } else {
            (Vec::new(), Vec::new())
        };
        Ok(OpenFile::Pipe { pipe: fd.inode, is_write_end, flags, capacity: state.capacity, content, packets })
    }

    fn epoll_targets(&mut self, fd: &OpenFd, info: &FdInfo) -> Vec<EpollTarget> {
        let is_open =
            |number: u32, inode: u64| self.fds.iter().any(|other| (other.number, other.inode) == (number, inode));
        let lost = made::lost_targets(info, is_open).into_iter();
        self.refusals.extend(lost.map(|reason| Refusal::new(object(self.pid, fd.number), reason)));
        let target =
            |entry: &process::EpollEntry| EpollTarget { number: entry.number, events: entry.events, data: entry.data };
        info.epoll.iter().map(target).collect()
    }

    /// Numbers 0, 1 and 2 of the first process are what their number says; another descriptor is the stream that it leads to,
    /// by preference one of its number, or of the direction that it is open in.
    fn stream_of(&self, fd: &OpenFd, info: &FdInfo) -> StandardStream {
        const STREAMS: [StandardStream; 3] = [StandardStream::Input, StandardStream::Output, StandardStream::Error];
        let order: [u32; 3] = if info.flags & O_ACCMODE == O_RDONLY { [0, 1, 2] } else { [1, 2, 0] };
        let streams = self.all.streams.as_ref();
        let led_to: Vec<u32> = streams.into_iter().flat_map(|streams| streams.led_to(self.subject, fd)).collect();
        let mut preferred = std::iter::once(fd.number).chain(order);
        let number = preferred.find(|number| led_to.contains(number)).unwrap_or(order[0]);
        STREAMS[number as usize]
    }
}
