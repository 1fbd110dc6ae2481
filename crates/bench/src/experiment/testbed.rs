//! The testbed of connection benchmarks: a server and its clients without nodes, and a cluster of two members for endpoints
//! that authenticate each other.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use farfork_trust::{NODE_VALID, Role, TrustDirectory, member};
use farfork_wire::NodeName;
use serde::Serialize;

use crate::endpoint::specification::{CLIENT, EndpointIdentity, EndpointSpec, SERVER};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::namespace::NamespaceMachine;
use crate::machine::program::RunningProgram;
use crate::machine::source::MachineSource;
use crate::scratch::{SCRATCH_PARENT, ScratchDirectory};

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

/// The machines of a run. They and their files are removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Testbed {
    server: Box<dyn Machine>,
    clients: Vec<Box<dyn Machine>>,
    // Dropped last, because the files of the machines are in it. `None` for hosts, which have their own directories.
    _scratch: Option<ScratchDirectory>,
}

/// The directory of a machine's credentials, in its scratch directory.
const TRUST: &str = "trust";

impl Testbed {
    /// Makes a server and `clients` clients, each of which has credentials. On hosts, the first one is the server.
    pub(crate) fn new(source: &MachineSource, clients: usize) -> Result<Self, BenchError> {
        let testbed = match source.first_hosts(clients + 1)? {
            Some(mut machines) => Self::of_machines(machines.remove(0), machines, None),
            None => {
                let scratch = ScratchDirectory::create(SCRATCH_PARENT.as_ref(), &source.farfork)?;
                let (server, clients) = NamespaceMachine::server_and_clients(clients, scratch.path(), &source.farfork)?;
                Self::of_machines(server, clients, Some(scratch))
            }
        };
        testbed.create_cluster()?;
        Ok(testbed)
    }

    fn of_machines<M: Machine + 'static>(server: M, clients: Vec<M>, scratch: Option<ScratchDirectory>) -> Self {
        let clients = clients.into_iter().map(|client| Box::new(client) as Box<dyn Machine>).collect();
        Self { server: Box::new(server), clients, _scratch: scratch }
    }

    /// Creates a cluster of two members. All clients are the same member.
    fn create_cluster(&self) -> Result<(), BenchError> {
        let failed = |cause| BenchError::File { path: TRUST.into(), cause };
        let directory = tempfile::tempdir().map_err(failed)?;
        let [server, client] = [SERVER, CLIENT].map(|name| TrustDirectory::new(directory.path().join(name)));
        let named = |name| NodeName::new(name).expect("the name is valid");
        let now = SystemTime::now();
        member::create_cluster(&server, &named("bench"), &named(SERVER), now)
            .and_then(|_| member::issue_client_directory(&server, &client, Role::Node, &named(CLIENT), now, NODE_VALID))
            .map_err(|cause| failed(io::Error::other(cause)))?;
        let clients = self.clients(self.clients.len()).map(|machine| (machine, &client));
        for (machine, member) in clients.chain([(self.server(), &server)]) {
            for path in [member.identity_path(), member.roster_path()] {
                let content = fs::read(&path).map_err(failed)?;
                machine.write_file(Path::new(TRUST).join(path.file_name().unwrap_or_default()), "600", &content)?;
            }
        }
        Ok(())
    }

    pub(crate) fn server(&self) -> &dyn Machine {
        self.server.as_ref()
    }

    /// The first `count` clients.
    pub(crate) fn clients(&self, count: usize) -> impl Iterator<Item = &dyn Machine> {
        self.clients[..count].iter().map(AsRef::as_ref)
    }

    /// The names of the first `count` clients; none if they are parts of this machine.
    pub(crate) fn client_hosts(&self, count: usize) -> Vec<String> {
        self.clients(count).filter_map(|client| client.name().map(str::to_owned)).collect()
    }

    /// Whether server and clients share the CPUs of this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.server.name().is_none()
    }

    /// The number of CPUs of the server.
    pub(crate) fn server_processors(&self) -> Result<usize, BenchError> {
        let output = self.server().run("nproc", &Command::new("nproc"), &[])?;
        let count = String::from_utf8_lossy(&output).trim().parse();
        count.map_err(|error| BenchError::Program { program: "nproc", cause: io::Error::other(error) })
    }

    /// All machines.
    pub(crate) fn machines(&self) -> impl Iterator<Item = &dyn Machine> {
        self.clients(self.clients.len()).chain([self.server()])
    }
}

/// Starts an endpoint on a machine. It gets the credentials of the machine.
pub(crate) fn start_endpoint(
    machine: &dyn Machine,
    protection: ConnectionSecurity,
    end: EndpointSpec,
) -> Result<RunningProgram, BenchError> {
    let encrypted = protection == ConnectionSecurity::Encrypted;
    let identity = EndpointIdentity { directory: machine.scratch().join(TRUST), encrypted };
    let identity = (protection != ConnectionSecurity::None).then_some(identity);
    machine.start_process(end.system.name(), "endpoint", &EndpointSpec { identity, ..end })
}
