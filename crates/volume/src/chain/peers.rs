//! Clients for calls to the offload processes of other nodes. One thread at a time uses a client.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farfork_cluster::catalog::{Catalog, CatalogError, VolumeNode};
use farfork_fabric::TlsSecurity;
use farfork_rpc::client::{BlockingCallError, TcpConnector};
use farfork_rpc::{CallError, Client, OutgoingRequest, SessionHandle, Status, TypedCall, TypedCallError};
use farfork_trust::Credentials;
use farfork_wire::NodeName;

use super::calls::is_idempotent;

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
    /// The node has lost the session of the call.
    #[error(
        "node {0} may or may not have executed a call, because it has restarted or could not be reached for a while: see whether \
         its daemon runs (`farfork nodes`)"
    )]
    SessionLost(NodeName),
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
            // A node that has restarted has lost the sessions of its earlier connections.
            idle.retain_mut(|client| client.node != *node || (client.address == address && client.is_connected()));
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
    /// Whether the node has not closed the connection, as far as this machine knows. The client has no unanswered call.
    fn is_connected(&mut self) -> bool {
        self.client.poll(Instant::now(), |_| {});
        self.client.socket().is_some()
    }

    /// Makes one call, and waits for the reply. If the node restarts meanwhile, makes the call once more with a new session,
    /// unless a second execution could do harm.
    ///
    /// # Errors
    /// `Call`, `TimedOut`, or `SessionLost`.
    pub fn call<C: TypedCall>(&mut self, request: &C::Request, timeout: Duration) -> Result<C::Reply, PeerError> {
        let deadline = Instant::now() + timeout;
        match self.call_once::<C>(request, deadline) {
            Err(PeerError::SessionLost(_)) if is_idempotent(C::ID) => self.call_once::<C>(request, deadline),
            reply => reply,
        }
    }

    fn call_once<C: TypedCall>(&mut self, request: &C::Request, deadline: Instant) -> Result<C::Reply, PeerError> {
        let call = OutgoingRequest { deadline: Some(deadline), ..OutgoingRequest::default() };
        let answer = self.client.call_typed::<C>(self.session, &call, request);
        answer.map_err(|source| match source {
            TypedCallError::Call(BlockingCallError::Call(CallError::DeadlineExceeded)) => {
                PeerError::TimedOut(self.node.clone())
            }
            TypedCallError::Call(BlockingCallError::Call(CallError::SessionLost)) => {
                PeerError::SessionLost(self.node.clone())
            }
            source => PeerError::Call { node: self.node.clone(), source },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use farfork_cluster::catalog::{FileCatalog, VolumeName};
    use farfork_rpc::server::{PlainAcceptor, ServerConfig};
    use farfork_rpc::{HandlerTable, Server};

    use super::super::calls::{HasClient, LendTree, VolumeKey};
    use super::*;

    /// A server that answers `HasClient`, and refuses `LendTree`.
    fn serve(address: SocketAddr) -> Server {
        let table = || {
            let mut table = HandlerTable::default();
            table.add_typed_handler::<HasClient>(|_| Ok(true));
            table.add_typed_handler::<LendTree>(|_| Err("no tree".to_owned()));
            table
        };
        let config = ServerConfig { threads: 1, should_spin: false };
        Server::start(TcpListener::bind(address).unwrap(), &config, Arc::new(PlainAcceptor), table).unwrap()
    }

    #[test]
    fn a_call_after_a_restart_of_the_node_uses_a_new_session() {
        let directory = tempfile::tempdir().unwrap();
        let catalog = FileCatalog::new(&directory.path().join("catalog"));
        let server = serve(([127, 0, 0, 1], 0).into());
        let (node, rpc) = (NodeName::new("n1").unwrap(), server.address());
        catalog.register_node(&node, &VolumeNode { fabric: rpc, rpc }).unwrap();
        let peers = PeerClients::new(Arc::new(catalog), None);
        let volume = VolumeKey { name: VolumeName::new("data").unwrap(), id: 1 };
        let (idempotent, other) = (HasClient(volume.clone()), LendTree { volume, epoch: 1, at_least: Vec::new() });
        let restart = |server: Server| {
            drop(server);
            serve(rpc)
        };
        let mut clients = [(); 2].map(|()| peers.client(&node).unwrap());
        for client in &mut clients {
            assert!(client.call::<HasClient>(&idempotent, CALL_TIMEOUT).unwrap());
        }
        assert!(peers.call::<HasClient>(&node, &idempotent, CALL_TIMEOUT).unwrap());

        let server = restart(server);
        let refused = peers.call::<LendTree>(&node, &other, CALL_TIMEOUT).unwrap_err();
        assert!(
            refused.is_refusal(),
            "an idle client is not used after the server has closed its connection: {refused}"
        );
        // The clients have not noticed the restart, and send to the lost session.
        let [first, second] = &mut clients;
        assert!(first.call::<HasClient>(&idempotent, CALL_TIMEOUT).unwrap(), "the call is repeated");
        let lost = second.call::<LendTree>(&other, CALL_TIMEOUT).unwrap_err();
        assert!(matches!(lost, PeerError::SessionLost(_)), "{lost}");
        assert!(second.call::<LendTree>(&other, CALL_TIMEOUT).unwrap_err().is_refusal());
        drop(server);
    }
}
