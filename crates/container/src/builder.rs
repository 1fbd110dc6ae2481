//! Builds containers. [`ContainerBuilder::new`] prepares what all containers share. Each container is then built by a thread
//! that leaves the node's namespaces for new ones.
//!
//! In the new namespaces, the thread sees the container's root, so it must not use the node's files. A thread with
//! [`HomeNamespaces`] returns to the node's namespaces; any other thread builds one container and ends.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use farfork_sys::clone::{self, InitProgram, SpawnedProcess};
use farfork_sys::mount::point::MountPoint;
use farfork_sys::mount::probe::MountProbes;
use farfork_sys::namespace::HomeNamespaces;
use farfork_sys::process_identity::ProcessIdentity;
use farfork_sys::{fd_passing, memfd, namespace};
use rustix::fs::{Mode, OFlags};

use crate::cgroup::{NodeCgroups, group_name};
use crate::config::{ContainerConfig, ContainerSpec, NetworkSpec, RootSpec, UsersSpec};
use crate::error::ContainerError;
use crate::handle::{Container, ContainerParts, ControlChannel};
use crate::host_init::HostInit;
use crate::privileged_forker::{self, PrivilegedForker};
use crate::record::{self, RecordState};
use crate::root::blueprint::{BlueprintCache, RootBlueprint, ServedMount};
use crate::root::cached::CachedRoot;
use crate::root::{self, PRIVATE_DIR};
use crate::users::{ContainerUsers, ReservedIds};

/// Builds the containers of this daemon, and holds what they share.
#[derive(Debug)]
pub(crate) struct ContainerBuilder {
    config: ContainerConfig,
    /// The paths to hide from containers, without symbolic links. No path is below another.
    masked: Vec<PathBuf>,
    /// The run directory. While a root is built, the tmpfs of its upper layers is mounted over it, in the container's mount
    /// namespace only.
    scratch: PathBuf,
    image: File,
    cgroups: NodeCgroups,
    /// Start time of the daemon, in microseconds. A container's id consists of this time and a number from `next`. So it
    /// differs from the ids of earlier daemons in the run directory.
    started_us: u128,
    next: AtomicU64,
    /// The node's `/proc`, for threads whose root is a container's.
    proc: OwnedFd,
    /// Each container holds a clone, so the reference count gives the number of containers.
    live_count: Arc<()>,
    /// The current blueprint of container roots, from the node's mounts.
    layout: Mutex<BlueprintCache>,
    probes: MountProbes,
    /// The mount point [`PRIVATE_DIR`] on the node. Set when the first container with a shared root is built. Each container
    /// with a shared root holds a reference.
    private_mount_point: Mutex<Option<Arc<MountPoint>>>,
}

impl ContainerBuilder {
    /// Prepares what containers share: the init program, the node's control groups, and the directory of records.
    pub(crate) fn new(config: ContainerConfig) -> Result<Self, ContainerError> {
        let real = |path: &PathBuf| {
            path.canonicalize().map_err(|cause| ContainerError::Directory { path: path.clone(), cause })
        };
        let scratch = real(&config.run_dir)?;
        let records = config.records_dir();
        std::fs::create_dir_all(&records).map_err(|cause| ContainerError::Directory { path: records, cause })?;
        let mut masked = config.masked_paths.iter().map(real).collect::<Result<Vec<_>, _>>()?;
        masked.extend(config.masked_future_paths.iter().map(|path| resolve_missing(path)));
        masked.push(scratch.clone());
        let masked = outermost_paths(masked);
        let layout = BlueprintCache::read(&masked).map_err(ContainerError::MountTable)?;
        let image = memfd::create_executable("farfork-init", config.init_image).map_err(ContainerError::InitImage)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::open("/proc", flags, Mode::empty())
            .map_err(|cause| ContainerError::Directory { path: "/proc".into(), cause: cause.into() })?;
        let cgroups = NodeCgroups::create(&config.cgroup_root_name)?;
        record_cgroups(&config, &cgroups)?;
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            masked,
            scratch,
            image,
            cgroups,
            proc,
            started_us: since_epoch.as_micros(),
            next: AtomicU64::new(0),
            live_count: Arc::new(()),
            layout: Mutex::new(layout),
            probes: MountProbes::default(),
            private_mount_point: Mutex::default(),
            config,
        })
    }

    /// The configuration of the containers.
    pub(crate) fn config(&self) -> &ContainerConfig {
        &self.config
    }

    /// The node's control groups.
    pub(crate) fn cgroups(&self) -> &NodeCgroups {
        &self.cgroups
    }

    /// The paths that are hidden from containers.
    pub(crate) fn masked(&self) -> &[PathBuf] {
        &self.masked
    }

    /// The version number of the node's current mounts. It changes when file systems that containers show are mounted or
    /// unmounted.
    pub(crate) fn mounts_version(&self) -> u64 {
        self.current_layout().plan.blueprint.version
    }

    /// Returns the current blueprint, without mounts whose server does not answer: a build with such a mount could block
    /// forever.
    fn blueprint(&self) -> RootBlueprint {
        let known = self.probes.unresponsive();
        let to_probe = self.layout().current(&self.masked, known.clone()).to_probe.clone();
        let unresponsive = self.probes.find_unresponsive(&to_probe);
        for mount in to_probe.iter().filter(|mount| unresponsive.contains(&mount.id) && !known.contains(&mount.id)) {
            let (node, point) = (&self.config.node, mount.point.display());
            tracing::warn!(node, %point, "this mount does not answer: new containers do not have it");
        }
        self.layout().current(&self.masked, unresponsive).blueprint.clone()
    }

    /// Returns the served mounts (FUSE and network file systems) that the node has unmounted since the last call.
    pub(crate) fn take_unmounted(&self) -> BTreeSet<ServedMount> {
        self.current_layout().take_unmounted()
    }

    /// The volumes among `unmounted`, without those that were mounted again at the same path.
    pub(crate) fn unmounted_volumes(&self, unmounted: &BTreeSet<ServedMount>) -> BTreeSet<ServedMount> {
        self.current_layout().plan.blueprint.unmounted_volumes(unmounted)
    }

    /// The volumes of `blueprint` that the node has unmounted since the blueprint was made.
    pub(crate) fn volumes_unmounted_since(&self, blueprint: &RootBlueprint) -> BTreeSet<ServedMount> {
        let layout = self.current_layout();
        let now = &layout.plan.blueprint;
        now.unmounted_volumes(&now.unmounted_since(blueprint))
    }

    fn current_layout(&self) -> MutexGuard<'_, BlueprintCache> {
        let unresponsive = self.probes.unresponsive();
        let mut layout = self.layout();
        layout.current(&self.masked, unresponsive);
        layout
    }

    fn layout(&self) -> MutexGuard<'_, BlueprintCache> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of containers, in the pool and in use.
    pub(crate) fn count_live(&self) -> usize {
        Arc::strong_count(&self.live_count) - 1
    }

    /// Returns the kind of container to build for a request. Where containers with and without limits get the same control
    /// groups, `limited` is cleared, so that both are one kind.
    pub(crate) fn effective_spec(&self, requested: ContainerSpec) -> ContainerSpec {
        ContainerSpec { limited: requested.limited && self.cgroups.unlimited_group().exists(), ..requested }
    }

    /// Builds a container, which takes a few milliseconds. The calling thread builds it if `home` is given and the container
    /// has no users of its own; otherwise a new thread does.
    pub(crate) fn build(
        self: &Arc<Self>,
        spec: ContainerSpec,
        home: Option<&HomeNamespaces>,
    ) -> Result<Container, ContainerError> {
        let _phase = tracing::debug_span!(target: "farfork::phase", "container.build").entered();
        self.build_from_plan(spec, None, home)
    }

    /// Builds a container with the root of an ended container of the same kind.
    pub(crate) fn build_on_root(
        self: &Arc<Self>,
        spec: ContainerSpec,
        root: CachedRoot,
        home: Option<&HomeNamespaces>,
    ) -> Result<Container, ContainerError> {
        let _phase = tracing::debug_span!(target: "farfork::phase", "container.rebuild").entered();
        if root.mounts_version() != self.mounts_version() {
            let (what, why) = ("mounts of the node".to_owned(), "they have changed".to_owned());
            return Err(ContainerError::RootChanged { path: what, why });
        }
        self.build_from_plan(spec, Some(root), home)
    }

    fn build_from_plan(
        self: &Arc<Self>,
        spec: ContainerSpec,
        cached_root: Option<CachedRoot>,
        home: Option<&HomeNamespaces>,
    ) -> Result<Container, ContainerError> {
        let live_count = Arc::clone(&self.live_count);
        if self.count_live() > self.config.containers_max {
            let node = self.config.node.clone();
            return Err(ContainerError::TooManyContainers { node, containers_max: self.config.containers_max });
        }
        let blueprint = self.blueprint();
        let built_from = blueprint.clone();
        let private_point = match spec.root {
            RootSpec::Overlay => None,
            RootSpec::Shared => Some(self.acquire_private_mount_point()?),
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:x}-{number}", self.started_us);
        let reserved = match spec.users {
            UsersSpec::Host => None,
            UsersSpec::Private => Some(ReservedIds::acquire(&self.config.user_ranges, number)?),
        };
        let id_range = reserved.as_ref().map(|reserved| reserved.range);
        let name = group_name(&id);
        let cgroup = if spec.limited {
            self.cgroups.create_group(&name)?
        } else {
            self.cgroups.create_unlimited_group(&name)?
        };
        let plan = BuildPlan { spec, blueprint, reserved_ids: reserved, cached_root };
        let clone_target = cgroup.open_clone_target().map_err(ContainerError::from);
        let built = clone_target.and_then(|clone_target| match home.filter(|_| plan.reserved_ids.is_none()) {
            Some(home) => self.start_init_here(home, plan, clone_target),
            None => self.start_init_in_thread(&id, plan, clone_target),
        });
        let (init, control, root) = built.inspect_err(|_| {
            if let Err(error) = cgroup.remove() {
                tracing::warn!(%error, "the control group of a container whose build failed was not removed");
            }
        })?;
        // From here on, a failure drops the container, which removes it.
        let keepalive = (live_count, private_point);
        let parts = ContainerParts { id, init, cgroup, builder: Arc::clone(self), keepalive, id_range, root };
        let container = Container::new(parts, control, spec, built_from);
        let processes = BTreeSet::from([container.init_pid(), container.forker_pid()]);
        for process in processes {
            container.cgroup().join_v1(process)?;
            raise_oom_score(process);
        }
        let init = ProcessIdentity::of(container.init_pid()).map_err(ContainerError::Init)?;
        record::write_record(&self.config.records_dir(), container.id(), &init)?;
        // From now on, the pool finds the container's record when a volume is unmounted. Release the volumes that were
        // unmounted earlier.
        container.release_unmounted_volumes();
        Ok(container)
    }

    /// Starts the init program outside of containers, in the control group of zygotes.
    pub(crate) fn start_host_init(&self) -> Result<HostInit, ContainerError> {
        let group = self.cgroups.zygote_group()?;
        let clone_target = group.open_clone_target()?;
        let ControlSockets { own_end, init_end } = ControlSockets::new()?;
        let null = File::options().read(true).write(true).open("/dev/null").map_err(ContainerError::Init)?;
        let init = InitProgram {
            image: self.image.as_fd(),
            name: c"farfork-zygote",
            fds: [null.as_fd(), null.as_fd(), null.as_fd(), init_end.as_fd()],
            cgroup: clone_target.as_ref().map(AsFd::as_fd),
        };
        let host_init = HostInit::new(clone::spawn_in_current_namespace(&init).map_err(ContainerError::Init)?, own_end);
        group.join_v1(host_init.pid())?;
        Ok(host_init)
    }

    /// Removes the record of a container that was never handed over.
    pub(crate) fn remove_record(&self, id: &str) {
        record::remove_record(&self.config.records_dir(), id, RecordState::Waiting);
    }

    /// Creates [`PRIVATE_DIR`] on the node, unless it exists. In a container with a shared root, it is the mount point of
    /// the container's own private directory.
    fn acquire_private_mount_point(&self) -> Result<Arc<MountPoint>, ContainerError> {
        let mut held = self.private_mount_point.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            let path = Path::new(PRIVATE_DIR);
            let point = MountPoint::acquire(path)
                .map_err(|cause| ContainerError::Directory { path: path.to_owned(), cause })?;
            *held = Some(Arc::new(point));
        }
        Ok(held.clone().expect("it was just set"))
    }

    /// Removes the private mount point and the control groups of the node, except those that a container still uses.
    pub(crate) fn close(&self) {
        let mut held = self.private_mount_point.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(point) = held.take().and_then(Arc::into_inner) {
            point.release();
        }
        self.cgroups.remove_empty();
    }

    /// Builds the root and starts init in a new thread.
    fn start_init_in_thread(
        self: &Arc<Self>,
        id: &str,
        plan: BuildPlan,
        clone_target: Option<File>,
    ) -> Result<StartedInit, ContainerError> {
        let (builder, phase) = (Arc::clone(self), tracing::Span::current());
        let body = move || phase.in_scope(|| builder.build_and_start(plan, clone_target.as_ref()));
        let built = thread::Builder::new().name(format!("build-{id}")).spawn(body);
        built.map_err(ContainerError::Thread)?.join().unwrap_or_else(|_| Err(thread_panicked()))
    }

    /// Builds the root and starts init in the calling thread, which then returns to `home`.
    fn start_init_here(
        &self,
        home: &HomeNamespaces,
        plan: BuildPlan,
        clone_target: Option<File>,
    ) -> Result<StartedInit, ContainerError> {
        // Unwind safe: a panic drops the arguments, and everything else that `body` changes is the thread's own state, such
        // as its namespaces.
        let body = AssertUnwindSafe(|| self.build_and_start(plan, clone_target.as_ref()));
        panic::catch_unwind(|| home.run_elsewhere(body)).unwrap_or_else(|_| Err(thread_panicked()))
    }

    /// Enters new namespaces, builds or enters the root, and starts init. Returns init, the control channel, and the root if
    /// another container may reuse it.
    fn build_and_start(&self, plan: BuildPlan, clone_target: Option<&File>) -> Result<StartedInit, ContainerError> {
        let BuildPlan { spec, blueprint, reserved_ids: reserved, cached_root } = plan;
        let has_network = spec.network == NetworkSpec::Private;
        // Create the sockets before the thread leaves the node's network namespace. Otherwise processes of the container
        // would see them in /proc/net/unix.
        let control_sockets = ControlSockets::new()?;
        let with_sockets = |reserved| ControlSockets::new().map(|waiter_sockets| (reserved, waiter_sockets));
        let reserved = reserved.map(with_sockets).transpose()?;
        if let Some(cached_root) = cached_root {
            let root = cached_root.enter(has_network)?;
            bring_up_loopback_if_private(spec)?;
            let (init, socket) = self.spawn(clone::spawn_init, control_sockets, None, clone_target)?;
            return Ok((init, ControlChannel { socket, privileged_forker: None }, Some(root)));
        }
        let unshare_span = tracing::debug_span!(target: "farfork::phase", "container.unshare");
        unshare_span
            .in_scope(|| namespace::unshare_container(has_network))
            .map_err(|cause| ContainerError::Namespace { operation: "make namespaces", cause })?;
        bring_up_loopback_if_private(spec)?;
        let root_span = tracing::debug_span!(target: "farfork::phase", "container.root");
        let build = |users: Option<&ContainerUsers>| {
            root_span.in_scope(|| root::build_root(spec.root, &blueprint, &self.scratch, &self.masked, users))
        };
        let Some((reserved, waiter_sockets)) = reserved else {
            let mounts = namespace::open_mount_namespace().map_err(ContainerError::MountTable)?;
            let own = build(None)?.filter(|_| spec.has_reusable_root() && self.config.cached_roots_max > 0);
            let root = own.and_then(|own| {
                let root = CachedRoot::new(mounts, self.proc.as_fd(), &blueprint, own);
                root.inspect_err(|error| tracing::debug!(%error, "this root cannot be reused")).ok()
            });
            // Also resets the working directory if the inspection of the root failed.
            rustix::process::chdir("/").map_err(|cause| ContainerError::Init(cause.into()))?;
            let (init, socket) = self.spawn(clone::spawn_init, control_sockets, None, clone_target)?;
            return Ok((init, ControlChannel { socket, privileged_forker: None }, root));
        };
        // Start init first: building the root needs its user namespace. The pivot_root(2) of this thread then also changes
        // init's root.
        rustix::process::chdir("/").map_err(|cause| ContainerError::Init(cause.into()))?;
        let (init, waiter) =
            self.spawn(clone::spawn_init_in_user_namespace, waiter_sockets, Some(&reserved.lock), clone_target)?;
        let forker =
            ContainerUsers::map_ids(init.pid, reserved.range).map_err(ContainerError::Init).and_then(|users| {
                build(Some(&users))?;
                self.spawn(clone::spawn_in_current_namespace, control_sockets, None, clone_target)
            });
        let (forker, socket) = forker.inspect_err(|_| privileged_forker::kill_and_reap(&init))?;
        let privileged_forker = Some(PrivilegedForker::new(forker, waiter));
        Ok((init, ControlChannel { socket, privileged_forker }, None))
    }

    /// Starts the init program in the thread's namespaces, with `lock` as its descriptor 0. Returns the daemon's end of its
    /// control socket.
    fn spawn(
        &self,
        spawn: impl FnOnce(&InitProgram<'_>) -> io::Result<SpawnedProcess>,
        ControlSockets { own_end, init_end }: ControlSockets,
        lock: Option<&File>,
        clone_target: Option<&File>,
    ) -> Result<(SpawnedProcess, OwnedFd), ContainerError> {
        let _phase = tracing::debug_span!(target: "farfork::phase", "container.spawn").entered();
        let null = File::options().read(true).write(true).open("/dev/null").map_err(ContainerError::Init)?;
        let init = InitProgram {
            image: self.image.as_fd(),
            name: c"farfork-init",
            fds: [lock.unwrap_or(&null).as_fd(), null.as_fd(), null.as_fd(), init_end.as_fd()],
            cgroup: clone_target.map(AsFd::as_fd),
        };
        Ok((spawn(&init).map_err(ContainerError::Init)?, own_end))
    }
}

/// Two connected sockets, through which the node sends requests to an init program.
struct ControlSockets {
    own_end: OwnedFd,
    init_end: OwnedFd,
}

impl ControlSockets {
    fn new() -> Result<Self, ContainerError> {
        let (own_end, init_end) = fd_passing::seqpacket_pair().map_err(ContainerError::Init)?;
        Ok(Self { own_end, init_end })
    }
}

/// The parameters of a build.
struct BuildPlan {
    spec: ContainerSpec,
    blueprint: RootBlueprint,
    /// The ids of a container with its own users.
    reserved_ids: Option<ReservedIds>,
    /// The root to reuse, if any.
    cached_root: Option<CachedRoot>,
}

/// A container's init, its control channel, and its root if another container may reuse it.
type StartedInit = (SpawnedProcess, ControlChannel, Option<CachedRoot>);

fn thread_panicked() -> ContainerError {
    ContainerError::Thread(io::Error::other("it panicked; see the log"))
}

fn bring_up_loopback_if_private(spec: ContainerSpec) -> Result<(), ContainerError> {
    match spec.network {
        NetworkSpec::Host => Ok(()),
        NetworkSpec::Private => namespace::bring_up_loopback()
            .map_err(|cause| ContainerError::Namespace { operation: "bring a loopback interface up", cause }),
    }
}

/// Writes the directories of the node's control groups to a file, for a daemon or user that cleans up later.
fn record_cgroups(config: &ContainerConfig, cgroups: &NodeCgroups) -> Result<(), ContainerError> {
    let path = config.cgroups_file();
    let lines: Vec<String> = cgroups.paths().map(|d| format!("{}\n", d.display())).collect();
    std::fs::write(&path, lines.concat()).map_err(|cause| ContainerError::Record { path, cause })
}

/// Returns the real path for a path that may not exist yet: resolves the existing part, and appends the rest.
fn resolve_missing(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let rest = existing.as_ref().and_then(|(above, real)| Some(real.join(path.strip_prefix(above).ok()?)));
    rest.map_or_else(|| path.clone(), |place| place.components().collect())
}

/// Drops paths that are below other ones.
fn outermost_paths(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.sort();
    paths.dedup();
    let all = paths.clone();
    paths.retain(|path| !all.iter().any(|above| path != above && path.starts_with(above)));
    paths
}

/// The oom_score_adj of a container's processes. The OOM killer takes them before templates, and templates before parents: a
/// child can be forked again.
pub const OOM_SCORE_ADJUSTMENT: i32 = 900;

/// Raises the OOM score of a process, which needs no privilege. If that fails, the kernel's default score applies.
fn raise_oom_score(init_pid: i32) {
    let score = OOM_SCORE_ADJUSTMENT.to_string();
    if let Err(error) = std::fs::write(format!("/proc/{init_pid}/oom_score_adj"), score) {
        tracing::warn!(init_pid, %error, "the OOM score of a container could not be raised");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_missing_file_is_resolved() {
        let scratch = tempfile::tempdir().unwrap();
        let real = scratch.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        assert_eq!(resolve_missing(&real.join("link/farfork/keys")), real.join("farfork/keys"));
        assert_eq!(resolve_missing(&real.join("link")), real);
        assert_eq!(resolve_missing(Path::new("/")), Path::new("/"));
    }

    #[test]
    fn a_masked_directory_covers_the_paths_below_it() {
        let paths = ["/run/n1/keys", "/run/n1", "/run/n10", "/run/n1"].map(PathBuf::from);
        assert_eq!(outermost_paths(paths.to_vec()), ["/run/n1", "/run/n10"].map(PathBuf::from));
    }
}
