//! Files on their way in sockets (SCM_RIGHTS). Who looks into a socket gets copies of them; ours are read like the descriptors
//! of a process captured, by the numbers that they have here. Most lead to files that the process has open itself, and are the
//! same; others have no descriptor until somebody takes them out.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;

use farfork_sys::process::FdDirectory;
use farfork_sys::socket_diagnosis::Diagnosis;
use farfork_wire::descriptor::OpenFile;

use super::build::{Builder, OpenFiles, Threads};
use super::{Contents, Files, Kind, OpenFd, object};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::shared::SharedCopies;
use crate::capture::state::root::Root;

/// Our copies of files on their way, and what of them goes on changing.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    /// By the numbers of our copies, which are open as long as the messages are known.
    fds: BTreeMap<u32, OpenFd>,
    /// `None` where nothing is on its way. Pipes and sockets are in the contents of whom they belong to.
    contents: Option<Box<Contents>>,
}

impl Flights {
    pub(super) fn append(&mut self, other: &mut Self) {
        self.fds.append(&mut other.fds);
        let Some(more) = other.contents.take() else { return };
        let contents = self.contents.get_or_insert_default();
        contents.infos.extend(more.infos);
        contents.unread.extend(more.unread);
        contents.owners.extend(more.owners);
    }

    /// Memory that is on its way: where it can be opened, and what it is called.
    pub(crate) fn memory(&self) -> impl Iterator<Item = (String, &Vec<u8>)> {
        let memory = self.fds.values().filter(|fd| fd.kind == Kind::Memory);
        memory.map(|fd| (format!("/proc/self/fd/{}", fd.number), &fd.link))
    }
}

impl Contents {
    /// What is on its way in the process's sockets.
    pub(crate) fn flights(&self) -> &Flights {
        &self.flights
    }

    /// Reads files on their way in the sockets that were read; also those in sockets that are on their way themselves.
    pub(super) fn follow(&mut self, diagnosis: Option<&Diagnosis>) -> io::Result<()> {
        let mut known = 0;
        while known < self.numbers_on_their_way().len() {
            let own = std::process::id().cast_signed();
            let (links, infos) = (FdDirectory::links(own)?, FdDirectory::infos(own)?);
            let numbers = self.numbers_on_their_way();
            known = numbers.len();
            let mut contents = self.flights.contents.take().unwrap_or_default();
            // An inode that was read already is not read again: a socket may be on its way in itself.
            contents.absorb(self);
            for number in numbers {
                if self.flights.fds.contains_key(&number) || contents.flights.fds.contains_key(&number) {
                    continue;
                }
                let fd = OpenFd::read(&links, number)?;
                // A terminal is only carried where it is a standard stream: its state is not looked at.
                if !matches!(fd.kind, Kind::Terminal | Kind::TerminalMaster) {
                    let info = infos.info(number)?;
                    contents.read_one(own, &infos, (&fd, info), diagnosis)?;
                }
                contents.flights.fds.insert(number, fd);
            }
            self.absorb(&mut contents);
            self.flights.contents = Some(contents);
        }
        Ok(())
    }

    fn numbers_on_their_way(&self) -> Vec<u32> {
        let messages = self.sockets.values().flat_map(|socket| &socket.received);
        messages.flat_map(|message| &message.files).map(|file| file.as_raw_fd().cast_unsigned()).collect()
    }
}

impl OpenFiles {
    /// Adds files that are on their way in the sockets of all processes, and says in each message which it brings. To be
    /// called when all that has a descriptor is known. `pid` and its threads are of the first process.
    pub(crate) fn deliver(
        &mut self,
        (pid, root): (i32, Root),
        pool: &Contents,
        shared: &SharedCopies,
        threads: Threads<'_>,
    ) -> Result<(), CaptureError> {
        let Some(contents) = &pool.flights.contents else { return Ok(()) };
        let own = std::process::id().cast_signed();
        let infos = FdDirectory::infos(own).map_err(CaptureError::read(own, "the open files"))?;
        let fds = self.fds_on_their_way(pool, own);
        let (files, refusals) = (Files::default(), Vec::new());
        let mut builder = Builder {
            pid,
            subject: own,
            root,
            fds: &fds,
            contents,
            pool,
            shared,
            threads,
            files,
            all: self,
            refusals,
            are_on_their_way: true,
        };
        let mut index = 0;
        while index < builder.all.files.len() {
            if let Some(inode) = builder.all.sockets.get(&(index as u32)).copied() {
                builder.deliver_to(index, inode, &infos)?;
            }
            index += 1;
        }
        if builder.refusals.is_empty() { Ok(()) } else { Err(CaptureError::refused(pid, builder.refusals)) }
    }

    /// Those that lead to standard streams are these.
    fn fds_on_their_way(&self, pool: &Contents, own: i32) -> Vec<OpenFd> {
        let is_standard = |fd: &OpenFd| self.streams().is_some_and(|streams| streams.led_to(own, fd).next().is_some());
        pool.flights.fds.values().map(|fd| OpenFd { is_standard: is_standard(fd), ..fd.clone() }).collect()
    }
}

impl Builder<'_> {
    fn deliver_to(&mut self, index: usize, inode: u64, infos: &FdDirectory) -> Result<(), CaptureError> {
        let Some(arrived) = self.pool.sockets.get(&inode).map(|socket| &socket.received) else { return Ok(()) };
        let mut files = Vec::with_capacity(arrived.len());
        for message in arrived {
            let numbers = message.files.iter().map(|file| file.as_raw_fd().cast_unsigned());
            files.push(numbers.map(|number| self.on_its_way(number, infos)).collect::<Result<Vec<u32>, _>>()?);
        }
        if let OpenFile::Socket(socket) = &mut self.all.files[index] {
            socket.received.iter_mut().zip(files).for_each(|(message, files)| message.files = files);
        }
        Ok(())
    }

    /// The open file that one of our copies leads to.
    fn on_its_way(&mut self, number: u32, infos: &FdDirectory) -> Result<u32, CaptureError> {
        let place = self.fds.binary_search_by_key(&number, |fd| fd.number);
        let fd = &self.fds[place.map_err(|_| CaptureError::Unstable { pid: self.pid, what: ON_ITS_WAY.to_owned() })?];
        let kept = match fd.kind {
            Kind::Epoll => Some("epoll instances are not carried there".to_owned()),
            Kind::Terminal | Kind::TerminalMaster if !fd.is_standard => {
                Some("terminals are not carried there".to_owned())
            }
            _ => fd.refusal(),
        };
        if let Some(reason) = kept {
            return Err(CaptureError::refused(self.pid, vec![Refusal::new(self.object(fd), reason)]));
        }
        let unread = CaptureError::read(self.pid, ON_ITS_WAY);
        let info = infos.info(number).map_err(unread)?;
        let known = self.all.files.len();
        let index = self.index_of(fd, &info)?;
        let holds = self.contents.infos.get(&number).is_some_and(|info| !info.locks.is_empty())
            || self.contents.owners.contains_key(&number);
        if index as usize == known && holds {
            let reason = "it has a lock, or tells somebody of its readiness, which is not carried there";
            self.refusals.push(Refusal::new(self.object(fd), reason));
        }
        Ok(index)
    }

    /// What a message about a descriptor names.
    pub(super) fn object(&self, fd: &OpenFd) -> String {
        if self.are_on_their_way {
            let link = String::from_utf8_lossy(&fd.link);
            return format!("pid {}, {link}, {ON_ITS_WAY}", self.pid);
        }
        object(self.pid, fd.number)
    }
}

const ON_ITS_WAY: &str = "a descriptor on its way in a socket";
