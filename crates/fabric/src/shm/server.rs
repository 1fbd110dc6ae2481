//! The owner's end of `shm`: serves an exporter on a Unix socket to processes of root and of its own user.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::{Uid, geteuid};

use super::stream::ShmStream;
use crate::stream::{self, ListenerConfig};
use crate::{Address, Exporter, transport};

/// Serves an exporter's memory to this host. Dropping the server ends all connections at once, and does not remove the
/// socket's file.
#[derive(Debug)]
pub struct ShmServer {
    path: PathBuf,
    server: stream::StreamServer,
}

impl ShmServer {
    /// Starts to serve connections to `listener` from processes of root and of this process's user (SO_PEERCRED). Other
    /// processes are disconnected, even if the permissions of the socket's file let them connect.
    ///
    /// # Errors
    /// `InvalidInput` if the listener has no path; or the process cannot create another file descriptor or thread.
    pub fn start(listener: UnixListener, exporter: &Arc<dyn Exporter>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let path = address.as_pathname().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        listener.set_nonblocking(true)?;
        let config = ListenerConfig {
            thread_name: "fabric-shm",
            same_host: true,
            make_stream: stream_from_socket,
            security: None,
        };
        Ok(Self { path, server: stream::StreamServer::start(listener.into(), &config, exporter)? })
    }

    /// Stops accepting and receiving, serves received requests, and ends once all replies are sent or after `timeout`.
    pub fn close(self, timeout: Duration) {
        self.server.close(timeout);
    }

    /// Number of panics of the server's threads. Each panic closed the thread's connections, and the thread continued.
    pub fn panic_count(&self) -> u64 {
        self.server.panic_count()
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> Address {
        Address::Shm(self.path.clone())
    }
}

fn stream_from_socket(socket: OwnedFd) -> io::Result<(Box<dyn transport::Stream>, String)> {
    let peer = sockopt::socket_peercred(&socket)?;
    let from = format!("process {} of user {}", peer.pid, peer.uid);
    if !may_connect(peer.uid, geteuid()) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{from} may not connect: only root and the owner's user may"),
        ));
    }
    Ok((Box::new(ShmStream::for_owner(socket)), from))
}

/// Only root and the template's user may access its memory.
fn may_connect(peer: Uid, own: Uid) -> bool {
    peer.is_root() || peer == own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_same_user_may_connect() {
        let uid = Uid::from_raw;
        assert!(may_connect(uid(0), uid(1000)) && may_connect(uid(1000), uid(1000)) && may_connect(uid(0), uid(0)));
        assert!(!may_connect(uid(1000), uid(0)) && !may_connect(uid(1001), uid(1000)));
    }
}
