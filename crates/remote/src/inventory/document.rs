//! The form of `HOSTS.toml`. `validation` turns it into an inventory.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use serde::Deserialize;
use toml::Spanned;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InventoryDocument {
    /// The host that holds the authority of the cluster.
    pub(super) authority: Option<Spanned<String>>,
    /// The file with the keys of hosts.
    pub(super) known_hosts: Option<Spanned<String>>,
    pub(super) connect_timeout_s: Option<Spanned<u64>>,
    #[serde(default)]
    pub(super) defaults: HostDefaults,
    #[serde(default)]
    pub(super) install: InstallDocument,
    #[serde(default)]
    pub(super) groups: BTreeMap<Spanned<String>, Vec<Spanned<String>>>,
    #[serde(default)]
    pub(super) hosts: Vec<HostDocument>,
}

/// `[defaults]`: values for hosts that have none of their own.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostDefaults {
    pub(super) user: Option<Spanned<String>>,
    pub(super) port: Option<NonZeroU16>,
    pub(super) key: Option<Spanned<String>>,
    pub(super) jump: Option<Spanned<String>>,
}

/// `[install]`: where `farfork cluster deploy` installs the node.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InstallDocument {
    pub(super) prefix: Option<Spanned<String>>,
    pub(super) run_dir: Option<Spanned<String>>,
    pub(super) trust: Option<Spanned<String>>,
    pub(super) log: Option<Spanned<String>>,
    pub(super) port: Option<Spanned<NonZeroU16>>,
    pub(super) cluster: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) arguments: Vec<Spanned<String>>,
}

/// `[[hosts]]`: one host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostDocument {
    pub(super) name: Spanned<String>,
    pub(super) address: Option<Spanned<String>>,
    pub(super) user: Option<Spanned<String>>,
    pub(super) port: Option<NonZeroU16>,
    pub(super) key: Option<Spanned<String>>,
    pub(super) jump: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) traffic: Vec<Spanned<String>>,
    pub(super) cpus: Option<Spanned<String>>,
    pub(super) numa_node: Option<u32>,
}
