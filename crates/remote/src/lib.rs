//! Remote hosts: an inventory of them, and commands on them over the system's OpenSSH.
//!
//! A coordinator reads the inventory (`inventory`), connects to hosts (`ssh`), and starts commands there. `runner` is the
//! remote end: it kills a command when the coordinator's connection ends.
#![forbid(unsafe_code)]

pub mod inventory;
pub mod runner;
pub mod shell;
pub mod ssh;
