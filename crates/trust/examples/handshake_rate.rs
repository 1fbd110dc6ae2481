//! Measures connections a second over loopback: TCP with one byte of greeting, and with the handshake that both sides
//! prove themselves in. The processor's time of both ends together is told, too: other work on the machine does not change it.
//!
//! `cargo run --release -p farfork-trust --example handshake_rate [THREADS]`

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use farfork_trust::{Credentials, Directory, Encryption, NODE_VALID, Role, Session, member};
use farfork_wire::NodeName;

const RUN: Duration = Duration::from_secs(2);

fn serve(listener: &TcpListener, credentials: Option<&Credentials>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        // Who goes away is replaced by the next one.
        let _ = match credentials {
            Some(credentials) => Session::accept(credentials, stream).and_then(|mut session| session.shake()).map(drop),
            None => (&stream).write_all(&[1]),
        };
    }
}

fn connect(address: std::net::SocketAddr, credentials: Option<&Credentials>) -> io::Result<u64> {
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < RUN {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        match credentials {
            Some(credentials) => {
                assert!(Session::connect(credentials, stream, None)?.shake()?, "a socket that blocks gets there");
            }
            None => (&stream).read_exact(&mut [0])?,
        }
        count += 1;
    }
    Ok(count)
}

/// Prints connections a second, and the processor's time of each.
fn measure(what: &str, threads: usize, credentials: Option<(&Credentials, &Credentials)>) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    for _ in 0..threads.min(2) {
        let (listener, server) = (listener.try_clone()?, credentials.map(|(server, _)| server.clone()));
        std::thread::spawn(move || serve(&listener, server.as_ref()));
    }
    let before = process_time();
    let clients = (0..threads).map(|_| {
        let client = credentials.map(|(_, client)| client.clone());
        std::thread::spawn(move || connect(address, client.as_ref()))
    });
    let clients: Vec<_> = clients.collect();
    let mut total = 0;
    for client in clients {
        total += client.join().expect("a client ends")?;
    }
    let (rate, each_us) =
        (total as f64 / RUN.as_secs_f64(), (process_time() - before).as_secs_f64() * 1e6 / total as f64);
    println!("{threads} threads, {what:<34} {rate:8.0} a second, {each_us:5.0} us of processor each");
    Ok(())
}

fn process_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    let root = std::env::temp_dir().join(format!("farfork-handshake-rate-{}", std::process::id()));
    let (first, second) = (Directory::new(root.join("n1")), Directory::new(root.join("n2")));
    let (now, name) = (SystemTime::now(), NodeName::new("n1")?);
    member::init(&first, &NodeName::new("blue")?, &name, now)?;
    member::issue_directory(&first, &second, Role::Node, &NodeName::new("n2")?, now, NODE_VALID)?;
    measure("TCP alone", threads, None)?;
    for (what, encryption) in
        [("authenticated, then encrypted", Encryption::On), ("authenticated, then in clear", Encryption::Off)]
    {
        let credentials = (Credentials::open(&first, encryption)?, Credentials::open(&second, encryption)?);
        measure(what, threads, Some((&credentials.0, &credentials.1)))?;
    }
    Ok(std::fs::remove_dir_all(root)?)
}
