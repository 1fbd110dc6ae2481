//! [`HostDeployment`]: a connected and locked host, and the steps on it.

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use farfork_remote::inventory::{Inventory, InventoryHost};
use farfork_remote::ssh::{CopyOutcome, HostLock, RemoteHost, SshClient};
use farfork_wire::NodeName;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use crate::commands::remote_node::{NodeReport, NodeSettings, PROGRAMS, RemovalReport, staged_path};

/// Permissions of the programs.
const PROGRAM_MODE: u32 = 0o755;

/// Lifetime of a join token. It is used at once.
const TOKEN_LIFETIME: &str = "10m";

/// Longest wait until a new node is a member that takes children.
const MEMBER_LIMIT: Duration = Duration::from_secs(60);
const MEMBER_INTERVAL: Duration = Duration::from_millis(100);

/// Prints the arguments that are paths of existing files.
const EXIST_SCRIPT: &str = r#"for path do [ ! -e "$path" ] || echo "$path"; done"#;

/// Executes a program with arguments.
const EXEC_SCRIPT: &str = r#"exec "$@""#;

/// Installs copied programs: moves each $1 to $2, and so on.
const INSTALL_SCRIPT: &str = r#"while [ $# -gt 0 ]; do mv -f -T -- "$1" "$2" || exit 1; shift 2; done"#;

/// A connected and locked host.
#[derive(Debug)]
pub(super) struct HostDeployment {
    pub(super) remote: RemoteHost,
    lock: HostLock,
    pub(super) settings: NodeSettings,
    /// The cluster of the node.
    pub(super) cluster: NodeName,
    /// Whether the inventory names this host as the one with the authority.
    pub(super) is_authority: bool,
    /// The programs that were copied next to their places.
    staged: Vec<PathBuf>,
    /// The identity and the daemon of the host.
    pub(super) report: NodeReport,
    /// The changes, as text for people.
    pub(super) changes: Vec<String>,
}

impl HostDeployment {
    /// Connects to a host and locks it. Changes nothing else.
    pub(super) async fn open(
        client: &SshClient,
        inventory: &Inventory,
        host: &InventoryHost,
        operation: &str,
    ) -> anyhow::Result<Self> {
        let remote = client.connect(host).await?;
        let lock = remote.lock_for_coordinator(&format!("cluster {operation}")).await?;
        let settings = node_settings(inventory, &remote).await?;
        Ok(Self {
            remote,
            lock,
            settings,
            cluster: inventory.install().cluster.clone(),
            is_authority: host.name == inventory.authority().name,
            staged: Vec::new(),
            report: NodeReport::default(),
            changes: Vec::new(),
        })
    }

    /// Whether the host has a program, a directory or keys of a node. A deployment that was killed may leave copied programs only.
    pub(super) async fn has_installation(&self) -> anyhow::Result<bool> {
        let programs = PROGRAMS.map(|program| self.settings.program_dir.join(program));
        let staged = programs.clone().map(|program| staged_path(&program));
        let directories = [&self.settings.run_dir, &self.settings.trust];
        let paths: Vec<&str> = programs.iter().chain(&staged).chain(directories).map(|path| text(path)).collect();
        let found = self.remote.require_script("look for a node", EXIST_SCRIPT, &paths, b"").await?;
        Ok(!found.is_empty())
    }

    /// Copies the programs next to their places, and inspects the host with them.
    pub(super) async fn prepare(&mut self) -> anyhow::Result<()> {
        self.stage_programs().await?;
        self.report = self.run_node_operation("inspect", &[]).await?;
        Ok(())
    }

    /// Copies the programs of this command next to their places, unless the host has the same ones.
    async fn stage_programs(&mut self) -> anyhow::Result<()> {
        let own = env::current_exe().context("the path of this program")?;
        for program in PROGRAMS {
            let local = if program == PROGRAMS[0] { own.clone() } else { own.with_file_name(program) };
            let installed = self.settings.program_dir.join(program);
            if !local.exists() || self.remote.has_file(&local, text(&installed), PROGRAM_MODE).await? {
                continue;
            }
            let staged = staged_path(&installed);
            self.staged.push(installed);
            if self.remote.copy_file(&local, text(&staged), PROGRAM_MODE).await? == CopyOutcome::Copied {
                tracing::debug!(host = self.remote.name(), program, "copied");
            }
        }
        Ok(())
    }

    /// Whether the host gets another `farfork` than it has.
    pub(super) fn has_new_program(&self) -> bool {
        self.staged.contains(&self.settings.program())
    }

    /// The path of this command's `farfork` on the host.
    fn runnable_program(&self) -> PathBuf {
        let program = self.settings.program();
        if self.has_new_program() { staged_path(&program) } else { program }
    }

    /// Moves the copied programs to their places.
    pub(super) async fn install_programs(&mut self) -> anyhow::Result<()> {
        let staged: Vec<PathBuf> = self.staged.iter().map(|path| staged_path(path)).collect();
        let paths: Vec<&str> = staged.iter().zip(&self.staged).flat_map(|(from, to)| [text(from), text(to)]).collect();
        self.remote.require_script("install the programs", INSTALL_SCRIPT, &paths, b"").await?;
        self.changes.extend(self.staged.drain(..).map(|path| path.display().to_string()));
        Ok(())
    }

    /// Creates a cluster on this host.
    pub(super) async fn create_cluster(&mut self) -> anyhow::Result<()> {
        let (name, cluster) = (self.settings.name.as_str(), self.cluster.as_str());
        self.run_cluster_command(&["init", "--name", name, "--cluster", cluster], b"").await?;
        self.changes.push(format!("cluster {cluster}"));
        Ok(())
    }

    /// Creates a one-time token of the cluster whose authority this host holds.
    pub(super) async fn create_token(&self) -> anyhow::Result<Zeroizing<String>> {
        let token = self.run_cluster_command(&["token", "--once", "--ttl", TOKEN_LIFETIME], b"").await?;
        Ok(Zeroizing::new(token))
    }

    /// Joins a cluster with a token.
    pub(super) async fn join(&mut self, address: SocketAddr, token: &Zeroizing<String>) -> anyhow::Result<()> {
        let (name, address) = (self.settings.name.to_string(), address.to_string());
        let arguments = ["join", "--name", &name, "--join", &address, "--token-file", "-"];
        self.run_cluster_command(&arguments, token.as_bytes()).await?;
        self.changes.push("identity".to_owned());
        Ok(())
    }

    /// Starts or restarts the daemon, unless it runs as it should.
    pub(super) async fn start(&mut self) -> anyhow::Result<()> {
        let started: serde_json::Value = self.run_node_operation("start", &[]).await?;
        if started["started"] == true {
            self.changes.push("daemon".to_owned());
        }
        Ok(())
    }

    /// Stops the daemon, and removes everything.
    pub(super) async fn remove(&self, with_volumes: bool) -> anyhow::Result<RemovalReport> {
        let options = ["--remove-volumes"];
        self.run_node_operation("remove", &options[..usize::from(with_volumes)]).await
    }

    /// Runs `farfork doctor`. Returns its JSON document.
    pub(super) async fn run_doctor(&self) -> anyhow::Result<serde_json::Value> {
        let (listen, run_dir) = (self.settings.listen.to_string(), text(&self.settings.run_dir));
        // Its exit status is 1 if it has found a problem.
        self.run_json(&["doctor", "--json", "--listen", &listen, "--run-dir", run_dir], b"", &[0, 1]).await
    }

    /// The nodes that the daemon of this host knows, by state.
    pub(super) async fn nodes(&self) -> anyhow::Result<Vec<(String, String)>> {
        let document: serde_json::Value =
            self.run_json(&["nodes", "--json", "--run-dir", text(&self.settings.run_dir)], b"", &[0]).await?;
        let nodes = document["nodes"].as_array().context("a list of nodes")?;
        let value = |node: &serde_json::Value, key: &str| node[key].as_str().unwrap_or_default().to_owned();
        Ok(nodes.iter().map(|node| (value(node, "name"), value(node, "state"))).collect())
    }

    /// Waits until the daemon of this host knows these nodes, and all of them take children.
    pub(super) async fn wait_for_members(&self, names: &[String]) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + MEMBER_LIMIT;
        loop {
            let nodes = self.nodes().await?;
            let is_alive = |name: &String| nodes.iter().any(|(node, state)| node == name && state == "alive");
            let missing: Vec<&str> = names.iter().filter(|name| !is_alive(name)).map(String::as_str).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                let (host, missing) = (self.remote.name(), missing.join(", "));
                bail!("host {host}: its node does not see {missing} alive after {} s", MEMBER_LIMIT.as_secs());
            }
            tokio::time::sleep(MEMBER_INTERVAL).await;
        }
    }

    /// Removes programs that were copied but not installed, releases the lock, and ends the connection.
    pub(super) async fn close(self) {
        for path in &self.staged {
            if let Err(error) = self.remote.remove_file(text(&staged_path(path))).await {
                tracing::warn!("{error}");
            }
        }
        self.lock.release().await;
        self.remote.close().await;
    }

    async fn run_cluster_command(&self, arguments: &[&str], input: &[u8]) -> anyhow::Result<String> {
        let (program, trust) = (self.runnable_program(), text(&self.settings.trust));
        let line = [&[text(&program), "cluster"], arguments, &["--trust", trust]].concat();
        let action = format!("run `farfork cluster {}`", arguments[0]);
        Ok(self.remote.require_script(&action, EXEC_SCRIPT, &line, input).await?)
    }

    async fn run_node_operation<T: DeserializeOwned>(&self, operation: &str, options: &[&str]) -> anyhow::Result<T> {
        let input = serde_json::to_vec(&self.settings)?;
        self.run_json(&[&["remote-node", operation], options].concat(), &input, &[0]).await
    }

    /// Runs `farfork` on the host, and parses its JSON document.
    async fn run_json<T: DeserializeOwned>(
        &self,
        arguments: &[&str],
        input: &[u8],
        statuses: &[i32],
    ) -> anyhow::Result<T> {
        let program = self.runnable_program();
        let output = self.remote.script(EXEC_SCRIPT, &[&[text(&program)], arguments].concat(), input).await?;
        let object = || format!("host {}: `farfork {}`", self.remote.name(), arguments[0]);
        if !statuses.contains(&output.status) {
            let messages: Vec<&str> = output.stderr.lines().map(str::trim).collect();
            bail!("{}: {} (exit status {})", object(), messages.join("; "), output.status);
        }
        serde_json::from_str(&output.stdout).with_context(object)
    }
}

/// The node of a host, as the inventory describes it.
async fn node_settings(inventory: &Inventory, remote: &RemoteHost) -> anyhow::Result<NodeSettings> {
    let (install, host) = (inventory.install(), remote.inventory_host());
    let program = install.program(PROGRAMS[0]);
    Ok(NodeSettings {
        name: host.name.clone(),
        listen: SocketAddr::new(remote.traffic_address().await?, install.port),
        join: None,
        program_dir: program.parent().expect("it is in `bin`").to_owned(),
        run_dir: install.run_dir.clone(),
        trust: install.trust.clone(),
        log: install.log.clone(),
        arguments: install.arguments.clone(),
    })
}

/// A path of the inventory, which is UTF-8.
fn text(path: &Path) -> &str {
    path.to_str().expect("the inventory is UTF-8")
}
