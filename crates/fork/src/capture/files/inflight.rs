//! Files in flight in sockets (SCM_RIGHTS). Peeking into a socket duplicates them into this process's descriptor table,
//! where they are read like the descriptors of a captured process. Most refer to files that the process has open, too. The
//! others have no descriptor until a process receives them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;

use farfork_sys::process::FdDirectory;
use farfork_sys::sock_diag::SockDiag;
use farfork_wire::descriptor::OpenFile;

use super::builder::{FileTableBuilder, OpenFileTable, PidTranslation};
use super::states::FdStateSource;
use super::{FdKind, OpenFd, OpenFileStates, ProcessFiles, fd_object};
use crate::capture::error::{CaptureError, Refusal};
use crate::capture::shared::SharedCopies;
use crate::capture::state::tree_root::TreeRoot;

/// This process's copies of files in flight, with the state that must be read in the pause.
#[derive(Debug, Default)]
pub(crate) struct InflightFiles {
    /// The copies, by descriptor number. Each is open as long as the `QueuedMessage` that owns it.
    fds: BTreeMap<u32, OpenFd>,
    /// State of the copies; `None` if no file is in flight. The state of pipes and sockets is in the `OpenFileStates` of the
    /// process.
    file_states: Option<Box<OpenFileStates>>,
}

impl InflightFiles {
    pub(super) fn merge(&mut self, other: &mut Self) {
        self.fds.append(&mut other.fds);
        let Some(more) = other.file_states.take() else { return };
        let contents = self.file_states.get_or_insert_default();
        contents.fdinfo.extend(more.fdinfo);
        contents.unread_bytes.extend(more.unread_bytes);
        contents.signal_owners.extend(more.signal_owners);
    }

    /// Returns for each memory file in flight a path to open it, and its link.
    pub(crate) fn memory_files(&self) -> impl Iterator<Item = (String, &Vec<u8>)> {
        let memory = self.fds.values().filter(|fd| fd.kind == FdKind::Memory);
        memory.map(|fd| (format!("/proc/self/fd/{}", fd.number), &fd.link))
    }
}

impl OpenFileStates {
    /// Files in flight in the process's sockets.
    pub(crate) fn inflight(&self) -> &InflightFiles {
        &self.inflight
    }

    /// Reads files in flight in the sockets that were read, and in sockets that are in flight themselves.
    /// `pid` is the process.
    pub(super) fn read_inflight(&mut self, pid: i32, diagnosis: Option<&SockDiag>) -> io::Result<()> {
        let mut known = 0;
        while known < self.inflight_fds().len() {
            let own = std::process::id().cast_signed();
            let (links, infos) = (FdDirectory::open_copied_links(pid)?, FdDirectory::open_infos(own)?);
            let source = FdStateSource { pid: own, infos: &infos, diagnosis };
            let numbers = self.inflight_fds();
            known = numbers.len();
            let mut contents = self.inflight.file_states.take().unwrap_or_default();
            // A known inode is not read again: a socket may be in flight in itself.
            contents.merge(self);
            for number in numbers {
                if self.inflight.fds.contains_key(&number) || contents.inflight.fds.contains_key(&number) {
                    continue;
                }
                let fd = OpenFd::read(&links, number)?;
                // A terminal in flight is carried only as a standard stream, so its state is not read.
                if !matches!(fd.kind, FdKind::Terminal | FdKind::TerminalMaster) {
                    let info = infos.info(number)?;
                    contents.read_fd(&source, &fd, info)?;
                }
                contents.inflight.fds.insert(number, fd);
            }
            self.merge(&mut contents);
            self.inflight.file_states = Some(contents);
        }
        Ok(())
    }

    fn inflight_fds(&self) -> Vec<u32> {
        let messages = self.sockets.values().flat_map(|socket| &socket.receive_queue);
        messages.flat_map(|message| &message.files).map(|file| file.as_raw_fd().cast_unsigned()).collect()
    }
}

impl OpenFileTable {
    /// Adds files in flight in the sockets of all processes, and links each message to its files. Call it when all files
    /// with descriptors are known. `threads` is the translation for the first process.
    pub(crate) fn add_inflight(
        &mut self,
        root: TreeRoot,
        pool: &OpenFileStates,
        shared: &SharedCopies,
        threads: PidTranslation<'_>,
    ) -> Result<(), CaptureError> {
        let Some(contents) = &pool.inflight.file_states else { return Ok(()) };
        let own = std::process::id().cast_signed();
        let infos = FdDirectory::open_infos(own).map_err(CaptureError::reading(own, "the open files"))?;
        let fds = self.mark_inflight_streams(pool, own);
        let mut builder = FileTableBuilder {
            fd_pid: own,
            root,
            fds: &fds,
            file_states: contents,
            tree_states: pool,
            shared_copies: shared,
            pids: threads,
            process_files: ProcessFiles::default(),
            table: self,
            refusals: Vec::new(),
            are_inflight: true,
        };
        let mut index = 0;
        while index < builder.table.files.len() {
            if let Some(inode) = builder.table.sockets.get(&(index as u32)).copied() {
                builder.link_messages(index, inode, &infos)?;
            }
            index += 1;
        }
        if builder.refusals.is_empty() {
            Ok(())
        } else {
            Err(CaptureError::refused(builder.pids.pid, builder.refusals))
        }
    }

    /// Returns the copies of files in flight, marked if they refer to a standard stream.
    fn mark_inflight_streams(&self, pool: &OpenFileStates, own: i32) -> Vec<OpenFd> {
        let is_standard =
            |fd: &OpenFd| self.streams().is_some_and(|streams| streams.matching_streams(own, fd).next().is_some());
        pool.inflight.fds.values().map(|fd| OpenFd { is_standard_stream: is_standard(fd), ..fd.clone() }).collect()
    }
}

impl FileTableBuilder<'_> {
    fn link_messages(&mut self, index: usize, inode: u64, infos: &FdDirectory) -> Result<(), CaptureError> {
        let Some(arrived) = self.tree_states.sockets.get(&inode).map(|socket| &socket.receive_queue) else {
            return Ok(());
        };
        let mut files = Vec::with_capacity(arrived.len());
        for message in arrived {
            let numbers = message.files.iter().map(|file| file.as_raw_fd().cast_unsigned());
            files.push(numbers.map(|number| self.inflight_index(number, infos)).collect::<Result<Vec<u32>, _>>()?);
        }
        if let OpenFile::Socket(socket) = &mut self.table.files[index] {
            socket.received_messages.iter_mut().zip(files).for_each(|(message, files)| message.files = files);
        }
        Ok(())
    }

    /// Index of the open file that a copy refers to.
    fn inflight_index(&mut self, number: u32, infos: &FdDirectory) -> Result<u32, CaptureError> {
        let position = self.fds.binary_search_by_key(&number, |fd| fd.number);
        let changed = |_| CaptureError::Unstable { pid: self.pids.pid, what: INFLIGHT_FD.to_owned() };
        let fd = &self.fds[position.map_err(changed)?];
        let kept = match fd.kind {
            FdKind::Epoll => Some("epoll instances are not carried in flight".to_owned()),
            FdKind::Terminal | FdKind::TerminalMaster if !fd.is_standard_stream => {
                Some("terminals are not carried in flight".to_owned())
            }
            _ => fd.refusal(),
        };
        if let Some(reason) = kept {
            return Err(CaptureError::refused(self.pids.pid, vec![Refusal::new(self.fd_name(fd), reason)]));
        }
        let unread = CaptureError::reading(self.pids.pid, INFLIGHT_FD);
        let info = infos.info(number).map_err(unread)?;
        let known = self.table.files.len();
        let index = self.index_of(fd, &info)?;
        let holds = self.file_states.fdinfo.get(&number).is_some_and(|info| !info.locks.is_empty())
            || self.file_states.signal_owners.contains_key(&number);
        if index as usize == known && holds {
            let reason = "it has a lock, or a recipient of its signals (F_SETOWN), which is not carried in flight; let the process receive it first";
            self.refusals.push(Refusal::new(self.fd_name(fd), reason));
        }
        Ok(index)
    }

    /// Names a descriptor in error messages.
    pub(super) fn fd_name(&self, fd: &OpenFd) -> String {
        if self.are_inflight {
            let link = String::from_utf8_lossy(&fd.link);
            return format!("pid {}, {link}, {INFLIGHT_FD}", self.pids.pid);
        }
        fd_object(self.pids.pid, fd.number)
    }
}

const INFLIGHT_FD: &str = "a descriptor in flight in a socket";
