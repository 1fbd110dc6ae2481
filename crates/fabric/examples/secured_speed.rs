//! Measures what it costs that both ends prove who they are, and that pages are encrypted: the same reads over plain TCP,
//! over a connection that goes on in clear behind its handshake, and over an encrypted one, in turn.
//!
//! `cargo run --release -p farfork-fabric --example secured_speed [ROUNDS]`

use std::error::Error;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use farfork_fabric::{
    Completion, Connection, Exporter, ReadMode, ReadRequest, Refusal, Region, SameHost, Secured, SeedKey, Span,
    TemplateMemory, connect, connect_node, tcp,
};
use farfork_sys::pidfd;
use farfork_trust::{Credentials, Directory, Encryption, NODE_VALID, Role, member};
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{NodeName, SeedId, Token};

const MEMORY_BYTES: u64 = 64 << 20;
const PAGE: u64 = 4096;

/// This process's own memory, exported as a template's would be.
struct Own {
    memory: TemplateMemory,
    address: u64,
}

impl Region for Own {
    fn extent_bytes(&self, _: ExtentId) -> Option<u64> {
        Some(MEMORY_BYTES)
    }

    fn read(&self, _: ExtentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory.read(self.address + offset, into)
    }

    fn same_host(&self) -> Option<SameHost> {
        None
    }
}

struct One(Arc<Own>);

impl Exporter for One {
    fn open(&self, _: &SeedId, _: &Token) -> Result<Arc<dyn Region>, Refusal> {
        Ok(Arc::clone(&self.0) as Arc<dyn Region>)
    }
}

/// Keeps `depth` reads of `bytes` in flight until `total` bytes have come, polling all the while; microseconds a read.
fn read(connection: &mut dyn Connection, key: &Arc<SeedKey>, bytes: u64, depth: u64, total: u64) -> f64 {
    let (mut submitted, mut ended, reads) = (0, 0, total / bytes);
    let mut completions: Vec<Completion> = Vec::new();
    let before = Instant::now();
    while ended < reads {
        while submitted < reads && submitted - ended < depth {
            let offset = submitted * 7919 * bytes % (MEMORY_BYTES - bytes) / PAGE * PAGE;
            let spans = vec![Span { extent: ExtentId(0), offset, bytes: bytes as u32 }];
            let deadline = before + Duration::from_secs(60);
            let request = ReadRequest { tag: submitted, key: Arc::clone(key), mode: ReadMode::Exact, spans, deadline };
            connection.submit(request).expect("within the limits");
            submitted += 1;
        }
        connection.poll(Instant::now(), &mut completions);
        for completion in completions.drain(..) {
            connection.recycle(completion.result.expect("a reply").data);
            ended += 1;
        }
    }
    before.elapsed().as_secs_f64() * 1e6 / reads as f64
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(7), |text| text.parse())?;
    let memory: Vec<u8> = (0..MEMORY_BYTES).map(|at| (at / PAGE) as u8).collect();
    let own = TemplateMemory::new(pidfd::open(std::process::id() as i32)?)?;
    let exporter: Arc<dyn Exporter> = Arc::new(One(Arc::new(Own { memory: own, address: memory.as_ptr() as u64 })));
    let scratch = tempfile::tempdir()?;
    let (first, second) = (Directory::new(scratch.path().join("n1")), Directory::new(scratch.path().join("n2")));
    let (now, n1) = (SystemTime::now(), NodeName::new("n1")?);
    member::init(&first, &NodeName::new("blue")?, &n1, now)?;
    member::issue_directory(&first, &second, Role::Node, &NodeName::new("n2")?, now, NODE_VALID)?;

    let plain = tcp::Server::start(TcpListener::bind("127.0.0.1:0")?, &exporter)?;
    let mut ways = vec![("plain TCP", connect(&plain.address())?)];
    let mut servers = vec![plain];
    for (name, encryption) in
        [("authenticated, in clear", Encryption::Off), ("authenticated, encrypted", Encryption::On)]
    {
        let security = Arc::new(Secured::new(Credentials::open(&first, encryption)?));
        let server = tcp::Server::start_secured(TcpListener::bind("127.0.0.1:0")?, &exporter, Some(security))?;
        ways.push((name, connect_node(&server.address(), &n1, Some(&Credentials::open(&second, encryption)?))?));
        servers.push(server);
    }
    let key = Arc::new(SeedKey { seed: SeedId::new(n1, 1), token: Token::from_bytes([7; 16]) });
    for (pages, depth, total) in [(1, 1, 5_000 * PAGE), (1, 32, 40_000 * PAGE), (64, 4, 8 * MEMORY_BYTES)] {
        let mut samples = vec![Vec::new(); ways.len()];
        for _ in 0..rounds {
            for ((_, connection), samples) in ways.iter_mut().zip(&mut samples) {
                samples.push(read(&mut **connection, &key, pages * PAGE, depth, total) / pages as f64);
            }
        }
        let medians: Vec<f64> = samples.into_iter().map(median).collect();
        for ((name, _), page_us) in ways.iter().zip(&medians) {
            let (rate, ratio) = (PAGE as f64 / page_us / 1e3, page_us / medians[0]);
            println!(
                "{pages:3} pages, {depth:2} in flight: {name:<25} {page_us:7.2} us a page, {rate:5.2} GB/s, x {ratio:.2}"
            );
        }
    }
    Ok(())
}
