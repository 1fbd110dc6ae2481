//! The inventory: the hosts of a cluster, how to reach them, and their groups. One file, `HOSTS.toml`, has all of it.

mod document;
mod error;
mod groups;
mod install;
#[cfg(test)]
mod tests;
mod validation;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_wire::NodeName;

pub use self::error::{InventoryError, SourcePosition, toml_error_text};
pub use self::install::InstallSettings;

/// The group that contains all hosts. It always exists.
pub const GROUP_ALL: &str = "all";

/// Default limit on the time until a host has accepted a connection and runs a command.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);

/// The port of sshd without `port`.
const SSH_PORT: u16 = 22;

/// The hosts of an inventory file, in the order of the file.
///
/// ```toml
/// known_hosts = "known_hosts"     # default: the user's and the system's files
/// authority = "n1"                # default: the first host
/// connect_timeout_s = 20
///
/// [defaults]                      # for hosts without a value of their own
/// user = "root"
/// key = "~/.ssh/cluster"          # default: the agent, and the default keys of ssh
///
/// [groups]
/// servers = ["n1"]
/// all-but-gateway = ["servers", "n2"]
///
/// [[hosts]]
/// name = "n1"                     # of the host and of its node
/// address = "n1.example.org"      # for ssh; default: the name
/// traffic = ["10.0.0.1"]          # addresses or interfaces of the cluster's traffic
/// cpus = "0-7"
/// numa_node = 0
///
/// [[hosts]]
/// name = "n2"
/// address = "192.168.7.2"
/// port = 2222
/// jump = "n1"
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    file: PathBuf,
    hosts: Vec<InventoryHost>,
    groups: BTreeMap<String, BTreeSet<NodeName>>,
    authority: NodeName,
    known_hosts: Option<PathBuf>,
    connect_timeout: Duration,
    install: InstallSettings,
}

/// One host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventoryHost {
    /// Its name, which is also the name of its node.
    pub name: NodeName,
    /// The name or the address for ssh.
    pub address: String,
    /// The port of sshd; `None` for ssh's default.
    pub port: Option<u16>,
    /// The user; `None` for the local user's name.
    pub user: Option<String>,
    /// The private key; `None` for the agent and ssh's default keys.
    pub key: Option<PathBuf>,
    /// The host through which this one is reached.
    pub jump: Option<NodeName>,
    /// Addresses and interfaces for the traffic of the cluster; empty for the address that ssh reaches.
    pub traffic: Vec<TrafficEndpoint>,
    /// CPUs for experiments, as a list like `0-3,8`.
    pub cpus: Option<String>,
    /// The NUMA node for experiments.
    pub numa_node: Option<u32>,
}

impl InventoryHost {
    /// Whether ssh reaches the same sshd under both names.
    fn has_endpoint_of(&self, other: &Self) -> bool {
        let port = |host: &Self| host.port.unwrap_or(SSH_PORT);
        self.address.eq_ignore_ascii_case(&other.address) && port(self) == port(other) && self.jump == other.jump
    }
}

/// Where a host sends and receives the traffic of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrafficEndpoint {
    /// An address of the host.
    Address(IpAddr),
    /// An interface of the host.
    Interface(String),
}

/// Which hosts a command uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostSelection {
    /// Names of groups and hosts; all hosts if empty.
    pub hosts: Vec<String>,
    /// Names of groups and hosts to omit.
    pub exclude: Vec<String>,
}

impl Inventory {
    /// Reads and validates a file.
    ///
    /// # Errors
    /// The file cannot be read, or has an error, which the result names with line and column.
    pub fn read(file: &Path) -> Result<Self, InventoryError> {
        let text = fs::read_to_string(file).map_err(|cause| InventoryError::Read { file: file.to_owned(), cause })?;
        Self::parse(file, &text)
    }

    /// Validates the text of a file. Relative paths in it are relative to the directory of `file`.
    ///
    /// # Errors
    /// The text has an error, which the result names with line and column.
    pub fn parse(file: &Path, text: &str) -> Result<Self, InventoryError> {
        validation::validate(file, text)
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// All hosts, in the order of the file.
    pub fn hosts(&self) -> &[InventoryHost] {
        &self.hosts
    }

    /// The host with this name.
    pub fn host(&self, name: &NodeName) -> Option<&InventoryHost> {
        self.hosts.iter().find(|host| host.name == *name)
    }

    /// The host that holds the authority of the cluster.
    pub fn authority(&self) -> &InventoryHost {
        self.host(&self.authority).expect("validated: the authority is a host")
    }

    /// The file with the keys of hosts; `None` for the files of ssh.
    pub fn known_hosts(&self) -> Option<&Path> {
        self.known_hosts.as_deref()
    }

    /// Limit on the time until a host has accepted a connection and runs a command.
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Where nodes are installed.
    pub fn install(&self) -> &InstallSettings {
        &self.install
    }

    /// Returns the selected hosts, in the order of the file.
    ///
    /// # Errors
    /// The selection has an unknown name, or no hosts.
    pub fn select(&self, selection: &HostSelection) -> Result<Vec<&InventoryHost>, InventoryError> {
        let all = [GROUP_ALL.to_owned()];
        let wanted = self.members(if selection.hosts.is_empty() { &all } else { &selection.hosts })?;
        let excluded = self.members(&selection.exclude)?;
        let is_selected = |host: &&InventoryHost| wanted.contains(&host.name) && !excluded.contains(&host.name);
        let selected: Vec<_> = self.hosts.iter().filter(is_selected).collect();
        match selected.is_empty() {
            true => Err(InventoryError::EmptySelection { file: self.file.clone() }),
            false => Ok(selected),
        }
    }

    /// The hosts that names of groups and hosts stand for.
    fn members(&self, names: &[String]) -> Result<BTreeSet<NodeName>, InventoryError> {
        let mut members = BTreeSet::new();
        for name in names {
            match (self.groups.get(name), self.hosts.iter().find(|host| host.name.as_str() == name)) {
                (Some(group), _) => members.extend(group.iter().cloned()),
                (None, Some(host)) => drop(members.insert(host.name.clone())),
                (None, None) => {
                    let hosts = self.hosts.iter().map(|host| host.name.as_str());
                    let known: Vec<&str> = hosts.chain(self.groups.keys().map(String::as_str)).collect();
                    let (file, name) = (self.file.clone(), name.clone());
                    return Err(InventoryError::UnknownName { file, name, known: known.join(", ") });
                }
            }
        }
        Ok(members)
    }
}
