//! The offload process of a node: serves all replicas of its store. It copies logs along their chains, orders publishing,
//! decides with the other nodes which client may write, and replies to clients and commands.

mod acknowledgement;
mod check;
mod client_session;
mod commands;
mod handlers;
mod log_copier;
mod node;
mod partial_tree;
mod publishing;
mod received_log;
mod rejoin;
mod replica_watch;
mod silent_nodes;
mod space;
mod tree_hold;
mod volume;
mod writer;

#[cfg(test)]
mod drop_tests;
#[cfg(test)]
mod replacement_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod writer_tests;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use farfork_cluster::catalog::{Catalog, CatalogError, CatalogLocation, VolumeNode, require_own_catalog};
use farfork_fabric::tcp::TcpServer;
use farfork_fabric::{Exporter, RegionRegistry, Security, TlsSecurity};
use farfork_rpc::server::{Acceptor, PlainAcceptor, SecuredAcceptor, Server, ServerConfig};
use farfork_trust::Credentials;
use farfork_wire::NodeName;

pub use self::commands::REPLICAS_MAX;
use self::node::OffloadNode;
use super::channel::{MessageChannel, listen};
use super::data_copier::CopyMethod;
use super::store::VolumeStore;
use super::work_priority::WorkPriority;
use crate::chain::{LogCompression, PeerClients};
use crate::named_values::named_values;

/// The name of the lock of the offload process.
const OFFLOAD: &str = "offload";
/// Number of threads that receive calls. Calls that may wait are executed by other threads.
const RPC_THREADS: usize = 1;

/// The processes that replicate and publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadMode {
    /// A separate offload process replicates, and the host worker publishes.
    #[default]
    On,
    /// Threads of the process that calls `run_offload` replicate and publish, without a host worker. The baseline of
    /// measurements.
    Inline,
}

named_values!(OffloadMode { On = "on", Inline = "inline" });

/// The configuration of an offload process.
#[derive(Clone, Debug)]
pub struct OffloadOptions {
    /// The name of its node.
    pub node: NodeName,
    /// The directory with the replicas of the node.
    pub store: PathBuf,
    /// The catalog, which all nodes share.
    pub catalog: CatalogLocation,
    /// The address at which other nodes reach this one.
    pub listen: IpAddr,
    /// A node that does not answer for this time is removed from the chains of its volumes.
    pub detection_time: Duration,
    /// A replica that takes less than this number of bytes of its log per detection time is removed from the chain.
    pub replica_rate_min: u64,
    /// The head of each chain checks its volume once in this time; zero for never.
    pub scrub_interval: Duration,
    /// Whether a host worker publishes.
    pub mode: OffloadMode,
    /// Method to copy data into shared trees while the host worker does not run.
    pub copy_method: CopyMethod,
    /// The CPU priority of the threads that replicate and publish.
    pub priority: WorkPriority,
    /// How the node compresses the log data that it sends. It expands received data regardless of this option.
    pub compression: LogCompression,
    /// The identity that other nodes authenticate; none for unencrypted connections.
    pub credentials: Option<Credentials>,
}

/// Why an offload process cannot run.
#[derive(Debug, thiserror::Error)]
pub enum OffloadError {
    /// The catalog cannot be used.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The store cannot be used.
    #[error("cannot use the store {path}: {source}")]
    Store {
        /// The store.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The network cannot be used.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: IpAddr,
        /// The cause.
        source: io::Error,
    },
}

/// Runs the offload process of a node until it is killed.
///
/// # Errors
/// When store, catalog or network cannot be used.
pub fn run_offload(options: &OffloadOptions) -> Result<(), OffloadError> {
    let store = VolumeStore::new(&options.store);
    serve_volumes(options, &store).inspect_err(|error| {
        if let Err(error) = store.record_start_failure(Some(&error.to_string())) {
            tracing::warn!(%error, "commands do not show why this process cannot start");
        }
    })
}

fn serve_volumes(options: &OffloadOptions, store: &VolumeStore) -> Result<(), OffloadError> {
    let store_failed = |source| OffloadError::Store { path: options.store.display().to_string(), source };
    let _lock = store.lock(OFFLOAD).map_err(store_failed)?;
    let catalog: Arc<dyn Catalog> = options.catalog.open()?;
    require_own_catalog(&options.catalog, &*catalog, options.credentials.as_ref().map(Credentials::directory))?;
    let peers = PeerClients::new(Arc::clone(&catalog), options.credentials.clone());
    let regions = RegionRegistry::new(None);
    let node = OffloadNode::new(options, store.clone(), catalog, peers, Arc::clone(&regions)).map_err(store_failed)?;
    let node = Arc::new(node);

    let listen_failed = |source| OffloadError::Listen { address: options.listen, source };
    let (_servers, address) = start_servers(options, &node, regions).map_err(listen_failed)?;
    let mut failures = HashMap::new();
    node.open_replicas(&mut failures)?;
    node.catalog.register_node(&node.name, &address)?;
    node.watch_catalog(address).map_err(store_failed)?;
    node.keep_replicas_open(failures).map_err(store_failed)?;
    check::scrub::start(&node, options.scrub_interval).map_err(store_failed)?;
    let clients = listen(&store.offload_socket()).map_err(store_failed)?;
    let control = listen(&store.control_socket()).map_err(store_failed)?;
    store.record_start_failure(None).map_err(store_failed)?;
    let control_node = Arc::clone(&node);
    std::thread::spawn(move || accept(&control, |channel| commands::start(&control_node, channel)));
    accept(&clients, |channel| client_session::start(&node, channel));
    Ok(())
}

/// The servers for calls and writes of other nodes. They run until this value is dropped.
struct OffloadServers {
    _fabric: TcpServer,
    _rpc: Server,
}

fn start_servers(
    options: &OffloadOptions,
    node: &Arc<OffloadNode>,
    regions: Arc<RegionRegistry>,
) -> io::Result<(OffloadServers, VolumeNode)> {
    let security = options.credentials.clone().map(|credentials| Arc::new(TlsSecurity::new(credentials)));
    let acceptor: Arc<dyn Acceptor> = match &security {
        Some(security) => Arc::new(SecuredAcceptor(Arc::clone(security) as Arc<dyn Security>)),
        None => Arc::new(PlainAcceptor),
    };
    let config = ServerConfig { threads: RPC_THREADS, should_spin: false };
    let earlier = node.catalog.read().ok().and_then(|contents| contents.nodes.get(&node.name).cloned());
    let rpc_listener = bind(options.listen, earlier.as_ref().map(|earlier| earlier.rpc))?;
    let rpc = Server::start(rpc_listener, &config, acceptor, || handlers::handler_table(node))?;
    // The threads of the RPC server answer whether this process is alive, so they keep the ordinary priority. This thread
    // starts all others.
    options.priority.apply();
    let fabric_listener = bind(options.listen, earlier.map(|earlier| earlier.fabric))?;
    let fabric_address = fabric_listener.local_addr()?;
    let exporter: Arc<dyn Exporter> = regions;
    let security = security.map(|security| security as Arc<dyn Security>);
    let fabric = TcpServer::start_secured(fabric_listener, &exporter, security)?;
    let address = VolumeNode { fabric: fabric_address, rpc: rpc.address() };
    Ok((OffloadServers { _fabric: fabric, _rpc: rpc }, address))
}

/// Listens at the address of the previous offload process, so that other nodes can connect without a new lookup. If this
/// fails, listens at any free port.
fn bind(address: IpAddr, earlier: Option<SocketAddr>) -> io::Result<TcpListener> {
    let again = earlier.filter(|earlier| earlier.ip() == address).map(TcpListener::bind);
    if let Some(Ok(listener)) = again { Ok(listener) } else { TcpListener::bind((address, 0)) }
}

/// Serves connections for the life of the process.
fn accept(listener: &UnixListener, serve: impl Fn(MessageChannel) -> io::Result<()>) {
    loop {
        if let Err(error) = MessageChannel::accept(listener).and_then(&serve) {
            tracing::warn!(%error, "cannot serve a connection");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
