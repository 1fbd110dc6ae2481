//! [`InventoryArgs`]: the options that select hosts of an inventory. All commands that use remote hosts have them.

use std::path::PathBuf;

use clap::Args;
use farfork_remote::inventory::{HostSelection, Inventory, InventoryError};
use farfork_remote::ssh::{HostKeyPolicy, RemoteError, SshClient};

/// Selects hosts of an inventory.
#[derive(Args, Clone, Debug)]
pub struct InventoryArgs {
    /// File with the hosts.
    #[arg(long, value_name = "HOSTS.toml")]
    pub inventory: PathBuf,
    /// Groups and hosts to use [default: all hosts].
    #[arg(long, value_name = "GROUP,…", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// Groups and hosts to omit.
    #[arg(long, value_name = "HOST,…", value_delimiter = ',')]
    pub exclude: Vec<String>,
    /// Add the keys of unknown hosts to the file of known hosts. A changed key is always refused.
    #[arg(long)]
    pub accept_new_host_keys: bool,
}

impl InventoryArgs {
    /// Reads the inventory.
    ///
    /// # Errors
    /// [`InventoryError`].
    pub fn read(&self) -> Result<Inventory, InventoryError> {
        Inventory::read(&self.inventory)
    }

    /// The selection of hosts.
    pub fn selection(&self) -> HostSelection {
        HostSelection { hosts: self.hosts.clone(), exclude: self.exclude.clone() }
    }

    /// A client for the hosts of the inventory.
    ///
    /// # Errors
    /// As [`SshClient::new`].
    pub fn client(&self, inventory: &Inventory) -> Result<SshClient, RemoteError> {
        let policy = if self.accept_new_host_keys { HostKeyPolicy::AcceptNew } else { HostKeyPolicy::RequireKnown };
        SshClient::new(inventory, policy)
    }
}
