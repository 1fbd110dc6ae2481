//! [`SshClient`]: one configuration file of ssh for all hosts of an inventory.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farfork_wire::NodeName;

use super::connection::RemoteHost;
use super::directory::ClientDirectory;
use super::error::RemoteError;
use crate::inventory::{Inventory, InventoryHost};

/// Options of every connection. Host keys are checked, and nothing is asked, forwarded or taken from elsewhere.
const COMMON_OPTIONS: &str = "\
  BatchMode yes
  PasswordAuthentication no
  KbdInteractiveAuthentication no
  UpdateHostKeys no
  ClearAllForwardings yes
  ForwardAgent no
  ForwardX11 no
  PermitLocalCommand no
  RequestTTY no
  EscapeChar none
  ControlMaster no
  ControlPersist no
  ServerAliveInterval 5
  ServerAliveCountMax 3
  LogLevel ERROR
";

/// Name of the configuration file in the directory of a client.
pub(super) const CONFIG_NAME: &str = "config";

/// Whether a host is accepted whose key is not in the file of known hosts. A changed key is always refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HostKeyPolicy {
    /// The connection is refused.
    #[default]
    RequireKnown,
    /// The key is added to the file.
    AcceptNew,
}

/// Connects to the hosts of one inventory.
#[derive(Debug)]
pub struct SshClient {
    connect_timeout: Duration,
    /// The last connection removes it.
    directory: Arc<ClientDirectory>,
    connections_count: AtomicUsize,
}

impl SshClient {
    /// Writes the configuration of ssh for an inventory.
    ///
    /// # Errors
    /// The temporary directory cannot be used.
    pub fn new(inventory: &Inventory, policy: HostKeyPolicy) -> Result<Self, RemoteError> {
        let local = |action| move |cause| RemoteError::Local { action, cause };
        let directory = ClientDirectory::create().map_err(local("create a directory for the sockets of ssh"))?;
        let text = config_text(inventory, policy);
        fs::write(directory.path().join(CONFIG_NAME), text).map_err(local("write the configuration of ssh"))?;
        Ok(Self {
            connect_timeout: inventory.connect_timeout(),
            directory: Arc::new(directory),
            connections_count: AtomicUsize::new(0),
        })
    }

    /// Connects to a host of the inventory, directly or through its jump hosts.
    ///
    /// # Errors
    /// [`RemoteError`]: the host does not answer within [`Inventory::connect_timeout`], has an unexpected key, or refuses
    /// the user.
    pub async fn connect(&self, host: &InventoryHost) -> Result<RemoteHost, RemoteError> {
        let number = self.connections_count.fetch_add(1, Ordering::Relaxed);
        RemoteHost::connect(host, &self.directory, number, self.connect_timeout).await
    }
}

fn config_text(inventory: &Inventory, policy: HostKeyPolicy) -> String {
    let mut text = String::new();
    let mut option = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name} {value}");
    };
    for host in inventory.hosts() {
        option("Host", host.name.as_str());
        option("HostName", &host.address);
        host.port.iter().for_each(|port| option("Port", &port.to_string()));
        host.user.iter().for_each(|user| option("User", user));
        host.jump.iter().map(NodeName::as_str).for_each(|jump| option("ProxyJump", jump));
        if let Some(key) = &host.key {
            option("IdentityFile", &path_value(key));
            option("IdentitiesOnly", "yes");
        }
    }
    option("Host", "*");
    option("StrictHostKeyChecking", if policy == HostKeyPolicy::AcceptNew { "accept-new" } else { "yes" });
    option("ConnectTimeout", &inventory.connect_timeout().as_secs().to_string());
    if let Some(known_hosts) = inventory.known_hosts() {
        option("UserKnownHostsFile", &path_value(known_hosts));
        option("GlobalKnownHostsFile", "none");
    }
    text + COMMON_OPTIONS
}

/// A path as a value of ssh_config(5), which expands `%`. The inventory refuses quotes and backslashes.
fn path_value(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('%', "%%"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{HostKeyPolicy, SshClient};
    use crate::inventory::Inventory;

    /// ssh itself prints the options that it would use.
    #[test]
    fn ssh_reads_the_configuration_as_meant() {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("a key of 100%");
        std::fs::write(&key, "").unwrap();
        let text = "known_hosts = \"a key of 100%\"\n[[hosts]]\nname = \"gw\"\naddress = \"::1\"\n[[hosts]]\nname = \"n1\"\n\
                    address = \"10.0.0.1\"\nport = 2222\nuser = \"tester\"\nkey = \"a key of 100%\"\njump = \"gw\"\n";
        let inventory = Inventory::parse(&directory.path().join("hosts.toml"), text).unwrap();
        let client = SshClient::new(&inventory, HostKeyPolicy::RequireKnown).unwrap();
        let config = client.directory.path().join(super::CONFIG_NAME);
        let output =
            Command::new("ssh").arg("-G").arg("-F").arg(config).args(["--", "n1"]).output().expect("ssh(1) runs");
        let options = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let has = |line: &str| assert!(options.lines().any(|option| option == line), "no `{line}` in {options}");
        has("hostname 10.0.0.1");
        has("port 2222");
        has("user tester");
        has("proxyjump gw");
        has("batchmode yes");
        has("stricthostkeychecking true");
        has("passwordauthentication no");
        has("identitiesonly yes");
        // ssh expands the path of a key later.
        has(&format!("identityfile {}", key.display().to_string().replace('%', "%%")));
        has(&format!("userknownhostsfile {}", key.display()));
    }
}
