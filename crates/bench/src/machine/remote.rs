//! `RemoteHosts`: the connected hosts of an inventory, and `RemoteMachine`: one of them, whose programs ssh runs.
//!
//! Each host is locked for this coordinator, and has a directory that ends with it (`farfork_remote::ssh::HostDirectory`). The
//! programs of the machine end with the directory.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use farfork_api::run_dir::RunDir;
use farfork_remote::inventory::{InstallSettings, Inventory, InventoryHost};
use farfork_remote::ssh::{HostCommand, HostDirectory, HostLock, RemoteError, RemoteHost, SshClient};
use farfork_terminal::interrupt::wait_for_interrupt;
use farfork_terminal::inventory_args::InventoryArgs;
use futures_util::future::{join_all, try_join_all};
use tokio::runtime::Runtime;

use super::Machine;
use crate::error::BenchError;

/// The programs that a machine needs, next to each other. The first one is the runner.
const PROGRAMS: [&str; 2] = ["farfork", "farfork-bench"];

/// Permissions of the programs, as `farfork cluster deploy` sets them.
const PROGRAM_MODE: u32 = 0o755;

/// Connected and locked hosts. Their directories, locks and connections end when this value is dropped, which must be outside
/// of asynchronous code.
#[derive(Debug)]
pub(crate) struct RemoteHosts {
    hosts: Vec<Arc<LockedHost>>,
    /// The thread that sends heartbeats while the experiment blocks its own.
    runtime: Runtime,
}

/// A host and what it holds for this coordinator.
#[derive(Debug)]
struct LockedHost {
    remote: RemoteHost,
    lock: HostLock,
    directory: HostDirectory,
    address: IpAddr,
    /// The program `farfork` of the host: the installed one, or a copy in the directory.
    farfork: PathBuf,
    install: InstallSettings,
    /// A socket of this machine that leads to the node of the host.
    node_socket: PathBuf,
}

/// A host as a machine of a run.
#[derive(Debug, Clone)]
pub(crate) struct RemoteMachine(Arc<LockedHost>);

impl RemoteHosts {
    /// Connects to the selected hosts and locks them. `command` is the command of this coordinator, `farfork` its program, which
    /// hosts without it get.
    ///
    /// # Errors
    /// The inventory is invalid, a host cannot be used, or [`BenchError::Interrupted`].
    pub(crate) fn connect(arguments: &InventoryArgs, command: &str, farfork: &Path) -> Result<Self, BenchError> {
        let inventory = arguments.read()?;
        let selected = inventory.select(&arguments.selection())?;
        let client = arguments.client(&inventory)?;
        let failed = |cause| BenchError::from(RemoteError::Local { action: "start a thread", cause });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(failed)?;
        // The programs of a parent have the same paths on the hosts of its children.
        let run = format!("{:08x}", fastrand::u32(..));
        let hosts = runtime.block_on(async {
            let connect = |host| LockedHost::connect(&client, &inventory, host, [command, &run], farfork);
            tokio::select! {
                () = wait_for_interrupt() => Err(BenchError::Interrupted),
                hosts = try_join_all(selected.into_iter().map(connect)) => Ok(hosts?),
            }
        })?;
        Ok(Self { hosts: hosts.into_iter().map(Arc::new).collect(), runtime })
    }

    /// The names of the hosts, in the order of the inventory.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.hosts.iter().map(|host| host.remote.name().to_owned())
    }

    /// The hosts, in the order of the inventory.
    pub(crate) fn machines(&self) -> impl Iterator<Item = RemoteMachine> {
        self.hosts.iter().cloned().map(RemoteMachine)
    }
}

impl Drop for RemoteHosts {
    fn drop(&mut self) {
        // A machine that is still used keeps its host until the end of this program.
        let hosts = std::mem::take(&mut self.hosts).into_iter().filter_map(Arc::into_inner);
        self.runtime.block_on(join_all(hosts.map(LockedHost::close)));
    }
}

impl LockedHost {
    async fn connect(
        client: &SshClient,
        inventory: &Inventory,
        host: &InventoryHost,
        [command, run]: [&str; 2],
        farfork: &Path,
    ) -> Result<Self, RemoteError> {
        let remote = client.connect(host).await?;
        let lock = remote.lock_for_coordinator(command).await?;
        let (directory, address) = (remote.make_directory(run).await?, remote.traffic_address().await?);
        let install = inventory.install().clone();
        let farfork = find_or_copy_program(&remote, &install, &directory, farfork).await?;
        let node_socket = remote.forward_socket(path_text(&RunDir::new(&install.run_dir).socket())).await?;
        Ok(Self { remote, lock, directory, address, farfork, install, node_socket })
    }

    async fn close(self) {
        self.directory.remove().await;
        self.lock.release().await;
        self.remote.close().await;
    }
}

/// Returns the program of a host: the installed one if it is the one of this coordinator, or a copy in the directory.
async fn find_or_copy_program(
    remote: &RemoteHost,
    install: &InstallSettings,
    directory: &HostDirectory,
    farfork: &Path,
) -> Result<PathBuf, RemoteError> {
    let locals = PROGRAMS.map(|name| farfork.with_file_name(name));
    let mut is_installed = true;
    for (name, local) in PROGRAMS.iter().zip(&locals) {
        let installed = install.program(name);
        is_installed = is_installed && remote.has_file(local, path_text(&installed), PROGRAM_MODE).await?;
    }
    if is_installed {
        return Ok(install.program(PROGRAMS[0]));
    }
    directory.add_program(remote, &locals[1]).await?;
    directory.add_program(remote, &locals[0]).await
}

impl RemoteMachine {
    /// The name of the host and of its node.
    pub(crate) fn host_name(&self) -> &str {
        self.0.remote.name()
    }

    /// Where the node of the host is installed.
    pub(crate) fn install(&self) -> &InstallSettings {
        &self.0.install
    }

    /// The socket of the API of the host's node, on the host.
    pub(crate) fn node_socket(&self) -> PathBuf {
        RunDir::new(&self.0.install.run_dir).socket()
    }

    /// The socket of this machine that leads to it.
    pub(crate) fn forwarded_socket(&self) -> PathBuf {
        self.0.node_socket.clone()
    }
}

impl Machine for RemoteMachine {
    fn command(&self, program: &Command) -> Command {
        let LockedHost { remote, directory, farfork, .. } = &*self.0;
        let text = |word: &OsStr| word.to_string_lossy().into_owned();
        let mut words = placement_words(remote.inventory_host());
        words.extend([program.get_program()].into_iter().chain(program.get_args()).map(text));
        let environment = program.get_envs().filter_map(|(name, value)| Some((text(name), text(value?))));
        let command = HostCommand {
            program: words.remove(0),
            arguments: words,
            directory: Some(program.get_current_dir().map_or_else(|| "/".to_owned(), |path| text(path.as_os_str()))),
            environment: environment.collect(),
        };
        let leased = remote.leased_command(path_text(farfork), &directory.lease(), &command);
        leased.expect("no argument of this program contains NUL, and it names all variables")
    }

    fn name(&self) -> Option<&str> {
        Some(self.host_name())
    }

    fn address(&self) -> IpAddr {
        self.0.address
    }

    fn scratch(&self) -> &Path {
        Path::new(self.0.directory.path())
    }

    fn farfork(&self) -> &Path {
        &self.0.farfork
    }
}

/// The words before a program that place it on the CPUs and the memory that the inventory names.
fn placement_words(host: &InventoryHost) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(node) = host.numa_node {
        words.extend([
            "numactl".to_owned(),
            format!("--cpunodebind={node}"),
            format!("--membind={node}"),
            "--".to_owned(),
        ]);
    }
    if let Some(cpus) = &host.cpus {
        words.extend(["taskset".to_owned(), "--cpu-list".to_owned(), cpus.clone()]);
    }
    words
}

/// A path of a host, which is UTF-8.
fn path_text(path: &Path) -> &str {
    path.to_str().expect("it is from the inventory or from the host, and was UTF-8")
}
