//! [`ConnectedMachines`]: the connected hosts of a plan, and this machine. All run commands in the same way.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use farfork_remote::inventory::TrafficEndpoint;
use farfork_remote::ssh::{
    HOLDERS_VARIABLE, HostCommand, HostKeyPolicy, HostLock, RemoteError, RemoteHost, RunningCommand, SshClient,
    lock_holders,
};
use farfork_wire::NodeName;
use futures_util::future::{join_all, try_join_all};
use tokio::process::Command;

use super::error::PlanError;
use super::template::Values;
use super::{BenchPlan, SyncedPath, VARIABLE_ADDRESS, VARIABLE_HOST, VARIABLE_PLAN};

/// The name of this machine in output and results. No host can have it, because names of nodes are lower-case.
pub(super) const COORDINATOR: &str = "HERE";

/// Prints the directory of the runner on a host, below the user's own cache.
const RUNNER_DIRECTORY_SCRIPT: &str = r#"printf %s "${XDG_CACHE_HOME:-$HOME/.cache}/farfork-bench""#;

/// Hosts and this machine.
#[derive(Debug)]
pub(super) struct ConnectedMachines {
    hosts: Vec<ConnectedHost>,
    /// Why hosts of the plan are not in `hosts`.
    failures: Vec<PlanError>,
    /// The command of this coordinator, such as `bench run`.
    command: &'static str,
    /// The program `farfork` of this machine, whose `remote-runner` kills a command when its coordinator ends.
    farfork: PathBuf,
    /// The variables `plan` and `address.HOST`.
    fixed: Values,
}

/// A host with the program that runs commands there.
#[derive(Debug)]
pub(super) struct ConnectedHost {
    pub(super) host: RemoteHost,
    lock: HostLock,
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
    /// Connects to hosts of a plan, locks them, and copies the runner to them. `command` is the command of this coordinator. The result
    /// lacks the hosts that cannot be used ([`Self::take_failures`]).
    pub(super) async fn connect(
        plan: &BenchPlan,
        names: &[NodeName],
        farfork: &Path,
        command: &'static str,
    ) -> Result<Self, PlanError> {
        let farfork = farfork.to_owned();
        let mut fixed = Values::from([(VARIABLE_PLAN.to_owned(), plan.directory.clone())]);
        let Some(inventory) = &plan.inventory else {
            return Ok(Self { hosts: Vec::new(), failures: Vec::new(), command, farfork, fixed });
        };
        let client = SshClient::new(inventory, HostKeyPolicy::RequireKnown)?;
        let connect = async |name: &NodeName| {
            let host = client.connect(inventory.host(name).expect("a validated name")).await?;
            let lock = host.lock_for_coordinator(command).await?;
            let action = "find the directory of the runner";
            let directory = host.require_script(action, RUNNER_DIRECTORY_SCRIPT, &[], b"").await?;
            let connected = ConnectedHost { host, lock, directory };
            connected.host.copy_file(&farfork, &connected.runner(), 0o700).await?;
            Ok(connected)
        };
        let (mut hosts, mut failures) = (Vec::new(), Vec::new());
        for result in join_all(names.iter().map(connect)).await {
            match result {
                Ok(connected) => hosts.push(connected),
                Err(error) => failures.push(PlanError::Remote(error)),
            }
        }
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
        fixed.extend(addresses);
        Ok(Self { hosts, failures, command, farfork, fixed })
    }

    /// Fails if a host cannot be used. Afterwards, the hosts without a connection are only missing.
    pub(super) fn take_failures(&mut self) -> Result<(), PlanError> {
        PlanError::collect(self.failures.drain(..).map(Err))
    }

    /// A host, if it is connected.
    pub(super) fn host(&self, name: &NodeName) -> Option<&ConnectedHost> {
        self.hosts.iter().find(|connected| connected.host.name() == name.as_str())
    }

    /// The program `farfork` of this machine.
    pub(super) fn farfork(&self) -> &Path {
        &self.farfork
    }

    /// The values of all variables on a machine, in a round with these values of the parameters.
    pub(super) fn values(&self, machine: StepMachine<'_>, round: &Values) -> Values {
        let mut values: Values = self.fixed.clone().into_iter().chain(round.clone()).collect();
        if let StepMachine::Host(_) = machine {
            let address = self.fixed[&format!("{VARIABLE_ADDRESS}.{}", machine.name())].clone();
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

    /// Starts a command. It ends with the returned value, and with this program. On this machine, the command may use the hosts
    /// that this coordinator has locked.
    pub(super) fn start(&self, machine: StepMachine<'_>, command: &HostCommand) -> Result<RunningCommand, RemoteError> {
        match machine {
            StepMachine::Coordinator => {
                let mut command = command.clone();
                command.environment.push((HOLDERS_VARIABLE.to_owned(), lock_holders(self.command)));
                RunningCommand::start_here(&self.farfork, &command)
            }
            StepMachine::Host(connected) => connected.host.start(&connected.runner(), command),
        }
    }

    /// Copies a file or directory to its hosts, if they have another one. `plan` is the file of the plan.
    pub(super) async fn sync(&self, path: &SyncedPath, plan: &Path) -> Result<(), PlanError> {
        let owner = format!("copied by `farfork bench run {}`", plan.display());
        let copy = async |connected: &ConnectedHost| connected.host.sync(&path.from, &path.to, &owner).await;
        let copies = path.hosts.iter().filter_map(|name| self.host(name)).map(copy);
        try_join_all(copies).await?;
        Ok(())
    }

    /// Removes everything that `connect` and `sync` have copied, and ends the connections.
    pub(super) async fn remove_copies(self, synced: &[SyncedPath]) -> Result<(), PlanError> {
        let remove = async |connected: &ConnectedHost| {
            let ConnectedHost { host, directory, .. } = connected;
            let mut results = Vec::new();
            for path in synced.iter().filter(|path| path.hosts.iter().any(|name| name.as_str() == host.name())) {
                results.push(host.remove_synced(&path.to).await);
            }
            let removed = host.require_script("remove the runner", r#"rm -rf -- "$1""#, &[directory], b"").await;
            results.push(removed.map(drop));
            results
        };
        let results = join_all(self.hosts.iter().map(remove)).await;
        self.close().await;
        PlanError::collect(results.into_iter().flatten().map(|result| result.map_err(PlanError::Remote)))
    }

    /// Ends the locks and the connections.
    pub(super) async fn close(self) {
        for ConnectedHost { host, lock, .. } in self.hosts {
            lock.release().await;
            host.close().await;
        }
    }
}
