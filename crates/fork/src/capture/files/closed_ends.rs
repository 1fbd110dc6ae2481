//! Closed ends of TCP connections and named pipes. No process of the tree has them open, but their other ends show that they
//! existed: data and the end of the stream arrive, and poll(2) reports POLLHUP. The descriptor has open files for them, to
//! which no descriptor of a process refers: a child creates them, and closes them before it runs.

use std::collections::BTreeSet;

use farfork_wire::descriptor::OpenFile;

use super::sockets::SocketTable;
use super::{O_ACCMODE, O_RDONLY, O_WRONLY, OpenFileStates, OpenFileTable};

impl OpenFileTable {
    /// Adds the closed ends. Call it when all other open files are known. `states` are the states of the whole tree.
    pub(super) fn add_closed_ends(&mut self, states: &OpenFileStates) {
        let open: BTreeSet<u64> = self.sockets.values().copied().collect();
        let sockets = SocketTable(&states.sockets).closed_tcp_ends(&open);
        self.files.extend(sockets.into_iter().map(OpenFile::Socket));
        let pipes: Vec<OpenFile> = self.written_pipes.iter().filter_map(|path| self.closed_writer(path)).collect();
        self.files.extend(pipes);
    }

    /// The closed write end of a named pipe; `None` if a process of the tree can write to the pipe.
    fn closed_writer(&self, wanted: &str) -> Option<OpenFile> {
        let mut ends = self.files.iter().filter_map(|file| match file {
            OpenFile::NamedPipe { path, flags, capacity, .. } if path == wanted => Some((*flags, *capacity)),
            _ => None,
        });
        let (path, content) = (wanted.to_owned(), Vec::new());
        let is_read_only = ends.clone().all(|(flags, _)| flags & O_ACCMODE == O_RDONLY);
        let (_, capacity) = ends.next().filter(|_| is_read_only)?;
        Some(OpenFile::NamedPipe { path, flags: O_WRONLY, capacity, content })
    }
}
