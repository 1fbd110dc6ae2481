//! [`ConnectedMachines`]: the connected hosts of a plan, and this machine. All run commands in the same way.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use farfork_remote::inventory::{Inventory, TrafficEndpoint};
use farfork_remote::ssh::{HostCommand, HostKeyPolicy, RemoteError, RemoteHost, RunningCommand, SshClient};
use farfork_wire::NodeName;
use futures_util::future::try_join_all;
use tokio::process::Command;

use super::error::PlanError;
use super::template::Values;
use super::{SyncedPath, VARIABLE_ADDRESS, VARIABLE_HOST};

/// The name of this machine in output and results. No host can have it, because names of nodes are lower-case.
pub(super) const COORDINATOR: &str = "HERE";

/// Prints the directory of the runner on a host, below the user's own cache.
const RUNNER_DIRECTORY_SCRIPT: &str = r#"printf %s "${XDG_CACHE_HOME:-$HOME/.cache}/farfork-bench""#;

/// Hosts and this machine.
#[derive(Debug)]
pub(super) struct ConnectedMachines {
    hosts: Vec<ConnectedHost>,
    /// The program `farfork` of this machine, whose `remote-runner` kills a command when its coordinator ends.
    farfork: PathBuf,
    /// The variables `address.HOST`.
    addresses: Values,
}

/// A host with the program that runs commands there.
#[derive(Debug)]
pub(super) struct ConnectedHost {
    pub(super) host: RemoteHost,
    /// The directory of the runner, which has nothing else.
    directory: String,
}

impl ConnectedHost {
    fn runner(&self) -> String {
        format!("{}/farfork", self.directory)
    }
}

/// Where one command of a step runs.
#[derive(Debug, Clone, Copy)]
pub(super) enum StepMachine<'a> {
    /// This machine.
    Coordinator,
    /// A host.
    Host(&'a ConnectedHost),
}

impl StepMachine<'_> {
    /// The name in output and results.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Coordinator => COORDINATOR,
            Self::Host(connected) => connected.host.name(),
        }
    }
}

impl ConnectedMachines {
    /// Connects to hosts, and copies the runner to them.
    pub(super) async fn connect(
        inventory: Option<&Inventory>,
        names: &[NodeName],
        farfork: &Path,
    ) -> Result<Self, PlanError> {
        let Some(inventory) = inventory else {
            return Ok(Self { hosts: Vec::new(), farfork: farfork.to_owned(), addresses: Values::new() });
        };
        let client = SshClient::new(inventory, HostKeyPolicy::RequireKnown)?;
        let connect = async |name: &NodeName| {
            let host = client.connect(inventory.host(name).expect("a validated name")).await?;
            let action = "find the directory of the runner";
            let directory = host.require_script(action, RUNNER_DIRECTORY_SCRIPT, &[], b"").await?;
            let connected = ConnectedHost { host, directory };
            connected.host.copy_file(farfork, &connected.runner(), 0o700).await?;
            Ok::<_, PlanError>(connected)
        };
        let hosts = try_join_all(names.iter().map(connect)).await?;
        let addresses = inventory.hosts().iter().map(|host| {
            let traffic = host.traffic.iter().find_map(|endpoint| match endpoint {
                TrafficEndpoint::Address(address) => Some(address.to_string()),
                TrafficEndpoint::Interface(_) => None,
            });
            let connected = hosts.iter().find(|connected| connected.host.name() == host.name.as_str());
            let reached = connected.map(|connected| connected.host.address().to_string());
            let address = traffic.or(reached).unwrap_or_else(|| host.address.clone());
            (format!("{VARIABLE_ADDRESS}.{}", host.name), address)
        });
        let addresses = addresses.collect();
        Ok(Self { hosts, farfork: farfork.to_owned(), addresses })
    }

    /// A connected host.
    pub(super) fn host(&self, name: &NodeName) -> &ConnectedHost {
        let connected = self.hosts.iter().find(|connected| connected.host.name() == name.as_str());
        connected.expect("all hosts of the plan are connected")
    }

    /// The program `farfork` of this machine.
    pub(super) fn farfork(&self) -> &Path {
        &self.farfork
    }

    /// The values of all variables on a machine, in a round with these values of the parameters.
    pub(super) fn values(&self, machine: StepMachine<'_>, round: &Values) -> Values {
        let mut values: Values = self.addresses.clone().into_iter().chain(round.clone()).collect();
        if let StepMachine::Host(_) = machine {
            let address = self.addresses[&format!("{VARIABLE_ADDRESS}.{}", machine.name())].clone();
            values.insert(VARIABLE_ADDRESS.to_owned(), address);
            values.insert(VARIABLE_HOST.to_owned(), machine.name().to_owned());
        }
        values
    }

    /// Runs a short script of `sh` on a machine. Returns its exit status.
    pub(super) async fn test(&self, machine: StepMachine<'_>, script: &str, argument: &str) -> Result<i32, PlanError> {
        match machine {
            StepMachine::Host(connected) => Ok(connected.host.script(script, &[argument], b"").await?.status),
            StepMachine::Coordinator => {
                let mut command = Command::new("sh");
                command
                    .args(["-c", script, "sh", argument])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
                let status = command.status().await;
                let status = status.map_err(|cause| RemoteError::Local { action: "run sh", cause })?;
                Ok(status.code().unwrap_or(-1))
            }
        }
    }

    /// Starts a command. It ends with the returned value, and with this program.
    pub(super) fn start(&self, machine: StepMachine<'_>, command: &HostCommand) -> Result<RunningCommand, RemoteError> {
        match machine {
            StepMachine::Coordinator => RunningCommand::start_here(&self.farfork, command),
            StepMachine::Host(connected) => connected.host.start(&connected.runner(), command),
        }
    }

    /// Copies a file or directory to its hosts, if they have another one.
    pub(super) async fn sync(&self, path: &SyncedPath) -> Result<(), PlanError> {
        let metadata = fs::metadata(&path.from).map_err(|cause| PlanError::File { path: path.from.clone(), cause })?;
        let copy = async |name: &NodeName| {
            let host = &self.host(name).host;
            if metadata.is_dir() {
                host.copy_directory(&path.from, &path.to).await
            } else {
                host.copy_file(&path.from, &path.to, metadata.permissions().mode() & 0o7777).await
            }
        };
        try_join_all(path.hosts.iter().map(copy)).await?;
        Ok(())
    }

    /// Removes everything that `connect` and `sync` have copied, and ends the connections.
    pub(super) async fn remove_copies(self, synced: &[SyncedPath]) -> Result<(), PlanError> {
        let remove = async |connected: &ConnectedHost| {
            let has_host = |path: &&SyncedPath| path.hosts.iter().any(|name| name.as_str() == connected.host.name());
            let paths =
                synced.iter().filter(has_host).map(|path| path.to.as_str()).chain([connected.directory.as_str()]);
            let paths: Vec<&str> = paths.collect();
            connected.host.require_script("remove copied files", r#"rm -rf -- "$@""#, &paths, b"").await
        };
        try_join_all(self.hosts.iter().map(remove)).await?;
        self.close().await;
        Ok(())
    }

    /// Ends the connections.
    pub(super) async fn close(self) {
        for ConnectedHost { host, .. } in self.hosts {
            host.close().await;
        }
    }
}
