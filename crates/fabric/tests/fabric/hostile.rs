//! Hostile peers on real sockets: the log names them, they use few resources, and other peers are not affected.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::{Address, Exporter, Region, SharedMemory, Span, WRITE_BYTES_MAX, tcp};
use farfork_wire::descriptor::ExtentId;
use farfork_wire::frame::change::{ConnectionId, append_introduce, append_message, append_write};
use farfork_wire::frame::reply::{Refusal, append_written};
use farfork_wire::frame::request::{ReadMode, append_open, append_read};
use farfork_wire::frame::{FrameKind, HEADER_BYTES, Header, encode_hello};
use farfork_wire::{SeedId, Token};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::log;
use crate::seed::{MEMORY, Seed, Seeds, expected, key};
use crate::support::{BUSY_MACHINE, Fixture, PATIENCE, Provider, TestRequester, connections_of};

/// Number of silent connections.
const HALF_OPEN: usize = 10_000;

/// Maximum number of connections that the owner keeps: silent ones up to the limit of its two threads, and a few
/// others.
const STRANGERS_MAX: usize = 2 * 512 + 8;

fn fixture() -> (Fixture, SocketAddr) {
    let fixture = Fixture::new(Provider::Tcp);
    let Address::Tcp(at) = fixture.address else { panic!("tcp has socket addresses") };
    (fixture, at)
}

/// Sends bytes, then reads until the owner closes the connection. Returns the own address and the received bytes.
fn speak(at: SocketAddr, bytes: &[u8]) -> (SocketAddr, Vec<u8>) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let own = stream.local_addr().unwrap();
    let _ = stream.write_all(bytes);
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    (own, received)
}

/// A valid header of an invalid frame.
fn header(kind: u8, body_bytes: u32) -> Vec<u8> {
    let mut bytes = Header { kind: FrameKind::Read, body_bytes, id: 1, body_crc: 0 }.encode();
    bytes[0] = kind;
    let checksum = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
    bytes[HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    bytes.to_vec()
}

#[test]
fn a_peer_that_violates_the_protocol_is_named_and_does_no_harm() {
    log::catch();
    let (mut fixture, at) = fixture();
    let hello = || encode_hello().to_vec();
    let with = |append: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = hello();
        append(&mut bytes);
        bytes
    };
    let one = [Span { extent: MEMORY, offset: 0, bytes: 1 }];
    let cases = [
        ("does not speak", b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n".to_vec()),
        ("header is damaged", with(&|out| out.extend_from_slice(&[0x5a; 100]))),
        ("unexpected frame kind", with(&|out| out.extend(header(99, 0)))),
        ("unexpected frame kind", with(&|out| append_written(out, 1))),
        ("announces 3000000000 bytes", with(&|out| out.extend(header(FrameKind::Write as u8, 3_000_000_000)))),
        ("announces 70000 bytes", with(&|out| out.extend(header(FrameKind::Message as u8, 70_000)))),
        ("no OPEN frame precedes its handle", with(&|out| append_read(out, 1, 7, ReadMode::Exact, &one))),
        ("no INTRODUCE frame precedes it", with(&|out| append_message(out, 1, b"psst"))),
        ("body of frame 1 is damaged", {
            let mut bytes = with(&|out| append_message(out, 1, b"psst"));
            *bytes.last_mut().unwrap() ^= 1;
            bytes
        }),
    ];
    for (cause, bytes) in cases {
        let (peer, received) = speak(at, &bytes);
        assert_eq!(received, hello(), "a peer gets the owner's hello and nothing else");
        log::wait_for(&[&peer.to_string(), cause]);
        assert_eq!(fixture.read(MEMORY, 0, 64).unwrap(), expected(MEMORY, 0, 64));
        // The log is limited to some lines per second, and the next case needs a line.
        std::thread::sleep(Duration::from_millis(150));
    }
    assert!(fixture.seeds.inbox.receive().is_none());
}

#[test]
fn truncated_requests_are_dropped() {
    let (mut fixture, at) = fixture();
    let mut whole = encode_hello().to_vec();
    append_introduce(&mut whole, ConnectionId::from_bytes([9; 16]), 0);
    append_message(&mut whole, 1, &[7; 5000]);
    let cuts = [1, 15, 20, 45, 70, 100, whole.len() - 1];
    for cut in cuts {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&whole[..cut]).unwrap();
        drop(stream);
        assert_eq!(fixture.read(MEMORY, 8, 8).unwrap(), expected(MEMORY, 8, 8));
    }
    assert!(fixture.seeds.inbox.receive().is_none());
    // The owner may process one of the truncated INTRODUCE frames only now. That supersedes this connection, which must
    // then connect again, at most once for each truncated stream.
    let arrives = || {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&whole).unwrap();
        stream.read_exact(&mut [0; 16 + HEADER_BYTES]).is_ok()
    };
    assert!((0..=cuts.len()).any(|_| arrives()));
    assert_eq!(fixture.seeds.inbox.receive().unwrap().bytes, [7; 5000]);
    assert!(fixture.seeds.inbox.receive().is_none());
}

#[test]
fn replayed_and_reordered_changes_are_not_applied_again() {
    let (mut fixture, at) = fixture();
    let own = key(5);
    let _registration = fixture.seeds.registry.register(&own, Arc::new(SharedMemory::new(100).unwrap())).unwrap();
    let span = [Span { extent: ExtentId(0), offset: 0, bytes: 3 }];
    let mut recorded = encode_hello().to_vec();
    append_open(&mut recorded, 0, &own.seed, &own.token);
    append_introduce(&mut recorded, ConnectionId::from_bytes([8; 16]), 0);
    append_message(&mut recorded, 3, b"once");
    append_write(&mut recorded, 4, 0, &span, b"old");
    let answers = 16 + 2 * HEADER_BYTES;
    let send = |bytes: &[u8], answers: usize| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(bytes).unwrap();
        let mut received = vec![0; answers];
        stream.read_exact(&mut received).unwrap();
        received
    };
    let first = send(&recorded, answers);
    let mut later = recorded.clone();
    append_write(&mut later, 9, 0, &span, b"new");
    // After the new write, repeat the earlier changes, on the same connection and below on others.
    append_write(&mut later, 4, 0, &span, b"old");
    append_message(&mut later, 3, b"once");
    send(&later, answers + 3 * HEADER_BYTES);
    for _ in 0..3 {
        assert_eq!(send(&recorded, answers), first, "a replay gets the same replies");
    }
    assert_eq!(fixture.requester.read(&own, &span, PATIENCE).unwrap(), b"new");
    assert_eq!(fixture.seeds.inbox.receive().unwrap().bytes, b"once");
    assert!(fixture.seeds.inbox.receive().is_none());
}

/// An exporter with a defect that one request triggers.
struct Defective(Arc<Seeds>);

impl Exporter for Defective {
    fn open_region(&self, seed: &SeedId, token: &Token) -> Result<Arc<dyn Region>, Refusal> {
        assert!(*seed != key(66).seed, "the defect of this test");
        self.0.open_region(seed, token)
    }
}

#[test]
fn a_thread_that_panics_continues_and_logs_it() {
    log::catch();
    let seeds = Arc::new(Seeds::default());
    seeds.add(&key(1), &Seed::start());
    let exporter: Arc<dyn Exporter> = Arc::new(Defective(seeds));
    let server = tcp::TcpServer::start(TcpListener::bind("127.0.0.1:0").unwrap(), &exporter).unwrap();
    let connect =
        || TestRequester { connection: farfork_fabric::connect(&server.address()).unwrap(), completions: Vec::new() };
    let page = [Span { extent: MEMORY, offset: 0, bytes: 4096 }];
    let mut others = [connect(), connect()];
    others.iter_mut().for_each(|other| drop(other.read(&key(1), &page, PATIENCE).unwrap()));
    // Use a new connection for each request, so that each thread gets some.
    let deadline = Instant::now() + PATIENCE;
    while server.panic_count() < 2 {
        connect().read(&key(66), &page, Duration::from_secs(1)).unwrap_err();
        assert!(Instant::now() < deadline, "{} panics", server.panic_count());
    }
    for other in &mut others {
        assert_eq!(
            other.read(&key(1), &page, PATIENCE).unwrap(),
            expected(MEMORY, 0, 4096),
            "the requester reconnects"
        );
    }
    assert_eq!(connect().read(&key(1), &page, PATIENCE).unwrap(), expected(MEMORY, 0, 4096));
    log::wait_for(&["a thread of the fabric's server panicked", "panics=1"]);
}

/// Runs a test in a separate process, in which no other test allocates memory. Returns true in that process.
pub(crate) fn is_alone(test: &str) -> bool {
    const ALONE: &str = "FARFORK_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let own = std::env::current_exe().unwrap();
    let ended = Command::new(own).args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let output = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(ended.status.success() && output.contains("1 passed"), "{output}");
    false
}

/// Returns the peak memory of this process, in KiB.
pub(crate) fn memory_peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

#[test]
fn announced_bytes_use_no_memory() {
    if !is_alone("hostile::announced_bytes_use_no_memory") {
        return;
    }
    let (mut fixture, at) = fixture();
    fixture.read(MEMORY, 0, 8).unwrap();
    let memory_before = memory_peak_kib();
    let mut announced = encode_hello().to_vec();
    let write = header(FrameKind::Write as u8, WRITE_BYTES_MAX as u32);
    announced.extend([&write[..], &[0; 100]].concat());
    let peers: Vec<TcpStream> = (0..800)
        .map(|_| {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.write_all(&announced).unwrap();
            // The owner's hello shows that the owner has accepted the connection and given it a turn.
            stream.read_exact(&mut [0; 16]).unwrap();
            stream
        })
        .collect();
    assert_eq!(fixture.read(MEMORY, 0, 4096).unwrap(), expected(MEMORY, 0, 4096));
    let grown_mib = (memory_peak_kib() - memory_before) >> 10;
    assert!(grown_mib < 128, "{} announcements of a mebibyte cost {grown_mib} MiB", peers.len());
}

#[test]
fn ten_thousand_half_open_connections_are_cheap_and_slow_no_peer() {
    if !is_alone("hostile::ten_thousand_half_open_connections_are_cheap_and_slow_no_peer") {
        return;
    }
    log::catch();
    let (mut fixture, at) = fixture();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let memory_before = memory_peak_kib();
    let (mut silent, mut slowest) = (Vec::with_capacity(HALF_OPEN), Duration::ZERO);
    for number in 0..HALF_OPEN {
        silent.push(TcpStream::connect(at).unwrap());
        if number % 500 == 0 {
            let before = Instant::now();
            assert_eq!(fixture.read(MEMORY, 0, 4096).unwrap(), expected(MEMORY, 0, 4096));
            // A new connection that sends a hello is accepted too.
            let mut friend = fixture.site.connect(&fixture.address);
            let span = [Span { extent: MEMORY, offset: 8, bytes: 8 }];
            assert_eq!(friend.read(&fixture.key, &span, PATIENCE).unwrap(), expected(MEMORY, 8, 8));
            slowest = slowest.max(before.elapsed());
        }
    }
    assert!(slowest < BUSY_MACHINE, "a page took {slowest:?} with many silent connections");
    let wait_until = Instant::now() + PATIENCE;
    while connections_of(at) > STRANGERS_MAX {
        assert!(Instant::now() < wait_until, "the owner keeps {} silent connections", connections_of(at));
        std::thread::sleep(Duration::from_millis(50));
    }
    let grown_mib = (memory_peak_kib() - memory_before) >> 10;
    assert!(grown_mib < 64, "silent connections cost {grown_mib} MiB");
    log::wait_for(&["it has sent no hello, and too many connections are silent"]);
    assert!(log::count(&["it has sent no hello"]) < 2000, "the log is not flooded");
    drop(silent);
    assert_eq!(fixture.read(MEMORY, 0, 64).unwrap(), expected(MEMORY, 0, 64));
}
