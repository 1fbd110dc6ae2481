//! The messages between supervisor and worker: lines of JSON over a Unix socket.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::outcome::Failure;

/// A message from the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Join these control groups. The worker must end when the supervisor, a process with this id, ends.
    Enter { supervisor: u32, groups: Vec<PathBuf> },
    /// Run the test with this name.
    Run { test: String },
    /// The processes of a test that timed out were recorded. The test may continue.
    Resume,
    /// Stop the shared cluster, and exit.
    Stop,
}

/// A message from a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// The worker is in its control groups.
    Entered,
    /// A thread of the test panicked. After a timeout, the thread waits for [`Request::Resume`].
    Panicked(Failure),
    /// The test has ended.
    Ended { failure: Option<Failure> },
    /// The shared cluster was stopped. It left these objects on the machine.
    Stopped { remains: Vec<String> },
}

/// One end of the socket.
#[derive(Debug)]
pub(super) struct Channel {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        Ok(Self { reader: BufReader::new(stream.try_clone()?), writer: stream })
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        send(&mut self.writer, message)
    }

    /// Receives the next message. Fails with `UnexpectedEof` if the other end is closed.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => serde_json::from_str(&line).map_err(io::Error::from),
        }
    }
}

/// Sends a message through one end of a socket. Another thread may read from the same end.
pub(super) fn send(writer: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    writer.write_all(&line)
}
