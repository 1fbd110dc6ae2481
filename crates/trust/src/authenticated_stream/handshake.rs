//! Steps of the handshake of an `AuthenticatedStream`, record by record, until both sides have authenticated each other.

use std::io::{self, Read, Write};

use rustls::Connection;

use super::{ACCEPT_BYTE, AuthenticatedStream, HandshakeState, none_if_would_block, peer_error_to_io};
use crate::certificate::CertificateFields;
use crate::tls::ALPN_FABRIC_CLEAR;
use crate::verify::{AuthenticatedPeer, PeerError, from_tls_error};

impl<P: Read + Write> AuthenticatedStream<P> {
    /// Reads from the pipe during the handshake. Returns whether bytes arrived.
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        match none_if_would_block(self.records.fill(&mut self.pipe))? {
            None => Ok(false),
            Some(0) => Err(peer_error_to_io(PeerError::Closed)),
            Some(_) => Ok(true),
        }
    }

    /// Takes one step of the handshake with the received bytes. Returns whether a step was possible.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(false) };
        match self.state {
            HandshakeState::Handshaking if !tls.is_handshaking() => {
                self.identify_peer()?;
                return Ok(true);
            }
            HandshakeState::AwaitingAccept => {
                let mut byte = [0];
                if none_if_would_block(tls.reader().read(&mut byte))? == Some(1) {
                    self.handle_accept_byte(byte[0])?;
                    return Ok(true);
                }
            }
            HandshakeState::Handshaking | HandshakeState::Open => {}
        }
        self.process_record()
    }

    /// Passes one record to TLS, and no more: bytes in clear may follow the last record of the handshake.
    fn process_record(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(false) };
        let mut record = self.records.first_record().map_err(peer_error_to_io)?;
        let bytes = record.len();
        let mut outcome = Ok(());
        while !record.is_empty() && outcome.is_ok() {
            if tls.read_tls(&mut record)? == 0 {
                return Err(peer_error_to_io(PeerError::Closed));
            }
            outcome = tls.process_new_packets().map(drop);
        }
        self.records.consume(bytes);
        match outcome {
            Ok(()) => Ok(bytes > 0),
            Err(error) => {
                let words = from_tls_error(&error);
                // Sends the alert to the peer, as far as that is possible without waiting.
                let _ = self.flush();
                Err(peer_error_to_io(words))
            }
        }
    }

    /// Reads the peer's identity from its certificate, after the peer has proved that it has the key.
    fn identify_peer(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let shown = tls.peer_certificates().and_then(|chain| chain.first()).ok_or(PeerError::NoCertificate);
        let shown = shown.map_err(peer_error_to_io)?.clone().into_owned();
        let facts = CertificateFields::parse(&shown)
            .map_err(|cause| peer_error_to_io(PeerError::MalformedCertificate(cause)))?;
        self.peer_certificate = Some(shown);
        self.peer = Some(AuthenticatedPeer { identity: facts.subject, issued_us: facts.issued_us });
        self.is_clear = tls.alpn_protocol() == Some(ALPN_FABRIC_CLEAR);
        self.state = HandshakeState::AwaitingAccept;
        if let Connection::Server(server) = &mut **tls {
            server.writer().write_all(&[ACCEPT_BYTE])?;
            self.finish_handshake();
        }
        Ok(())
    }

    fn handle_accept_byte(&mut self, byte: u8) -> io::Result<()> {
        if byte != ACCEPT_BYTE {
            return Err(peer_error_to_io(PeerError::Protocol("the server sent an unexpected accept byte".to_owned())));
        }
        self.finish_handshake();
        Ok(())
    }

    fn finish_handshake(&mut self) {
        self.state = HandshakeState::Open;
        if self.is_clear {
            self.records.release_if_empty();
        } else {
            self.records.grow_for_data();
        }
    }
}
