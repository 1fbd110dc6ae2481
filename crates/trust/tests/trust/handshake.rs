//! Which peers are accepted, which are refused, and what each side reports.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use farfork_trust::{AuthenticatedStream, Credentials, Encryption, NODE_VALID, PeerError, Role, member};
use proptest::prelude::*;

use crate::bed::{Bed, carry, found, name, open, pair, shake};

const LARGE_BYTES: usize = 3_000_000;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
}

#[test]
fn nodes_authenticate_each_other_and_exchange_data() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    for (ours, theirs, is_clear) in [
        (Encryption::On, Encryption::On, false),
        (Encryption::Off, Encryption::On, false),
        (Encryption::On, Encryption::Off, false),
        (Encryption::Off, Encryption::Off, true),
    ] {
        let (client, server) = (open(&second, ours), open(&bed.first, theirs));
        let (mut client, mut server) = pair(&client, &server, Some("n1"));
        let (one, other) = shake(&mut client, &mut server);
        one.unwrap();
        other.unwrap();
        assert_eq!(client.peer().unwrap().to_string(), "farfork://blue/node/n1");
        assert_eq!(server.peer().unwrap().to_string(), "farfork://blue/node/n2");
        assert_eq!((client.is_clear(), server.is_clear()), (is_clear, is_clear), "{ours:?} {theirs:?}");
        for bytes in [pattern(1), pattern(LARGE_BYTES)] {
            assert!(carry(&mut client, &mut server, &bytes) == bytes);
            assert!(carry(&mut server, &mut client, &bytes) == bytes);
        }
    }
}

#[test]
fn data_is_readable_on_the_wire_only_without_encryption() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let secret = b"a page of somebody's memory";
    for (encryption, is_seen) in [(Encryption::On, false), (Encryption::Off, true)] {
        let (client, server) = (open(&second, encryption), open(&bed.first, encryption));
        let (mut client, mut server) = pair(&client, &server, None);
        shake(&mut client, &mut server).0.unwrap();
        client.send(&[IoSlice::new(secret)]).unwrap();
        let mut wire = vec![0; 4096];
        let count = server.pipe().read(&mut wire).unwrap();
        assert_eq!(wire[..count].windows(secret.len()).any(|window| window == secret), is_seen, "{encryption:?}");
    }
}

#[test]
fn a_client_may_send_before_the_handshake_reply() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let (client, server) = (open(&second, Encryption::Off), open(&bed.first, Encryption::Off));
    let (mut client, mut server) = pair(&client, &server, None);
    let (mut sent, mut got) = (0, Vec::new());
    // Bytes in clear follow the client's last record at once. None of them may be taken for a part of a record.
    while got.len() < 5 {
        sent += client.send(&[IoSlice::new(&b"early"[sent..])]).unwrap().unwrap_or(0);
        let mut space = [0; 16];
        let count = server.receive(&mut [IoSliceMut::new(&mut space)]).unwrap().unwrap_or(0);
        got.extend_from_slice(&space[..count]);
        if sent < 5 {
            assert!(!client.is_open());
        }
    }
    assert_eq!(got, b"early");
    assert!(client.continue_handshake().unwrap());
}

#[test]
fn a_node_of_another_cluster_is_refused() {
    let (blue, other) = (Bed::new("blue"), Bed::new("blue"));
    let (mut client, mut server) = pair(&open(&other.first, Encryption::On), &open(&blue.first, Encryption::On), None);
    let (one, _) = shake(&mut client, &mut server);
    let error = found(one);
    assert!(matches!(error, PeerError::UnknownAuthority { .. }), "{error}");
    assert!(error.to_string().contains("n1") && error.to_string().contains("join"), "{error}");
}

#[test]
fn a_refusal_is_reported_by_every_call() {
    let bed = Bed::new("blue");
    let expired = bed.issue_at(Role::Node, "n2", SystemTime::now() - 2 * NODE_VALID, NODE_VALID);
    let (mut client, mut server) = pair(&open(&expired, Encryption::On), &open(&bed.first, Encryption::On), None);
    let first = found(shake(&mut client, &mut server).0);
    drop(server);
    let sends = found(client.send(&[IoSlice::new(b"a question")]).map(drop));
    let receives = found(client.receive(&mut [IoSliceMut::new(&mut [0; 16])]).map(drop));
    assert!(matches!(&first, PeerError::RefusedByPeer(why) if why.contains("expired")), "{first}");
    assert_eq!((&sends, &receives), (&first, &first));
}

#[test]
fn a_certificate_with_the_roster_of_another_cluster_is_refused() {
    let (blue, other) = (Bed::new("blue"), Bed::new("blue"));
    let stranger = other.issue(Role::Node, "n2");
    let victim = blue.issue(Role::Node, "n2");
    std::fs::copy(victim.roster_path(), stranger.roster_path()).unwrap();
    assert!(Credentials::open(&stranger, Encryption::On).is_err(), "no trusted authority issued it");
}

#[test]
fn an_expired_certificate_is_refused() {
    let bed = Bed::new("blue");
    let (day, now) = (Duration::from_secs(24 * 3600), SystemTime::now());
    let expired = bed.issue_at(Role::Node, "n2", now - 2 * day, day);
    let early = bed.issue_at(Role::Node, "n3", now + 2 * day, day);
    let first = open(&bed.first, Encryption::On);
    let (mut client, mut server) = pair(&open(&expired, Encryption::On), &first, None);
    let (one, other) = shake(&mut client, &mut server);
    assert!(matches!(found(other), PeerError::Expired { subject } if subject.name == name("n2")));
    assert!(matches!(found(one), PeerError::RefusedByPeer(why) if why.contains("expired")));
    let (mut client, mut server) = pair(&first, &open(&early, Encryption::On), None);
    assert!(matches!(found(shake(&mut client, &mut server).0), PeerError::NotYetValid { .. }));
}

#[test]
fn a_revoked_node_is_refused_until_it_joins_again() {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let (client, server) = (open(&second, Encryption::On), open(&bed.first, Encryption::On));
    let (mut one, mut other) = pair(&client, &server, None);
    shake(&mut one, &mut other).1.unwrap();
    let peer = other.peer().unwrap().clone();
    assert!(!server.is_revoked(&peer));

    member::revoke_identity(&bed.first, Role::Node, &name("n2"), SystemTime::now).unwrap();
    server.reload();
    assert!(server.is_revoked(&peer), "an open connection can detect the revocation");
    let (mut one, mut other) = pair(&client, &server, None);
    let (one, other) = shake(&mut one, &mut other);
    assert!(matches!(found(other), PeerError::Revoked { subject } if subject.name == name("n2")));
    assert!(matches!(found(one), PeerError::RefusedByPeer(why) if why.contains("revoked")));
    // Peers that have the roster also refuse it as a server.
    let (mut one, mut other) = pair(&server, &client, None);
    assert!(matches!(found(shake(&mut one, &mut other).0), PeerError::Revoked { .. }));

    std::fs::remove_dir_all(second.root()).unwrap();
    let again = bed.issue(Role::Node, "n2");
    let (mut one, mut other) = pair(&open(&again, Encryption::On), &server, None);
    shake(&mut one, &mut other).1.unwrap();
}

#[test]
fn only_nodes_connect_to_the_fabric() {
    let bed = Bed::new("blue");
    let first = open(&bed.first, Encryption::On);
    for role in [Role::Client, Role::ReadOnly] {
        let somebody = open(&bed.issue(role, "somebody"), Encryption::On);
        let (mut one, mut other) = pair(&somebody, &first, None);
        let (one, other) = shake(&mut one, &mut other);
        assert!(matches!(found(other), PeerError::WrongRole { needed: Role::Node, .. }));
        assert!(matches!(found(one), PeerError::RefusedByPeer(why) if why.contains("role")));
        let (mut one, mut other) = pair(&first, &somebody, None);
        assert!(matches!(found(shake(&mut one, &mut other).0), PeerError::WrongRole { .. }));
    }
}

#[test]
fn another_node_than_the_expected_one_is_refused() {
    let bed = Bed::new("blue");
    let second = open(&bed.issue(Role::Node, "n2"), Encryption::On);
    let (mut one, mut other) = pair(&second, &open(&bed.first, Encryption::On), Some("n3"));
    let error = found(shake(&mut one, &mut other).0);
    assert!(matches!(&error, PeerError::WrongNode { expected, .. } if expected == "n3"), "{error}");
}

/// A pipe in memory that transfers a few bytes at a time, and sometimes none.
#[derive(Clone, Default)]
struct Dribble {
    bytes: Arc<Mutex<VecDeque<u8>>>,
    back: Arc<Mutex<VecDeque<u8>>>,
    sizes: Arc<Mutex<VecDeque<usize>>>,
}

impl Dribble {
    fn pair(sizes: Vec<usize>) -> (Self, Self) {
        let sizes = Arc::new(Mutex::new(VecDeque::from(sizes)));
        let one = Self { sizes: sizes.clone(), ..Self::default() };
        let other = Self { bytes: one.back.clone(), back: one.bytes.clone(), sizes };
        (one, other)
    }

    fn next_size(&self) -> usize {
        let mut sizes = self.sizes.lock().unwrap();
        let size = sizes.pop_front().unwrap_or(1);
        sizes.push_back(size);
        size
    }
}

impl Read for Dribble {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        let count = self.next_size().min(into.len()).min(bytes.len());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        bytes.drain(..count).zip(into).for_each(|(byte, space)| *space = byte);
        Ok(count)
    }
}

impl Write for Dribble {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let count = self.next_size().min(from.len());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.back.lock().unwrap().extend(&from[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn assert_carried(sizes: Vec<usize>, encryption: Encryption) {
    let bed = Bed::new("blue");
    let second = bed.issue(Role::Node, "n2");
    let (one, other) = Dribble::pair(sizes);
    let mut client = AuthenticatedStream::connect(&open(&second, encryption), one, None).unwrap();
    let mut server = AuthenticatedStream::accept(&open(&bed.first, encryption), other).unwrap();
    let bytes = pattern(40_000);
    assert!(carry(&mut client, &mut server, &bytes) == bytes);
    assert!(carry(&mut server, &mut client, &bytes) == bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn pieces_of_any_size_make_the_same_stream(
        sizes in proptest::collection::vec(0usize..700, 1..40),
        is_on: bool,
    ) {
        prop_assume!(sizes.iter().any(|size| *size > 20));
        assert_carried(sizes, if is_on { Encryption::On } else { Encryption::Off });
    }
}
