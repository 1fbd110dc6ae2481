//! `ConnectionArgs`: selects the daemon that a command connects to. `block_on` runs a command on an asynchronous
//! runtime.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::process::ExitCode;

use clap::Args;
use farfork_api::client::{self, Client, ClusterClient};
use farfork_api::run_dir::{DEFAULT_RUN_DIR, RunDir};
use farfork_cluster::local::LocalCluster;
use farfork_trust::{Credentials, DEFAULT_TRUST_DIR, Encryption, TrustDirectory};

/// Options that select the daemon. Every command has them; `--help` lists them after the command's own options.
#[derive(Args, Clone)]
pub(crate) struct ConnectionArgs {
    /// Unix socket of the daemon [default: node.sock in FARFORK_RUN_DIR or /run/farfork, or else the socket of the
    /// first node of `farfork up`].
    #[arg(long, env = "FARFORK_SOCKET", value_name = "PATH", global = true, display_order = 100)]
    socket: Option<PathBuf>,
    /// Connect to this node over the network, with the identity in --trust, instead of to a Unix socket.
    #[arg(long, env = "FARFORK_NODE", value_name = "IP:PORT", global = true, display_order = 101)]
    #[arg(value_parser = parse_address)]
    node: Option<SocketAddr>,
    /// Trust directory: the identity of this machine or user, and the cluster authorities that it trusts.
    #[arg(long, env = "FARFORK_TRUST", value_name = "DIR", global = true, display_order = 102)]
    #[arg(default_value = DEFAULT_TRUST_DIR)]
    trust: PathBuf,
}

impl ConnectionArgs {
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

    /// The Unix socket of the daemon of this machine.
    pub(crate) fn socket_path(&self) -> PathBuf {
        if let Some(socket) = &self.socket {
            return socket.clone();
        }
        let run_dir = default_run_dir();
        let own = RunDir::new(&run_dir).socket();
        match LocalCluster::load(&run_dir) {
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

/// The default run directory.
pub(crate) fn default_run_dir() -> PathBuf {
    std::env::var_os("FARFORK_RUN_DIR").map_or_else(|| DEFAULT_RUN_DIR.into(), PathBuf::from)
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
