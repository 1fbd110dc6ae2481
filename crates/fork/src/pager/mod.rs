//! The pager: serves the missing pages of all children of a node, from a process of its own that outlives the daemon.
//!
//! ```text
//!  child touches a missing page ─▶ kernel ─▶ userfaultfd ─▶ server ─▶ journal (events)
//!                                                             │ faults
//!                                            space: where does this page belong now?
//!                                       zeroes │                │ page of the seed
//!                                              │                ├─▶ owners, demand lane: this page, at once
//!                                              │                └─▶ owners, bulk lane: its neighbours (prefetch)
//!                                              ▼                          │ reply
//!                                           install ◀─────────────────────┘
//! ```
//!
//! Invariants:
//! - A userfaultfd is closed only after its process is gone, or where it is a template and never runs. The keeper's table holds it while pagers come and go.
//! - Messages are read into the journal, and applied before any fault of the same batch is judged.
//! - A page is installed where it belongs at that moment, not where it was asked for.
//! - What should hold data is never answered with zeroes: what cannot be had is poisoned, and the reason written down.
//! - A thread that waits is answered, or woken to ask again, whatever becomes of the page it waits for.
//!
//! Pure parts: `page_map` and all in it, `plan`'s `populated`, `space`'s `page_set`, `prefetch`, `journal`'s `counters` and `replay`. What becomes of a child as a process,
//! and when its directory is made and removed, is the daemon's business.

mod address_space;
mod cache;
mod child;
mod control;
#[doc(hidden)]
pub mod decoders;
mod disk_space_hint;
mod faults;
mod journal;
mod keeper;
mod owner_connections;
mod page_map;
mod plan;
mod readahead;
mod server;
#[doc(hidden)]
pub mod simulated;
mod working_set;

pub use cache::{CACHE_BYTES_MAX_DEFAULT, CacheStats};
pub use child::LOST_FILE;
pub use child::settle::SETTLED_FILE;
pub use control::client::{
    ClientError, PagerClient, PagerHello, PagerStats, PendingAdoption, PrewarmProgress, PrewarmState, SettleProgress,
    SettleState,
};
pub use control::protocol::RELEASE;
pub use journal::counters::PagerCounters;
pub use keeper::context::{PagerError, SOCKET_FILE};
pub use keeper::trust_policy::TrustPolicy;
pub use keeper::{PagerConfig, run};
pub(crate) use owner_connections::OWNER_IDLE_TIMEOUT;
pub use page_map::MapSegment;
pub use plan::origin::{PageOrigin, PageSource, PopulatedExtent, PopulatedRun};
pub use plan::strategy::{PagingMode, PagingStrategy, PagingStrategyError};
pub use plan::{MemoryPlan, PLAN_FILE, PlanError};
pub use working_set::{AccessReport, LearnerThread, ProcessHistory, SharedWorkingSet};
