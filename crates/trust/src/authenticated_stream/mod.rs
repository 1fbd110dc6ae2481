//! A stream to an authenticated peer, over any non-blocking ordered pipe of bytes. The fabric uses it.
//!
//! The handshake runs inside [`AuthenticatedStream::receive`] and [`AuthenticatedStream::send`]. Until it is complete,
//! nothing is received. A side may send as soon as it has authenticated its peer.

mod handshake;

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use farfork_wire::NodeName;
use rustls::pki_types::{CertificateDer, DnsName, IpAddr, ServerName};
use rustls::{ClientConnection, Connection, ServerConnection};

use crate::credentials::Credentials;
use crate::record_buffer::RecordBuffer;
use crate::verify::{AuthenticatedPeer, PeerError, from_tls_error};

/// The byte by which the server accepts the client.
const ACCEPT_BYTE: u8 = 1;

/// Maximum number of encrypted bytes that are buffered for the pipe.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// ```text
///  client                                                             server
///    Handshaking ── ClientHello ────────────────────────────────────▶ Handshaking
///                ◀─ ServerHello … certificate, signature, Finished ──
///    AwaitingAccept ── certificate, signature, Finished ────────────▶ (checks) ─┐
///       │ may send from here                                                    │
///       ◀─────────────────── ACCEPT_BYTE, one byte in a record ────────────── Open
///    Open    records, or the same pipe in clear if both sides agreed on that
/// ```
///
/// `ACCEPT_BYTE` means that the server has accepted the client. Until then the client reads single records, so that it does
/// not mistake a byte in clear for a part of a record. If the server refuses the client, it sends an alert instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandshakeState {
    /// The TLS handshake is running.
    Handshaking,
    /// A client that has sent its certificate, and waits for `ACCEPT_BYTE`.
    AwaitingAccept,
    /// Both sides have authenticated each other.
    Open,
}

/// A stream to an authenticated peer.
pub struct AuthenticatedStream<P> {
    pipe: P,
    /// `None` once all bytes are sent in clear.
    tls: Option<Box<Connection>>,
    state: HandshakeState,
    is_clear: bool,
    peer: Option<AuthenticatedPeer>,
    /// The peer's certificate.
    peer_certificate: Option<CertificateDer<'static>>,
    records: RecordBuffer,
    /// Number of decrypted bytes that TLS still buffers.
    decrypted_bytes: usize,
    /// Why the handshake failed. The pipe reports the reason only once, and then end of stream.
    handshake_error: Option<PeerError>,
}

impl<P> std::fmt::Debug for AuthenticatedStream<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { state, is_clear: clear, peer, .. } = self;
        f.debug_struct("Session")
            .field("state", state)
            .field("clear", clear)
            .field("peer", peer)
            .finish_non_exhaustive()
    }
}

impl<P: Read + Write> AuthenticatedStream<P> {
    /// Starts a handshake as the client. The server must be the node `expected`, or any node of the cluster if that is
    /// `None`.
    ///
    /// # Errors
    /// If the credentials cannot be used for TLS.
    pub fn connect(credentials: &Credentials, pipe: P, expected: Option<&NodeName>) -> io::Result<Self> {
        let name = match expected {
            Some(node) => DnsName::try_from(node.as_str()).map(|name| ServerName::DnsName(name.to_owned())),
            // An IP address in place of a name: the verifier then accepts any node of the cluster.
            None => Ok(ServerName::IpAddress(IpAddr::V4([0, 0, 0, 0].into()))),
        };
        let config = credentials.snapshot().fabric_client.clone();
        let tls = ClientConnection::new(config, name.map_err(io::Error::other)?).map_err(io::Error::other)?;
        Ok(Self::new(pipe, tls.into()))
    }

    /// Starts a handshake as the server.
    ///
    /// # Errors
    /// If the credentials cannot be used for TLS.
    pub fn accept(credentials: &Credentials, pipe: P) -> io::Result<Self> {
        let config = credentials.snapshot().fabric_server.clone();
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Self::new(pipe, tls.into()))
    }

    fn new(pipe: P, mut tls: Connection) -> Self {
        tls.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        let tls = Some(Box::new(tls));
        Self {
            pipe,
            tls,
            state: HandshakeState::Handshaking,
            is_clear: false,
            peer: None,
            peer_certificate: None,
            records: RecordBuffer::default(),
            decrypted_bytes: 0,
            handshake_error: None,
        }
    }

    /// The peer, once it has proved its identity. [`Self::is_open`] says whether the peer has accepted this side.
    pub fn peer(&self) -> Option<&AuthenticatedPeer> {
        self.peer.as_ref()
    }

    /// Checks whether the peer's certificate would still be accepted now.
    ///
    /// # Errors
    /// Why it would be refused.
    pub fn check_peer_trusted(&self, credentials: &Credentials) -> Result<(), PeerError> {
        self.peer_certificate.as_ref().map_or(Ok(()), |shown| credentials.check_certificate(shown))
    }

    /// Whether both sides have accepted each other.
    pub fn is_open(&self) -> bool {
        self.state == HandshakeState::Open
    }

    /// Whether the bytes after the handshake are sent in clear.
    pub fn is_clear(&self) -> bool {
        self.is_clear
    }

    /// The pipe.
    pub fn pipe(&self) -> &P {
        &self.pipe
    }

    /// Continues the handshake without waiting. Returns whether it is complete.
    ///
    /// # Errors
    /// As [`Self::receive`]. Once either side has refused the other, the error is always the same.
    pub fn continue_handshake(&mut self) -> io::Result<bool> {
        if let Some(verdict) = &self.handshake_error {
            return Err(peer_error_to_io(verdict.clone()));
        }
        let outcome = self.run_handshake();
        if let Err(error) = &outcome {
            self.handshake_error = error.get_ref().and_then(|inner| inner.downcast_ref()).cloned();
        }
        outcome
    }

    fn run_handshake(&mut self) -> io::Result<bool> {
        while self.state != HandshakeState::Open {
            // A peer that refuses this side sends an alert, and may then close the pipe. Report the alert, not the error of
            // this flush.
            let flushed = self.flush();
            if self.advance()? || self.fill()? {
                continue;
            }
            flushed?;
            return Ok(false);
        }
        self.flush()?;
        Ok(true)
    }

    /// Receives into the spaces. Returns the number of bytes, `Some(0)` at the end of the stream, or `None` if nothing has
    /// arrived.
    ///
    /// # Errors
    /// An error of the pipe. It contains a [`PeerError`] if either side refused the other.
    pub fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        if self.state != HandshakeState::Open && !self.continue_handshake()? {
            return Ok(None);
        }
        if self.is_clear {
            return self.receive_clear(spaces);
        }
        loop {
            let (count, ended) = self.decrypt(spaces)?;
            if count > 0 || ended {
                return Ok(Some(count));
            }
            match none_if_would_block(self.records.fill(&mut self.pipe))? {
                Some(0) => return Ok(Some(0)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Sends from the slices. Returns the number of accepted bytes, or `None` if none can be accepted now. Accepted bytes
    /// may still be buffered.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        if self.state != HandshakeState::Open {
            self.continue_handshake()?;
        }
        let is_flushed = self.flush()?;
        if self.state == HandshakeState::Handshaking {
            return Ok(None);
        }
        let Some(tls) = self.tls.as_mut().filter(|_| !self.is_clear) else {
            return if is_flushed { none_if_would_block(self.pipe.write_vectored(slices)) } else { Ok(None) };
        };
        let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
        let taken = tls.writer().write_vectored(slices)?;
        self.flush()?;
        Ok((taken > 0 || wanted == 0).then_some(taken))
    }

    /// Whether received bytes may be buffered.
    pub fn may_have_buffered(&self) -> bool {
        self.decrypted_bytes > 0 || !self.records.unprocessed().is_empty()
    }

    /// Whether this side has authenticated the peer, so that it may send. A client may send before the stream is open.
    pub fn can_send(&self) -> bool {
        self.state != HandshakeState::Handshaking
    }

    /// Whether buffered bytes wait for space in the pipe.
    pub fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    fn receive_clear(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let buffered = self.records.unprocessed();
        if buffered.is_empty() {
            return none_if_would_block(self.pipe.read_vectored(spaces));
        }
        let count = copy_out(buffered, spaces);
        self.records.consume(count);
        self.records.release_if_empty();
        Ok(Some(count))
    }

    /// Fills the spaces from buffered records. Returns the number of bytes, and whether the peer has ended the stream.
    fn decrypt(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<(usize, bool)> {
        let Some(tls) = &mut self.tls else { return Ok((0, true)) };
        let mut total = 0;
        for space in spaces {
            let mut filled = 0;
            while filled < space.len() {
                match none_if_would_block(tls.reader().read(&mut space[filled..]))? {
                    Some(0) => return Ok((total, true)),
                    Some(count) => {
                        filled += count;
                        total += count;
                        self.decrypted_bytes = self.decrypted_bytes.saturating_sub(count);
                    }
                    None => {
                        // Passing no bytes to TLS would look like the end of the stream.
                        if self.records.unprocessed().is_empty() {
                            return Ok((total, false));
                        }
                        let consumed = tls.read_tls(&mut self.records.unprocessed())?;
                        self.records.consume(consumed);
                        let state = tls.process_new_packets().map_err(|error| tls_error_to_io(&error))?;
                        self.decrypted_bytes = state.plaintext_bytes_to_read();
                    }
                }
            }
        }
        Ok((total, false))
    }

    /// Sends buffered bytes. Returns whether none are left.
    fn flush(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        while tls.wants_write() {
            if none_if_would_block(tls.write_tls(&mut self.pipe))?.is_none() {
                return Ok(false);
            }
        }
        if self.is_clear && self.state == HandshakeState::Open {
            self.tls = None;
        }
        Ok(true)
    }
}

fn peer_error_to_io(error: PeerError) -> io::Error {
    let kind = match error {
        PeerError::Closed => io::ErrorKind::UnexpectedEof,
        PeerError::Plaintext | PeerError::Protocol(_) => io::ErrorKind::InvalidData,
        _ => io::ErrorKind::PermissionDenied,
    };
    io::Error::new(kind, error)
}

fn tls_error_to_io(error: &rustls::Error) -> io::Error {
    peer_error_to_io(from_tls_error(error))
}

/// Copies as many bytes as fit, and returns their number.
fn copy_out(mut bytes: &[u8], spaces: &mut [IoSliceMut<'_>]) -> usize {
    let before = bytes.len();
    for space in spaces {
        let count = space.len().min(bytes.len());
        space[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
    }
    before - bytes.len()
}

/// Returns `None` if the pipe would block.
fn none_if_would_block(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
