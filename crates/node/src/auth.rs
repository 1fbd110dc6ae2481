//! Who may ask a node for what: the one place where authentication belongs.
//!
//! A request comes through one of two doors. The Unix socket is guarded by its permissions (mode 0600: its owner). The
//! network's door is **not guarded yet**: whoever reaches the control port may do all that a node may, so it must be
//! reachable from the cluster's own network only. Every request, of both services, passes [`Doorkeeper`], which is where
//! a peer's identity will be checked.

use tonic::service::Interceptor;
use tonic::{Request, Status};

/// Where a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// The node's Unix socket.
    Socket,
    /// The node's control port.
    Network,
}

/// Stands at a door, sees each request, and notes on it where it came in.
#[derive(Debug, Clone, Copy)]
pub struct Doorkeeper(pub Door);

impl Interceptor for Doorkeeper {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.extensions_mut().insert(self.0);
        Ok(request)
    }
}
