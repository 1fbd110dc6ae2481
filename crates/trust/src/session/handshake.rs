//! The steps of the handshake: record by record, until both sides know each other.

use std::io::{self, Read, Write};

use rustls::Connection;

use super::{Session, State, WELCOME, refusal, unless_blocked};
use crate::certificate::Facts;
use crate::tls::FABRIC_CLEAR;
use crate::verify::{Peer, PeerError, explain};

impl<P: Read + Write> Session<P> {
    /// Reads from the pipe within the handshake; tells whether something came.
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        match unless_blocked(self.inbox.fill(&mut self.pipe))? {
            None => Ok(false),
            Some(0) => Err(refusal(PeerError::Closed)),
            Some(_) => Ok(true),
        }
    }

    /// Takes one step of the handshake with what was received; tells whether there was one.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(false) };
        match self.state {
            State::Shaking if !tls.is_handshaking() => {
                self.know_peer()?;
                return Ok(true);
            }
            State::Awaiting => {
                let mut word = [0];
                if unless_blocked(tls.reader().read(&mut word))? == Some(1) {
                    self.hear_welcome(word[0])?;
                    return Ok(true);
                }
            }
            State::Shaking | State::Open => {}
        }
        self.process_record()
    }

    /// Gives TLS one record: behind the last one of the handshake, bytes in clear may follow.
    fn process_record(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(false) };
        let mut record = self.inbox.first_record().map_err(refusal)?;
        let bytes = record.len();
        let mut outcome = Ok(());
        while !record.is_empty() && outcome.is_ok() {
            if tls.read_tls(&mut record)? == 0 {
                return Err(refusal(PeerError::Closed));
            }
            outcome = tls.process_new_packets().map(drop);
        }
        self.inbox.discard(bytes);
        match outcome {
            Ok(()) => Ok(bytes > 0),
            Err(error) => {
                let words = explain(&error);
                // Tells the peer, as far as that is possible at once.
                let _ = self.flush();
                Err(refusal(words))
            }
        }
    }

    /// The peer has proved who it is.
    fn know_peer(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let shown = tls.peer_certificates().and_then(|chain| chain.first()).ok_or(PeerError::NoCertificate);
        let shown = shown.map_err(refusal)?.clone().into_owned();
        let facts = Facts::of(&shown).map_err(|cause| refusal(PeerError::Certificate(cause)))?;
        self.shown = Some(shown);
        self.peer = Some(Peer { identity: facts.bearer, issued_us: facts.issued_us });
        self.clear = tls.alpn_protocol() == Some(FABRIC_CLEAR);
        self.state = State::Awaiting;
        if let Connection::Server(server) = &mut **tls {
            server.writer().write_all(&[WELCOME])?;
            self.open();
        }
        Ok(())
    }

    fn hear_welcome(&mut self, word: u8) -> io::Result<()> {
        if word != WELCOME {
            return Err(refusal(PeerError::Protocol("the server's word of welcome is another".to_owned())));
        }
        self.open();
        Ok(())
    }

    fn open(&mut self) {
        self.state = State::Open;
        if self.clear {
            self.inbox.free_if_empty();
        } else {
            self.inbox.expect_much();
        }
    }
}
