//! The floor of a replicated write: the same bytes over sockets along the chain of nodes, without any storage. The first
//! node sends, each next one forwards, and the last one acknowledges.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farfork_cluster::local::LocalNode;

/// The chain. Its threads end when this value is dropped.
#[derive(Debug)]
pub(crate) struct SocketChain {
    first: TcpStream,
    followers: Vec<JoinHandle<io::Result<()>>>,
    message: Vec<u8>,
}

impl SocketChain {
    /// Connects the nodes for messages of this size.
    pub(crate) fn connect(nodes: &[LocalNode], message_bytes: usize) -> io::Result<Self> {
        let mut followers = Vec::new();
        let mut next: Option<SocketAddr> = None;
        for node in nodes[1..].iter().rev() {
            let ip = node.address.ip();
            let listener = node.run_in_network(move || TcpListener::bind((ip, 0)))?;
            let address = listener.local_addr()?;
            let successor = next.map(|next| node.run_in_network(move || connect(next))).transpose()?;
            followers.push(thread::spawn(move || forward(&listener, successor, message_bytes)));
            next = Some(address);
        }
        let address = next.ok_or_else(|| io::Error::other("a chain has two nodes or more"))?;
        let first = nodes[0].run_in_network(move || connect(address))?;
        Ok(Self { first, followers, message: vec![b'0'; message_bytes] })
    }

    /// Sends each message when the previous one is acknowledged. Returns the time of each.
    pub(crate) fn send_each(&mut self, messages: u64) -> io::Result<Vec<Duration>> {
        let mut send = || {
            let began = Instant::now();
            self.first.write_all(&self.message)?;
            self.first.read_exact(&mut [0])?;
            Ok(began.elapsed())
        };
        (0..messages).map(|_| send()).collect()
    }

    /// Sends messages without waiting. Returns the time until the last one is acknowledged.
    pub(crate) fn stream(&mut self, messages: u64) -> io::Result<Duration> {
        let began = Instant::now();
        let mut acknowledgements = self.first.try_clone()?;
        thread::scope(|scope| {
            let reader = scope.spawn(move || io::copy(&mut (&mut acknowledgements).take(messages), &mut io::sink()));
            (0..messages).try_for_each(|_| self.first.write_all(&self.message))?;
            reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked")))
        })?;
        Ok(began.elapsed())
    }
}

impl Drop for SocketChain {
    fn drop(&mut self) {
        // Each follower ends when its predecessor does. An error means that the connection has ended.
        let _ = self.first.shutdown(std::net::Shutdown::Both);
        for follower in self.followers.drain(..).rev() {
            let _ = follower.join();
        }
    }
}

/// Forwards each message, and acknowledges it once the successor has acknowledged it. Ends when the predecessor closes
/// its connection.
fn forward(listener: &TcpListener, successor: Option<TcpStream>, message_bytes: usize) -> io::Result<()> {
    let (mut predecessor, _) = listener.accept()?;
    predecessor.set_nodelay(true)?;
    let Some(mut successor) = successor else {
        let mut message = vec![0; message_bytes];
        while predecessor.read_exact(&mut message).is_ok() {
            predecessor.write_all(&[1])?;
        }
        return Ok(());
    };
    let (mut acknowledgements, mut answers) = (successor.try_clone()?, predecessor.try_clone()?);
    let answering = thread::spawn(move || io::copy(&mut acknowledgements, &mut answers));
    let mut message = vec![0; message_bytes];
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
