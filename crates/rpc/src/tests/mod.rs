//! Tests of both ends' state machines, with frames that a correct peer would never send.

mod hostile_peer;
mod memory_limit;
