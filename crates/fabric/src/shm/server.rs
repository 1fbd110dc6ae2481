//! The owner's end of `shm`.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use crate::stream::{self, StreamKind};
use crate::{Address, Exporter};

/// Serves an exporter's memory to this host until it is dropped. The socket's path stays: its owner is who made it.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    /// Held for its end.
    _server: stream::Server,
}

impl Server {
    /// Serves what connects to `listener`.
    ///
    /// # Errors
    /// `InvalidInput` where the listener has no path; else where this process cannot have another file descriptor or
    /// thread.
    pub fn start(listener: UnixListener, exporter: &Arc<dyn Exporter>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let path = address.as_pathname().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        listener.set_nonblocking(true)?;
        let server = stream::Server::start(listener.into(), StreamKind::Unix, exporter)?;
        Ok(Self { path, _server: server })
    }

    /// Where it is reached.
    pub fn address(&self) -> Address {
        Address::Shm(self.path.clone())
    }
}
