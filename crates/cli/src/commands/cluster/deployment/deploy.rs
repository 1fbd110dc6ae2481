//! `farfork cluster deploy`.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use farfork_remote::inventory::{Inventory, InventoryHost};
use farfork_remote::ssh::SshClient;
use farfork_terminal::inventory_args::InventoryArgs;
use futures_util::future::join_all;

use super::checks;
use super::host::HostDeployment;
use super::outcome::{self, HostOutcome};
use crate::{GlobalArgs, output};

/// Install a node on each host of an inventory, and join them to one cluster.
///
/// Copies this program to each host over ssh, and `farfork-bench` if it is next to this program. Starts the daemon: as a
/// unit of systemd, or directly where systemd does not run. Waits until all nodes are ready.
///
/// The first host of the inventory, or the one that `authority` names, holds the authority of the cluster. If it has no
/// cluster yet, the command creates one there. The other hosts join with tokens that are valid once.
///
/// First checks all hosts: a host that does not answer, another coordinator, a problem that `farfork doctor` finds, or an
/// identity of another node or cluster. Then nothing is changed on any host; omit the host with --exclude, or mend it. A
/// host that fails later is restored: to nothing, or to the daemon that it had. The others are deployed. A second run changes
/// only what differs.
///
/// A daemon is restarted to get another program or other arguments, unless it has children or seeds.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster deploy --inventory HOSTS.toml
  farfork cluster deploy --inventory HOSTS.toml --hosts clients --exclude n7,n9
  farfork cluster deploy --inventory HOSTS.toml --accept-new-host-keys --json

Exit status: 0 all hosts have a node, 1 failure, 2 wrong usage.")]
pub(in super::super) struct DeployCluster {
    #[command(flatten)]
    hosts: InventoryArgs,
}

/// All hosts of a deployment, connected and checked. Only the authority's host may be one that was not selected.
struct CheckedHosts {
    authority: HostDeployment,
    is_authority_selected: bool,
    others: Vec<HostDeployment>,
}

/// Where a node without an identity gets one.
#[derive(Clone, Copy)]
enum IdentitySource<'a> {
    /// It creates the cluster.
    NewCluster,
    /// It joins the cluster of the host with the authority.
    Authority(&'a HostDeployment),
}

impl DeployCluster {
    pub(in super::super) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let inventory = self.hosts.read()?;
        checks::require_valid_arguments(&inventory.install().arguments)?;
        let selected = inventory.select(&self.hosts.selection())?;
        let client = self.hosts.client(&inventory)?;
        let checked = open_and_check(&client, &inventory, &selected).await?;
        let outcomes = checked.deploy().await;
        Ok(if outcome::report(&outcomes, global.json) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Connects to all hosts and checks them. If a host fails, nothing is changed on any host.
async fn open_and_check(
    client: &SshClient,
    inventory: &Inventory,
    selected: &[&InventoryHost],
) -> anyhow::Result<CheckedHosts> {
    let authority = inventory.authority();
    let is_authority_selected = selected.iter().any(|host| host.name == authority.name);
    let mut hosts: Vec<&InventoryHost> = selected.to_vec();
    if !is_authority_selected {
        hosts.push(authority);
    }
    let opened = join_all(hosts.iter().map(|host| HostDeployment::open(client, inventory, host, "deploy"))).await;
    let (mut opened, mut errors) = split(opened);
    if errors.is_empty() {
        errors = check(&mut opened, selected).await;
    }
    if !errors.is_empty() {
        join_all(opened.into_iter().map(HostDeployment::close)).await;
        let next_step = "mend it, or omit it with --exclude; nothing was changed on any host";
        return Err(outcome::refusal(&errors, next_step).into());
    }
    let (mut first, others) = opened.into_iter().partition::<Vec<_>, _>(|host| host.is_authority);
    let authority = first.pop().expect("all hosts are connected");
    Ok(CheckedHosts { authority, is_authority_selected, others })
}

/// Copies the programs to all hosts, which are connected, and checks the hosts. Returns the errors.
async fn check(hosts: &mut [HostDeployment], selected: &[&InventoryHost]) -> Vec<anyhow::Error> {
    let address = hosts.iter().find(|host| host.is_authority).map(|host| host.settings.listen);
    hosts.iter_mut().filter(|host| !host.is_authority).for_each(|host| host.settings.join = address);
    let errors = split(join_all(hosts.iter_mut().map(HostDeployment::prepare)).await).1;
    if !errors.is_empty() {
        return errors;
    }
    let is_selected = |host: &&HostDeployment| selected.iter().any(|selected| selected.name == host.settings.name);
    let examined = join_all(hosts.iter().filter(is_selected).map(checks::require_healthy)).await;
    let (warnings, errors) = split(examined);
    checks::warning_lines(warnings.into_iter().flatten().collect()).iter().for_each(output::print_note);
    let authority = hosts.iter().find(|host| host.is_authority).expect("all hosts are connected");
    let admits = checks::require_authority(authority, is_selected(&authority));
    let compared = hosts.iter().filter(is_selected).map(|host| checks::require_compatible(host, authority));
    errors.into_iter().chain(split([admits].into_iter().chain(compared).collect()).1).collect()
}

/// Separates values and errors.
fn split<T>(results: Vec<anyhow::Result<T>>) -> (Vec<T>, Vec<anyhow::Error>) {
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) => errors.push(error),
        }
    }
    (values, errors)
}

impl CheckedHosts {
    /// Deploys the authority's host, then all others at once.
    async fn deploy(mut self) -> Vec<HostOutcome> {
        let mut outcomes = Vec::new();
        let started = match self.is_authority_selected {
            true => self.authority.deploy(IdentitySource::NewCluster).await,
            false => Ok(()),
        };
        let authority = &self.authority;
        match started {
            Ok(()) => {
                let join = |host| HostDeployment::deploy(host, IdentitySource::Authority(authority));
                let deployed = join_all(self.others.iter_mut().map(join)).await;
                outcomes.extend(self.others.iter().zip(deployed).map(|(host, result)| host.outcome(result)));
                let own_result = self.wait_for_members(&outcomes).await;
                if self.is_authority_selected {
                    outcomes.insert(0, authority.outcome(own_result));
                } else {
                    outcomes.extend(own_result.err().map(|error| HostOutcome::failed(authority.remote.name(), &error)));
                }
            }
            Err(error) => {
                outcomes.push(HostOutcome::failed(authority.remote.name(), &error));
                let skip = |host: &HostDeployment| HostOutcome {
                    host: host.remote.name().to_owned(),
                    address: None,
                    outcome: "skipped",
                    details: vec!["the host with the authority failed".to_owned()],
                };
                outcomes.extend(self.others.iter().map(skip));
            }
        }
        join_all(self.others.into_iter().chain([self.authority]).map(HostDeployment::close)).await;
        outcomes
    }

    /// Waits until the authority's node sees all nodes that were deployed.
    async fn wait_for_members(&self, outcomes: &[HostOutcome]) -> anyhow::Result<()> {
        let others = outcomes.iter().filter(|outcome| !outcome.has_failed()).map(|outcome| outcome.host.clone());
        let names: Vec<String> = others.chain([self.authority.remote.name().to_owned()]).collect();
        self.authority.wait_for_members(&names).await
    }
}

impl HostDeployment {
    /// Installs and starts the node of a host. A host that fails is restored.
    async fn deploy(&mut self, source: IdentitySource<'_>) -> anyhow::Result<()> {
        let result = self.install_and_start(source).await;
        self.restore_after(result).await
    }

    async fn install_and_start(&mut self, source: IdentitySource<'_>) -> anyhow::Result<()> {
        self.install_programs().await?;
        if self.report.identity.is_none() {
            match source {
                IdentitySource::NewCluster => self.create_cluster().await?,
                IdentitySource::Authority(authority) => {
                    let token = authority.create_token().await?;
                    self.join(authority.settings.listen, &token).await?;
                }
            }
        }
        self.start().await
    }

    /// After a failure, removes everything from a host that had no node before.
    async fn restore_after(&self, result: anyhow::Result<()>) -> anyhow::Result<()> {
        let Err(error) = result else { return Ok(()) };
        if self.report.identity.is_some() || self.report.daemon.is_some() {
            return Err(anyhow!("{error:#}; the host keeps its identity; mend the cause, and run deploy again"));
        }
        match self.remove(false).await {
            Ok(_) => Err(error),
            Err(second) => Err(error.context(format!("the host is not restored: {second:#}; run undeploy"))),
        }
    }

    fn outcome(&self, result: anyhow::Result<()>) -> HostOutcome {
        if let Err(error) = result {
            return HostOutcome::failed(self.remote.name(), &error);
        }
        HostOutcome {
            host: self.remote.name().to_owned(),
            address: Some(self.settings.listen.to_string()),
            outcome: if self.changes.is_empty() { "unchanged" } else { "deployed" },
            details: self.changes.clone(),
        }
    }
}
