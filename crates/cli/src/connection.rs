//! `ConnectionArgs`: selects the daemon that a command connects to. `block_on` runs a command on an asynchronous
//! runtime.

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use farfork_api::client::{self, Client, ClusterClient};
use farfork_api::run_dir::{DEFAULT_RUN_DIR, RunDir};
use farfork_cluster::local::LocalCluster;
use farfork_trust::{Credentials, DEFAULT_TRUST_DIR, Encryption, TrustDirectory};

/// An option of [`ConnectionArgs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionOption {
    Socket,
    RunDir,
    Node,
    Trust,
}

/// The options that select a daemon. At most one of them may be on a command line.
const DAEMON_SELECTORS: [ConnectionOption; 3] =
    [ConnectionOption::RunDir, ConnectionOption::Socket, ConnectionOption::Node];

impl ConnectionOption {
    fn name(self) -> &'static str {
        match self {
            ConnectionOption::Socket => "--socket",
            ConnectionOption::RunDir => "--run-dir",
            ConnectionOption::Node => "--node",
            ConnectionOption::Trust => "--trust",
        }
    }

    /// Whether the command line has the option. A value from the environment is meant for all commands.
    fn is_in(self, line: &ArgMatches) -> bool {
        let id = self.name().trim_start_matches('-').replace('-', "_");
        line.value_source(&id) == Some(ValueSource::CommandLine)
    }
}

/// Options that select the daemon. `--help` of each command lists them after the command's own options. A command refuses
/// an option that it does not use.
#[derive(Args, Clone)]
pub(crate) struct ConnectionArgs {
    /// Unix socket of the daemon [default: node.sock in --run-dir, or else the socket of the first node of `farfork up`].
    #[arg(long, env = "FARFORK_SOCKET", value_name = "PATH", global = true, display_order = 100)]
    socket: Option<PathBuf>,
    /// Run directory of the daemon, or of the cluster of `farfork up`: its sockets, logs, and names of processes.
    #[arg(long, env = "FARFORK_RUN_DIR", value_name = "DIR", global = true, display_order = 100)]
    #[arg(default_value = DEFAULT_RUN_DIR)]
    run_dir: PathBuf,
    /// Connect to this node over the network, with the identity in --trust, instead of to a Unix socket.
    #[arg(long, env = "FARFORK_NODE", value_name = "IP:PORT", global = true, display_order = 101)]
    #[arg(value_parser = parse_address)]
    node: Option<SocketAddr>,
    /// Trust directory: the identity of this machine or user, and the cluster authorities that it trusts.
    #[arg(long, env = "FARFORK_TRUST", value_name = "DIR", global = true, display_order = 102)]
    #[arg(default_value = DEFAULT_TRUST_DIR)]
    trust: PathBuf,
    /// Whether the command line has `--socket`.
    #[arg(skip)]
    selects_socket: bool,
}

impl ConnectionArgs {
    /// Checks that the command uses all options of the command line, and removes the variables of the environment over which
    /// these options take precedence.
    ///
    /// # Errors
    /// The text of a usage error.
    pub(crate) fn apply_command_line(&mut self, used: &[ConnectionOption], line: &ArgMatches) -> Result<(), String> {
        let selectors: Vec<_> = DAEMON_SELECTORS.into_iter().filter(|option| option.is_in(line)).collect();
        let unused = selectors
            .iter()
            .chain(&[ConnectionOption::Trust])
            .find(|option| !used.contains(option) && option.is_in(line));
        if let Some(option) = unused {
            return Err(format!("this command does not use {}; drop it", option.name()));
        }
        if let [first, second, ..] = selectors[..] {
            return Err(format!("{} and {} each select a daemon; drop one", first.name(), second.name()));
        }
        self.selects_socket = ConnectionOption::Socket.is_in(line);
        match selectors.first() {
            Some(ConnectionOption::RunDir) => (self.socket, self.node) = (None, None),
            Some(ConnectionOption::Socket) => self.node = None,
            _ => {}
        }
        let connects = used.contains(&ConnectionOption::Socket);
        if connects && self.node.is_none() && ConnectionOption::Trust.is_in(line) {
            return Err("--trust is used with --node only: a Unix socket needs no identity".to_owned());
        }
        Ok(())
    }

    /// Connects to the daemon.
    pub(crate) async fn open(&self) -> anyhow::Result<Client> {
        match self.node {
            Some(address) => {
                let credentials = Credentials::open(&self.trust_directory(), Encryption::On)?;
                Ok(client::connect_network(address, &credentials).await?)
            }
            None => Ok(client::connect(&self.socket_path()).await?),
        }
    }

    /// Connects to the cluster service (`ClusterClient`) of this machine's daemon.
    pub(crate) async fn open_for_cluster(&self) -> anyhow::Result<ClusterClient> {
        Ok(client::connect_cluster(&self.socket_path()).await?)
    }

    /// The trust directory: the identity of this machine, and the authorities that it trusts.
    pub(crate) fn trust_directory(&self) -> TrustDirectory {
        TrustDirectory::new(&self.trust)
    }

    /// The address of `--node`; `None` for the daemon of this machine.
    pub(crate) fn node_address(&self) -> Option<SocketAddr> {
        self.node
    }

    /// The socket of `--socket`; `None` if the environment selects it, or nothing.
    pub(crate) fn selected_socket(&self) -> Option<&Path> {
        self.socket.as_deref().filter(|_| self.selects_socket)
    }

    /// The run directory of the daemon, or of the cluster of `farfork up`.
    pub(crate) fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// The Unix socket of the daemon of this machine.
    pub(crate) fn socket_path(&self) -> PathBuf {
        if let Some(socket) = &self.socket {
            return socket.clone();
        }
        let own = RunDir::new(&self.run_dir).socket();
        match LocalCluster::load(&self.run_dir) {
            Ok(cluster) if !own.exists() => cluster.nodes().first().map_or(own, |node| node.socket.clone()),
            _ => own,
        }
    }
}

/// Parses an address and a port. Host names are not resolved.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "write an IP address and a port, such as 10.0.0.1:7400; host names are not resolved".to_owned())
}

/// Runs a command that only makes requests. One thread is enough for such a command.
pub(crate) fn block_on(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    // A single type for all commands, so that tokio's executor is compiled once.
    let command: Pin<&mut dyn Future<Output = anyhow::Result<ExitCode>>> = pin!(command);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(command);
    // shutdown_background() does not wait for a thread that may be blocked in read(2) on standard input.
    runtime.shutdown_background();
    result
}
