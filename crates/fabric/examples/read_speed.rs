//! Measures reads of another process's memory through each provider, beside the floors: a copy within this process and
//! a bare ping-pong over the same kind of socket.
//!
//! `cargo run --release -p farfork-fabric --example read_speed [serve ADDRESS | TCP-ADDRESS]`: alone it serves itself
//! over loopback; with `serve` and an address it only serves, and with that address it only reads.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::{
    Address, Completion, Connection, Exporter, ReadMode, ReadRequest, Refusal, Region, SameHost, SeedKey, Span,
    TemplateMemory, connect, shm, tcp,
};
use farfork_sys::pidfd;
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{NodeName, SeedId, Token};

const MEMORY_BYTES: u64 = 256 << 20;
const PAGE: u64 = 4096;
const SPIN: Duration = Duration::from_micros(50);

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
        let template = pidfd::open(std::process::id() as i32).ok()?;
        Some(SameHost { template, extents: vec![(ExtentId(0), self.address)] })
    }
}

struct One(Arc<Own>);

impl Exporter for One {
    fn open(&self, _: &SeedId, _: &Token) -> Result<Arc<dyn Region>, Refusal> {
        Ok(Arc::clone(&self.0) as Arc<dyn Region>)
    }
}

fn key() -> Arc<SeedKey> {
    let seed = SeedId::new(NodeName::new("n1").expect("a name"), 1);
    Arc::new(SeedKey { seed, token: Token::from_bytes([7; 16]) })
}

/// Polls until something completes: spins for a while, then sleeps, as a pager does.
fn wait(connection: &mut dyn Connection, completions: &mut Vec<Completion>) {
    let before = Instant::now();
    let mut now = before;
    while completions.is_empty() {
        connection.poll(now, completions);
        now = Instant::now();
        if completions.is_empty() && now - before > SPIN {
            connection.wait(Some(now + Duration::from_secs(1))).expect("waiting");
        }
    }
}

/// Keeps `depth` reads of `bytes` in flight until `total` bytes have come; gives the time it took.
fn read(connection: &mut dyn Connection, key: &Arc<SeedKey>, bytes: u64, depth: u64, total: u64) -> Duration {
    let (mut submitted, mut ended, reads) = (0, 0, total / bytes);
    let mut completions = Vec::new();
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
        wait(connection, &mut completions);
        for completion in completions.drain(..) {
            connection.recycle(completion.result.expect("a reply").data);
            ended += 1;
        }
    }
    before.elapsed()
}

fn measure(name: &str, address: &Address) -> io::Result<()> {
    let (mut connection, key) = (connect(address)?, key());
    read(&mut *connection, &key, 1 << 20, 2, MEMORY_BYTES);
    let count = 20_000;
    let one = read(&mut *connection, &key, PAGE, 1, count * PAGE);
    println!("{name:>4}  one page in flight   {:7.2} us a read", one.as_secs_f64() * 1e6 / count as f64);
    for (pages, depth) in [(1, 32), (16, 2), (16, 8), (64, 2), (64, 4), (256, 4)] {
        let total = 8 * MEMORY_BYTES / if pages == 1 { 8 } else { 1 };
        let took = read(&mut *connection, &key, pages * PAGE, depth, total).as_secs_f64();
        let (rate, page) = (total as f64 / took / 1e9, took * 1e6 / (total / PAGE) as f64);
        println!("{name:>4}  {pages:3} pages, {depth:2} in flight {rate:5.2} GB/s, {page:5.2} us a page");
    }
    Ok(())
}

fn floors(memory: &[u8]) -> io::Result<()> {
    let mut copy = vec![0; 256 << 10];
    let before = Instant::now();
    for part in memory.chunks_exact(copy.len()) {
        copy.copy_from_slice(std::hint::black_box(part));
        std::hint::black_box(&mut copy);
    }
    println!("floor copy {:.2} GB/s", memory.len() as f64 / before.elapsed().as_secs_f64() / 1e9);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    let echo = std::thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let (mut request, reply) = ([0; 48], vec![1; 4096 + 32]);
        while stream.read_exact(&mut request).is_ok() {
            stream.write_all(&reply)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(at)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut reply = vec![0; 4096 + 32];
    let (before, count) = (Instant::now(), 20_000);
    for _ in 0..count {
        stream.write_all(&[0; 48])?;
        let mut filled = 0;
        while filled < reply.len() {
            match stream.read(&mut reply[filled..]) {
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
    let took = before.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    drop(stream);
    println!("floor ping-pong of a page over TCP, requester spinning {took:.2} us");
    echo.join().expect("the echo ends")
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [address] = arguments.as_slice() {
        let address = address.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        return measure("tcp", &Address::Tcp(address));
    }
    let memory: Vec<u8> = (0..MEMORY_BYTES).map(|at| (at / PAGE) as u8).collect();
    let own = TemplateMemory::new(pidfd::open(std::process::id() as i32)?)?;
    let exporter: Arc<dyn Exporter> = Arc::new(One(Arc::new(Own { memory: own, address: memory.as_ptr() as u64 })));
    if let [_, at] = arguments.as_slice() {
        let _server = tcp::Server::start(TcpListener::bind(at)?, &exporter)?;
        io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(());
    }
    floors(&memory)?;
    let server = tcp::Server::start(TcpListener::bind("127.0.0.1:0")?, &exporter)?;
    measure("tcp", &server.address())?;
    let path = std::env::temp_dir().join(format!("farfork-read-speed-{}.sock", std::process::id()));
    let server = shm::Server::start(UnixListener::bind(&path)?, &exporter)?;
    let measured = measure("shm", &server.address());
    std::fs::remove_file(path)?;
    measured
}
