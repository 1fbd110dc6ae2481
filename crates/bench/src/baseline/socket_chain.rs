//! The floor of a replicated write: the same bytes over sockets along the chain of nodes, without any storage. The first
//! node sends, each next one forwards, and the last one acknowledges. Each is an `endpoint` on the node's machine.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::endpoint::print_line;
use crate::endpoint::specification::{EndpointRole, EndpointSpec, RpcSystem};
use crate::error::BenchError;
use crate::experiment::nodes::ClusterNode;
use crate::experiment::testbed::{ConnectionSecurity, start_endpoint};
use crate::machine::program::RunningProgram;
use crate::workload::file_writer::OperationLatency;

/// Messages along the chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketChain<'a> {
    /// The nodes, in the order of the chain: two or more.
    pub(crate) nodes: &'a [ClusterNode],
    pub(crate) messages: u64,
    pub(crate) message_bytes: usize,
}

impl SocketChain<'_> {
    /// Sends each message when the previous one is acknowledged. Returns the latency of a message.
    pub(crate) fn measure_each(&self) -> Result<OperationLatency, BenchError> {
        let [mean, p50, p99, p999, p9999] = self.send(false)?.map(i64::unsigned_abs);
        Ok(OperationLatency { mean, p50, p99, p999, p9999 })
    }

    /// Sends messages without waiting. Returns the time until the last one is acknowledged.
    pub(crate) fn measure_stream(&self) -> Result<Duration, BenchError> {
        let [ns] = self.send(true)?;
        Ok(Duration::from_nanos(ns.unsigned_abs()))
    }

    fn send<const N: usize>(&self, streams: bool) -> Result<[i64; N], BenchError> {
        let Self { messages, message_bytes, .. } = *self;
        let start = |node: &ClusterNode, role| -> Result<RunningProgram, BenchError> {
            let end = EndpointSpec::new(RpcSystem::Farfork, role);
            start_endpoint(node.machine(), ConnectionSecurity::None, end)
        };
        let (mut followers, mut next) = (Vec::new(), None);
        for node in self.nodes[1..].iter().rev() {
            let ip = node.machine().address();
            let mut follower = start(node, EndpointRole::ChainFollower { ip, next, message_bytes })?;
            let [port] = follower.read_answer("listening")?;
            next = Some(SocketAddr::new(ip, port as u16));
            followers.push(follower);
        }
        let to = next.expect("a chain has two nodes or more");
        let head = EndpointRole::ChainHead { to, messages, message_bytes, streams };
        start(&self.nodes[0], head)?.ready()?.request(b'g', "sent")
    }
}

/// Runs the first node of a chain. Prints `ready`, waits for one letter, and prints `sent NS` for a stream, or `sent MEAN P50
/// P99 P999 P9999` of the messages.
///
/// # Errors
/// The connection fails, or standard input or output do.
pub(crate) fn run_head(to: SocketAddr, messages: u64, message_bytes: usize, streams: bool) -> io::Result<()> {
    let mut successor = connect(to)?;
    let message = vec![b'0'; message_bytes];
    print_line("ready")?;
    io::stdin().read_exact(&mut [0])?;
    if streams {
        let took = stream(&mut successor, messages, &message)?;
        return print_line(&format!("sent {}", took.as_nanos()));
    }
    let mut send = || {
        let began = Instant::now();
        successor.write_all(&message)?;
        successor.read_exact(&mut [0])?;
        Ok(began.elapsed().as_nanos() as u64)
    };
    let times = (0..messages).map(|_| send()).collect::<io::Result<_>>()?;
    let OperationLatency { mean, p50, p99, p999, p9999 } = OperationLatency::of(times);
    print_line(&format!("sent {mean} {p50} {p99} {p999} {p9999}"))
}

fn stream(successor: &mut TcpStream, messages: u64, message: &[u8]) -> io::Result<Duration> {
    let began = Instant::now();
    let mut acknowledgements = successor.try_clone()?;
    thread::scope(|scope| {
        let reader = scope.spawn(move || io::copy(&mut (&mut acknowledgements).take(messages), &mut io::sink()));
        (0..messages).try_for_each(|_| successor.write_all(message))?;
        reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked")))
    })?;
    Ok(began.elapsed())
}

/// Runs another node of a chain. Prints `listening PORT`. Forwards each message, and acknowledges it once the successor has
/// acknowledged it. Ends when the predecessor closes its connection.
///
/// # Errors
/// A connection fails, or standard output does.
pub(crate) fn run_follower(ip: IpAddr, next: Option<SocketAddr>, message_bytes: usize) -> io::Result<()> {
    let listener = TcpListener::bind((ip, 0))?;
    let successor = next.map(connect).transpose()?;
    print_line(&format!("listening {}", listener.local_addr()?.port()))?;
    let (mut predecessor, _) = listener.accept()?;
    predecessor.set_nodelay(true)?;
    let mut message = vec![0; message_bytes];
    let Some(mut successor) = successor else {
        while predecessor.read_exact(&mut message).is_ok() {
            predecessor.write_all(&[1])?;
        }
        return Ok(());
    };
    let (mut acknowledgements, mut answers) = (successor.try_clone()?, predecessor.try_clone()?);
    let answering = thread::spawn(move || io::copy(&mut acknowledgements, &mut answers));
    while predecessor.read_exact(&mut message).is_ok() {
        successor.write_all(&message)?;
    }
    successor.shutdown(std::net::Shutdown::Both)?;
    let _ = answering.join();
    Ok(())
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
