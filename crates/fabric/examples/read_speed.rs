//! Measures reads of exported memory through each provider. Also measures two baselines: a copy within this process,
//! and a plain ping-pong over TCP.
//!
//! `cargo run --release -p farfork-fabric --example read_speed [serve ADDRESS | TCP-ADDRESS]`: without arguments,
//! serves itself over loopback. `serve ADDRESS` only serves; `TCP-ADDRESS` only reads from that address.

mod own_memory;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use farfork_fabric::{Address, Completion, Connection, connect, shm, tcp};

use own_memory::{Course, PAGE};

const MEMORY_BYTES: u64 = 256 << 20;
const SPIN: Duration = Duration::from_micros(50);

/// Polls until a request completes: spins for a while, then sleeps, as a pager does.
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

fn measure(name: &str, address: &Address) -> io::Result<()> {
    let (mut connection, key) = (connect(address)?, own_memory::key());
    let mut read = |bytes, depth, total_bytes| {
        let course = Course { bytes, depth, total_bytes, memory_bytes: MEMORY_BYTES };
        own_memory::read(&mut *connection, &key, &course, wait)
    };
    read(1 << 20, 2, MEMORY_BYTES);
    let count = 20_000;
    let one = read(PAGE, 1, count * PAGE);
    println!("{name:>4}  one page in flight   {:7.2} us a read", one.as_secs_f64() * 1e6 / count as f64);
    for (pages, depth) in [(1, 32), (16, 2), (16, 8), (64, 2), (64, 4), (256, 4)] {
        let total = 8 * MEMORY_BYTES / if pages == 1 { 8 } else { 1 };
        let took = read(pages * PAGE, depth, total).as_secs_f64();
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
    let exporter = own_memory::export(&memory)?;
    if let [_, at] = arguments.as_slice() {
        let _server = tcp::TcpServer::start(TcpListener::bind(at)?, &exporter)?;
        io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(());
    }
    floors(&memory)?;
    let server = tcp::TcpServer::start(TcpListener::bind("127.0.0.1:0")?, &exporter)?;
    measure("tcp", &server.address())?;
    let path = std::env::temp_dir().join(format!("farfork-read-speed-{}.sock", std::process::id()));
    let server = shm::ShmServer::start(UnixListener::bind(&path)?, &exporter)?;
    let measured = measure("shm", &server.address());
    std::fs::remove_file(path)?;
    measured
}
