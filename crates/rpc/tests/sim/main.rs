//! Tests of client and server in a simulated world. With faults of connections, nodes, clocks and servers, each request
//! ends once, is executed at most once, and gets the right bytes.

mod caller;
mod claims;
mod faults;
mod works;
