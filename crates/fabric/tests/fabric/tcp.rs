//! Network faults and misbehaving peers on `tcp`. Networks damage, cut and drop bytes; peers are slow, silent or speak
//! another protocol.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::proxy::{Proxy, ProxyFault};
use crate::seed::{MEMORY, PAGE, PAGES, expected, key};
use crate::support::{BUSY_MACHINE, Fixture, PATIENCE, Provider, TestRequester, connections_of};
use farfork_fabric::{Address, FabricError, LinkError, Refusal, Span};
use farfork_wire::frame::request::{ReadMode, append_open, append_read};
use farfork_wire::frame::{FabricFrameError, READ_BYTES_MAX, VERSION, encode_hello};

fn fixture() -> (Fixture, std::net::SocketAddr) {
    let fixture = Fixture::new(Provider::Tcp);
    let Address::Tcp(at) = fixture.address else { panic!("tcp has socket addresses") };
    (fixture, at)
}

/// Reads all pages, some at a time, through `requester`, and checks every byte.
fn read_everything(fixture: &Fixture, requester: &mut TestRequester) {
    let pages_each = 8;
    for tag in 0..PAGES / pages_each {
        let bytes = (pages_each * PAGE) as u32;
        let spans = [Span { extent: MEMORY, offset: tag * u64::from(bytes), bytes }];
        requester.submit(tag, &fixture.key, &spans, PATIENCE);
    }
    while requester.connection.unanswered_count() > 0 {
        requester.wait();
        for completion in std::mem::take(&mut requester.completions) {
            let data = completion.result.unwrap().data;
            let offset = completion.tag * pages_each * PAGE;
            assert_eq!(*data, expected(MEMORY, offset, pages_each * PAGE), "read {}", completion.tag);
            requester.connection.recycle_buffer(data);
        }
    }
}

#[test]
fn flipped_bits_are_never_delivered() {
    let (fixture, at) = fixture();
    let flips = [ProxyFault::FlipReply, ProxyFault::FlipRequest];
    for (fault, after) in flips.into_iter().flat_map(|fault| [3, 30, 100, 1000, 3000].map(|after| (fault, after))) {
        // The first connections are damaged, each at a different offset. Later connections are not.
        let proxy = Proxy::start(at, fault, after, 6);
        read_everything(&fixture, &mut TestRequester::new(&proxy.address()));
        assert!(proxy.faults() > 0, "{fault:?} after {after} did nothing");
    }
}

#[test]
fn cut_connections_are_resumed() {
    let (fixture, at) = fixture();
    for after in [10, 24, 50, 40_000, 400_000] {
        let proxy = Proxy::start(at, ProxyFault::Cut, after, 6);
        read_everything(&fixture, &mut TestRequester::new(&proxy.address()));
        assert!(proxy.faults() > 0, "cutting after {after} did nothing");
    }
}

#[test]
fn an_owner_on_a_damaging_path_is_unreachable_with_the_cause() {
    let (fixture, at) = fixture();
    let proxy = Proxy::start(at, ProxyFault::FlipReply, 40, usize::MAX);
    let mut requester = TestRequester::new(&proxy.address());
    let spans = [Span { extent: MEMORY, offset: 0, bytes: 4096 }];
    let error = requester.read(&fixture.key, &spans, Duration::from_millis(500)).unwrap_err();
    let FabricError::Unreachable { cause, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(**cause, LinkError::Frame(_)), "{error}");
    assert!(proxy.faults() < 20, "attempts have growing intervals");
}

#[test]
fn a_link_that_drops_packets_is_noticed_and_used_again() {
    let (fixture, at) = fixture();
    let proxy = Proxy::start(at, ProxyFault::Swallow, 100_000, 2);
    let mut requester = TestRequester::new(&proxy.address());
    let before = Instant::now();
    read_everything(&fixture, &mut requester);
    let took = before.elapsed();
    assert!(proxy.faults() == 2 && took > Duration::from_secs(1) && took < PATIENCE, "{took:?}");
}

#[test]
fn a_silent_peer_costs_no_more_than_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut requester = TestRequester::new(&Address::Tcp(listener.local_addr().unwrap()));
    let before = Instant::now();
    let spans = [Span { extent: MEMORY, offset: 0, bytes: 1 }];
    let error = requester.read(&key(1), &spans, Duration::from_millis(300)).unwrap_err();
    let FabricError::Unreachable { cause, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(**cause, LinkError::NoResponse) && before.elapsed() < BUSY_MACHINE, "{error}");
}

/// Starts a listener that sends these bytes on each connection.
fn answer_with(bytes: Vec<u8>) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(&bytes);
        }
    });
    address
}

#[test]
fn a_peer_of_another_version_is_refused_with_both_versions() {
    let mut hello = encode_hello();
    hello[8] = 9;
    let checksum = crc32c::crc32c(&hello[..12]);
    hello[12..].copy_from_slice(&checksum.to_le_bytes());
    let mut requester = TestRequester::new(&answer_with(hello.to_vec()));
    let before = Instant::now();
    let spans = [Span { extent: MEMORY, offset: 0, bytes: 1 }];
    let error = requester.read(&key(1), &spans, PATIENCE).unwrap_err();
    assert!(
        matches!(error, FabricError::Incompatible { cause: FabricFrameError::Version { theirs: 9 }, .. }),
        "{error:?}"
    );
    assert!(error.is_permanent() && before.elapsed() < BUSY_MACHINE);
    let text = error.to_string();
    assert!(text.contains("version 9") && text.contains(&format!("version {VERSION}")), "{text}");
}

#[test]
fn a_peer_of_another_protocol_is_named() {
    let mut requester = TestRequester::new(&answer_with(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n".to_vec()));
    let spans = [Span { extent: MEMORY, offset: 0, bytes: 1 }];
    let error = requester.read(&key(1), &spans, Duration::from_millis(300)).unwrap_err();
    assert!(error.to_string().contains("does not speak farfork's fabric protocol"), "{error}");
}

/// Opens a plain TCP connection, and sends a hello and an OPEN frame for the fixture's seed.
fn raw_requester(fixture: &Fixture, at: std::net::SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    let mut bytes = encode_hello().to_vec();
    append_open(&mut bytes, 0, &fixture.key.seed, &fixture.key.token);
    stream.write_all(&bytes).unwrap();
    stream
}

#[test]
fn a_slow_reader_uses_little_memory_and_slows_no_peer() {
    let (mut fixture, at) = fixture();
    let mut slow = raw_requester(&fixture, at);
    slow.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut requests = Vec::new();
    let spans = [Span { extent: MEMORY, offset: 0, bytes: READ_BYTES_MAX as u32 }];
    for id in 0..1000 {
        append_read(&mut requests, id, 0, ReadMode::Exact, &spans);
    }
    slow.write_all(&requests).unwrap();
    let mut served = u64::MAX;
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(100));
        let now = fixture.seed.bytes.load(Ordering::Relaxed);
        if now == served {
            break;
        }
        served = now;
    }
    // The limit includes the kernel's buffers on both sides, and the owner's queue.
    assert!(served < 24 << 20, "{served} bytes were read for a requester that takes none");
    let before = Instant::now();
    assert_eq!(fixture.read(MEMORY, 0, 4096).unwrap(), expected(MEMORY, 0, 4096));
    assert!(before.elapsed() < BUSY_MACHINE);
    // The slow requester gets the remaining bytes once it reads.
    let mut taken = vec![0; 40 << 20];
    slow.read_exact(&mut taken).unwrap();
    assert!(fixture.seed.bytes.load(Ordering::Relaxed) > served);
}

#[test]
fn malformed_requests_end_their_connection_only() {
    let (mut fixture, at) = fixture();
    let mut unopened = encode_hello().to_vec();
    append_read(&mut unopened, 1, 7, ReadMode::Exact, &[Span { extent: MEMORY, offset: 0, bytes: 1 }]);
    let mut half = encode_hello().to_vec();
    append_open(&mut half, 0, &fixture.key.seed, &fixture.key.token);
    half.truncate(half.len() - 9);
    half.extend_from_slice(&[0; 200]);
    let mut reply = encode_hello().to_vec();
    farfork_wire::frame::reply::append_refused(&mut reply, 1, Refusal::UnknownSeed);
    for bytes in [b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n".to_vec(), vec![0; 100_000], unopened, half, reply] {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(&bytes);
        let mut greeting = [0; 16];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting, encode_hello(), "a peer gets the owner's hello");
        match stream.read(&mut [0; 1]) {
            Ok(0) => {}
            Ok(_) => panic!("it was answered"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
        assert_eq!(fixture.read(MEMORY, 0, 4096).unwrap(), expected(MEMORY, 0, 4096));
    }
}

#[test]
fn a_peer_without_a_hello_is_disconnected() {
    let (_fixture, at) = fixture();
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let before = Instant::now();
    stream.read_exact(&mut [0; 16]).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    assert!(before.elapsed() > Duration::from_secs(3));
}

#[test]
fn a_thousand_connections_are_opened_and_closed() {
    let (mut fixture, at) = fixture();
    fixture.read(MEMORY, 0, 8).unwrap();
    for _ in 0..1000 {
        drop(raw_requester(&fixture, at));
    }
    for _ in 0..20 {
        let mut requester = TestRequester::new(&fixture.address);
        let spans = [Span { extent: MEMORY, offset: 8, bytes: 8 }];
        assert_eq!(requester.read(&fixture.key, &spans, PATIENCE).unwrap(), expected(MEMORY, 8, 8));
    }
    let limit = Instant::now() + PATIENCE;
    while connections_of(at) > 1 {
        assert!(Instant::now() < limit, "{} connections are still open", connections_of(at));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fixture.read(MEMORY, 0, 8).unwrap(), expected(MEMORY, 0, 8));
}

#[test]
fn connections_share_an_owner_fairly() {
    let (mut fixture, _) = fixture();
    let mut streams: Vec<_> = (0..4).map(|_| TestRequester::new(&fixture.address)).collect();
    let spans = [Span { extent: MEMORY, offset: 0, bytes: READ_BYTES_MAX as u32 }];
    for (tag, requester) in (0..40).flat_map(|tag| (0..4).map(move |which| (tag, which))) {
        streams[requester].submit(tag, &Arc::clone(&fixture.key), &spans, PATIENCE);
    }
    let reader = std::thread::spawn(move || {
        for turn in 0..4 * 200 {
            let stream = &mut streams[turn % 4];
            stream.connection.poll(Instant::now(), &mut stream.completions);
            for completion in std::mem::take(&mut stream.completions) {
                stream.connection.recycle_buffer(completion.result.unwrap().data);
            }
        }
    });
    let mut slowest = Duration::ZERO;
    for number in 0..50 {
        let before = Instant::now();
        fixture.read(MEMORY, number * PAGE, PAGE as u32).unwrap();
        slowest = slowest.max(before.elapsed());
    }
    reader.join().unwrap();
    assert!(slowest < BUSY_MACHINE, "a page took {slowest:?} during four streams");
}
