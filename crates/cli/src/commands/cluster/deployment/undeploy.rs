//! `farfork cluster undeploy`.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use farfork_terminal::inventory_args::InventoryArgs;
use futures_util::future::join_all;

use super::checks;
use super::host::HostDeployment;
use super::outcome::{self, HostOutcome};
use crate::GlobalArgs;

/// Remove the nodes of the hosts of an inventory, and everything that `deploy` installed.
///
/// Stops each daemon, which kills its children and drops its seeds. Removes the unit of systemd, the run directory, the log,
/// the keys and the programs. A host without a node is no error. The file of user ids (`farfork node --user-ranges`) stays,
/// because other nodes of the host use it, too.
///
/// Refuses a host with a mounted volume, or with replicas of volumes unless --remove-volumes is set. Refuses the host that
/// holds the authority while the cluster has other live nodes, or a selected host that failed: without the keys there, no node
/// can join or renew its certificate.
///
/// Refuses a host whose node has another name or cluster than the inventory says.
///
/// A host that fails does not keep the others from being removed. Run the command again for it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster undeploy --inventory HOSTS.toml
  farfork cluster undeploy --inventory HOSTS.toml --hosts n7

Exit status: 0 no host has a node, 1 failure, 2 wrong usage.")]
pub(in super::super) struct UndeployCluster {
    #[command(flatten)]
    hosts: InventoryArgs,
    /// Remove replicas of volumes in /var/lib/farfork, too. Data that no other node has is lost.
    #[arg(long)]
    remove_volumes: bool,
}

impl UndeployCluster {
    pub(in super::super) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let inventory = self.hosts.read()?;
        let selected = inventory.select(&self.hosts.selection())?;
        let client = self.hosts.client(&inventory)?;
        let opened =
            join_all(selected.iter().map(|host| HostDeployment::open(&client, &inventory, host, "undeploy"))).await;
        let mut outcomes = Vec::new();
        let mut hosts = Vec::new();
        for (host, result) in selected.iter().zip(opened) {
            match result {
                Ok(host) => hosts.push(host),
                Err(error) => outcomes.push(HostOutcome::failed(host.name.as_str(), &error)),
            }
        }
        // The authority is last: until then, the others can still renew their certificates.
        let last: Vec<_> = hosts.extract_if(.., |host| host.is_authority).collect();
        outcomes.extend(join_all(hosts.into_iter().map(|host| self.remove(host, None))).await);
        let (failed, removed) = outcomes.iter().partition::<Vec<_>, _>(|outcome| outcome.has_failed());
        let [failed, removed] =
            [failed, removed].map(|outcomes| outcomes.iter().map(|outcome| outcome.host.clone()).collect());
        let others = OtherHosts { removed, failed };
        outcomes.extend(join_all(last.into_iter().map(|host| self.remove(host, Some(&others)))).await);
        Ok(if outcome::report(&outcomes, global.json) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Removes the node of a host. `others` is set for the host with the authority.
    async fn remove(&self, mut host: HostDeployment, others: Option<&OtherHosts>) -> HostOutcome {
        let name = host.remote.name().to_owned();
        let result = async {
            if !host.has_installation().await? {
                return Ok(Vec::new());
            }
            host.prepare().await?;
            checks::require_own_node(&host)?;
            match others {
                Some(others) => refuse_remaining_members(&host, others).await?,
                None => refuse_other_authority(&host)?,
            }
            Ok(host.remove(self.remove_volumes).await?.removed)
        };
        let outcome = match result.await {
            Err(error) => HostOutcome::failed(&name, &error),
            Ok(details) => {
                let outcome = if details.is_empty() { "absent" } else { "removed" };
                HostOutcome { host: name, address: Some(host.settings.listen.to_string()), outcome, details }
            }
        };
        host.close().await;
        outcome
    }
}

/// Refuses a host that holds the authority of a cluster, if the inventory names another host: the cluster may be another one
/// with the same name, and its authority has no copy.
fn refuse_other_authority(host: &HostDeployment) -> anyhow::Result<()> {
    match &host.report.identity {
        Some(identity) if identity.holds_authority => bail!(
            "host {}: {} holds the authority of its cluster, but the inventory names another host; if the cluster may be removed, \
             name this host with `authority` in the inventory",
            host.remote.name(),
            identity.identity
        ),
        _ => Ok(()),
    }
}

/// The selected hosts without the authority.
struct OtherHosts {
    removed: Vec<String>,
    failed: Vec<String>,
}

/// Refuses to remove the authority while its cluster has other live nodes, or a selected host that was not removed.
async fn refuse_remaining_members(host: &HostDeployment, others: &OtherHosts) -> anyhow::Result<()> {
    let OtherHosts { removed, failed } = others;
    let holds_authority = host.report.identity.as_ref().is_some_and(|identity| identity.holds_authority);
    if !holds_authority {
        return Ok(());
    }
    let own_name = host.remote.name();
    if !failed.is_empty() {
        bail!(
            "host {own_name} holds the authority of the cluster, and {} failed; repeat the command, or leave failed hosts out with \
             --exclude",
            failed.join(", ")
        );
    }
    if host.report.daemon.is_none() {
        return Ok(());
    }
    let nodes = host.nodes().await?.into_iter().filter(|(_, state)| state != "unreachable").map(|(name, _)| name);
    let remaining: Vec<String> = nodes.filter(|name| name != own_name && !removed.contains(name)).collect();
    if !remaining.is_empty() {
        bail!(
            "host {own_name} holds the authority of the cluster, which still has the nodes {}; remove these first",
            remaining.join(", ")
        );
    }
    Ok(())
}
