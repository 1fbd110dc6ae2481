//! The testbed of connection benchmarks: namespaces for a server and its clients, a directory for programs, and a
//! cluster of two members for endpoints that authenticate each other.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use farfork_trust::{NODE_VALID, Role, TrustDirectory, member};
use farfork_wire::NodeName;
use serde::Serialize;
use serde_json::json;

use crate::endpoint::specification::{CLIENT, EndpointIdentity, EndpointSpec, SERVER};
use crate::error::BenchError;
use crate::scratch::{SCRATCH_PARENT, ScratchDirectory};
use crate::veth_network::VethNetwork;

/// The protection of the connections of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ConnectionSecurity {
    /// Nothing: plain TCP.
    None,
    /// Both ends authenticate each other. Data is not encrypted.
    Authenticated,
    /// Both ends authenticate each other. Data is encrypted.
    Encrypted,
}

/// The namespaces and files of a run. They are removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub(crate) network: VethNetwork,
    /// The program whose command `bench end` runs the endpoints.
    pub(crate) farfork: PathBuf,
    pub(crate) scratch: ScratchDirectory,
}

impl Testbed {
    /// Creates the namespaces for a server and `clients` clients, and the cluster.
    pub(crate) fn new(farfork: &Path, clients: usize) -> Result<Self, BenchError> {
        let scratch = ScratchDirectory::create(SCRATCH_PARENT.as_ref(), farfork)?;
        let stage = Self { network: VethNetwork::new(clients)?, farfork: farfork.to_owned(), scratch };
        let [server, client] = [SERVER, CLIENT].map(|name| TrustDirectory::new(stage.scratch.path().join(name)));
        let named = |name| NodeName::new(name).expect("the name is valid");
        let now = SystemTime::now();
        member::create_cluster(&server, &named("bench"), &named(SERVER), now)
            .and_then(|_| member::issue_client_directory(&server, &client, Role::Node, &named(CLIENT), now, NODE_VALID))
            .map_err(|cause| BenchError::File { path: SCRATCH_PARENT.into(), cause: io::Error::other(cause) })?;
        Ok(stage)
    }

    /// The identity of a member of the cluster; `None` without authentication.
    pub(crate) fn identity(&self, protection: ConnectionSecurity, name: &str) -> Option<EndpointIdentity> {
        let encrypted = protection == ConnectionSecurity::Encrypted;
        let identity = EndpointIdentity { directory: self.scratch.path().join(name), encrypted };
        (protection != ConnectionSecurity::None).then_some(identity)
    }
}

/// The command that runs an endpoint in the namespace of `command`.
pub(crate) fn endpoint_command(mut command: Command, farfork: &Path, end: &EndpointSpec) -> Command {
    command.arg(farfork).args(["bench", "end"]).arg(json!(end).to_string());
    command
}
