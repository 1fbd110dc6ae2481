//! Shared code of the fabric's tests: an owner that exports through any provider, and a requester that polls.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farfork_fabric::sim::world::{NodeId, SimAddress};
use farfork_fabric::sim::{self, World};
use farfork_fabric::{
    Address, Completion, Connection, Exporter, FabricError, MessageRequest, ReadMode, ReadRequest, Refusal, SeedKey,
    Span, WriteRequest, shm, tcp,
};
use farfork_wire::descriptor::ExtentId;

use crate::seed::{Seed, Seeds, key};

/// Longest time for an operation that takes milliseconds on an idle machine: detects hangs.
pub(crate) const BUSY_MACHINE: Duration = Duration::from_secs(30);
/// Longest time that a test waits for an event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The provider of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    Tcp,
    Shm,
    Sim,
}

/// The location of a test's requesters and owners.
pub(crate) struct Site {
    pub(crate) provider: Provider,
    /// The world of `sim`, with the nodes of requesters (`here`) and owners (`there`).
    pub(crate) world: World,
    pub(crate) here: NodeId,
    pub(crate) there: NodeId,
}

impl Site {
    pub(crate) fn new(provider: Provider) -> Self {
        let world = World::new(1);
        let (here, there) = (world.add_node("here"), world.add_node("there"));
        Self { provider, world, here, there }
    }

    /// Serves at a new address, or again at an earlier one.
    pub(crate) fn serve(&self, at: Option<&Address>, exporter: &Arc<dyn Exporter>) -> Server {
        match (self.provider, at) {
            (Provider::Tcp, Some(Address::Tcp(at))) => Server::Tcp(tcp_server(&at.to_string(), exporter)),
            (Provider::Tcp, _) => Server::Tcp(tcp_server("127.0.0.1:0", exporter)),
            (Provider::Shm, Some(Address::Shm(path))) => {
                std::fs::remove_file(path).unwrap();
                Server::Shm(shm::ShmServer::start(UnixListener::bind(path).unwrap(), exporter).unwrap())
            }
            (Provider::Shm, _) => {
                static NUMBER: AtomicU64 = AtomicU64::new(0);
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let name = format!("farfork-fabric-{}-{number}.sock", std::process::id());
                let path = std::env::temp_dir().join(name);
                Server::Shm(shm::ShmServer::start(UnixListener::bind(path).unwrap(), exporter).unwrap())
            }
            (Provider::Sim, _) => {
                let address = SimAddress { node: self.there, port: 7001 };
                Server::Sim(sim::SimServer::start(&self.world, address, exporter).unwrap())
            }
        }
    }

    /// Starts to connect.
    pub(crate) fn connect(&self, address: &Address) -> TestRequester {
        let connection = match address {
            Address::Sim(place) => sim::connect(&self.world, self.here, *place, None),
            other => farfork_fabric::connect(other).unwrap(),
        };
        TestRequester { connection, completions: Vec::new() }
    }

    /// Waits, or lets the world run, for some time.
    pub(crate) fn pass(&self, time: Duration) {
        match self.provider {
            Provider::Sim => {
                self.world.run_until(self.world.now() + time, || false);
            }
            _ => std::thread::sleep(time),
        }
    }
}

/// A running server. It ends when it is dropped.
pub(crate) enum Server {
    Tcp(tcp::TcpServer),
    Shm(shm::ShmServer),
    Sim(sim::SimServer),
}

impl Server {
    pub(crate) fn address(&self) -> Address {
        match self {
            Self::Tcp(server) => server.address(),
            Self::Shm(server) => server.address(),
            Self::Sim(server) => server.address(),
        }
    }

    pub(crate) fn close(self, timeout: Duration) {
        match self {
            Self::Tcp(server) => server.close(timeout),
            Self::Shm(server) => server.close(timeout),
            Self::Sim(server) => server.close(timeout),
        }
    }
}

fn tcp_server(at: &str, exporter: &Arc<dyn Exporter>) -> tcp::TcpServer {
    let limit = Instant::now() + PATIENCE;
    let listener = loop {
        match TcpListener::bind(at) {
            Ok(listener) => break listener,
            // While no server listened, the kernel may have given the port to a connection of another test.
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < limit => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => panic!("{at}: {error}"),
        }
    };
    tcp::TcpServer::start(listener, exporter).unwrap()
}

/// Returns the number of established connections that were accepted on a port of this host.
pub(crate) fn connections_of(at: SocketAddr) -> usize {
    let own = format!(":{:04X}", at.port());
    let lines = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let established = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[1].ends_with(&own) && fields[3] == "01"
    };
    lines.lines().skip(1).filter(established).count()
}

/// An owner with one seed, and a connection to it.
pub(crate) struct Fixture {
    pub(crate) site: Site,
    pub(crate) seed: Arc<Seed>,
    pub(crate) seeds: Arc<Seeds>,
    pub(crate) key: Arc<SeedKey>,
    pub(crate) address: Address,
    pub(crate) server: Option<Server>,
    pub(crate) requester: TestRequester,
}

impl Fixture {
    pub(crate) fn new(provider: Provider) -> Self {
        let (site, seed, seeds, key) = (Site::new(provider), Seed::start(), Arc::new(Seeds::default()), key(1));
        seeds.add(&key, &seed);
        let exporter: Arc<dyn Exporter> = seeds.clone();
        let server = site.serve(None, &exporter);
        let address = server.address();
        let requester = site.connect(&address);
        Self { site, seed, seeds, key, address, server: Some(server), requester }
    }

    /// Ends the server, and starts a new one at its address.
    pub(crate) fn restart(&mut self, seeds: &Arc<Seeds>) {
        self.server = None;
        let exporter: Arc<dyn Exporter> = seeds.clone();
        self.server = Some(self.site.serve(Some(&self.address), &exporter));
    }

    /// Reads, and waits for the reply.
    pub(crate) fn read(&mut self, extent: ExtentId, offset: u64, bytes: u32) -> Result<Vec<u8>, FabricError> {
        self.requester.read(&self.key.clone(), &[Span { extent, offset, bytes }], PATIENCE)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Address::Shm(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A connection, with functions that poll it and wait for completions.
pub(crate) struct TestRequester {
    pub(crate) connection: Box<dyn Connection>,
    pub(crate) completions: Vec<Completion>,
}

impl TestRequester {
    pub(crate) fn new(address: &Address) -> Self {
        Self { connection: farfork_fabric::connect(address).unwrap(), completions: Vec::new() }
    }

    pub(crate) fn in_time(&self, wait: Duration) -> Instant {
        self.connection.now() + wait
    }

    pub(crate) fn submit(&mut self, tag: u64, key: &Arc<SeedKey>, spans: &[Span], wait: Duration) {
        let (key, spans, deadline) = (Arc::clone(key), spans.to_vec(), self.in_time(wait));
        self.connection.submit_read(ReadRequest { tag, key, mode: ReadMode::Exact, spans, deadline }).unwrap();
    }

    pub(crate) fn submit_write(&mut self, tag: u64, key: &Arc<SeedKey>, spans: &[Span], data: &[u8], wait: Duration) {
        let (key, spans, data, deadline) = (Arc::clone(key), spans.to_vec(), data.to_vec(), self.in_time(wait));
        self.connection.submit_write(WriteRequest { tag, key, spans, data, deadline }).unwrap();
    }

    pub(crate) fn send(&mut self, tag: u64, bytes: &[u8], wait: Duration) {
        let (bytes, deadline) = (bytes.to_vec(), self.in_time(wait));
        self.connection.submit_message(MessageRequest { tag, bytes, deadline }).unwrap();
    }

    pub(crate) fn poll(&mut self) {
        let now = self.connection.now();
        self.connection.poll(now, &mut self.completions);
    }

    /// Polls until a request completes, and waits between polls at most until the connection's timeout.
    pub(crate) fn wait(&mut self) {
        let limit = self.in_time(PATIENCE * 2);
        loop {
            self.poll();
            if !self.completions.is_empty() {
                return;
            }
            let until = self.connection.next_timeout().unwrap_or(limit).min(limit);
            self.connection.wait(Some(until)).unwrap();
            assert!(self.connection.now() < limit, "nothing completes");
        }
    }

    /// Waits for all requests. Returns their tags and results, in the order of completion.
    pub(crate) fn finish(&mut self) -> Vec<(u64, Result<Vec<u8>, FabricError>)> {
        while self.connection.unanswered_count() > 0 {
            let before = self.completions.len();
            let limit = self.in_time(PATIENCE * 2);
            self.poll();
            if self.completions.len() == before {
                let until = self.connection.next_timeout().unwrap_or(limit).min(limit);
                self.connection.wait(Some(until)).unwrap();
                assert!(self.connection.now() < limit, "nothing completes");
            }
        }
        let ended = |completion: Completion| (completion.tag, completion.result.map(|reply| reply.data.to_vec()));
        std::mem::take(&mut self.completions).into_iter().map(ended).collect()
    }

    /// Waits for the only request.
    fn finish_one(&mut self) -> Result<Vec<u8>, FabricError> {
        let mut ended = self.finish();
        assert_eq!((ended.len(), ended[0].0), (1, ONE));
        ended.remove(0).1
    }

    /// Reads, and waits for the reply.
    pub(crate) fn read(&mut self, key: &Arc<SeedKey>, spans: &[Span], wait: Duration) -> Result<Vec<u8>, FabricError> {
        self.submit(ONE, key, spans, wait);
        self.finish_one()
    }

    /// Writes, and waits for the reply.
    pub(crate) fn write(
        &mut self,
        key: &Arc<SeedKey>,
        spans: &[Span],
        data: &[u8],
        wait: Duration,
    ) -> Result<(), FabricError> {
        self.submit_write(ONE, key, spans, data, wait);
        self.finish_one().map(|reply| assert!(reply.is_empty()))
    }

    /// Sends a message, and waits for the reply.
    pub(crate) fn tell(&mut self, bytes: &[u8], wait: Duration) -> Result<(), FabricError> {
        self.send(ONE, bytes, wait);
        self.finish_one().map(|reply| assert!(reply.is_empty()))
    }
}

/// The tag of a single request.
const ONE: u64 = 77;

/// Returns the refusal in an error.
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, FabricError>) -> Refusal {
    match result {
        Err(error @ (FabricError::Refused { refusal, .. } | FabricError::MessageRefused { refusal, .. })) => {
            assert_eq!(error.is_permanent(), refusal != Refusal::MessageQueueFull);
            refusal
        }
        other => panic!("no refusal: {other:?}"),
    }
}
