//! The harness of the end-to-end tests: a cluster on this machine, the real binary, parents to fork, and the search for
//! leftovers. It observes farfork only through the command line and `/proc`. It uses farfork's crates only to start
//! nodes.

pub(crate) mod cluster;
pub(crate) mod farfork;
pub(crate) mod leftovers;
pub(crate) mod line_program;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod own_mounts;
pub(crate) mod parent;
pub(crate) mod parent_comparison;
pub(crate) mod proc_snapshot;
pub(crate) mod programs;
pub(crate) mod scratch;
pub(crate) mod seed;
pub(crate) mod service;
pub(crate) mod ssh_hosts;
pub(crate) mod unresponsive_mount;
pub(crate) mod volume_mount;
pub(crate) mod wait;

pub(crate) use cluster::{Cluster, NodeProcess};
pub(crate) use farfork::{BINARY, FailedCommand, Farfork, WAIT_TIMEOUT, fail_or_time_out};
pub(crate) use line_program::LineProgram;
pub(crate) use message::{print_error, print_line};
pub(crate) use own_mounts::{run_in_mounts_of, run_in_own_mounts};
pub(crate) use parent::Parent;
pub(crate) use parent_comparison::{
    compare_with_parent, require_forked_child_same, require_fresh_child_same, require_same_as_parent,
    require_stopped_child_same,
};
pub(crate) use programs::Program;
pub(crate) use scratch::Disk;
pub(crate) use seed::{Seed, StartedChild};
pub(crate) use service::Service;
pub(crate) use unresponsive_mount::UnresponsiveMount;
pub(crate) use volume_mount::unmount_volume;
