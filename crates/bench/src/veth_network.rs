//! `VethNetwork`: a network namespace for a server and one for each client, joined to the server's by a veth pair.
//!
//! Namespaces have no names: a process `cat` holds each one. `cat` ends with its standard input, a pipe from the
//! benchmark, so no namespace outlives the benchmark.

use std::io;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::BenchError;

/// Time limit for a holder process to enter its namespace.
const ENTER_LIMIT: Duration = Duration::from_secs(30);

/// How often the entry is checked.
const ENTER_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A network of namespaces that take the place of machines.
#[derive(Debug)]
pub(crate) struct VethNetwork {
    server: NamespaceProcess,
    clients: Vec<NamespaceProcess>,
}

/// A process in a network namespace of its own. Both end when this value is dropped.
#[derive(Debug)]
struct NamespaceProcess(Child);

impl VethNetwork {
    /// Creates a namespace for the server, and `clients` namespaces that are each joined to it.
    pub(crate) fn new(clients: usize) -> Result<Self, BenchError> {
        let links = Self {
            server: NamespaceProcess::new()?,
            clients: (0..clients).map(|_| NamespaceProcess::new()).collect::<Result<_, _>>()?,
        };
        links.server.run_ip(&["link", "set", "lo", "up"])?;
        for (number, client) in links.clients.iter().enumerate() {
            client.run_ip(&["link", "set", "lo", "up"])?;
            let (near, far) = (format!("client{number}"), client.0.id().to_string());
            links.server.run_ip(&["link", "add", &near, "type", "veth", "peer", "name", "server", "netns", &far])?;
            let (here, there) = (format!("{}/24", Self::server_ip(number)), format!("{}/24", Self::client_ip(number)));
            for (holder, name, address) in [(&links.server, near.as_str(), here), (client, "server", there)] {
                holder.run_ip(&["address", "add", &address, "dev", name])?;
                holder.run_ip(&["link", "set", name, "up"])?;
            }
        }
        Ok(links)
    }

    /// The server's address on the link to a client.
    pub(crate) fn server_ip(client: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, client as u8, 1)
    }

    fn client_ip(client: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, client as u8, 2)
    }

    /// A command that runs a program in the server's namespace.
    pub(crate) fn server_command(&self) -> Command {
        self.server.command()
    }

    /// A command that runs a program in a client's namespace.
    pub(crate) fn client_command(&self, client: usize) -> Command {
        self.clients[client].command()
    }
}

impl NamespaceProcess {
    fn new() -> Result<Self, BenchError> {
        let failed = |cause| BenchError::Program { program: "unshare", cause };
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let holder = Self(command.spawn().map_err(failed)?);
        let own = std::fs::read_link("/proc/self/ns/net").map_err(failed)?;
        let give_up = Instant::now() + ENTER_LIMIT;
        while std::fs::read_link(holder.netns_path()).map_err(failed)? == own {
            if Instant::now() >= give_up {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(ENTER_POLL_INTERVAL);
        }
        Ok(holder)
    }

    fn netns_path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.netns_path())).arg("--");
        command
    }

    fn run_ip(&self, arguments: &[&str]) -> Result<(), BenchError> {
        let failed = |cause| BenchError::Program { program: "ip", cause };
        let output = self.command().arg("ip").args(arguments).output().map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())))
    }
}

impl Drop for NamespaceProcess {
    fn drop(&mut self) {
        // An error means that the process has ended on its own.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
