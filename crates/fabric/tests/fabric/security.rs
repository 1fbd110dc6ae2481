//! Tests of the [`Security`] interface, with a stream that buffers bytes in both directions, as TLS does.

use std::any::Any;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use farfork_fabric::transport::Stream;
use farfork_fabric::{
    Address, Exporter, FabricError, LinkError, READ_BYTES_MAX, Security, Span, connect_secured, sim, tcp,
};

use crate::seed::{COPY, COPY_BYTES, MEMORY, PAGE, Seed, Seeds, expected, key};
use crate::support::{PATIENCE, Provider, Site, TestRequester};

/// A stream that inverts every byte, in records, once both sides have sent the same word.
#[derive(Debug)]
struct Inverted {
    inner: Box<dyn Stream>,
    word: Vec<u8>,
    said: usize,
    heard: Vec<u8>,
    kept: VecDeque<u8>,
    unsent: VecDeque<u8>,
}

/// Maximum number of buffered bytes in each direction.
const KEPT_MAX: usize = 50_000;

impl Inverted {
    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let (front, _) = self.unsent.as_slices();
            let Some(sent) = self.inner.send(&[IoSlice::new(front)])? else { break };
            self.unsent.drain(..sent);
        }
        Ok(())
    }
}

impl Stream for Inverted {
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        if self.kept.is_empty() {
            let mut record = vec![0; KEPT_MAX];
            match self.inner.receive(&mut [IoSliceMut::new(&mut record)])? {
                Some(0) => return Ok(Some(0)),
                Some(count) => self.kept.extend(record[..count].iter().map(|byte| !byte)),
                None => return Ok(None),
            }
        }
        let mut copied = 0;
        // Return at most 7000 bytes, so that some stay buffered.
        let most = self.kept.len().min(7000);
        for space in spaces {
            let part = space.len().min(most - copied);
            for (to, byte) in space.iter_mut().zip(self.kept.drain(..part)) {
                *to = byte;
            }
            copied += part;
        }
        Ok(Some(copied))
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        self.flush()?;
        let mut taken = 0;
        for byte in slices.iter().flat_map(|slice| slice.iter()).take(KEPT_MAX - self.unsent.len()) {
            self.unsent.push_back(!byte);
            taken += 1;
        }
        self.flush()?;
        Ok(if taken == 0 && slices.iter().any(|slice| !slice.is_empty()) { None } else { Some(taken) })
    }

    fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || self.said < self.word.len()
    }

    fn continue_handshake(&mut self) -> io::Result<bool> {
        while self.said < self.word.len() {
            let Some(sent) = self.inner.send(&[IoSlice::new(&self.word[self.said..])])? else { return Ok(false) };
            self.said += sent;
        }
        let mut heard = [0];
        while self.heard.len() < self.word.len() {
            match self.inner.receive(&mut [IoSliceMut::new(&mut heard)])? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(_) => self.heard.push(heard[0]),
                None => return Ok(false),
            }
        }
        if self.heard == self.word { Ok(true) } else { Err(io::Error::other("it says another word")) }
    }

    fn peer_identity(&self) -> Option<String> {
        Some("who knows the word".to_owned())
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.inner.socket()
    }

    fn is_ready(&self, receive: bool, send: bool) -> bool {
        (receive && !self.kept.is_empty()) || self.inner.is_ready(receive, send)
    }
}

#[derive(Debug)]
struct Word(&'static str);

impl Word {
    fn around(&self, inner: Box<dyn Stream>) -> Box<dyn Stream> {
        let (kept, unsent) = (VecDeque::new(), VecDeque::new());
        Box::new(Inverted { inner, word: self.0.into(), said: 0, heard: Vec::new(), kept, unsent })
    }
}

impl Security for Word {
    fn wrap_client(&self, stream: Box<dyn Stream>, _: &Address) -> io::Result<Box<dyn Stream>> {
        Ok(self.around(stream))
    }

    fn wrap_server(&self, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
        Ok(self.around(stream))
    }
}

/// An owner whose security requires a word, with functions to connect to it with any word.
struct Guarded {
    site: Site,
    seeds: Arc<Seeds>,
    address: Address,
    /// Keeps the server running. Dropped last.
    _server: Box<dyn Any>,
}

impl Guarded {
    fn new(provider: Provider, word: &'static str) -> Self {
        let (site, seeds) = (Site::new(provider), Arc::new(Seeds::default()));
        seeds.add(&key(1), &Seed::start());
        let (exporter, security): (Arc<dyn Exporter>, _) = (seeds.clone(), Some(Arc::new(Word(word)) as _));
        let (address, server): (_, Box<dyn Any>) = match provider {
            Provider::Sim => {
                let server_address = sim::world::SimAddress { node: site.there, port: 7001 };
                let server = sim::SimServer::start_secured(&site.world, server_address, &exporter, security).unwrap();
                (server.address(), Box::new(server))
            }
            _ => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let server = tcp::TcpServer::start_secured(listener, &exporter, security).unwrap();
                (server.address(), Box::new(server))
            }
        };
        Self { site, seeds, address, _server: server }
    }

    fn connect(&self, word: Option<&'static str>) -> TestRequester {
        let security = word.map(|word| Arc::new(Word(word)) as Arc<dyn Security>);
        let connection = match &self.address {
            Address::Sim(place) => sim::connect(&self.site.world, self.site.here, *place, security),
            other => connect_secured(other, security).unwrap(),
        };
        TestRequester { connection, completions: Vec::new() }
    }
}

fn cause_of(error: &FabricError) -> &LinkError {
    match error {
        FabricError::Unreachable { cause, .. } => cause,
        other => panic!("{other}"),
    }
}

fn all_traffic_passes(provider: Provider) {
    let guarded = Guarded::new(provider, "swordfish");
    let mut requester = guarded.connect(Some("swordfish"));
    let most = READ_BYTES_MAX as u64;
    for tag in 0..12 {
        requester.submit(tag, &key(1), &[Span { extent: MEMORY, offset: 0, bytes: most as u32 }], PATIENCE);
        requester.submit(100 + tag, &key(1), &[Span { extent: COPY, offset: tag, bytes: 9 }], PATIENCE);
        requester.send(200 + tag, &[tag as u8; 30_000], PATIENCE);
    }
    for (tag, result) in requester.finish() {
        match tag {
            0..100 => assert_eq!(result.unwrap(), expected(MEMORY, 0, most)),
            100..200 => assert_eq!(result.unwrap(), expected(COPY, tag - 100, 9)),
            _ => assert!(result.unwrap().is_empty()),
        }
    }
    for tag in 0..12 {
        let message = guarded.seeds.inbox.receive().unwrap();
        assert_eq!(message.bytes, [tag; 30_000]);
        assert!(message.sender.starts_with("who knows the word at "), "{}", message.sender);
    }
    assert_eq!(
        requester.read(&key(1), &[Span { extent: COPY, offset: COPY_BYTES - 1, bytes: 1 }], PATIENCE).unwrap(),
        expected(COPY, COPY_BYTES - 1, 1)
    );
}

#[test]
fn all_traffic_passes_through_the_security_layer_of_tcp() {
    all_traffic_passes(Provider::Tcp);
}

#[test]
fn all_traffic_passes_through_the_security_layer_of_sim() {
    all_traffic_passes(Provider::Sim);
}

fn strangers_learn_nothing(provider: Provider) {
    let guarded = Guarded::new(provider, "swordfish");
    let mut wait = Duration::from_millis(400);
    let page = [Span { extent: MEMORY, offset: 0, bytes: PAGE as u32 }];
    // On a busy machine, the deadline may pass before the handshake fails.
    let error = loop {
        let error = guarded.connect(Some("codfishes")).read(&key(1), &page, wait).unwrap_err();
        if matches!(cause_of(&error), LinkError::Handshake(_)) {
            break error;
        }
        assert!(wait < PATIENCE, "{error}");
        wait *= 3;
    };
    assert!(error.to_string().contains("the handshake failed"), "{error}");
    // A requester without security reads the word that the owner sends as an invalid hello.
    let error = guarded.connect(None).read(&key(1), &page, wait).unwrap_err();
    assert!(!error.is_permanent(), "{error}");
    assert_eq!(guarded.connect(Some("swordfish")).read(&key(1), &page, PATIENCE).unwrap(), expected(MEMORY, 0, PAGE));
}

#[test]
fn strangers_learn_nothing_through_tcp() {
    strangers_learn_nothing(Provider::Tcp);
}

#[test]
fn strangers_learn_nothing_through_sim() {
    strangers_learn_nothing(Provider::Sim);
}

/// Blocks handshakes while it is closed.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_closed: bool,
    /// Number of blocked threads.
    held: usize,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.held += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.is_closed).unwrap();
        state.held -= 1;
    }

    fn set_closed(&self, is_closed: bool) {
        self.state.lock().unwrap().is_closed = is_closed;
        self.changed.notify_all();
    }

    /// Waits until this many threads are blocked, at most for `limit`.
    fn wait_for(&self, threads: usize, limit: Duration) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_timeout_while(state, limit, |state| state.held < threads).unwrap());
    }
}

/// A stream whose handshake blocks its thread.
#[derive(Debug)]
struct Slow {
    inner: Box<dyn Stream>,
    gate: Arc<Gate>,
    is_shaken: bool,
}

impl Stream for Slow {
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        self.inner.receive(spaces)
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        self.inner.send(slices)
    }

    fn continue_handshake(&mut self) -> io::Result<bool> {
        if !self.is_shaken {
            self.gate.pass();
            self.is_shaken = true;
        }
        Ok(true)
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.inner.socket()
    }
}

#[derive(Debug)]
struct Gated(Arc<Gate>);

impl Security for Gated {
    fn wrap_client(&self, stream: Box<dyn Stream>, _: &Address) -> io::Result<Box<dyn Stream>> {
        Ok(stream)
    }

    fn wrap_server(&self, inner: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(Slow { inner, gate: Arc::clone(&self.0), is_shaken: false }))
    }
}

/// Opens a gate when it is dropped, so that a failing test does not wait for blocked threads.
struct Opened(Arc<Gate>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.set_closed(false);
    }
}

#[test]
fn handshakes_do_not_delay_established_connections() {
    let (gate, seeds) = (Arc::new(Gate::default()), Arc::new(Seeds::default()));
    seeds.add(&key(1), &Seed::start());
    let exporter: Arc<dyn Exporter> = seeds;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let server = tcp::TcpServer::start_secured(listener, &exporter, Some(Arc::new(Gated(gate.clone())))).unwrap();
    let connect = || {
        let connection = connect_secured(&server.address(), None).unwrap();
        TestRequester { connection, completions: Vec::new() }
    };
    // One connection for each of the owner's workers.
    let mut members = [connect(), connect()];
    let page = [Span { extent: MEMORY, offset: PAGE, bytes: PAGE as u32 }];
    members.iter_mut().for_each(|member| drop(member.read(&key(1), &page, PATIENCE).unwrap()));
    let opened = Opened(Arc::clone(&gate));
    gate.set_closed(true);
    let strangers: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(at).unwrap()).collect();
    gate.wait_for(2, Duration::from_millis(300));
    for _ in 0..100 {
        for member in &mut members {
            assert_eq!(member.read(&key(1), &page, PATIENCE).unwrap(), expected(MEMORY, PAGE, PAGE));
        }
    }
    drop(opened);
    assert_eq!(connect().read(&key(1), &page, PATIENCE).unwrap(), expected(MEMORY, PAGE, PAGE));
    drop(strangers);
}

#[test]
fn a_handshake_times_out_on_both_sides() {
    let guarded = Guarded::new(Provider::Sim, "swordfish");
    let page = [Span { extent: MEMORY, offset: 0, bytes: 1 }];
    // A requester that sends no word.
    let Address::Sim(server_address) = guarded.address else { panic!("it is in a world") };
    let mut attempt = guarded.site.world.dial(guarded.site.here, server_address);
    let began = guarded.site.world.now();
    guarded.site.world.run_until(began + Duration::from_secs(1), || attempt.is_ready());
    let mut silent = attempt.poll().unwrap().unwrap();
    let mut ended = || loop {
        match silent.receive(&mut [IoSliceMut::new(&mut [0; 100])]) {
            Ok(None) => return false,
            Ok(Some(0)) | Err(_) => return true,
            Ok(Some(_)) => {}
        }
    };
    assert!(guarded.site.world.run_until(began + Duration::from_secs(10), &mut ended));
    let took = guarded.site.world.now() - began;
    assert!(took > Duration::from_secs(4) && took < Duration::from_secs(8), "{took:?}");

    // An owner that never sends a word: the backlog accepts the connection.
    let silent_address = sim::world::SimAddress { node: guarded.site.there, port: 9 };
    let _listener = guarded.site.world.listen(silent_address).unwrap();
    let security = Some(Arc::new(Word("anybody")) as Arc<dyn Security>);
    let connection = sim::connect(&guarded.site.world, guarded.site.here, silent_address, security);
    let mut requester = TestRequester { connection, completions: Vec::new() };
    let error = requester.read(&key(1), &page, Duration::from_secs(6)).unwrap_err();
    assert!(matches!(cause_of(&error), LinkError::HandshakeTimeout), "{error}");
}
