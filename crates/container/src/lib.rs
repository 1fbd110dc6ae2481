//! Lean containers: a pid, mount, UTS, IPC and, where wanted, network namespace, a control group and a root file system, made
//! ahead of need and handed out from a [`Pool`].
//!
//! A container is an empty place with one process, its *init*: a program that the caller gives, which waits on a socket
//! for what to do. What runs in a container, and the time namespace that fits it, is the business of init and of the
//! crate above.
//!
//! ```text
//!            a thread of the pool's, away from the node's namespaces
//!   pool ──► unshare ─► loopback ─► root ─► clone3(NEWPID) ─► home
//!                                               └─► init, pid 1: waits on its descriptor 3
//! ```
//!
//! Everything a container holds goes with its init: mounts exist in its mount namespace only. What remains outside is
//! a control group and a record in the run directory; [`clean_leftovers`] removes what a crashed daemon could not.
#![forbid(unsafe_code)]

mod bind;
mod builder;
mod cgroup;
mod config;
mod error;
mod handle;
mod host_init;
mod leftovers;
mod pool;
mod privileged_forker;
mod record;
mod root;
mod users;

pub use builder::OOM_SCORE_ADJUSTMENT;
pub use cgroup::{
    CPU_MILLICORES_MIN, CgroupError, ContainerCgroup, ContainerLimits, MEMORY_BYTES_MIN, NodeCgroups, OomCause,
};
pub use config::{
    CACHED_ROOTS_MAX_DEFAULT, ContainerConfig, ContainerSpec, HIDDEN_PATHS_VARIABLE, NetworkSpec, RootReuseKey,
    RootSpec, USER_RANGES_DEFAULT, UsersSpec,
};
pub use error::ContainerError;
pub use handle::{Container, RunningContainer};
pub use host_init::HostInit;
pub use leftovers::{Leftovers, clean_leftovers};
pub use pool::ContainerPool;
pub use root::PRIVATE_DIR;
pub use root::protection::RootProtection;
