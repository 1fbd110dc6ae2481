//! Peers that violate the protocol.

use std::io::{Read, Write};
use std::net::Shutdown;

use farfork_trust::{AuthenticatedStream, Encryption, PeerError, Role};
use proptest::prelude::*;

use crate::bed::{Bed, found, open, pair, sockets};

/// The error of an end whose peer sends these bytes and no more.
fn hears(bytes: &[u8], is_server: bool) -> PeerError {
    let bed = Bed::new("blue");
    let credentials = open(&bed.first, Encryption::On);
    let (ours, mut theirs) = sockets();
    let mut session = if is_server {
        AuthenticatedStream::accept(&credentials, ours).unwrap()
    } else {
        AuthenticatedStream::connect(&credentials, ours, None).unwrap()
    };
    theirs.write_all(bytes).unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    found(session.continue_handshake().map(|open| assert!(!open, "the peer has shown no certificate")))
}

#[test]
fn plaintext_is_distinguished_from_a_closed_connection() {
    for is_server in [true, false] {
        for plain in [&b"FFABRIC\0\x01\0\0\0abcd"[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 100], &[22, 9, 9, 9, 9]] {
            assert_eq!(hears(plain, is_server), PeerError::Plaintext, "{plain:?}");
        }
        assert_eq!(hears(b"", is_server), PeerError::Closed);
        assert_eq!(hears(&[22, 3, 3, 0, 200, 1], is_server), PeerError::Closed);
    }
}

#[test]
fn an_oversized_record_is_refused() {
    let header = [22, 3, 3, 0xff, 0xff];
    assert_eq!(hears(&[&header[..], &[0; 30_000]].concat(), true), PeerError::Plaintext);
}

#[test]
fn a_changed_byte_ends_an_encrypted_stream() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let (one, other) = (open(&second, Encryption::On), open(&bed.first, Encryption::On));
    let (mut client, mut server) = pair(&one, &other, None);
    crate::bed::shake(&mut client, &mut server).1.unwrap();
    client.send(&[std::io::IoSlice::new(b"pay 10 to Alice")]).unwrap();
    // An attacker on the link replaces the record with a changed one.
    let mut record = vec![0; 4096];
    let count = server.pipe().read(&mut record).unwrap();
    record[count - 1] ^= 1;
    client.pipe().write_all(&record[..count]).unwrap();
    let mut space = [0; 100];
    let error = server.receive(&mut [std::io::IoSliceMut::new(&mut space)]).unwrap_err();
    assert!(error.to_string().contains("handshake failed") || error.to_string().contains("decrypt"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn garbage_never_completes_a_handshake(bytes in proptest::collection::vec(any::<u8>(), 0..2000), is_server: bool) {
        hears(&bytes, is_server);
        hears(&[&[22, 3, 1, 1, 44][..], &bytes].concat(), is_server);
        hears(&[&[22, 3, 3, 0, 60, 1, 0, 0, 56, 3, 3][..], &bytes].concat(), is_server);
    }
}
