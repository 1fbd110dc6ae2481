//! Identities of a local cluster's members. Each node's identity is made before the node starts (`RUN/NODE/trust/`), not by
//! joining. The first node holds the authority. A client's identity is in `RUN/client/`, for commands that connect to a node
//! over the network.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use farfork_trust::member::{self, CLIENT_VALID, MemberError};
use farfork_trust::{NODE_VALID, Role, TrustDirectory};
use farfork_wire::NodeName;

use super::error::LocalError;
use super::node::LocalNode;

/// The client's directory and name.
const CLIENT: &str = "client";

/// A node's trust directory.
pub(super) fn node_trust_dir(run_dir: &Path) -> PathBuf {
    run_dir.join("trust")
}

/// The client's trust directory.
pub(super) fn client_trust_dir(cluster_dir: &Path) -> PathBuf {
    cluster_dir.join(CLIENT)
}

/// Makes the identities of all nodes and of the client. The nodes' run directories must exist.
pub(super) fn create_identities(cluster: &str, nodes: &[LocalNode], cluster_dir: &Path) -> Result<(), LocalError> {
    let failed = |cause: MemberError| LocalError::Trust { cause };
    let name =
        |text: &str| NodeName::new(text).map_err(|cause| LocalError::InvalidName { name: text.to_owned(), cause });
    let now = SystemTime::now();
    let (cluster, first) = (name(cluster)?, TrustDirectory::new(node_trust_dir(&nodes[0].run_dir)));
    member::create_cluster(&first, &cluster, &name(&nodes[0].name)?, now).map_err(failed)?;
    for node in &nodes[1..] {
        let into = TrustDirectory::new(node_trust_dir(&node.run_dir));
        member::issue_client_directory(&first, &into, Role::Node, &name(&node.name)?, now, NODE_VALID)
            .map_err(failed)?;
    }
    let into = TrustDirectory::new(client_trust_dir(cluster_dir));
    member::issue_client_directory(&first, &into, Role::Client, &name(CLIENT)?, now, CLIENT_VALID).map_err(failed)
}
