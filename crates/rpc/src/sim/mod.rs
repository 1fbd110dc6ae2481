//! Client and server in the fabric's simulated world, for tests. They run the same code as on sockets; only the transport
//! and the clock differ. The world's random seed determines everything, including faults.

mod connector;
mod server;

pub use connector::SimConnector;
pub use server::SimServer;
