//! The runner: a supervisor starts workers, and the workers run the tests in control groups.
//! ```text
//! supervisor ── requests ──> worker, in the run's control groups ──> nodes, parents, children
//!     │      <── reports ───
//!     └──────> janitor, which removes all of that if the supervisor is killed
//! ```

mod bench_directories;
mod cleanup;
mod diagnosis;
mod group_set;
mod hostile_tests;
mod identity;
mod janitor;
mod lane;
mod log_directory;
mod machine_state;
mod outcome;
mod protocol;
mod report;
mod run_context;
mod run_directory;
pub(crate) mod self_test;
mod signals;
mod supervisor;
mod worker;
mod worker_process;

pub(crate) use cleanup::traces_of;
pub(crate) use group_set::FreezerGroup;
pub(crate) use identity::name_of;
pub(crate) use janitor::{JANITOR_ARGUMENT, clean_after};
pub(crate) use machine_state::{HUGE_PAGES, HUGE_PAGES_BEFORE, SHARED_MEMORY_PREFIXES};
pub(crate) use supervisor::{RunSettings, Selection, run};
pub(crate) use worker::{WORKER_ARGUMENT, run_worker};
