//! Client and server in a simulated world of the fabric: what runs there is the code that runs on sockets; only who carries
//! the bytes, and who tells the time, differ. All of it, and every misfortune, comes from the world's seed.

mod connector;
mod server;

pub use connector::SimConnector;
pub use server::SimServer;
