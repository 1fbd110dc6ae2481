//! The daemon: starts a node, runs it until SIGTERM or SIGINT, and stops it.
//!
//! After SIGKILL, seeds that are not sealed are lost. The pager and the children continue, and the next daemon adopts them.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_api::run_dir::{RunDir, RunDirError, RunDirLock};
use farfork_cluster::catalog::{CatalogLocation, CatalogReference};
use farfork_cluster::membership::Member;
use farfork_container::{ContainerConfig, ContainerError, ContainerPool, Leftovers, clean_leftovers};
use farfork_fabric::{Exporter, TlsSecurity, shm, tcp};
use farfork_fork::idle_detector::IdleDetector;
use farfork_fork::pager::RELEASE;
use farfork_fork::restore::{LocalNode, STUB_IMAGE};
use farfork_fork::resume::LocalSeeds;
use farfork_fork::seed::SeedTable;
use farfork_fork::{call_timer, capture};
use farfork_sys::allocator;
use farfork_sys::cgroup::daemon_leaf::DaemonLeaf;
use farfork_trust::Credentials;
use farfork_wire::{NodeName, SeedId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use crate::api_server;
use crate::children::{self, ChildBudget, ChildSupervisor};
use crate::engine::{Engine, ZygoteLimits, random_id};
use crate::heartbeat::{self, JoinAddresses, LocalState};
use crate::lost_seeds;
use crate::member_catalog::MemberCatalog;
use crate::member_file::MemberFile;
use crate::metrics;
use crate::node::Node;
use crate::options::Options;
use crate::pager_link::{PagerError, PagerLink};
use crate::pager_supervisor;
use crate::peers::Peers;
use crate::program;
use crate::seeds::{self, EXPIRY_INTERVAL, SeedRegistry};
use crate::service;
use crate::stall_watchdog;
use crate::trust::{self, EnrollmentError, Security};
use crate::volumes::{OffloadRequests, VolumeService, VolumeServiceConfig};

/// Interval between checks whether the daemon is idle.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Why a daemon could not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Its run directory cannot be used.
    #[error("run directory {path}: {cause}")]
    RunDir {
        /// The directory.
        path: String,
        /// The error.
        cause: RunDirError,
    },
    /// Containers of an earlier daemon could not be removed, or new ones could not be created.
    #[error("containers: {0}")]
    Containers(#[from] ContainerError),
    /// Its pager failed.
    #[error("the pager: {0}")]
    Pager(String),
    /// It cannot listen at an address or socket.
    #[error("cannot listen at {address}: {cause}; choose another one, or end the process that uses it")]
    Listen {
        /// The address.
        address: String,
        /// The error.
        cause: io::Error,
    },
    /// A system call failed.
    #[error("cannot {action}: {cause}")]
    System {
        /// The action.
        action: &'static str,
        /// The error.
        cause: io::Error,
    },
    /// No member of its cluster let it join.
    #[error("it cannot join: {0}")]
    Join(#[from] Failure),
    /// Its identity or its trust settings are missing or invalid.
    #[error("{0}")]
    Trust(String),
    /// The server of its API failed.
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

impl From<EnrollmentError> for DaemonError {
    fn from(error: EnrollmentError) -> Self {
        Self::Trust(error.to_string())
    }
}

impl From<PagerError> for DaemonError {
    fn from(error: PagerError) -> Self {
        Self::Pager(error.to_string())
    }
}

/// Runs a node until SIGTERM or SIGINT.
///
/// ```text
///  take the run directory ─▶ clean what a crashed run left ─▶ find or start the pager ─▶ fabric's server
///     ─▶ container pool ─▶ adopt children ─▶ join the cluster ─▶ open the socket: ready ─▶ heartbeats
///
///  SIGTERM, SIGINT: no more requests ─▶ leave the cluster ─▶ end children, drop seeds ─▶ stop the pager
///     ─▶ remove the socket
/// ```
///
/// # Errors
/// The node could not be started, or the server of its API failed.
pub fn run(options: Options) -> Pin<Box<dyn Future<Output = Result<(), DaemonError>>>> {
    // Boxed, so that the daemon's code is compiled with this crate, and not with the crate that polls it.
    Box::pin(run_until_signal(options))
}

async fn run_until_signal(options: Options) -> Result<(), DaemonError> {
    let security = trust::load_or_enroll(&options).await?;
    let directory = security.credentials().map(Credentials::directory);
    let reference = directory.map(CatalogReference::read).transpose().map_err(EnrollmentError::from)?.flatten();
    let catalog = options.volumes.catalog.clone().or_else(|| reference.as_ref()?.location.clone());
    let catalog = catalog.unwrap_or_else(|| options.volumes.store.with_file_name("catalog").into());
    let started = tokio::task::spawn_blocking(move || start(options, security, catalog)).await;
    let (running, control) =
        started.map_err(|panic| DaemonError::System { action: "start", cause: io::Error::other(panic) })??;
    let served = serve_until_signal(&running, control, reference).await;
    tracing::info!("stopping");
    heartbeat::leave(&running.node.peers, running.node.seeds.kept_seed_ids()).await;
    running.node.children.kill_all().await;
    let stopping = tokio::task::spawn_blocking(move || running.stop());
    stopping.await.map_err(|panic| DaemonError::System { action: "stop", cause: io::Error::other(panic) })?;
    served
}

/// Serves until a signal, then closes the control port. Through an open port, a peer that is also stopping could
/// connect and wait for a reply.
async fn serve_until_signal(
    running: &RunningDaemon,
    control: TcpListener,
    reference: Option<CatalogReference>,
) -> Result<(), DaemonError> {
    let _watch = stall_watchdog::StallWatchdog::start(tokio::runtime::Handle::current())
        .map_err(DaemonError::system("start a thread"))?;
    let RunningDaemon { run_dir, node, member_file, join, metrics: metrics_listener, .. } = running;
    let (found, recorded) = watch::channel(Vec::new());
    let member_catalog = match reference {
        Some(reference) => MemberCatalog::open(&node.peers, reference, found).await,
        None => None,
    };
    let join = JoinAddresses { configured: join.clone(), remembered: member_file.lock().await.addresses(), recorded };
    heartbeat::join_members(&node.peers, &join.all()).await?;
    let programs = program::listen(&run_dir.program_socket());
    let programs = programs.map_err(DaemonError::listen(run_dir.program_socket().display()))?;
    let socket = bind_private_socket(&run_dir.socket())?;
    let listeners =
        api_server::ApiListeners::new(socket, control).map_err(DaemonError::system("watch the listening sockets"))?;
    tracing::info!(node = %node.name, address = %node.address(), socket = %run_dir.socket().display(), "ready");

    // Dropping the set at the daemon's end aborts the tasks.
    let mut tasks = JoinSet::new();
    let task_node = node.clone();
    if let Some(member_catalog) = member_catalog {
        tasks.spawn(member_catalog.run());
    }
    let own_state = move || LocalState {
        children: u32::try_from(task_node.children.count_alive()).unwrap_or(u32::MAX),
        not_ready: task_node.pager.not_ready_reason(),
    };
    let task_node = node.clone();
    let handle_revoked = move |owner: &NodeName| {
        lost_seeds::report_to_pager(&task_node, owner, &[], "its node was revoked");
    };
    tasks.spawn(heartbeat::run(node.peers.clone(), join, member_file.clone(), own_state, handle_revoked));
    tasks.spawn(pager_supervisor::run(node.clone()));
    tasks.spawn(service::run_lease_expiry(node.clone()));
    tasks.spawn(run_cache_eviction(node.clone()));
    tasks.spawn(run_memory_trim());
    tasks.spawn(children::run_child_maintenance(node.clone()));
    tasks.spawn(trust::run_renewal(node.peers.clone()));
    let (stop, stopped) = watch::channel(false);
    tasks.spawn(program::serve_programs(node.clone(), programs, stopped.clone()));
    call_timer::start("call-timer");
    capture::enable_thread_pool();
    if let Some(listener) = metrics_listener {
        let listener =
            metrics::to_async_listener(listener).map_err(DaemonError::system("watch the listening sockets"))?;
        tasks.spawn(metrics::serve(node.clone(), listener));
    }
    let task_node = node.clone();
    tasks.spawn(async move {
        wait_for_signal().await;
        task_node.begin_stop();
        let _ = stop.send(true);
        // Keeps the sender until the daemon ends, because a closed channel is not a request to stop.
        std::future::pending().await
    });
    api_server::serve_api(node, listeners, stopped).await
}

/// A daemon that has started.
struct RunningDaemon {
    run_dir: RunDir,
    node: Arc<Node>,
    member_file: Arc<Mutex<MemberFile>>,
    join: Vec<SocketAddr>,
    metrics: Option<TcpListener>,
    /// Servers that stop when they are dropped.
    _fabric: (tcp::TcpServer, shm::ShmServer),
    volumes: VolumeService,
    lock: RunDirLock,
    /// Last, so that the groups of containers are removed before it.
    _leaf: Option<DaemonLeaf>,
}

impl RunningDaemon {
    /// The blocking part of a stop, after the children have ended.
    fn stop(self) {
        self.node.engine.stop_zygotes();
        self.node.seeds.drop_all();
        self.node.pager.stop();
        drop(self.volumes);
        if !self.lock.is_current(&self.run_dir) {
            return;
        }
        // From here on, connections fail at once.
        let _ = fs::remove_file(self.run_dir.socket());
        let _ = fs::remove_file(self.run_dir.program_socket());
        let _ = fs::remove_file(self.run_dir.fabric_socket());
        self.member_file.blocking_lock().close();
    }
}

/// Raises the limit on descriptors (RLIMIT_NOFILE) to its maximum. The usual limit is lower than the allowed number of
/// connections.
fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!("the limit on descriptors stays at {current:?}: {errno}");
    }
}

/// The blocking part of a start, in the order drawn above.
fn start(
    options: Options,
    security: Security,
    catalog: CatalogLocation,
) -> Result<(RunningDaemon, TcpListener), DaemonError> {
    raise_descriptor_limit();
    let path = options.run_dir.display().to_string();
    let run_dir = RunDir::new(&options.run_dir);
    let lock = run_dir.acquire().map_err(|cause| DaemonError::RunDir { path, cause })?;
    if !run_dir.is_in_memory() {
        let path = run_dir.root().display();
        tracing::warn!(run_dir = %path, "the run directory is not on a tmpfs: each start creates files there, which limits children per second; mount a tmpfs there, or choose another directory with --run-dir");
    }
    let control = TcpListener::bind(options.listen).map_err(DaemonError::listen(options.listen))?;
    let leaf = DaemonLeaf::enter().unwrap_or_else(|error| {
        tracing::warn!(%error, "the daemon stays in its control group, in which children cannot be limited");
        None
    });
    let mut containers = ContainerConfig::new(options.name.as_str(), run_dir.root(), STUB_IMAGE);
    // Mask the trust directory even if it is not used yet (`--insecure`): children must not see files that are created
    // in it later.
    containers.masked_future_paths.push(options.trust.directory.clone());
    containers.masked_future_paths.extend(options.images.clone());
    containers.masked_future_paths.push(options.volumes.store.clone());
    containers.user_ranges.clone_from(&options.user_ranges);
    containers.cached_roots_max = options.kept_roots_max;
    let leftovers = clean_leftovers(&containers)?;
    let pager = Arc::new(PagerLink::find_or_start(&run_dir, security.credentials(), options.cache_bytes_max)?);
    let foundation = NodeFoundation { run_dir, lock, leaf, containers, leftovers };
    match assemble_node(options, security, foundation, catalog, &control, &pager) {
        Ok(running) => Ok((running, control)),
        Err(error) => {
            // A pager that serves children of an earlier daemon refuses to stop.
            pager.stop();
            Err(error)
        }
    }
}

/// Resources that a start acquires and that the assembled node takes over.
struct NodeFoundation {
    run_dir: RunDir,
    lock: RunDirLock,
    leaf: Option<DaemonLeaf>,
    containers: ContainerConfig,
    /// The containers of an earlier daemon.
    leftovers: Leftovers,
}

/// Assembles everything of a daemon except its pager.
fn assemble_node(
    options: Options,
    security: Security,
    foundation: NodeFoundation,
    catalog: CatalogLocation,
    control: &TcpListener,
    pager: &Arc<PagerLink>,
) -> Result<RunningDaemon, DaemonError> {
    let NodeFoundation { run_dir, lock, leaf, containers, leftovers } = foundation;
    let (volumes, offload) = start_volumes(&options, &security, catalog)?;
    let zygote_limits = ZygoteLimits { count_max: options.zygotes_max, idle_max: options.zygote_idle_max };
    let Options { name, listen, fabric_port, join, pool_size, metrics, images, bridges_vdso, .. } = options;
    let child_budget = ChildBudget::new(options.child_memory_bytes_max);
    let metrics = metrics.map(bind_metrics).transpose()?;
    let seeds = Arc::new(SeedTable::default());
    // Load the images before the first request: for children of other nodes, a seed that is not in the table is lost.
    let images = images.unwrap_or_else(|| run_dir.images_dir());
    let loaded_images = seeds::load_images(images, &name, &seeds);
    let exporter: Arc<dyn Exporter> = seeds.clone();
    let (tcp_server, shm_server, fabric_address) =
        serve_fabric(SocketAddr::new(listen.ip(), fabric_port), &run_dir, &exporter, &security)?;
    let detected = LocalNode::detect().map_err(DaemonError::system("detect the properties of this machine"))?;
    let mut local = LocalNode { forces_vdso_bridge: bridges_vdso, ..detected };
    local.processor.state.xcr0 = options.xcr0.unwrap_or(local.processor.state.xcr0);
    let me = Member {
        name: name.clone(),
        address: control.local_addr().map_err(DaemonError::listen(listen))?,
        fabric_address,
        incarnation: random_id().map_err(DaemonError::system("draw a random number"))?,
        children: 0,
        not_ready: None,
        version: RELEASE.to_owned(),
        pid: std::process::id(),
        processor: Some(local.processor.clone()),
    };
    let pool = ContainerPool::start(containers, pool_size)?;
    let credentials = security.credentials().cloned();
    let own = LocalSeeds { node: name.clone(), address: shm_server.address(), table: seeds.clone() };
    let engine = Engine::new(run_dir.clone(), zygote_limits, local, pool, pager.clone(), own, credentials);
    let children = adopt_children(&run_dir, pager, leftovers)?;
    let member_file = MemberFile::read(&run_dir, security.credentials().map(Credentials::directory));
    let member_file = Arc::new(Mutex::new(member_file));
    let peers = Arc::new(Peers::new(me, security));
    let seeds = SeedRegistry::new(name, seeds, fabric_address, options.seed_budget, loaded_images);
    let node = Node::new(peers, seeds, children, child_budget, engine, pager.clone(), offload);
    let node = Arc::new(node);
    let fabric = (tcp_server, shm_server);
    Ok(RunningDaemon { run_dir, node, member_file, join, metrics, _fabric: fabric, volumes, lock, _leaf: leaf })
}

/// Starts the service that runs the processes of the node's volumes.
fn start_volumes(
    options: &Options,
    security: &Security,
    catalog: CatalogLocation,
) -> Result<(VolumeService, OffloadRequests), DaemonError> {
    let config = VolumeServiceConfig {
        node: options.name.clone(),
        options: options.volumes.clone(),
        catalog,
        listen: options.listen.ip(),
        credentials: security.credentials().cloned(),
    };
    VolumeService::start(config).map_err(DaemonError::system("supervise the processes of volumes"))
}

fn bind_metrics(address: SocketAddr) -> Result<TcpListener, DaemonError> {
    let listener = TcpListener::bind(address).map_err(DaemonError::listen(address))?;
    let address = listener.local_addr().map_err(DaemonError::listen(address))?;
    tracing::info!(%address, is_local = address.ip().is_loopback(), "serving metrics without authentication");
    Ok(listener)
}

fn serve_fabric(
    listen: SocketAddr,
    run_dir: &RunDir,
    exporter: &Arc<dyn Exporter>,
    security: &Security,
) -> Result<(tcp::TcpServer, shm::ShmServer, SocketAddr), DaemonError> {
    let listener = TcpListener::bind(listen).map_err(DaemonError::listen(listen))?;
    let address = listener.local_addr().map_err(DaemonError::listen(listen))?;
    let security = security.credentials().map(|credentials| Arc::new(TlsSecurity::new(credentials.clone())) as Arc<_>);
    let tcp_server = tcp::TcpServer::start_secured(listener, exporter, security)
        .map_err(DaemonError::system("start the fabric's server"))?;
    let local = bind_private_socket(&run_dir.fabric_socket())?;
    let shm_server =
        shm::ShmServer::start(local, exporter).map_err(DaemonError::system("start the fabric's server"))?;
    Ok((tcp_server, shm_server, address))
}

fn adopt_children(
    run_dir: &RunDir,
    pager: &Arc<PagerLink>,
    leftovers: Leftovers,
) -> Result<ChildSupervisor, DaemonError> {
    if leftovers.removed > 0 || !leftovers.running.is_empty() {
        let (removed, running) = (leftovers.removed, leftovers.running.len());
        tracing::info!(removed, running, "an earlier daemon left containers");
    }
    let children = ChildSupervisor::new(run_dir.clone(), pager.clone()).map_err(DaemonError::system("watch files"))?;
    children.adopt(leftovers).map_err(DaemonError::system("read the children's directories"))?;
    children.hand_back_children();
    Ok(children)
}

/// Creates a Unix socket to which only its owner may connect. Replaces a socket of an earlier daemon: this daemon holds
/// the lock of the run directory.
fn bind_private_socket(path: &Path) -> Result<UnixListener, DaemonError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(DaemonError::listen(path.display())(error));
        }
        _ => {}
    }
    // The run directory has mode 0700, so no other user can connect before the mode is set.
    let listener = UnixListener::bind(path).map_err(DaemonError::listen(path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(DaemonError::listen(path.display()))?;
    Ok(listener)
}

/// Interval between checks of the disk space that held files of seeds use. Disks rarely fill up within this time.
const HELD_FILES_INTERVAL: Duration = Duration::from_secs(60);

/// Ends unused zygotes and closes unused connections, as long as the daemon runs.
async fn run_cache_eviction(node: Arc<Node>) {
    let mut ticks = tokio::time::interval(EXPIRY_INTERVAL);
    let mut checked_at = Instant::now();
    loop {
        ticks.tick().await;
        if checked_at.elapsed() > HELD_FILES_INTERVAL {
            checked_at = Instant::now();
            let task_node = node.clone();
            let _ = tokio::task::spawn_blocking(move || task_node.seeds.limit_held_files()).await;
        }
        // Without cached state, no blocking thread is woken.
        if !node.engine.has_cached_state() {
            continue;
        }
        let task_node = node.clone();
        let is_dropped = move |seed: &SeedId| *seed.node() == task_node.name && !task_node.seeds.is_listed(seed);
        let task_node = node.clone();
        let is_in_vain = move |seed: &SeedId| task_node.fork_history.has_only_remote_forks(seed);
        let task_node = node.clone();
        let _ = tokio::task::spawn_blocking(move || task_node.engine.evict_unused(is_dropped, is_in_vain)).await;
    }
}

/// Returns free memory to the kernel whenever the daemon becomes idle.
async fn run_memory_trim() {
    let mut ticks = tokio::time::interval(IDLE_CHECK_INTERVAL);
    let mut rest = IdleDetector::new(Instant::now());
    loop {
        ticks.tick().await;
        if rest.has_become_idle(Instant::now()) {
            let _ = tokio::task::spawn_blocking(allocator::trim_heap).await;
        }
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
