//! A stream to an authenticated peer, over any non-blocking ordered pipe of bytes. The fabric uses it.
//!
//! The handshake runs inside [`AuthenticatedStream::receive`] and [`AuthenticatedStream::send`]: until it is complete,
//! nothing is received and no bytes are taken.

mod handshake;

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use farfork_wire::NodeName;
use rustls::pki_types::{CertificateDer, DnsName, IpAddr, ServerName};
use rustls::{ClientConnection, Connection, ServerConnection};

use crate::credentials::Credentials;
use crate::record_buffer::RecordBuffer;
use crate::verify::{AuthenticatedPeer, PeerError, from_tls_error};

/// What the server says once it has accepted the client.
const ACCEPT_BYTE: u8 = 1;

/// Most encrypted bytes that wait inside for the pipe.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// ```text
///  client                                                             server
///    Handshaking ── ClientHello ────────────────────────────────────▶ Handshaking
///                ◀─ ServerHello … certificate, signature, Finished ──
///    AwaitingAccept ── certificate, signature, Finished ────────────▶ (checks) ─┐
///       │ may send from here                                                    │
///       ◀─────────────────── ACCEPT_BYTE, one byte in a record ────────────── Open
///    Open    records, or the same pipe in clear where both sides agreed on that
/// ```
///
/// `ACCEPT_BYTE` says that the server has accepted the client. Until then the client reads records, one by one, so that
/// it takes no byte in clear for a record. A refusal is an alert in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandshakeState {
    /// In the handshake.
    Handshaking,
    /// A client that has shown who it is, and has not heard yet whether it is welcome.
    AwaitingAccept,
    /// Both sides know each other.
    Open,
}

/// A stream to a peer that has proved who it is.
pub struct AuthenticatedStream<P> {
    pipe: P,
    /// Gone once all goes on in clear.
    tls: Option<Box<Connection>>,
    state: HandshakeState,
    is_clear: bool,
    peer: Option<AuthenticatedPeer>,
    /// What the peer showed.
    peer_certificate: Option<CertificateDer<'static>>,
    records: RecordBuffer,
    /// Decrypted bytes that TLS keeps.
    decrypted_bytes: usize,
    /// Why the handshake failed: the pipe tells a reason once, and of whoever looks later only that it is at its end.
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
    /// Begins as the one that connected to the fabric of a node: this one, or whichever answers.
    ///
    /// # Errors
    /// The credentials cannot be used for it.
    pub fn connect(credentials: &Credentials, pipe: P, expected: Option<&NodeName>) -> io::Result<Self> {
        let name = match expected {
            Some(node) => DnsName::try_from(node.as_str()).map(|name| ServerName::DnsName(name.to_owned())),
            // No name: an address that no node has says that any of the cluster's will do.
            None => Ok(ServerName::IpAddress(IpAddr::V4([0, 0, 0, 0].into()))),
        };
        let config = credentials.snapshot().fabric_client.clone();
        let tls = ClientConnection::new(config, name.map_err(io::Error::other)?).map_err(io::Error::other)?;
        Ok(Self::new(pipe, tls.into()))
    }

    /// Begins as the one that was connected to.
    ///
    /// # Errors
    /// The credentials cannot be used for it.
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

    /// Who the peer is, once it has proved that. A server's word that this side is welcome is [`Self::is_open`].
    pub fn peer(&self) -> Option<&AuthenticatedPeer> {
        self.peer.as_ref()
    }

    /// Whether the peer would be let in now, as it was when the stream began.
    ///
    /// # Errors
    /// It would not.
    pub fn check_peer_trusted(&self, credentials: &Credentials) -> Result<(), PeerError> {
        self.peer_certificate.as_ref().map_or(Ok(()), |shown| credentials.check_certificate(shown))
    }

    /// Whether both sides know each other.
    pub fn is_open(&self) -> bool {
        self.state == HandshakeState::Open
    }

    /// Whether what follows the handshake goes in clear.
    pub fn is_clear(&self) -> bool {
        self.is_clear
    }

    /// The pipe.
    pub fn pipe(&self) -> &P {
        &self.pipe
    }

    /// Does of the handshake what can be done now; tells whether it is over.
    ///
    /// # Errors
    /// As [`Self::receive`]; once the peer was not let in, or did not let this side in, always the same.
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
            // A peer that refused may have closed: its reason counts, and has come before the pipe broke.
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

    /// Receives into the spaces: how many bytes came, `Some(0)` at the end of the stream, `None` when there is nothing
    /// now.
    ///
    /// # Errors
    /// The pipe's; a [`PeerError`] within where the peer is not let in, or does not let this side in.
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

    /// Sends from the slices: how many bytes it took, `None` when it takes none now. Taken bytes may wait inside.
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

    /// Whether bytes that came already may wait inside to be received.
    pub fn may_have_buffered(&self) -> bool {
        self.decrypted_bytes > 0 || !self.records.unprocessed().is_empty()
    }

    /// Whether this side knows the peer, so that it may send. A client may before it is open.
    pub fn can_send(&self) -> bool {
        self.state != HandshakeState::Handshaking
    }

    /// Whether bytes wait inside for room in the pipe.
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

    /// Fills the spaces from records that were received, as far as they go; tells also whether the peer has ended.
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
                        // Nothing to read would look like the end of the stream.
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

    /// Sends what waits inside; tells whether nothing is left.
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

/// As many bytes as fit.
fn copy_out(mut bytes: &[u8], spaces: &mut [IoSliceMut<'_>]) -> usize {
    let before = bytes.len();
    for space in spaces {
        let count = space.len().min(bytes.len());
        space[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
    }
    before - bytes.len()
}

/// `None` where the pipe would block.
fn none_if_would_block(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
