//! The messages between supervisor and worker: lines of JSON over a Unix socket.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::outcome::Failure;

/// Sent by the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Join these control groups. The worker ends with the supervisor of this process id.
    Enter { supervisor: u32, groups: Vec<PathBuf> },
    /// Run the test of this name.
    Run { test: String },
    /// The processes of a test that timed out were recorded; the test may continue.
    Resume,
    /// Stop the shared cluster, and end.
    Stop,
}

/// Sent by a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// The worker is in its control groups.
    Entered,
    /// A thread of the test panicked. After a timeout, the thread waits for [`Request::Resume`].
    Panicked(Failure),
    /// The test has ended.
    Ended { failure: Option<Failure> },
    /// The shared cluster was stopped, and left this on the machine.
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

    /// The next message; `UnexpectedEof` if the other end is closed.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => serde_json::from_str(&line).map_err(io::Error::from),
        }
    }
}

/// Sends a message by one end of a socket; another thread may read from the same end.
pub(super) fn send(writer: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    writer.write_all(&line)
}
