//! Calls over TCP with faults.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use farfork_rpc::{CallError, HandlerTable, OutgoingRequest, RequestPayload};
use farfork_wire::rpc::{HELLO_BYTES, VersionRange};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::proxy::Proxy;
use crate::{ECHO, call, client_of, echo, log, poll_until, serve};

/// Number of silent connections that a server must tolerate while it serves others. Both ends are in this process.
const HALF_OPEN: usize = 10_000;

/// Maximum number of silent connections that the server may have at a time: the limit of its two threads, and those
/// that are not accepted yet.
const HELD_MAX: usize = 2 * 2048 + 700;

#[test]
fn no_request_is_executed_twice_when_the_link_is_cut() {
    let executed = Arc::<Mutex<HashMap<u64, u32>>>::default();
    let counting = Arc::clone(&executed);
    let server = serve(3, move || {
        let counting = Arc::clone(&counting);
        let mut handlers = HandlerTable::default();
        handlers.add_handler(1, move |payload, reply| {
            let number = u64::from_le_bytes(*payload.first_chunk().unwrap());
            *counting.lock().unwrap().entry(number).or_default() += 1;
            reply.write(payload);
        });
        handlers
    });
    let proxy = Proxy::to(server.address());
    let (mut client, session) = client_of(proxy.address);
    let (mut submitted, ended) = (0u64, Cell::new(0u64));
    const ALL: u64 = 30_000;
    while ended.get() < ALL {
        let now = Instant::now();
        while submitted < ALL {
            let payload: Vec<u8> =
                submitted.to_le_bytes().into_iter().chain(vec![5; submitted as usize % 500]).collect();
            let request = OutgoingRequest { handler: 1, tag: submitted, checked: true, ..OutgoingRequest::default() };
            if client.submit(now, session, &request, RequestPayload::Borrowed(&payload)).is_err() {
                break;
            }
            submitted += 1;
            if submitted.is_multiple_of(1500) {
                proxy.cut();
            }
        }
        client.poll(now, |completion| {
            let payload = completion.result.unwrap();
            assert_eq!(payload[..8], completion.tag.to_le_bytes());
            ended.set(ended.get() + 1);
        });
        client.wait_ready(now, None).unwrap();
    }
    assert!(client.connection_count() > 5, "the link was cut {} times", client.connection_count());
    let executed = executed.lock().unwrap();
    assert_eq!(executed.len() as u64, ALL);
    assert!(executed.values().all(|times| *times == 1));
}

#[test]
fn a_restarted_server_reports_lost_outcomes() {
    let (listener, relay) = (TcpListener::bind("127.0.0.1:0").unwrap(), serve(1, echo));
    drop(listener);
    let address = relay.address();
    let (mut client, session) = client_of(address);
    assert_eq!(call(&mut client, session, ECHO, b"before"), b"before");
    drop(relay);
    let listener = TcpListener::bind(address).unwrap();
    let config = farfork_rpc::server::ServerConfig { threads: 1, should_spin: false };
    let acceptor = Arc::new(farfork_rpc::server::PlainAcceptor);
    // If the client sends the request before it notices the restart, the outcome is lost. Otherwise the new server
    // replies.
    let _server = farfork_rpc::Server::start(listener, &config, acceptor, echo).unwrap();
    let request = OutgoingRequest { handler: ECHO, ..OutgoingRequest::default() };
    match client.call_blocking(session, &request, RequestPayload::Borrowed(b"after"), |_| {}) {
        Ok(answer) => assert_eq!(answer, b"after"),
        Err(farfork_rpc::client::BlockingCallError::Call(cause)) => assert_eq!(cause, CallError::SessionLost),
        Err(other) => panic!("{other}"),
    }
    assert_eq!(call(&mut client, session, ECHO, b"later"), b"later", "the client has a new session");
}

#[test]
fn a_server_of_another_version_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(&VersionRange { newest: 9, oldest: 7 }.encode()).unwrap();
        client.read_to_end(&mut Vec::new())
    });
    let (mut client, session) = client_of(address);
    let request = OutgoingRequest { handler: ECHO, ..OutgoingRequest::default() };
    let error = client.call_blocking(session, &request, RequestPayload::Borrowed(&[]), |_| {}).unwrap_err().to_string();
    assert!(error.contains("versions 7 to 9") && error.contains("use the same release"), "{error}");
    drop(client);
    let _ = server.join().unwrap();
}

#[test]
fn a_client_of_another_version_learns_ours() {
    let server = serve(1, echo);
    let mut client = TcpStream::connect(server.address()).unwrap();
    client.write_all(&VersionRange { newest: 0, oldest: 0 }.encode()).unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    assert_eq!(received, VersionRange::SUPPORTED.encode());
}

#[test]
fn clients_that_send_garbage_disturb_no_other() {
    let server = serve(1, echo);
    let (mut client, session) = client_of(server.address());
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4000], &[255; 20]] {
        let mut hostile = TcpStream::connect(server.address()).unwrap();
        hostile.write_all(nonsense).unwrap();
        assert_eq!(call(&mut client, session, ECHO, b"x"), b"x");
        // The hostile client is disconnected, and has received at most the server's hello.
        let mut received = Vec::new();
        let _ = hostile.read_to_end(&mut received);
        assert!(received.len() <= HELLO_BYTES);
    }
}

#[test]
fn thousands_of_half_open_connections_are_closed() {
    log::catch();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let needed = HALF_OPEN + HELD_MAX + 200;
    assert!(limit.maximum.is_none_or(|maximum| maximum as usize > needed), "raise the limit of open files to {needed}");
    let server = serve(2, echo);
    let (mut client, session) = client_of(server.address());
    let silent: Vec<TcpStream> = (0..HALF_OPEN).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    assert_eq!(call(&mut client, session, ECHO, b"still"), b"still");
    // Log lines about connections that the server has closed: too many were silent, or they sent no hello within five
    // seconds.
    let named = log::count(&["ends a connection", "127.0.0.1"]);
    assert!(named > 0 && named < HALF_OPEN / 4, "{named} lines in the log");
    let held = std::fs::read_dir("/proc/self/fd").unwrap().count() - HALF_OPEN;
    assert!(held < HELD_MAX, "{held} descriptors other than the clients'");
    // The server closes each silent connection, because it sends no hello in time.
    for mut stream in silent {
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        assert!(received.len() <= HELLO_BYTES);
    }
    let ended = Cell::new(false);
    let request = OutgoingRequest { handler: ECHO, ..OutgoingRequest::default() };
    client.submit(Instant::now(), session, &request, RequestPayload::Borrowed(b"on")).unwrap();
    poll_until(&mut client, |completion| ended.set(completion.result.is_ok()), || ended.get());
}
