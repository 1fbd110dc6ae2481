//! `NamespaceMachine`: a network namespace of the coordinator's machine, which takes the place of a machine.
//!
//! The namespaces of the nodes of a cluster have names. Others have none: a process `cat` holds each one. `cat` ends with its
//! standard input, a pipe from the benchmark, so no namespace outlives the benchmark.

use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_cluster::local::{LocalNode, netns_path};

use super::{Machine, prefix_command};
use crate::error::BenchError;

/// Time limit for a holder process to enter its namespace.
const ENTER_LIMIT: Duration = Duration::from_secs(30);

/// How often the entry is checked.
const ENTER_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The address of a server on its loopback interface. Each client has a route to it.
const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 255, 1);

/// A network namespace. One without a name ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct NamespaceMachine {
    /// The file of the namespace; `None` for the namespace of this process.
    network: Option<PathBuf>,
    address: IpAddr,
    scratch: PathBuf,
    farfork: PathBuf,
    _holder: Option<NamespaceHolder>,
}

/// A process in a network namespace of its own. Both end when this value is dropped.
#[derive(Debug)]
struct NamespaceHolder(Child);

impl NamespaceMachine {
    /// The namespace of a node. Its scratch directory is made in `parent`.
    pub(crate) fn of_node(node: &LocalNode, parent: &Path, farfork: &Path) -> Result<Self, BenchError> {
        let network = netns_path(&node.netns);
        Self::new(&node.name, Some(network), node.address.ip(), parent, farfork)
    }

    /// Creates a namespace for a server, and `clients` namespaces that are each joined to it by a veth pair.
    pub(crate) fn server_and_clients(
        clients: usize,
        parent: &Path,
        farfork: &Path,
    ) -> Result<(Self, Vec<Self>), BenchError> {
        let server = Self::without_name("server", SERVER_IP, parent, farfork)?;
        server.run_ip(&["address", "add", &SERVER_IP.to_string(), "dev", "lo"])?;
        let join = |number: u8| {
            let (own, near) = (format!("client{number}"), Ipv4Addr::new(10, 77, number, 1));
            let far = Ipv4Addr::new(10, 77, number, 2);
            let client = Self::without_name(&own, far, parent, farfork)?;
            let holder = client._holder.as_ref().map_or(0, |holder| holder.0.id()).to_string();
            server.run_ip(&["link", "add", &own, "type", "veth", "peer", "name", "server", "netns", &holder])?;
            for (machine, address, name) in [(&server, near, own.as_str()), (&client, far, "server")] {
                machine.run_ip(&["address", "add", &format!("{address}/24"), "dev", name])?;
                machine.run_ip(&["link", "set", name, "up"])?;
            }
            client.run_ip(&["route", "add", &SERVER_IP.to_string(), "via", &near.to_string()])?;
            Ok(client)
        };
        let joined = (0..clients as u8).map(join).collect::<Result<_, BenchError>>()?;
        Ok((server, joined))
    }

    /// The namespace of this process, for tests.
    #[cfg(test)]
    pub(crate) fn own(parent: &Path) -> Self {
        Self::new("machine", None, Ipv4Addr::LOCALHOST.into(), parent, "/nonexistent".as_ref()).unwrap()
    }

    fn without_name(name: &str, ip: Ipv4Addr, parent: &Path, farfork: &Path) -> Result<Self, BenchError> {
        let holder = NamespaceHolder::start().map_err(|cause| BenchError::Program { program: "unshare", cause })?;
        let machine = Self::new(name, Some(holder.network()), ip.into(), parent, farfork)?;
        machine.run_ip(&["link", "set", "lo", "up"])?;
        Ok(Self { _holder: Some(holder), ..machine })
    }

    fn new(
        name: &str,
        network: Option<PathBuf>,
        address: IpAddr,
        parent: &Path,
        farfork: &Path,
    ) -> Result<Self, BenchError> {
        let scratch = parent.join(name);
        // The mode of the directory does not depend on the umask.
        fs::create_dir(&scratch)
            .and_then(|()| fs::set_permissions(&scratch, Permissions::from_mode(0o755)))
            .map_err(|cause| BenchError::File { path: scratch.clone(), cause })?;
        Ok(Self { network, address, scratch, farfork: farfork.to_owned(), _holder: None })
    }

    fn run_ip(&self, arguments: &[&str]) -> Result<(), BenchError> {
        let machine: &dyn Machine = self;
        machine.run("ip", Command::new("ip").args(arguments), &[]).map(drop)
    }
}

impl Machine for NamespaceMachine {
    fn command(&self, program: &Command) -> Command {
        // nsenter(1) without a namespace only executes the program.
        let network = self.network.as_ref().map(|network| format!("--net={}", network.display()));
        prefix_command(&["nsenter", network.as_deref().unwrap_or("--no-fork"), "--"], program)
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn scratch(&self) -> &Path {
        &self.scratch
    }

    fn farfork(&self) -> &Path {
        &self.farfork
    }
}

impl NamespaceHolder {
    fn start() -> io::Result<Self> {
        let mut command = Command::new("unshare");
        let holder = Self(command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?);
        let own = fs::read_link("/proc/self/ns/net")?;
        let give_up = Instant::now() + ENTER_LIMIT;
        while fs::read_link(holder.network())? == own {
            if Instant::now() >= give_up {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(ENTER_POLL_INTERVAL);
        }
        Ok(holder)
    }

    fn network(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.0.id()).into()
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        // An error means that the process has ended on its own.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
