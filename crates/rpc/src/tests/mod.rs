//! Both ends' state machines, fed by hand with what no sound peer would send.

mod hostile_peer;
mod memory_limit;
