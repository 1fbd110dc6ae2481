//! Lean containers: a pid, mount, UTS, IPC and optional network namespace, a control group and a root file system. They
//! are built ahead of need and handed out from a [`ContainerPool`].
//!
//! A container starts with one process, its init: a program that the caller supplies, which waits on a socket for requests.
//! The contents of a container, and its time namespace, are left to init and to `farfork-fork`.
#![forbid(unsafe_code)]

//            a thread of the pool, outside the node's namespaces
//   pool --> unshare -> loopback -> root -> clone3(NEWPID) -> back to the node's namespaces
//                                               +-> init, pid 1: waits on its descriptor 3
//
// A container's resources end with its init: its mounts exist only in its mount namespace. Only a control group and a record
// in the run directory remain. `clean_leftovers` removes them after a crash of the daemon.

mod bind;
mod builder;
mod cgroup;
mod command;
mod config;
mod error;
mod handle;
mod host_init;
mod leftovers;
mod pool;
mod privileged_forker;
mod record;
mod root;
mod unmounted_volumes;
mod users;

pub use builder::OOM_SCORE_ADJUSTMENT;
pub use cgroup::{
    CPU_MILLICORES_MIN, CgroupError, ContainerCgroup, ContainerLimits, LIMIT_CONTROLLERS, MEMORY_BYTES_MIN,
    NodeCgroups, OomCause,
};
pub use command::ContainerCommand;
pub use config::{
    CACHED_ROOTS_MAX_DEFAULT, ContainerConfig, ContainerSpec, HIDDEN_PATHS_VARIABLE, NetworkSpec, RootReuseKey,
    RootSpec, USER_RANGES_DEFAULT, UsersSpec, node_of_control_group,
};
pub use error::ContainerError;
pub use handle::{Container, RunningContainer};
pub use host_init::HostInit;
pub use leftovers::{Leftovers, clean_leftovers};
pub use pool::ContainerPool;
pub use root::PRIVATE_DIR;
pub use root::directory::{enter_own_root, path_on_node, resolve_on_node};
pub use root::protection::RootProtection;
