//! `MachineSource`: where an experiment gets its machines: on this machine, or the hosts that the options name.

use std::path::PathBuf;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_terminal::inventory_args::InventoryArgs;
use farfork_terminal::privilege;
use tonic::Code;

use super::find_farfork;
use super::remote::{RemoteHosts, RemoteMachine};
use crate::GlobalArgs;
use crate::error::BenchError;
use crate::experiment::host_report::{HostReport, HostStart};

// The arguments of an experiment, and the options that name hosts. It has no text of its own in the help, which shows the text
// of the last field.
#[derive(Debug, Args)]
pub(crate) struct OnHosts<E: Args> {
    #[command(flatten)]
    pub(crate) hosts: HostOptions,
    #[command(flatten)]
    pub(crate) experiment: E,
}

/// The options that name hosts.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct HostOptions {
    /// File with hosts. The experiment runs there: the first one is the server or has the first node, and the others are the
    /// clients or have the other nodes [default: on this machine].
    #[arg(long, value_name = "HOSTS.toml", display_order = 90)]
    inventory: Option<PathBuf>,
    /// Groups and hosts to use [default: all hosts].
    #[arg(long, value_name = "GROUP,…", display_order = 91, value_delimiter = ',', requires = "inventory")]
    hosts: Vec<String>,
    /// Groups and hosts to omit.
    #[arg(long, value_name = "HOST,…", display_order = 92, value_delimiter = ',', requires = "inventory")]
    exclude: Vec<String>,
    /// Add the keys of unknown hosts to the file of known hosts. A changed key is always refused.
    #[arg(long, display_order = 93, requires = "inventory")]
    accept_new_host_keys: bool,
}

impl HostOptions {
    fn to_arguments(&self) -> Option<InventoryArgs> {
        let Self { inventory, hosts, exclude, accept_new_host_keys } = self.clone();
        inventory.map(|inventory| InventoryArgs { inventory, hosts, exclude, accept_new_host_keys })
    }
}

/// The requirements of an experiment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MachineNeeds {
    /// The command, such as `bench rpc`.
    pub(crate) command: &'static str,
    /// Why it needs root on this machine: completes "it needs root:".
    pub(crate) root_reason: &'static str,
    /// Why it cannot run on hosts; `None` if it can. A clause.
    pub(crate) hosts_refusal: Option<&'static str>,
}

/// The source of the machines of a run.
#[derive(Debug)]
pub(crate) struct MachineSource {
    /// The program `farfork` of this machine.
    pub(crate) farfork: PathBuf,
    hosts: Option<RemoteHosts>,
    /// The hosts at the start of the run.
    starts: Vec<HostStart>,
}

impl MachineSource {
    /// Connects to the hosts, if the options name any.
    ///
    /// # Errors
    /// The experiment cannot run on hosts, or a host cannot be used. Without hosts, this user is not root.
    pub(crate) fn open(options: &HostOptions, needs: MachineNeeds, global: &GlobalArgs) -> anyhow::Result<Self> {
        let Some(arguments) = options.to_arguments() else {
            privilege::require_root(needs.root_reason)?;
            return Ok(Self { farfork: find_farfork()?, hosts: None, starts: Vec::new() });
        };
        let refuse = |object: &str, cause: &str, step: &str| {
            Err(Failure::new(Code::InvalidArgument, object, cause).with_next_step(step).into())
        };
        if let Some(reason) = needs.hosts_refusal {
            let object = format!("`farfork {} --inventory`", needs.command);
            return refuse(&object, reason, "run it on one host, as a `command` in a plan for `farfork bench run`");
        }
        if global.placement.is_specified() {
            let cause = "they are CPUs and NUMA nodes of this machine, but the experiment runs on hosts";
            return refuse("--cpus and --numa", cause, "set `cpus` or `numa_node` of the hosts in the inventory");
        }
        let farfork = find_farfork()?;
        let hosts = RemoteHosts::connect(&arguments, needs.command, &farfork)?;
        let starts = hosts.machines().map(|machine| HostStart::observe(&machine)).collect::<Result<_, _>>()?;
        Ok(Self { farfork, hosts: Some(hosts), starts })
    }

    /// Collects logs and leftovers of all hosts after the run, which has ended its programs. None on this machine.
    ///
    /// # Errors
    /// A host cannot be reached.
    pub(crate) fn report_hosts(&self) -> Result<Vec<HostReport>, BenchError> {
        let machines = self.hosts.iter().flat_map(RemoteHosts::machines);
        machines.zip(&self.starts).map(|(machine, start)| HostReport::observe(&machine, start)).collect()
    }

    /// The hosts; `None` on this machine.
    pub(crate) fn hosts(&self) -> Option<&RemoteHosts> {
        self.hosts.as_ref()
    }

    /// Whether nodes encrypt memory transfers unless an option says otherwise. Nodes of hosts have their options already.
    pub(crate) fn encrypts_by_default(&self) -> bool {
        let encrypts = |machine: RemoteMachine| {
            let arguments = machine.install().arguments.join(" ").replace('=', " ");
            !arguments.contains("--encryption off")
        };
        self.hosts.as_ref().and_then(|hosts| hosts.machines().next()).is_none_or(encrypts)
    }

    /// The maximum number of clients of a server; `None` if it is not limited.
    pub(crate) fn clients_max(&self) -> Option<usize> {
        self.hosts.as_ref().map(|hosts| hosts.machines().count().saturating_sub(1))
    }

    /// Whether there are enough hosts for this number of clients. One client always counts as possible: `first_hosts` names the
    /// missing hosts.
    pub(crate) fn may_have_clients(&self, count: usize) -> bool {
        count <= 1 || self.clients_max().is_none_or(|most| count <= most)
    }

    /// The first hosts of the selection; `None` on this machine.
    ///
    /// # Errors
    /// The selection has fewer.
    pub(crate) fn first_hosts(&self, count: usize) -> Result<Option<Vec<RemoteMachine>>, BenchError> {
        let Some(hosts) = &self.hosts else { return Ok(None) };
        let machines: Vec<_> = hosts.machines().take(count).collect();
        match machines.len() {
            selected if selected < count => Err(BenchError::TooFewHosts { needed: count, selected }),
            _ => Ok(Some(machines)),
        }
    }
}
