//! Connects and accepts as a node does: TCP, then the handshake in which both sides authenticate. Each connection
//! carries a request of one byte and its answer, and is then closed. Without credentials there is no handshake.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use farfork_trust::{AuthenticatedStream, Credentials, Encryption};
use farfork_wire::NodeName;
use rustix::net::sockopt::set_socket_linger;

use crate::endpoint::latencies::{Latencies, new_latencies, print_latencies};
use crate::endpoint::specification::SERVER;
use crate::endpoint::{announce_port, print_line};

/// The request of a connection, and its answer.
const REQUEST: [u8; 1] = [1];
const ANSWER: [u8; 1] = [2];

/// Accepts until standard input ends. Each thread accepts one connection after the other.
pub(crate) fn serve(ip: IpAddr, threads: usize, credentials: Option<&Credentials>) -> io::Result<()> {
    let listener = TcpListener::bind((ip, 0))?;
    let port = listener.local_addr()?.port();
    for _ in 0..threads {
        let (listener, credentials) = (listener.try_clone()?, credentials.cloned());
        thread::spawn(move || {
            loop {
                // If this fails, the client also fails, and reports the error.
                let _ = accept(&listener, credentials.as_ref());
            }
        });
    }
    announce_port(port)
}

fn accept(listener: &TcpListener, credentials: Option<&Credentials>) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    match credentials {
        Some(credentials) => {
            let mut session = AuthenticatedStream::accept(credentials, stream)?;
            receive(&mut session, REQUEST)?;
            send(&mut session, ANSWER)
        }
        None => {
            stream.read_exact(&mut [0])?;
            stream.write_all(&ANSWER)
        }
    }
}

fn send(session: &mut AuthenticatedStream<impl Read + Write>, message: [u8; 1]) -> io::Result<()> {
    // The stream is blocking, so one call sends the byte.
    match session.send(&[IoSlice::new(&message)])? {
        Some(1) => Ok(()),
        taken => Err(io::Error::other(format!("the stream took {taken:?} of one byte"))),
    }
}

fn receive(session: &mut AuthenticatedStream<impl Read + Write>, expected: [u8; 1]) -> io::Result<()> {
    let mut message = [0];
    match session.receive(&mut [IoSliceMut::new(&mut message)])? {
        Some(1) if message == expected => Ok(()),
        received => Err(io::Error::other(format!("the stream gave {received:?}: {message:?} instead of {expected:?}"))),
    }
}

/// In each thread, connects and closes repeatedly for the time `run`. Prints the number of connections of each second and
/// the sum of their times, and at the end the number of all and their latencies.
pub(crate) fn run_client(
    to: SocketAddr,
    threads: usize,
    run: Duration,
    credentials: Option<&Credentials>,
) -> io::Result<()> {
    let (gate, totals) = (Arc::new(Barrier::new(threads + 1)), Arc::<ConnectionTotals>::default());
    let start = |_| {
        let (gate, credentials, totals) = (Arc::clone(&gate), credentials.cloned(), Arc::clone(&totals));
        thread::spawn(move || {
            let name = NodeName::new(SERVER).map_err(io::Error::other)?;
            gate.wait();
            connect_repeatedly(run, &totals, || {
                connect(to, credentials.as_ref().map(|credentials| (credentials, &name)))
            })
        })
    };
    let threads: Vec<_> = (0..threads).map(start).collect();
    print_line("ready")?;
    io::stdin().read_exact(&mut [0])?;
    gate.wait();
    let (began, mut latencies) = (Instant::now(), new_latencies());
    for second in 1..=run.as_secs() {
        thread::sleep((Duration::from_secs(second)).saturating_sub(began.elapsed()));
        let [connections, ns] = [&totals.connections, &totals.ns].map(|total| total.swap(0, Ordering::Relaxed));
        print_line(&format!("interval {connections} {ns}"))?;
    }
    for thread in threads {
        let own = thread.join().map_err(|_| io::Error::other("a client's thread panicked"))??;
        latencies.add(own).map_err(io::Error::other)?;
    }
    let elapsed = began.elapsed();
    print_line(&format!("done {} {}", latencies.len(), elapsed.as_nanos()))?;
    print_latencies(&latencies)
}

/// The connections of all threads in the present second, and the sum of their times.
#[derive(Debug, Default)]
struct ConnectionTotals {
    connections: AtomicU64,
    ns: AtomicU64,
}

fn connect_repeatedly(
    run: Duration,
    totals: &ConnectionTotals,
    mut connect: impl FnMut() -> io::Result<TcpStream>,
) -> io::Result<Latencies> {
    let (began, mut latencies) = (Instant::now(), new_latencies());
    let mut before = began;
    while before - began < run {
        let stream = connect()?;
        let ns = before.elapsed().as_nanos() as u64;
        latencies.saturating_record(ns);
        totals.connections.fetch_add(1, Ordering::Relaxed);
        totals.ns.fetch_add(ns, Ordering::Relaxed);
        // Close the connection with a reset, so that no port remains in TIME_WAIT. Otherwise the client would run out of
        // ports within seconds.
        set_socket_linger(&stream, Some(Duration::ZERO))?;
        drop(stream);
        before = Instant::now();
    }
    Ok(latencies)
}

/// Connects, and returns when the first request is answered.
fn connect(to: SocketAddr, credentials: Option<(&Credentials, &NodeName)>) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    let Some((credentials, name)) = credentials else {
        stream.write_all(&REQUEST)?;
        stream.read_exact(&mut [0])?;
        return Ok(stream);
    };
    let mut session = AuthenticatedStream::connect(credentials, &stream, Some(name))?;
    let is_over = session.continue_handshake()?;
    let in_clear = credentials.encryption() == Encryption::Off;
    if !is_over || session.peer().is_none() || session.is_clear() != in_clear {
        return Err(io::Error::other(format!("the handshake left {session:?}")));
    }
    send(&mut session, REQUEST)?;
    receive(&mut session, ANSWER)?;
    Ok(stream)
}
