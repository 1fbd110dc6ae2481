//! The floor of paging: the same bytes over the same link, by two bare programs with a socket between them, each in the
//! namespace of one node. They are this program, started with `--floor`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;
use farfork_cluster::local::LocalNode;

/// Bytes of one write or read: large enough that calls cost nothing beside copying.
const CHUNK_BYTES: usize = 256 << 10;

/// A pair of programs at the ends of the link.
#[derive(Debug)]
pub(crate) struct Link {
    sender: End,
    receiver: End,
}

/// One of them; it ends with this value.
#[derive(Debug)]
struct End {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Link {
    /// Starts both, ready to copy `mib` from the first node to the second.
    pub(crate) fn open(nodes: &[LocalNode], mib: u64) -> anyhow::Result<Self> {
        let mut sender = End::start(&nodes[0].netns, "send", &format!("{}:{mib}", nodes[0].address.ip()))?;
        let address = sender.answer()?;
        let receiver = End::start(&nodes[1].netns, "receive", &format!("{address}/{mib}"))?;
        Ok(Self { sender, receiver })
    }

    /// Copies once; gives the time in microseconds, from the request to the last byte in memory.
    pub(crate) fn copy_us(&mut self) -> anyhow::Result<f64> {
        self.receiver.commands.write_all(b"\n")?;
        Ok(self.receiver.answer()?.parse()?)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for end in [&mut self.receiver, &mut self.sender] {
            // They may have ended by themselves.
            let _ = end.process.kill();
            let _ = end.process.wait();
        }
    }
}

impl End {
    fn start(netns: &str, role: &str, what: &str) -> anyhow::Result<Self> {
        let mut process = Command::new("ip")
            .args(["netns", "exec", netns])
            .arg(std::env::current_exe()?)
            .args(["--floor", role, what])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("ip cannot be started: run scripts/setup.sh")?;
        let commands = process.stdin.take().expect("a pipe");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        Ok(Self { process, commands, answers })
    }

    fn answer(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        anyhow::ensure!(!line.is_empty(), "an end of the link ended");
        Ok(line.trim().to_owned())
    }
}

/// What the programs do.
pub(crate) fn be_end(role: &str, what: &str) -> anyhow::Result<()> {
    match role {
        "send" => {
            let (address, mib) = what.split_once(':').context("ADDRESS:MIB")?;
            send(address, mib.parse()?)
        }
        "receive" => {
            let (address, mib) = what.split_once('/').context("ADDRESS:PORT/MIB")?;
            receive(address, mib.parse()?)
        }
        _ => anyhow::bail!("no such role: {role}"),
    }
}

/// Sends all of a touched memory for each byte received.
fn send(address: &str, mib: usize) -> anyhow::Result<()> {
    let listener = TcpListener::bind((address, 0))?;
    println!("{}", listener.local_addr()?);
    let memory = vec![1_u8; mib << 20];
    let (mut stream, _) = listener.accept()?;
    let mut request = [0];
    while stream.read_exact(&mut request).is_ok() {
        for chunk in memory.chunks(CHUNK_BYTES) {
            stream.write_all(chunk)?;
        }
    }
    Ok(())
}

/// Fills a touched memory for each line of standard input, and tells the microseconds.
fn receive(address: &str, mib: usize) -> anyhow::Result<()> {
    let mut memory = vec![1_u8; mib << 20];
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    for line in std::io::stdin().lines() {
        line?;
        let began = Instant::now();
        stream.write_all(&[0])?;
        for chunk in memory.chunks_mut(CHUNK_BYTES) {
            stream.read_exact(chunk)?;
        }
        println!("{}", began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(())
}
