//! [`NodeSettings`]: the node of one host, as the coordinator describes it.

use std::net::SocketAddr;
use std::path::PathBuf;

use farfork_wire::NodeName;
use serde::{Deserialize, Serialize};

/// The programs of a node, next to each other: `farfork`, and the one of `farfork bench`.
pub(crate) const PROGRAMS: [&str; 2] = ["farfork", "farfork-bench"];

/// The node of one host. The inventory ensures that paths and arguments need no quotes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeSettings {
    pub(crate) name: NodeName,
    pub(crate) listen: SocketAddr,
    /// A node of the cluster; `None` for the node that holds the authority.
    pub(crate) join: Option<SocketAddr>,
    /// The directory of the programs.
    pub(crate) program_dir: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) trust: PathBuf,
    /// The log of a daemon that systemd does not run.
    pub(crate) log: PathBuf,
    /// Further arguments of `farfork node`.
    pub(crate) arguments: Vec<String>,
}

impl NodeSettings {
    /// The path of `farfork`.
    pub(crate) fn program(&self) -> PathBuf {
        self.program_dir.join(PROGRAMS[0])
    }

    /// The command line of the daemon.
    pub(crate) fn command_line(&self) -> Vec<String> {
        let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
        let mut line = vec![path(&self.program()), "node".to_owned(), "--name".to_owned(), self.name.to_string()];
        line.extend(["--listen".to_owned(), self.listen.to_string()]);
        line.extend(["--run-dir".to_owned(), path(&self.run_dir), "--trust".to_owned(), path(&self.trust)]);
        line.extend(self.join.iter().flat_map(|join| ["--join".to_owned(), join.to_string()]));
        line.extend(self.arguments.iter().cloned());
        line
    }
}
