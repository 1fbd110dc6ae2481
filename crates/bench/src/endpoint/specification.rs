//! `EndpointSpec`: the role and options of an endpoint, which it reads as JSON from its input.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use farfork_fabric::Security;
use farfork_trust::{Credentials, Encryption, TrustDirectory};
use serde::{Deserialize, Serialize};

/// Names of the two members of the cluster that the benchmark creates.
pub(crate) const SERVER: &str = "server";
pub(crate) const CLIENT: &str = "client";

/// The RPC system of both endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RpcSystem {
    /// farfork's own calls.
    Farfork,
    /// Messages with only a length prefix, on tokio.
    Tokio,
    /// gRPC, a request for each call.
    TonicUnary,
    /// gRPC, all calls on one stream.
    TonicStream,
    /// tarpc over TCP.
    Tarpc,
}

impl RpcSystem {
    /// The systems that farfork is compared with, the fastest first.
    pub(crate) const PEERS: [Self; 4] = [Self::Tokio, Self::TonicStream, Self::Tarpc, Self::TonicUnary];

    /// The name of the system in a table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Farfork => "farfork",
            Self::Tokio => "tokio echo",
            Self::TonicUnary => "tonic unary",
            Self::TonicStream => "tonic stream",
            Self::Tarpc => "tarpc",
        }
    }
}

/// The role and options of an endpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EndpointSpec {
    pub(crate) system: RpcSystem,
    pub(crate) role: EndpointRole,
    /// Whether to poll for a while before sleeping, if the system supports that.
    pub(crate) spins: bool,
    /// The endpoint's identity, if both ends authenticate each other.
    pub(crate) identity: Option<EndpointIdentity>,
    /// The CPUs that the endpoint's threads may use; all if empty.
    pub(crate) processors: Vec<usize>,
}

impl EndpointSpec {
    /// An endpoint that neither spins nor is pinned, without an identity.
    pub(crate) fn new(system: RpcSystem, role: EndpointRole) -> Self {
        Self { system, role, spins: false, identity: None, processors: Vec::new() }
    }
}

/// A member of the cluster that the benchmark creates.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EndpointIdentity {
    /// The directory of the member's credentials.
    pub(crate) directory: PathBuf,
    pub(crate) encrypted: bool,
}

impl EndpointIdentity {
    pub(super) fn credentials(&self) -> io::Result<Credentials> {
        let encryption = if self.encrypted { Encryption::On } else { Encryption::Off };
        let directory = TrustDirectory::new(self.directory.clone());
        Credentials::open(&directory, encryption).map_err(io::Error::other)
    }
}

/// The role of an endpoint, with the parameters of the role.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum EndpointRole {
    /// Ends after `seconds`, even if clients are connected.
    Server {
        ip: IpAddr,
        threads: usize,
        seconds: f64,
    },
    Client {
        to: SocketAddr,
        load: ClientLoad,
    },
    /// Accepts connections, and answers one request on each. Prints the same as a server.
    Acceptor {
        ip: IpAddr,
        threads: usize,
        seconds: f64,
    },
    /// The first node of a chain of sockets. See `baseline/socket_chain.rs`.
    ChainHead {
        to: SocketAddr,
        messages: u64,
        message_bytes: usize,
        /// Whether messages are sent without waiting for acknowledgements.
        streams: bool,
    },
    /// Another node of a chain of sockets: the last one has no next one.
    ChainFollower {
        ip: IpAddr,
        next: Option<SocketAddr>,
        message_bytes: usize,
    },
    /// Answers with the time.
    Clock {
        ip: IpAddr,
    },
    /// Compares its clock with another one.
    ClockClient {
        to: SocketAddr,
    },
    /// Repeatedly opens a connection, sends one request, and closes the connection.
    Connector {
        to: SocketAddr,
        threads: usize,
        seconds: f64,
    },
}

/// The load of a client node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClientLoad {
    pub(crate) threads: usize,
    /// Connections of each thread.
    pub(crate) connections: usize,
    /// Sessions on each connection.
    pub(crate) sessions: usize,
    /// Requests in flight on each session.
    pub(crate) window: usize,
    /// Random bytes of each answer, verified; 0 for empty answers.
    pub(crate) payload_bytes: usize,
    pub(crate) seconds: f64,
    pub(crate) interval_seconds: f64,
}

/// Options of a client of farfork's own calls.
#[derive(Debug, Clone)]
pub(crate) struct ClientOptions {
    pub(crate) spins: bool,
    pub(crate) security: Option<Arc<dyn Security>>,
}

impl ClientLoad {
    /// Number of reported intervals.
    pub(crate) fn interval_count(&self) -> u32 {
        (self.seconds / self.interval_seconds).round().max(1.0) as u32
    }
}
