//! Checks before anything is changed.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use farfork_sys::affinity::parse_cpu_list;
use farfork_trust::Identity;

use super::host::HostDeployment;

/// Requires that `farfork node` accepts the further arguments of the inventory. The hosts get the program of this process.
pub(super) fn require_valid_arguments(arguments: &[String]) -> anyhow::Result<()> {
    let own = ["farfork", "node", "--name", "n1", "--listen", "127.0.0.1:7400"];
    let Err(error) = crate::Cli::parse(own.into_iter().chain(arguments.iter().map(String::as_str))) else {
        return Ok(());
    };
    // An empty line separates the cause from the usage.
    let text = error.to_string();
    let cause: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let cause = cause.join(" ");
    bail!("`arguments` of [install] in the inventory: {}; correct them", cause.trim_start_matches("error: "))
}

/// A warning of `farfork doctor` on one host.
pub(super) struct HostWarning {
    host: String,
    text: String,
}

/// The warnings as lines. Hosts with the same warning share one.
pub(super) fn warning_lines(warnings: Vec<HostWarning>) -> Vec<String> {
    let mut hosts_by_text = BTreeMap::<String, Vec<String>>::new();
    for HostWarning { host, text } in warnings {
        hosts_by_text.entry(text).or_default().push(host);
    }
    hosts_by_text.into_iter().map(|(text, hosts)| format!("host {}: warning: {text}", hosts.join(", "))).collect()
}

/// Requires that `farfork doctor` finds no problem on a host. Returns its warnings.
pub(super) async fn require_healthy(host: &HostDeployment) -> anyhow::Result<Vec<HostWarning>> {
    let (name, document) = (host.remote.name(), host.run_doctor().await?);
    let findings = document["findings"].as_array().with_context(|| format!("host {name}: findings of doctor"))?;
    let (mut problems, mut warnings) = (Vec::new(), Vec::new());
    for finding in findings {
        let value = |key: &str| finding[key].as_str().unwrap_or_default();
        let text = format!("{}: {}; {}", value("check"), value("found"), value("remedy"));
        match value("status") {
            "problem" => problems.push(text),
            "warning" => warnings.push(HostWarning { host: name.to_owned(), text }),
            _ => {}
        }
    }
    if !problems.is_empty() {
        bail!("host {name} cannot run a node: {}", problems.join("\n         "));
    }
    Ok(warnings)
}

/// Requires that the authority's host can admit nodes: it holds the authority, or has no cluster yet.
pub(super) fn require_authority(authority: &HostDeployment, is_selected: bool) -> anyhow::Result<()> {
    let name = authority.remote.name();
    if !is_selected {
        require_own_node(authority)?;
    }
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

/// Requires that a host has no other node than the one that the inventory describes.
pub(super) fn require_own_node(host: &HostDeployment) -> anyhow::Result<()> {
    let (name, run_dir, trust) = (host.remote.name(), host.settings.run_dir.display(), host.settings.trust.display());
    let own = Identity::for_node(&host.cluster, &host.settings.name).to_string();
    match (&host.report.identity, &host.report.daemon) {
        (Some(identity), _) if identity.identity != own => bail!(
            "host {name}: {trust} has the identity {}, not {own}; correct `name` of the host and `cluster` in the inventory, or \
             remove that node by hand on the host: end its daemon with SIGTERM, then delete {run_dir} and {trust}",
            identity.identity
        ),
        (None, Some(daemon)) => bail!(
            "host {name}: a daemon runs in {run_dir} (process {}), and {trust} has no identity; stop it, or choose another `run_dir`",
            daemon.pid
        ),
        _ => Ok(()),
    }
}

/// Requires that a host is not in another cluster, and that a restart of its daemon would end nothing.
pub(super) fn require_compatible(host: &HostDeployment, authority: &HostDeployment) -> anyhow::Result<()> {
    require_own_node(host)?;
    let name = host.remote.name();
    if let (Some(listed), Some(online)) = (&host.remote.inventory_host().cpus, &host.report.online_cpus)
        && lacks_cpus(online, listed)
    {
        bail!("host {name}: `cpus` of the inventory is {listed}, but the CPUs of the host are {online}; correct it");
    }
    if let Some(identity) = &host.report.identity {
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
        Some(daemon) if needs_restart(host) && daemon.children_count + daemon.seeds_count > 0 => bail!(
            "host {name}: the daemon must be restarted to get another program or other arguments, which would end {} children and \
             {} seeds; wait for them, or end them with `farfork kill` and `farfork drop`",
            daemon.children_count,
            daemon.seeds_count
        ),
        _ => Ok(()),
    }
}

/// Whether CPUs of the second list are not in the first one.
fn lacks_cpus(online: &str, listed: &str) -> bool {
    let [online, listed] = [online, listed].map(|list| parse_cpu_list(list).unwrap_or_default());
    listed.iter().enumerate().any(|(index, word)| word & !online.get(index).unwrap_or(&0) != 0)
}

/// Whether the daemon runs another program, or has other arguments, than it is to have.
fn needs_restart(host: &HostDeployment) -> bool {
    host.has_new_program() || host.report.daemon.as_ref().is_some_and(|daemon| !daemon.is_current)
}

#[cfg(test)]
mod tests {
    use super::{HostWarning, lacks_cpus, require_valid_arguments, warning_lines};

    #[test]
    fn hosts_with_the_same_warning_share_a_line() {
        let warnings = [("n1", "low"), ("n2", "late"), ("n3", "low")];
        let warnings = warnings.map(|(host, text)| HostWarning { host: host.to_owned(), text: text.to_owned() });
        assert_eq!(warning_lines(warnings.into()), ["host n2: warning: late", "host n1, n3: warning: low"]);
    }

    #[test]
    fn cpus_that_a_host_lacks_are_found() {
        assert!(!lacks_cpus("0-39", "0,32-39"));
        assert!(lacks_cpus("0-1", "77") && lacks_cpus("0-1", "1-2") && lacks_cpus("0-63", "64"));
    }

    #[test]
    fn arguments_that_the_daemon_refuses_are_found_before_it_is_stopped() {
        let check = |arguments: &[&str]| {
            require_valid_arguments(&arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
        };
        check(&[]).unwrap();
        check(&["--encryption", "off", "--cache=2GiB"]).unwrap();
        for (arguments, cause) in [
            (&["--bogus"][..], "unexpected argument '--bogus' found; correct them"),
            (&["--cache", "much"], "invalid value 'much' for '--cache"),
            (&["--token-file=x", "--insecure"], "cannot be used with"),
        ] {
            let refused = check(arguments).unwrap_err().to_string();
            assert!(refused.starts_with("`arguments` of [install]") && refused.contains(cause), "{refused}");
            assert_eq!(refused.lines().count(), 1, "{refused}");
        }
    }
}
