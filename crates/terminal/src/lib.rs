//! Terminal code that the programs `farfork` and `farfork-bench` share: output and failures, interrupts, the check for
//! root, the cache directory, and manual pages.
#![forbid(unsafe_code)]

pub mod cache_dir;
pub mod command_failure;
pub mod interrupt;
pub mod inventory_args;
pub mod manual;
pub mod output;
pub mod privilege;
