//! Clusters in temporary directories, and socket pairs whose two ends perform a handshake.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime};

use farfork_trust::{
    AuthenticatedStream, Credentials, Encryption, NODE_VALID, PeerError, Role, TrustDirectory, member,
};
use farfork_wire::NodeName;
use tempfile::TempDir;

/// Limit on turns, far above the number that a handshake needs.
const TURNS_MAX: usize = 100;

pub(crate) fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

/// A cluster whose first node is `n1`.
pub(crate) struct Bed {
    scratch: TempDir,
    pub(crate) first: TrustDirectory,
}

impl Bed {
    pub(crate) fn new(cluster: &str) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let first = TrustDirectory::new(scratch.path().join("n1"));
        member::create_cluster(&first, &name(cluster), &name("n1"), SystemTime::now()).unwrap();
        Self { scratch, first }
    }

    /// A directory of a member whose certificate was issued at `at` and is valid for `valid`.
    pub(crate) fn issue_at(&self, role: Role, member: &str, at: SystemTime, valid: Duration) -> TrustDirectory {
        let into = TrustDirectory::new(self.scratch.path().join(format!("{role}-{member}")));
        member::issue_client_directory(&self.first, &into, role, &name(member), at, valid).unwrap();
        into
    }

    pub(crate) fn issue(&self, role: Role, member: &str) -> TrustDirectory {
        self.issue_at(role, member, SystemTime::now(), NODE_VALID)
    }
}

pub(crate) fn open(directory: &TrustDirectory, encryption: Encryption) -> Credentials {
    Credentials::open(directory, encryption).unwrap()
}

pub(crate) type End = AuthenticatedStream<UnixStream>;

/// Two ends of a connection before the handshake.
pub(crate) fn pair(client: &Credentials, server: &Credentials, expected: Option<&str>) -> (End, End) {
    let (one, other) = sockets();
    let expected = expected.map(name);
    (
        AuthenticatedStream::connect(client, one, expected.as_ref()).unwrap(),
        AuthenticatedStream::accept(server, other).unwrap(),
    )
}

pub(crate) fn sockets() -> (UnixStream, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    other.set_nonblocking(true).unwrap();
    (one, other)
}

/// Continues both handshakes in turn until each end is open or has failed. Returns the outcome of each.
pub(crate) fn shake<P: Read + Write>(
    client: &mut AuthenticatedStream<P>,
    server: &mut AuthenticatedStream<P>,
) -> (io::Result<()>, io::Result<()>) {
    let mut outcome = (None, None);
    for _ in 0..TURNS_MAX {
        for (end, outcome) in [(&mut *client, &mut outcome.0), (&mut *server, &mut outcome.1)] {
            if outcome.is_none() {
                match end.continue_handshake() {
                    Ok(true) => *outcome = Some(Ok(())),
                    Ok(false) => {}
                    Err(error) => *outcome = Some(Err(error)),
                }
            }
        }
        if let (Some(_), Some(_)) = outcome {
            break;
        }
    }
    let unfinished = || Err(io::ErrorKind::WouldBlock.into());
    (outcome.0.unwrap_or_else(unfinished), outcome.1.unwrap_or_else(unfinished))
}

/// The reason why an end refused its peer.
pub(crate) fn found(outcome: io::Result<()>) -> PeerError {
    let error = outcome.expect_err("it is refused");
    let found = error.get_ref().and_then(|inner| inner.downcast_ref::<PeerError>());
    found.unwrap_or_else(|| panic!("no PeerError in {error}")).clone()
}

/// Sends all bytes from one end to the other.
pub(crate) fn carry<P: Read + Write>(
    from: &mut AuthenticatedStream<P>,
    to: &mut AuthenticatedStream<P>,
    bytes: &[u8],
) -> Vec<u8> {
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < bytes.len() {
        let (head, tail) = bytes[sent..].split_at((bytes.len() - sent).min(100));
        sent += from.send(&[IoSlice::new(head), IoSlice::new(tail)]).unwrap().unwrap_or(0);
        let (mut one, mut other) = ([0; 1000], vec![0; 70_000]);
        let mut spaces = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)];
        if let Some(count) = to.receive(&mut spaces).unwrap() {
            assert!(count > 0, "the stream ended");
            got.extend_from_slice(&one[..count.min(1000)]);
            got.extend_from_slice(&other[..count.saturating_sub(1000)]);
        }
    }
    got
}
