//! Connections between members of a cluster, on real sockets with real certificates: which peers are served, which are
//! refused, and the errors that each side gets.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use farfork_fabric::{Address, Exporter, FabricError, SeedKey, SharedMemory, Span, TlsSecurity, connect_node, tcp};
use farfork_trust::{Credentials, Encryption, NODE_VALID, Role, TrustDirectory, UncertifiedKey, member};
use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::encode_hello;
use farfork_wire::{NodeName, Token};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::hostile::{is_alone, memory_peak_kib};
use crate::log;
use crate::seed::{MEMORY, PAGE, PAGES, Seed, Seeds, expected, key};
use crate::support::{PATIENCE, TestRequester};

/// Number of connections without a certificate: far more than a server keeps in the handshake.
const SILENT: usize = 10_000;

/// Maximum memory that these connections may cost, in MiB: for the pending handshakes of the server, and for this
/// process's ends of all connections.
const GROWTH_MIB_MAX: u64 = 128;

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

/// Returns an exporter with one seed.
fn exporter() -> (Arc<Seeds>, Arc<dyn Exporter>) {
    let seeds = Arc::new(Seeds::default());
    seeds.add(&key(1), &Seed::start());
    (seeds.clone(), seeds)
}

/// A node `n1` with a seed, which can create other members.
struct Owner {
    scratch: TempDir,
    directory: TrustDirectory,
    credentials: Credentials,
    server: tcp::TcpServer,
    seeds: Arc<Seeds>,
}

impl Owner {
    fn new(encryption: Encryption) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let directory = TrustDirectory::new(scratch.path().join("n1"));
        member::create_cluster(&directory, &name("blue"), &name("n1"), SystemTime::now()).unwrap();
        let credentials = Credentials::open(&directory, encryption).unwrap();
        let (seeds, exporter) = exporter();
        let security = Arc::new(TlsSecurity::new(credentials.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = tcp::TcpServer::start_secured(listener, &exporter, Some(security)).unwrap();
        Self { scratch, directory, credentials, server, seeds }
    }

    fn issue_at(
        &self,
        role: Role,
        subject: &str,
        at: SystemTime,
        valid: Duration,
        encryption: Encryption,
    ) -> Credentials {
        let into = TrustDirectory::new(self.scratch.path().join(format!("{role}-{subject}")));
        member::issue_client_directory(&self.directory, &into, role, &name(subject), at, valid).unwrap();
        Credentials::open(&into, encryption).unwrap()
    }

    fn issue(&self, role: Role, subject: &str) -> Credentials {
        self.issue_at(role, subject, SystemTime::now(), NODE_VALID, Encryption::On)
    }

    fn requester(&self, credentials: Option<&Credentials>, expected: &str) -> TestRequester {
        let connection = connect_node(&self.server.address(), &name(expected), credentials).unwrap();
        TestRequester { connection, completions: Vec::new() }
    }

    /// Checks that a read is refused. Returns the text of the error.
    fn refuses(&self, credentials: Option<&Credentials>, expected: &str) -> String {
        let error = read_page(&mut self.requester(credentials, expected)).unwrap_err();
        assert!(matches!(error, FabricError::Unreachable { .. }), "{error:?}");
        error.to_string()
    }
}

fn read_page(requester: &mut TestRequester) -> Result<Vec<u8>, FabricError> {
    let spans = [Span { extent: MEMORY, offset: 0, bytes: PAGE as u32 }];
    requester.read(&key(1), &spans, Duration::from_secs(2))
}

/// Reads all of the seed's memory, and checks it.
fn read_all(requester: &mut TestRequester) {
    let pages_each = 16;
    for at in 0..PAGES / pages_each {
        let (offset, bytes) = (at * pages_each * PAGE, pages_each * PAGE);
        let spans = [Span { extent: MEMORY, offset, bytes: bytes as u32 }];
        let data = requester.read(&key(1), &spans, PATIENCE).unwrap();
        assert!(data == expected(MEMORY, offset, bytes), "at {offset}");
    }
}

#[test]
fn nodes_read_each_other_with_and_without_encryption() {
    for ours in [Encryption::On, Encryption::Off] {
        let owner = Owner::new(ours);
        for (subject, theirs) in [("n2", Encryption::On), ("n3", Encryption::Off)] {
            let credentials = owner.issue_at(Role::Node, subject, SystemTime::now(), NODE_VALID, theirs);
            read_all(&mut owner.requester(Some(&credentials), "n1"));
        }
    }
}

#[test]
fn a_non_member_is_refused_with_a_reason() {
    log::catch();
    let (owner, other) = (Owner::new(Encryption::On), Owner::new(Encryption::On));
    let (now, day) = (SystemTime::now(), Duration::from_secs(24 * 3600));
    let stranger = owner.refuses(Some(&other.credentials), "n1");
    assert!(stranger.contains("not signed by an authority of this cluster"), "{stranger}");
    let expired = owner.issue_at(Role::Node, "late", now - 2 * day, day, Encryption::On);
    let expired = owner.refuses(Some(&expired), "n1");
    assert!(expired.contains("it has expired"), "{expired}");
    let client = owner.refuses(Some(&owner.issue(Role::Client, "ci")), "n1");
    assert!(client.contains("its role or cluster is not accepted"), "{client}");
    let name = owner.refuses(Some(&owner.issue(Role::Node, "n3")), "n2");
    assert!(name.contains("farfork://blue/node/n1 answered instead of node `n2`"), "{name}");
    owner.refuses(None, "n1");
    for words in [
        ["127.0.0.1", "farfork://blue/node/late has expired"],
        ["127.0.0.1", "farfork://blue/client/ci has the role client"],
        ["127.0.0.1", "it does not speak TLS"],
    ] {
        log::wait_for(&words);
    }
    read_all(&mut owner.requester(Some(&owner.issue(Role::Node, "n4")), "n1"));
}

#[test]
fn an_open_connection_of_a_revoked_node_is_closed() {
    let owner = Owner::new(Encryption::On);
    let credentials = owner.issue(Role::Node, "n2");
    let mut requester = owner.requester(Some(&credentials), "n1");
    read_all(&mut requester);
    member::revoke_identity(&owner.directory, Role::Node, &name("n2"), SystemTime::now).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match read_page(&mut requester) {
            Ok(_) => assert!(Instant::now() < deadline, "it is still served"),
            Err(error) => break error,
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(matches!(error, FabricError::Unreachable { .. }), "{error:?}");
    let refused = owner.refuses(Some(&credentials), "n1");
    assert!(refused.contains("it was revoked"), "{refused}");
}

#[test]
fn an_open_connection_to_a_revoked_owner_is_not_used() {
    let owner = Owner::new(Encryption::On);
    let credentials = owner.issue(Role::Node, "n2");
    let mut requester = owner.requester(Some(&credentials), "n1");
    read_all(&mut requester);
    // The owner would still serve, but the requester must send no further reads.
    member::revoke_identity(&owner.directory, Role::Node, &name("n1"), SystemTime::now).unwrap();
    credentials.install_roster(&owner.directory.read_roster().unwrap().1).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match read_page(&mut requester) {
            Ok(_) => assert!(Instant::now() < deadline, "the requester still reads"),
            Err(error) => break error,
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(error.to_string().contains("farfork://blue/node/n1 was revoked"), "{error}");
}

#[test]
fn a_node_that_requests_forbidden_memory_is_named() {
    log::catch();
    let owner = Owner::new(Encryption::On);
    let mut nosy = owner.requester(Some(&owner.issue(Role::Node, "nosy")), "n1");
    let mut other = owner.requester(Some(&owner.issue(Role::Node, "other")), "n1");
    read_all(&mut nosy);
    let beyond = [Span { extent: MEMORY, offset: PAGES * PAGE, bytes: 8 }];
    nosy.read(&key(1), &beyond, PATIENCE).unwrap_err();
    log::wait_for(&["farfork://blue/node/nosy at 127.0.0.1", "refuses", "no such range"]);
    let wrong = SeedKey { token: Token::from_bytes([9; 16]), ..(*key(1)).clone() };
    let page = [Span { extent: MEMORY, offset: 0, bytes: 8 }];
    nosy.read(&Arc::new(wrong), &page, PATIENCE).unwrap_err();
    log::wait_for(&["farfork://blue/node/nosy at 127.0.0.1", "refuses", "the token does not match"]);
    // Memory that was registered, and then revoked.
    let own = key(5);
    let registration = owner.seeds.registry.register(&own, Arc::new(SharedMemory::new(100).unwrap())).unwrap();
    let span = [Span { extent: ExtentId(0), offset: 0, bytes: 8 }];
    nosy.read(&own, &span, PATIENCE).unwrap();
    drop(registration);
    nosy.read(&own, &span, PATIENCE).unwrap_err();
    log::wait_for(&["farfork://blue/node/nosy at 127.0.0.1", "refuses", &own.seed.to_string()]);
    read_all(&mut other);
    read_all(&mut nosy);
    assert_eq!(log::count(&["farfork://blue/node/other", "refuses"]), 0);
}

/// Repeats a read until it fails. Returns the error.
fn read_until_refused(requester: &mut TestRequester) -> FabricError {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match read_page(requester) {
            Ok(_) => assert!(Instant::now() < deadline, "it is still served"),
            Err(error) => return error,
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_connection_ends_with_its_certificate() {
    log::catch();
    let owner = Owner::new(Encryption::On);
    let soon = Duration::from_secs(6);
    let credentials = owner.issue_at(Role::Node, "brief", SystemTime::now(), soon, Encryption::On);
    let mut requester = owner.requester(Some(&credentials), "n1");
    read_all(&mut requester);
    let error = read_until_refused(&mut requester);
    assert!(matches!(error, FabricError::Unreachable { .. }), "{error:?}");
    log::wait_for(&["farfork://blue/node/brief at 127.0.0.1", "brief has expired"]);
    read_all(&mut owner.requester(Some(&owner.issue(Role::Node, "n2")), "n1"));
}

#[test]
fn a_connection_ends_with_its_authority() {
    log::catch();
    let owner = Owner::new(Encryption::On);
    let credentials = owner.issue(Role::Node, "old");
    let mut requester = owner.requester(Some(&credentials), "n1");
    read_all(&mut requester);
    member::begin_rotation(&owner.directory, SystemTime::now()).unwrap();
    let key = UncertifiedKey::generate().unwrap();
    let own = owner.credentials.own_peer();
    let renewed =
        member::renew_certificate(&owner.directory, &own, &key.certificate_request().unwrap(), SystemTime::now)
            .unwrap();
    member::install_renewal(&owner.directory, &key, &renewed.certificate).unwrap();
    read_all(&mut requester);
    member::end_rotation(&owner.directory).unwrap();
    let error = read_until_refused(&mut requester);
    assert!(matches!(error, FabricError::Unreachable { .. }), "{error:?}");
    log::wait_for(&["farfork://blue/node/old at 127.0.0.1", "not signed by an authority of this cluster"]);
    read_all(&mut owner.requester(Some(&owner.issue(Role::Node, "n2")), "n1"));
}

#[test]
fn an_owner_without_tls_is_not_used() {
    let (_seeds, exporter) = exporter();
    let plain = tcp::TcpServer::start(TcpListener::bind("127.0.0.1:0").unwrap(), &exporter).unwrap();
    let member = Owner::new(Encryption::Off);
    let connection = connect_node(&plain.address(), &name("n1"), Some(&member.credentials)).unwrap();
    let error = read_page(&mut TestRequester { connection, completions: Vec::new() }).unwrap_err().to_string();
    assert!(error.contains("does not speak TLS") || error.contains("closed"), "{error}");
}

#[test]
fn an_incomplete_handshake_times_out_and_slows_no_peer() {
    if !is_alone("members::an_incomplete_handshake_times_out_and_slows_no_peer") {
        return;
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let owner = Owner::new(Encryption::On);
    let Address::Tcp(at) = owner.server.address() else { panic!("it is tcp") };
    let credentials = owner.issue(Role::Node, "n2");
    let mut member = owner.requester(Some(&credentials), "n1");
    read_all(&mut member);
    let memory_before = memory_peak_kib();
    let mut silent: Vec<TcpStream> = Vec::with_capacity(SILENT);
    for number in 0..SILENT {
        let mut stream = TcpStream::connect(at).unwrap();
        // Some send nothing, some a part of a handshake, and some a hello without a handshake.
        let words: [&[u8]; 3] = [b"", &[22, 3, 1, 1, 0, 1], &encode_hello()];
        // This fails on connections that the server has closed already.
        let _ = stream.write_all(words[number % 3]);
        silent.push(stream);
        if number % 1000 == 999 {
            // Existing connections are still served, and new ones are accepted.
            read_all(&mut member);
            read_all(&mut owner.requester(Some(&credentials), "n1"));
        }
    }
    let grown_mib = (memory_peak_kib() - memory_before) >> 10;
    assert!(grown_mib < GROWTH_MIB_MAX, "they cost {grown_mib} MiB");
    for stream in &mut silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        // The server has closed the connection, or reset it because it had unread bytes.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 64, "the server sends at most a TLS alert: {answer:?}");
    }
}
