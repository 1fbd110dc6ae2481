//! A pool of connections to the owners of seeds, for reads that the daemon makes itself: descriptors and shared memory.
//! A used connection is kept for a while, because the authentication of a new connection takes longer than such a read.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfork_fabric::{Address, Connection};
use farfork_trust::Credentials;
use farfork_wire::NodeName;

use crate::pager::OWNER_IDLE_TIMEOUT;
use crate::resume::ResumeError;

/// Maximum number of idle connections. The least recently used one is closed first.
const IDLE_MAX: usize = 8;

/// Idle connections to owners.
#[derive(Default)]
pub struct OwnerConnectionPool {
    credentials: Option<Credentials>,
    /// Idle connections, the most recently used last.
    idle: Mutex<Vec<IdleConnection>>,
}

struct IdleConnection {
    node: NodeName,
    connection: Box<dyn Connection>,
    since: Instant,
}

impl OwnerConnectionPool {
    /// Creates an empty pool. With `credentials`, both ends of connections to other machines are authenticated.
    pub fn new(credentials: Option<Credentials>) -> Self {
        Self { credentials, idle: Mutex::default() }
    }

    /// Calls `read` with a connection to the owner at `address`, which must be `node`. Keeps the connection in the pool
    /// unless `read` fails.
    ///
    /// # Errors
    /// The errors of `read`, or of opening a connection.
    pub(crate) fn with_connection<T>(
        &self,
        address: &Address,
        node: &NodeName,
        read: impl FnOnce(&mut dyn Connection) -> Result<T, ResumeError>,
    ) -> Result<T, ResumeError> {
        let mut connection = match self.take_idle(address, node) {
            Some(connection) => connection,
            None => farfork_fabric::connect_node(address, node, self.credentials.as_ref())
                .map_err(ResumeError::creation_error("a connection"))?,
        };
        let outcome = read(&mut *connection)?;
        // Keep only TCP connections: a local one needs no authentication, and would keep the memory of templates.
        if matches!(address, Address::Tcp(_)) {
            self.store_idle(IdleConnection { node: node.clone(), connection, since: Instant::now() });
        }
        Ok(outcome)
    }

    /// Whether the pool holds idle connections.
    pub fn has_idle(&self) -> bool {
        !self.lock_idle().is_empty()
    }

    /// Closes connections that were unused for too long.
    pub fn close_idle(&self) {
        self.close_unused_for(OWNER_IDLE_TIMEOUT);
    }

    fn close_unused_for(&self, limit: Duration) {
        self.lock_idle().retain(|idle| idle.since.elapsed() < limit);
    }

    /// Takes the most recently used connection to this owner.
    fn take_idle(&self, address: &Address, node: &NodeName) -> Option<Box<dyn Connection>> {
        let mut idle = self.lock_idle();
        let found = idle.iter().rposition(|idle| idle.connection.address() == address && idle.node == *node)?;
        Some(idle.remove(found).connection)
    }

    fn store_idle(&self, link: IdleConnection) {
        let mut idle = self.lock_idle();
        if idle.len() >= IDLE_MAX {
            idle.remove(0);
        }
        idle.push(link);
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<IdleConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for OwnerConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerLinks").field("idle", &self.lock_idle().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::TcpListener;
    use std::sync::Arc;

    use farfork_fabric::{Exporter, RegionRegistry, tcp};

    use super::*;

    /// Returns the address of a connection object in memory, which identifies the connection.
    fn memory_address(connection: &mut dyn Connection) -> Result<usize, ResumeError> {
        Ok(std::ptr::from_mut(connection).cast::<()>() as usize)
    }

    #[test]
    fn a_connection_is_reused_until_a_read_fails() {
        let exporter: Arc<dyn Exporter> = Arc::new(RegionRegistry::default());
        let servers =
            [(); 2].map(|()| tcp::TcpServer::start(TcpListener::bind("127.0.0.1:0").unwrap(), &exporter).unwrap());
        let [address, other] = servers.each_ref().map(tcp::TcpServer::address);
        let [n1, n2] = ["n1", "n2"].map(|name| NodeName::new(name).unwrap());
        let links = OwnerConnectionPool::default();
        let first = links.with_connection(&address, &n1, memory_address).unwrap();
        for (address, node) in [(&address, &n2), (&other, &n1)] {
            assert_ne!(links.with_connection(address, node, memory_address).unwrap(), first, "that is another owner");
        }
        assert_eq!(links.with_connection(&address, &n1, memory_address).unwrap(), first);

        let failed = links.with_connection(&address, &n1, |_| {
            Err::<(), _>(ResumeError::creation_error("a file")(io::Error::other("full")))
        });
        assert_eq!(
            (failed.unwrap_err().to_string().as_str(), links.lock_idle().len()),
            ("a file could not be created: full", 2)
        );
        links.close_idle();
        assert!(links.has_idle(), "recently used connections are kept");
        links.close_unused_for(Duration::ZERO);
        assert!(!links.has_idle());
    }

    #[test]
    fn the_number_of_idle_connections_is_bounded() {
        let exporter: Arc<dyn Exporter> = Arc::new(RegionRegistry::default());
        let server = tcp::TcpServer::start(TcpListener::bind("127.0.0.1:0").unwrap(), &exporter).unwrap();
        let links = OwnerConnectionPool::default();
        for number in 0..=IDLE_MAX {
            links
                .with_connection(&server.address(), &NodeName::new(&format!("n{number}")).unwrap(), memory_address)
                .unwrap();
        }
        assert_eq!(links.lock_idle().len(), IDLE_MAX);
        assert!(links.take_idle(&server.address(), &NodeName::new("n0").unwrap()).is_none(), "the oldest is closed");
    }
}
