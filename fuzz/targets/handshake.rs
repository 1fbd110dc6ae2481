//! The handshake, on both sides, with a peer that has no certificate. No bytes panic, authenticate the peer, or keep either
//! side busy after the peer has closed the connection.
#![no_main]

use std::io::{self, IoSliceMut, Read, Write};

use farfork_fuzz::member::MEMBER;
use farfork_trust::AuthenticatedStream;
use libfuzzer_sys::fuzz_target;

/// Maximum number of turns until all input is read. Each piece has at least one byte.
const TURNS_MAX: usize = 1 << 17;

/// A pipe whose other end has sent all its input, and then closes. Bytes sent to it are discarded.
struct FuzzedPeer<'a> {
    rest: &'a [u8],
    piece_bytes: usize,
    /// Every second read has no data yet.
    waits: bool,
}

impl Read for FuzzedPeer<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.waits = !self.waits;
        if self.waits {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = into.len().min(self.piece_bytes).min(self.rest.len());
        into[..count].copy_from_slice(&self.rest[..count]);
        self.rest = &self.rest[count..];
        Ok(count)
    }
}

impl Write for FuzzedPeer<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|input: &[u8]| {
    let Some(([side, pieces], rest)) = input.split_first_chunk() else { return };
    let pipe = FuzzedPeer { rest, piece_bytes: 1 + usize::from(*pieces) * 16, waits: false };
    let session = match side & 1 {
        0 => AuthenticatedStream::accept(&MEMBER.credentials, pipe),
        _ => AuthenticatedStream::connect(&MEMBER.credentials, pipe, None),
    };
    let mut session = session.expect("its credentials are good");
    let mut into = [0; 512];
    let ended = (0..TURNS_MAX).any(|_| match session.receive(&mut [IoSliceMut::new(&mut into)]) {
        Ok(None) => false,
        Ok(Some(count)) => panic!("{count} bytes were accepted from a peer without a certificate"),
        Err(_) => true,
    });
    assert!(ended && !session.is_open() && session.peer().is_none());
});
