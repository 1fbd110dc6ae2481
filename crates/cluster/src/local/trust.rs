//! Who is who in a local cluster: its nodes have identities before they start, as they would after joining. The first
//! holds the authority. A client's identity lies beside them, for commands that speak to a node over the network.
//!
//! ```text
//! RUN/NODE/trust/     a node's trust directory
//! RUN/client/         a client's
//! ```

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use farfork_trust::member::{self, CLIENT_VALID, MemberError};
use farfork_trust::{Directory, NODE_VALID, Role};
use farfork_wire::NodeName;

use super::error::LocalError;
use super::node::LocalNode;

/// The client's directory and name.
const CLIENT: &str = "client";

/// A node's trust directory.
pub(super) fn of_node(run_dir: &Path) -> PathBuf {
    run_dir.join("trust")
}

/// The client's trust directory.
pub(super) fn of_client(cluster_dir: &Path) -> PathBuf {
    cluster_dir.join(CLIENT)
}

/// Makes all of them, for the nodes of a cluster of this name. The nodes' run directories are there.
pub(super) fn make(cluster: &str, nodes: &[LocalNode], cluster_dir: &Path) -> Result<(), LocalError> {
    let failed = |cause: MemberError| LocalError::Trust { cause };
    let name = |text: &str| NodeName::new(text).map_err(|cause| LocalError::Name { name: text.to_owned(), cause });
    let now = SystemTime::now();
    let (cluster, first) = (name(cluster)?, Directory::new(of_node(&nodes[0].run_dir)));
    member::init(&first, &cluster, &name(&nodes[0].name)?, now).map_err(failed)?;
    for node in &nodes[1..] {
        let into = Directory::new(of_node(&node.run_dir));
        member::issue_directory(&first, &into, Role::Node, &name(&node.name)?, now, NODE_VALID).map_err(failed)?;
    }
    let into = Directory::new(of_client(cluster_dir));
    member::issue_directory(&first, &into, Role::Client, &name(CLIENT)?, now, CLIENT_VALID).map_err(failed)
}
