//! Rosters, which other nodes send: no bytes panic, and a roster is accepted only if a trusted authority signed it.
#![no_main]

use std::sync::LazyLock;
use std::time::SystemTime;

use farfork_trust::{AuthenticatedPeer, Authority, Identity, Role, Roster, RosterError};
use farfork_wire::NodeName;
use libfuzzer_sys::fuzz_target;

/// The start of a roster.
const MAGIC: &[u8; 12] = b"FFROSTER\x01\0\0\0";

/// A cluster's authority and its first roster.
static CLUSTER: LazyLock<(Authority, Roster)> = LazyLock::new(|| {
    let blue = NodeName::new("blue").expect("a name");
    let authority = Authority::create(&blue, SystemTime::now()).expect("a key");
    let roster = Roster::new(&blue, &authority);
    (authority, roster)
});

/// Wraps a document in a roster without signatures. A fuzzer could hardly find the right length.
fn around(document: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let mut length = document.len();
    while length > 127 {
        bytes.push(length as u8 | 128);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(document);
    bytes.push(0);
    bytes
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, input)) = input.split_first() else { return };
    let (authority, ours) = &*CLUSTER;
    let bytes = if kind & 1 == 0 { [MAGIC, input].concat() } else { around(input) };
    let _ = Roster::decode_trusted(input);
    assert!(ours.verify_successor(&bytes).is_err(), "it has no signature");
    assert!(Roster::verify_pinned(&bytes, authority.fingerprint()).is_err(), "it has no signature");
    // Check a roster with a valid signature of the authority.
    let Ok(theirs) = Roster::decode_trusted(&bytes) else { return };
    let name = NodeName::new("n1").expect("a name");
    let identity = Identity { cluster: theirs.cluster().clone(), role: Role::Node, name };
    let _ = theirs.is_revoked(&AuthenticatedPeer { identity, issued_us: 5 });
    let Ok(signed) = theirs.sign(&[authority]) else { return };
    match ours.verify_successor(&signed) {
        Ok(next) => assert!(next == theirs && next.counter() > ours.counter()),
        Err(RosterError::WrongCluster { .. }) => assert_ne!(theirs.cluster(), ours.cluster()),
        Err(RosterError::Stale) => assert!(theirs.counter() <= ours.counter()),
        Err(other) => panic!("the authority signed it: {other}"),
    }
});
