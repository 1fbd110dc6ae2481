//! Clients for calls to the offload processes of other nodes. One thread at a time uses a client.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farfork_cluster::catalog::{Catalog, CatalogError, VolumeNode};
use farfork_fabric::TlsSecurity;
use farfork_rpc::client::{BlockingCallError, TcpConnector};
use farfork_rpc::{CallError, Client, OutgoingRequest, SessionHandle, Status, TypedCall, TypedCallError};
use farfork_trust::Credentials;
use farfork_wire::NodeName;

/// Longest wait for the reply to a call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of idle clients that are kept.
const IDLE_CLIENTS_MAX: usize = 16;

/// Why a call to a node failed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The catalog cannot be read.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The node has never registered.
    #[error("node {0} does not serve volumes: start its daemon with the same catalog")]
    Unregistered(NodeName),
    /// The node has not replied in time. It may still execute the call.
    #[error("node {0} does not answer: see whether its daemon runs and its address can be reached (`farfork nodes`)")]
    TimedOut(NodeName),
    /// The call failed.
    #[error("node {node}: {source}")]
    Call {
        /// The node.
        node: NodeName,
        /// The cause.
        source: TypedCallError,
    },
}

impl PeerError {
    /// Whether the node has replied with a refusal.
    pub fn is_refusal(&self) -> bool {
        let Self::Call { source: TypedCallError::Call(BlockingCallError::Call(error)), .. } = self else {
            return false;
        };
        matches!(error, CallError::Refused { .. })
    }

    /// Whether the node has an earlier version, which does not know the call.
    pub fn is_unknown_call(&self) -> bool {
        let Self::Call { source: TypedCallError::Call(BlockingCallError::Call(error)), .. } = self else {
            return false;
        };
        *error == CallError::Status(Status::NoHandler)
    }
}

/// A pool of clients. It makes clients, and keeps idle ones.
#[derive(Debug)]
pub struct PeerClients {
    catalog: Arc<dyn Catalog>,
    credentials: Option<Credentials>,
    idle: Mutex<Vec<PeerClient>>,
}

/// A client of one node.
#[derive(Debug)]
pub struct PeerClient {
    node: NodeName,
    address: VolumeNode,
    client: Client,
    session: SessionHandle,
}

impl PeerClients {
    /// Creates a pool of clients for the nodes of a catalog, without any client yet.
    pub fn new(catalog: Arc<dyn Catalog>, credentials: Option<Credentials>) -> Self {
        Self { catalog, credentials, idle: Mutex::default() }
    }

    /// Makes one call, and waits for the reply.
    ///
    /// # Errors
    /// [`PeerError`]. After a timeout, the node may still execute the call.
    pub fn call<C: TypedCall>(
        &self,
        node: &NodeName,
        request: &C::Request,
        timeout: Duration,
    ) -> Result<C::Reply, PeerError> {
        let mut client = self.client(node)?;
        let reply = client.call::<C>(request, timeout)?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CLIENTS_MAX {
            idle.push(client);
        }
        Ok(reply)
    }

    /// Returns an idle or new client for a node, at its last known address.
    ///
    /// # Errors
    /// `Catalog`, `Unregistered`.
    pub fn client(&self, node: &NodeName) -> Result<PeerClient, PeerError> {
        let address = self.address(node)?;
        {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|client| client.node != *node || client.address == address);
            if let Some(index) = idle.iter().position(|client| client.node == *node) {
                return Ok(idle.swap_remove(index));
            }
        }
        let connector = match &self.credentials {
            Some(credentials) => {
                TcpConnector::secured(address.rpc, TlsSecurity::new(credentials.clone()).for_node(node))
            }
            None => TcpConnector::new(address.rpc),
        };
        let mut client = Client::new(Box::new(connector), true);
        let session = client.open_session(1).expect("a new client has room for a session");
        Ok(PeerClient { node: node.clone(), address, client, session })
    }

    /// Returns the last known addresses of a node. Reads the catalog only if the node is unknown, so a writer can connect to
    /// its successor while the catalog does not answer. A call to an old address fails, and is repeated with the next one.
    ///
    /// # Errors
    /// As `client`.
    pub fn address(&self, node: &NodeName) -> Result<VolumeNode, PeerError> {
        if let Some(address) = self.catalog.last_read()?.nodes.get(node) {
            return Ok(address.clone());
        }
        let contents = self.catalog.read()?;
        contents.nodes.get(node).cloned().ok_or_else(|| PeerError::Unregistered(node.clone()))
    }

    /// The identity that other nodes authenticate; none for unencrypted connections.
    pub fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }
}

impl PeerClient {
    /// Makes one call, and waits for the reply.
    ///
    /// # Errors
    /// `Call`, or `TimedOut`.
    pub fn call<C: TypedCall>(&mut self, request: &C::Request, timeout: Duration) -> Result<C::Reply, PeerError> {
        let call = OutgoingRequest { deadline: Some(Instant::now() + timeout), ..OutgoingRequest::default() };
        let answer = self.client.call_typed::<C>(self.session, &call, request);
        answer.map_err(|source| match source {
            TypedCallError::Call(BlockingCallError::Call(CallError::DeadlineExceeded)) => {
                PeerError::TimedOut(self.node.clone())
            }
            source => PeerError::Call { node: self.node.clone(), source },
        })
    }
}
