//! Registry of the sockets that programs have open to this daemon. A capture supports these sockets, and refuses every
//! other connected socket.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use farfork_fork::capture::DaemonSockets;

/// Pids of the connected processes, by the inode of the process's end of the connection.
#[derive(Debug, Default)]
pub(super) struct SocketRegistry(Mutex<BTreeMap<u64, u32>>);

/// Registration of a connection. Dropping it removes the connection from the registry.
#[derive(Debug)]
pub(super) struct SocketRegistration {
    registry: Arc<SocketRegistry>,
    inode: u64,
}

/// Registrations of the program's ends of its children's channels. They last as long as the program is connected: the
/// program may keep a channel's socket open after the child has ended.
#[derive(Debug)]
pub(super) struct ChannelSockets {
    pub(super) registry: Arc<SocketRegistry>,
    pub(super) pid: u32,
    pub(super) registered: Mutex<Vec<SocketRegistration>>,
}

impl ChannelSockets {
    /// Registers a channel's socket that is about to be sent to the program.
    ///
    /// # Errors
    /// The error of fstat(2).
    pub(super) fn register(&self, socket: &OwnedFd) -> io::Result<()> {
        let inode = rustix::fs::fstat(socket)?.st_ino;
        let registration = self.registry.register(self.pid, inode);
        self.registered.lock().unwrap_or_else(PoisonError::into_inner).push(registration);
        Ok(())
    }
}

impl SocketRegistry {
    /// Registers a connection of a process. The process itself reports the inode; a false inode affects only that
    /// process.
    pub(super) fn register(self: &Arc<Self>, pid: u32, inode: u64) -> SocketRegistration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(inode, pid);
        SocketRegistration { registry: self.clone(), inode }
    }

    /// Returns the connections of a process. `caller` is the inode of the connection at which it waits for the reply.
    pub(super) fn sockets(&self, pid: u32, caller: u64) -> DaemonSockets {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = open.iter().filter(|(inode, owner)| **owner == pid && **inode != caller);
        DaemonSockets {
            caller: Some(caller),
            eof_in_child: others.map(|(inode, _)| *inode).collect(),
            copies_files: false,
        }
    }
}

impl Drop for SocketRegistration {
    fn drop(&mut self) {
        self.registry.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.inode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_only_its_open_connections() {
        let registry = Arc::new(SocketRegistry::default());
        let first = registry.register(812, 1);
        let _second = registry.register(812, 2);
        let _other = registry.register(813, 3);
        assert_eq!(
            registry.sockets(812, 1),
            DaemonSockets { caller: Some(1), eof_in_child: vec![2], copies_files: false }
        );
        drop(first);
        assert_eq!(
            registry.sockets(812, 2),
            DaemonSockets { caller: Some(2), eof_in_child: vec![], copies_files: false }
        );
    }
}
