//! What the tests of the fabric share: a process whose memory is known, an owner that exports it through either
//! provider, and a requester that polls.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farfork_fabric::{
    Address, Completion, Connection, Exporter, FabricError, ReadMode, ReadRequest, Refusal, Region, SameHost, SeedKey,
    Span, TemplateMemory, shm, tcp,
};
use farfork_sys::pidfd;
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{NodeName, SeedId, Token};

/// Pages of the template's memory; page N holds N, as a 64-bit number, again and again.
pub(crate) const PAGES: u64 = 600;
/// The page that the template itself may not read.
pub(crate) const PROTECTED_PAGE: u64 = 5;
pub(crate) const PAGE: u64 = 4096;
/// The extent in the template's memory.
pub(crate) const MEMORY: ExtentId = ExtentId(0);
/// An extent that the owner holds as a copy.
pub(crate) const COPY: ExtentId = ExtentId(1);
/// Its length, in bytes: no whole pages.
pub(crate) const COPY_BYTES: u64 = 300_001;
/// Longer than one read may be.
pub(crate) const DESCRIPTOR_BYTES: usize = 2_500_000;
/// What a busy machine may add to something that takes milliseconds.
pub(crate) const BUSY_MACHINE: Duration = Duration::from_secs(3);
/// What a test waits at most for something that comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

const SCRIPT: &str = "
import ctypes, mmap, sys
pages, protected = int(sys.argv[1]), int(sys.argv[2])
memory = mmap.mmap(-1, pages * 4096)
for page in range(pages):
    memory[page * 4096 : (page + 1) * 4096] = page.to_bytes(8, 'little') * 512
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + protected * 4096), ctypes.c_size_t(4096), 0)
print(address, flush=True)
sys.stdin.read()
";

/// A process with known memory that does nothing, as a template does.
pub(crate) struct Template {
    child: Mutex<Child>,
    pidfd: OwnedFd,
    memory: TemplateMemory,
    address: u64,
}

impl Template {
    pub(crate) fn start() -> Self {
        let mut child = Command::new("python3")
            .args(["-c", SCRIPT, &PAGES.to_string(), &PROTECTED_PAGE.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pidfd = pidfd::open(child.id() as i32).unwrap();
        let memory = TemplateMemory::new(pidfd.try_clone().unwrap()).unwrap();
        Self { child: Mutex::new(child), pidfd, memory, address: line.trim().parse().unwrap() }
    }

    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What `bytes` of an extent at `offset` must be.
pub(crate) fn expected(extent: ExtentId, offset: u64, bytes: u64) -> Vec<u8> {
    let at = |place: u64| match extent {
        MEMORY => (place / PAGE).to_le_bytes()[(place % 8) as usize],
        COPY => (place * 7 % 251) as u8,
        _ => (place * 11 % 241) as u8,
    };
    (offset..offset + bytes).map(at).collect()
}

/// A seed: the template's memory, a copy, and a descriptor.
pub(crate) struct Seed {
    pub(crate) template: Template,
    copy: Vec<u8>,
    descriptor: Vec<u8>,
    /// How often the owner read something, and how many bytes.
    pub(crate) reads: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Seed {
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self {
            template: Template::start(),
            copy: expected(COPY, 0, COPY_BYTES),
            descriptor: expected(ExtentId::DESCRIPTOR, 0, DESCRIPTOR_BYTES as u64),
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    fn held(&self, extent: ExtentId) -> Option<&[u8]> {
        match extent {
            COPY => Some(&self.copy),
            ExtentId::DESCRIPTOR => Some(&self.descriptor),
            _ => None,
        }
    }
}

impl Region for Seed {
    fn extent_bytes(&self, extent: ExtentId) -> Option<u64> {
        if extent == MEMORY { Some(PAGES * PAGE) } else { self.held(extent).map(|bytes| bytes.len() as u64) }
    }

    fn read(&self, extent: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        match self.held(extent) {
            Some(bytes) => into.copy_from_slice(&bytes[offset as usize..offset as usize + into.len()]),
            None => self.template.memory.read(self.template.address + offset, into)?,
        }
        Ok(())
    }

    fn same_host(&self) -> Option<SameHost> {
        let template = self.template.pidfd.try_clone().ok()?;
        Some(SameHost { template, extents: vec![(MEMORY, self.template.address)] })
    }
}

/// The seeds of an owner.
#[derive(Default)]
pub(crate) struct Seeds(Mutex<HashMap<SeedId, (Token, Arc<Seed>)>>);

impl Seeds {
    pub(crate) fn add(&self, key: &SeedKey, seed: &Arc<Seed>) {
        self.0.lock().unwrap().insert(key.seed.clone(), (key.token, Arc::clone(seed)));
    }

    pub(crate) fn remove(&self, key: &SeedKey) {
        self.0.lock().unwrap().remove(&key.seed);
    }
}

impl Exporter for Seeds {
    fn open(&self, seed: &SeedId, token: &Token) -> Result<Arc<dyn Region>, Refusal> {
        let seeds = self.0.lock().unwrap();
        let (secret, region) = seeds.get(seed).ok_or(Refusal::UnknownSeed)?;
        if secret == token { Ok(Arc::clone(region) as Arc<dyn Region>) } else { Err(Refusal::WrongToken) }
    }
}

pub(crate) fn key(number: u64) -> Arc<SeedKey> {
    let seed = SeedId::new(NodeName::new("n1").unwrap(), number);
    Arc::new(SeedKey { seed, token: Token::from_bytes([number as u8; 16]) })
}

/// Which provider a test uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    Tcp,
    Shm,
}

/// Keeps a server; dropping it ends it.
pub(crate) enum Server {
    Tcp(tcp::Server),
    Shm(shm::Server),
}

impl Server {
    /// Serves at a new address, or again at one that was served before.
    pub(crate) fn start(provider: Provider, at: Option<&Address>, exporter: &Arc<dyn Exporter>) -> Self {
        match (provider, at) {
            (Provider::Tcp, Some(Address::Tcp(at))) => Self::Tcp(tcp_server(&at.to_string(), exporter)),
            (Provider::Tcp, _) => Self::Tcp(tcp_server("127.0.0.1:0", exporter)),
            (Provider::Shm, Some(Address::Shm(path))) => {
                std::fs::remove_file(path).unwrap();
                Self::Shm(shm::Server::start(UnixListener::bind(path).unwrap(), exporter).unwrap())
            }
            (Provider::Shm, _) => {
                static NUMBER: AtomicU64 = AtomicU64::new(0);
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let name = format!("farfork-fabric-{}-{number}.sock", std::process::id());
                let path = std::env::temp_dir().join(name);
                Self::Shm(shm::Server::start(UnixListener::bind(path).unwrap(), exporter).unwrap())
            }
        }
    }

    pub(crate) fn address(&self) -> Address {
        match self {
            Self::Tcp(server) => server.address(),
            Self::Shm(server) => server.address(),
        }
    }
}

fn tcp_server(at: &str, exporter: &Arc<dyn Exporter>) -> tcp::Server {
    tcp::Server::start(TcpListener::bind(at).unwrap(), exporter).unwrap()
}

/// An owner with one seed, and a connection to it.
pub(crate) struct Fixture {
    pub(crate) provider: Provider,
    pub(crate) seed: Arc<Seed>,
    pub(crate) seeds: Arc<Seeds>,
    pub(crate) key: Arc<SeedKey>,
    pub(crate) address: Address,
    pub(crate) server: Option<Server>,
    pub(crate) requester: Requester,
}

impl Fixture {
    pub(crate) fn new(provider: Provider) -> Self {
        let (seed, seeds, key) = (Seed::start(), Arc::new(Seeds::default()), key(1));
        seeds.add(&key, &seed);
        let exporter: Arc<dyn Exporter> = seeds.clone();
        let server = Server::start(provider, None, &exporter);
        let address = server.address();
        let requester = Requester::new(&address);
        Self { provider, seed, seeds, key, address, server: Some(server), requester }
    }

    /// Starts a server where the last one was.
    pub(crate) fn restart(&mut self, seeds: &Arc<Seeds>) {
        self.server = None;
        let exporter: Arc<dyn Exporter> = seeds.clone();
        self.server = Some(Server::start(self.provider, Some(&self.address), &exporter));
    }

    /// Reads and waits.
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

/// A connection, polled as an event loop would.
pub(crate) struct Requester {
    pub(crate) connection: Box<dyn Connection>,
    pub(crate) completions: Vec<Completion>,
}

impl Requester {
    pub(crate) fn new(address: &Address) -> Self {
        Self { connection: farfork_fabric::connect(address).unwrap(), completions: Vec::new() }
    }

    pub(crate) fn submit(&mut self, tag: u64, key: &Arc<SeedKey>, spans: &[Span], wait: Duration) {
        let (key, spans, deadline) = (Arc::clone(key), spans.to_vec(), Instant::now() + wait);
        self.connection.submit(ReadRequest { tag, key, mode: ReadMode::Exact, spans, deadline }).unwrap();
    }

    /// Polls, and waits for the descriptor or the time-out that the connection names, until something completed.
    pub(crate) fn wait(&mut self) {
        let limit = Instant::now() + PATIENCE * 2;
        loop {
            self.connection.poll(Instant::now(), &mut self.completions);
            if !self.completions.is_empty() {
                return;
            }
            let until = self.connection.next_timeout().unwrap_or(limit).min(limit);
            self.connection.wait(Some(until)).unwrap();
            assert!(Instant::now() < limit, "nothing completes");
        }
    }

    /// Reads and waits.
    pub(crate) fn read(&mut self, key: &Arc<SeedKey>, spans: &[Span], wait: Duration) -> Result<Vec<u8>, FabricError> {
        self.submit(77, key, spans, wait);
        self.wait();
        assert_eq!(self.completions.len(), 1);
        let completion = self.completions.remove(0);
        assert_eq!((completion.tag, self.connection.unanswered()), (77, 0));
        let data = completion.result?.data;
        let bytes = data.to_vec();
        self.connection.recycle(data);
        Ok(bytes)
    }
}

/// What the owner refused with.
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, FabricError>) -> Refusal {
    match result {
        Err(error @ FabricError::Refused { refusal, .. }) => {
            assert!(error.is_final());
            refusal
        }
        other => panic!("no refusal: {other:?}"),
    }
}
