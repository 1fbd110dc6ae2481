//! The provider for the same host: asks the owner once, through a Unix socket, then reads the template's memory for
//! itself.
//!
//! ```text
//!  requester                                     owner
//!     │ OPEN, ASK GRANTS, READ …                   │   the first reads go through the owner
//!     │───────────────────────────────────────────▶│
//!     │ DATA …          GRANTED addresses + pidfd  │
//!     │◀───────────────────────────────────────────│
//!     │                         template           │
//!     │ /proc/PID/mem, is it still alive?     │    │   then nobody is asked
//!     │──────────────────────────────────────▶│    │
//! ```
//!
//! Writes and messages go through the owner.
//!
//! In any doubt the owner is asked: what was not granted (copies of shared memory, the descriptor), what lies outside
//! the bounds, and what cannot be read, goes through the socket, and the owner's answer counts. Only a template that
//! has ended needs no answer: its seed is gone.
//!
//! The owner checks the token when it grants. A requester that may read another process's memory has root's power over
//! it (ptrace(2)), so that nothing is lost by not asking at each read; dropping a seed ends its template, which ends
//! every grant.

mod connection;
mod dialer;
mod grant_cache;
mod server;
mod stream;

pub use connection::connect;
pub use dialer::ShmDialer;
pub use server::ShmServer;
