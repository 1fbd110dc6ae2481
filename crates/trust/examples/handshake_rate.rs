//! Measures connections a second over loopback: TCP alone, and with the handshake that both sides prove themselves in.
//!
//! `cargo run --release -p farfork-trust --example handshake_rate [THREADS]`

use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use farfork_trust::{Credentials, Directory, Encryption, NODE_VALID, Role, Session, member};
use farfork_wire::NodeName;

const RUN: Duration = Duration::from_secs(2);

fn serve(listener: &TcpListener, credentials: Option<&Credentials>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        if let Some(credentials) = credentials {
            // Who goes away is replaced by the next one.
            let _ = Session::accept(credentials, stream).and_then(|mut session| session.shake());
        }
    }
}

fn connect(address: std::net::SocketAddr, credentials: Option<&Credentials>) -> io::Result<u64> {
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < RUN {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        if let Some(credentials) = credentials {
            assert!(Session::connect(credentials, stream, None)?.shake()?, "a socket that blocks gets there");
        }
        count += 1;
    }
    Ok(count)
}

fn measure(threads: usize, credentials: Option<(&Credentials, &Credentials)>) -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    for _ in 0..threads.min(2) {
        let (listener, server) = (listener.try_clone()?, credentials.map(|(server, _)| server.clone()));
        std::thread::spawn(move || serve(&listener, server.as_ref()));
    }
    let clients = (0..threads).map(|_| {
        let client = credentials.map(|(_, client)| client.clone());
        std::thread::spawn(move || connect(address, client.as_ref()))
    });
    let clients: Vec<_> = clients.collect();
    let mut total = 0;
    for client in clients {
        total += client.join().expect("a client ends")?;
    }
    Ok(total as f64 / RUN.as_secs_f64())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    let root = std::env::temp_dir().join(format!("farfork-handshake-rate-{}", std::process::id()));
    let (first, second) = (Directory::new(root.join("n1")), Directory::new(root.join("n2")));
    let (now, name) = (SystemTime::now(), NodeName::new("n1")?);
    member::init(&first, &NodeName::new("blue")?, &name, now)?;
    member::issue_directory(&first, &second, Role::Node, &NodeName::new("n2")?, now, NODE_VALID)?;
    println!("{threads} threads, TCP alone     {:8.0} connections a second", measure(threads, None)?);
    for encryption in [Encryption::On, Encryption::Off] {
        let credentials = (Credentials::open(&first, encryption)?, Credentials::open(&second, encryption)?);
        let rate = measure(threads, Some((&credentials.0, &credentials.1)))?;
        println!("{threads} threads, authenticated {rate:8.0} connections a second (encryption {encryption:?})");
    }
    Ok(std::fs::remove_dir_all(root)?)
}
