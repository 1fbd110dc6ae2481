//! The provider for one host. For each seed, the requester requests grants from the owner once through a Unix socket,
//! then reads the template's memory directly. Writes and messages always go through the owner.

//  requester                                     owner
//     | OPEN, ASK GRANTS, READ ...                 |   the first reads go through the owner
//     |------------------------------------------->|
//     | DATA ...        GRANTED addresses + pidfd  |
//     |<-------------------------------------------|
//     |                         template           |
//     | /proc/PID/mem, is it still alive?     |    |   from now on the owner is not asked
//     |-------------------------------------->|    |
//
// All other reads go through the socket, and the owner's reply is authoritative: reads of memory that was not granted
// (copies of shared memory, the descriptor), reads outside the bounds, and direct reads that failed.
//
// The owner checks the token when it grants, not at each read. This loses nothing: a requester that may read the
// template's memory could also control the template (ptrace(2)). Dropping a seed ends its template, which ends every
// grant.

mod connection;
mod dialer;
mod grant_cache;
mod server;
mod stream;

pub use connection::connect;
pub use dialer::ShmDialer;
pub use server::ShmServer;
