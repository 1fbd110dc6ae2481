//! The daemon from start to stop.
//!
//! ```text
//!  take the run directory ─▶ clean what a crashed run left ─▶ find or start the pager ─▶ fabric's server
//!     ─▶ container pool ─▶ take over children ─▶ control port, then socket: ready ─▶ join, heartbeats
//!
//!  SIGTERM, SIGINT: leave the cluster ─▶ no more requests ─▶ end children, drop seeds ─▶ stop the pager ─▶ remove the socket
//!  SIGKILL: seeds end with the daemon; pager and children go on and are found by the next one
//! ```

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use farfork_cluster::membership::Member;
use farfork_container::{ContainerConfig, ContainerError, Leftovers, Pool, clean_leftovers};
use farfork_fabric::{Exporter, shm, tcp};
use farfork_fork::restore::{LocalNode, STUB_IMAGE};
use farfork_fork::seed::SeedTable;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::children::Children;
use crate::engine::{Engine, PagerError, PagerLink, random_number};
use crate::heartbeat;
use crate::node::Node;
use crate::options::Options;
use crate::peers::Peers;
use crate::run_dir::{Lock, RunDir, RunDirError};
use crate::seeds::{EXPIRY_INTERVAL, Seeds};
use crate::serve;

/// Why a daemon could not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Its run directory.
    #[error("run directory {path}: {cause}; stop the other daemon, or choose another with --run-dir")]
    RunDir {
        /// The directory.
        path: String,
        /// What is wrong with it.
        cause: RunDirError,
    },
    /// What an earlier daemon left, or containers of its own.
    #[error("containers: {0}")]
    Containers(#[from] ContainerError),
    /// Its pager.
    #[error("the pager: {0}")]
    Pager(String),
    /// An address or socket to listen at.
    #[error("cannot listen at {address}: {cause}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        cause: io::Error,
    },
    /// What the machine has.
    #[error("cannot {action}: {cause}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        cause: io::Error,
    },
    /// Its API's server.
    #[error("the server of its API failed: {0}")]
    Server(#[from] tonic::transport::Error),
}

impl DaemonError {
    fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::System { action, cause }
    }

    fn listen(address: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Listen { address: address.to_string(), cause }
    }
}

impl From<PagerError> for DaemonError {
    fn from(error: PagerError) -> Self {
        Self::Pager(error.to_string())
    }
}

/// Runs a node until SIGTERM or SIGINT.
///
/// # Errors
/// It could not be started; what it had made is gone again.
pub async fn run(options: Options) -> Result<(), DaemonError> {
    let run_dir = RunDir::new(&options.run_dir);
    let started = tokio::task::spawn_blocking(move || start(options)).await;
    let running =
        started.map_err(|panic| DaemonError::System { action: "start", cause: io::Error::other(panic) })??;
    let Running { node, listeners, join, _lock, fabric: _fabric } = running;

    let (stop, stopped) = watch::channel(false);
    let node_count = node.clone();
    let beating = tokio::spawn(heartbeat::run(node.peers.clone(), join, move || {
        u32::try_from(node_count.children.living()).unwrap_or(u32::MAX)
    }));
    let expiring = tokio::spawn(expire(node.clone()));
    tracing::info!(node = %node.name, address = %node.address(), socket = %run_dir.socket().display(), "ready");
    let stopping = tokio::spawn(async move {
        let signal = wait_for_signal().await;
        let _ = stop.send(true);
        signal
    });
    let served = serve::serve(&node, listeners, stopped).await;

    stopping.abort();
    beating.abort();
    expiring.abort();
    tracing::info!("stopping");
    heartbeat::leave(&node.peers).await;
    node.children.end_all().await;
    let removing = tokio::task::spawn_blocking(move || {
        node.seeds.drop_all();
        node.pager.stop();
        let _ = fs::remove_file(run_dir.socket());
        let _ = fs::remove_file(run_dir.fabric_socket());
        drop(node);
    });
    let _ = removing.await;
    served
}

/// What runs once a daemon has started.
struct Running {
    node: Arc<Node>,
    listeners: serve::Listeners,
    join: Vec<SocketAddr>,
    fabric: (tcp::Server, shm::Server),
    _lock: Lock,
}

/// All that blocks of a start, in the order drawn above.
fn start(options: Options) -> Result<Running, DaemonError> {
    let Options { name, run_dir, listen, fabric_port, join, pool_size } = options;
    let path = run_dir.display().to_string();
    let run_dir = RunDir::new(run_dir);
    let lock = run_dir.take().map_err(|cause| DaemonError::RunDir { path, cause })?;
    let control = TcpListener::bind(listen).map_err(DaemonError::listen(listen))?;
    let containers = ContainerConfig::new(name.as_str(), run_dir.root(), STUB_IMAGE);
    let leftovers = clean_leftovers(&containers)?;
    let pager = Arc::new(PagerLink::establish(&run_dir)?);

    let seeds = Arc::new(SeedTable::default());
    let exporter: Arc<dyn Exporter> = seeds.clone();
    let fabric_listen = SocketAddr::new(listen.ip(), fabric_port);
    let (tcp_server, shm_server, fabric_address) = serve_fabric(fabric_listen, &run_dir, &exporter)?;
    let me = Member {
        name: name.clone(),
        address: control.local_addr().map_err(DaemonError::listen(listen))?,
        fabric_address,
        incarnation: random_number().map_err(DaemonError::system("draw a random number"))?,
        children: 0,
    };

    let local = LocalNode::detect().map_err(DaemonError::system("learn what this machine is"))?;
    let pool = Pool::start(containers, pool_size)?;
    let engine = Engine::new(name.clone(), run_dir.clone(), local, pool, pager.clone(), shm_server.address());
    let children = take_over(&run_dir, &pager, leftovers)?;
    let seeds = Seeds::new(name, seeds, fabric_address);
    let node = Arc::new(Node::new(Arc::new(Peers::new(me)), seeds, children, engine, pager));

    let socket = listen_privately(&run_dir.socket())?;
    let listeners =
        serve::Listeners::new(socket, control).map_err(DaemonError::system("watch the listening sockets"))?;
    Ok(Running { node, listeners, join, fabric: (tcp_server, shm_server), _lock: lock })
}

fn serve_fabric(
    listen: SocketAddr,
    run_dir: &RunDir,
    exporter: &Arc<dyn Exporter>,
) -> Result<(tcp::Server, shm::Server, SocketAddr), DaemonError> {
    let listener = TcpListener::bind(listen).map_err(DaemonError::listen(listen))?;
    let address = listener.local_addr().map_err(DaemonError::listen(listen))?;
    let tcp_server =
        tcp::Server::start(listener, exporter).map_err(DaemonError::system("start the fabric's server"))?;
    let local = listen_privately(&run_dir.fabric_socket())?;
    let shm_server = shm::Server::start(local, exporter).map_err(DaemonError::system("start the fabric's server"))?;
    Ok((tcp_server, shm_server, address))
}

fn take_over(run_dir: &RunDir, pager: &Arc<PagerLink>, leftovers: Leftovers) -> Result<Children, DaemonError> {
    if leftovers.removed > 0 || !leftovers.running.is_empty() {
        let (removed, running) = (leftovers.removed, leftovers.running.len());
        tracing::info!(removed, running, "an earlier daemon left containers");
    }
    let children = Children::new(run_dir.clone(), pager.clone()).map_err(DaemonError::system("watch files"))?;
    children.adopt(leftovers.running).map_err(DaemonError::system("read the children's directories"))?;
    Ok(children)
}

/// A Unix socket that only its owner may connect to. One that an earlier daemon left is replaced: we hold the lock.
fn listen_privately(path: &Path) -> Result<UnixListener, DaemonError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(DaemonError::listen(path.display())(error));
        }
        _ => {}
    }
    // The run directory has mode 0700, so that nobody gets in before the mode is set.
    let listener = UnixListener::bind(path).map_err(DaemonError::listen(path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(DaemonError::listen(path.display()))?;
    Ok(listener)
}

/// Drops seeds whose time is over.
async fn expire(node: Arc<Node>) {
    let mut ticks = tokio::time::interval(EXPIRY_INTERVAL);
    loop {
        ticks.tick().await;
        let here = node.clone();
        let _ = tokio::task::spawn_blocking(move || here.seeds.drop_expired()).await;
    }
}

async fn wait_for_signal() {
    let handlers = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = handlers else {
        tracing::error!("signals cannot be handled: the daemon will end without cleaning up");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
