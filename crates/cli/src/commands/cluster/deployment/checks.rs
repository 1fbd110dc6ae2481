//! Checks before anything is changed.

use anyhow::{Context as _, bail};

use super::host::HostDeployment;
use crate::output;

/// Requires that `farfork doctor` finds no problem on a host. Prints its warnings.
pub(super) async fn require_healthy(host: &HostDeployment) -> anyhow::Result<()> {
    let (name, document) = (host.remote.name(), host.run_doctor().await?);
    let findings = document["findings"].as_array().with_context(|| format!("host {name}: findings of doctor"))?;
    let mut problems = Vec::new();
    for finding in findings {
        let value = |key: &str| finding[key].as_str().unwrap_or_default();
        let text = format!("{}: {}; {}", value("check"), value("found"), value("remedy"));
        match value("status") {
            "problem" => problems.push(text),
            "warning" => output::print_note(format_args!("host {name}: warning: {text}")),
            _ => {}
        }
    }
    if !problems.is_empty() {
        bail!("host {name} cannot run a node: {}", problems.join("\n         "));
    }
    Ok(())
}

/// Requires that the authority's host can admit nodes: it holds the authority, or has no cluster yet.
pub(super) fn require_authority(authority: &HostDeployment, is_selected: bool) -> anyhow::Result<()> {
    let name = authority.remote.name();
    match &authority.report.identity {
        Some(identity) if !identity.holds_authority => bail!(
            "host {name}: {} does not hold the authority of its cluster; name the host that does with `authority` in the inventory",
            identity.identity
        ),
        None if !is_selected => {
            bail!("host {name} holds the authority, and has no cluster yet; deploy it with the others, or first")
        }
        Some(_) if !is_selected && authority.report.daemon.is_none() => {
            bail!("host {name} holds the authority, and its daemon does not run; deploy it with the others, or first")
        }
        _ => Ok(()),
    }
}

/// Requires that a host has no identity of another node or cluster, and that a restart of its daemon would end nothing.
pub(super) fn require_compatible(host: &HostDeployment, authority: &HostDeployment) -> anyhow::Result<()> {
    let (name, trust) = (host.remote.name(), host.settings.trust.display());
    if let Some(identity) = &host.report.identity {
        if identity.name != name {
            bail!(
                "host {name}: {trust} has the identity {}; rename the host in the inventory, or run undeploy",
                identity.identity
            );
        }
        let authorities =
            authority.report.identity.as_ref().map(|identity| &identity.authorities[..]).unwrap_or_default();
        if !identity.authorities.iter().any(|own| authorities.contains(own)) {
            bail!(
                "host {name}: {} belongs to another cluster than host {}; run undeploy on this host first",
                identity.identity,
                authority.remote.name()
            );
        }
    }
    match &host.report.daemon {
        Some(daemon) if host.report.identity.is_none() => bail!(
            "host {name}: a daemon runs in {} (process {}), and {trust} has no identity; stop it, or choose another `run_dir`",
            host.settings.run_dir.display(),
            daemon.pid
        ),
        Some(daemon) if needs_restart(host) && daemon.children_count + daemon.seeds_count > 0 => bail!(
            "host {name}: the daemon must be restarted to get another program or other arguments, which would end {} children and \
             {} seeds; wait for them, or end them with `farfork kill` and `farfork drop`",
            daemon.children_count,
            daemon.seeds_count
        ),
        _ => Ok(()),
    }
}

/// Whether the daemon runs another program, or has other arguments, than it is to have.
fn needs_restart(host: &HostDeployment) -> bool {
    host.has_new_program() || host.report.daemon.as_ref().is_some_and(|daemon| !daemon.is_current)
}
