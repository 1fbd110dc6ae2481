//! The pager: serves the missing pages of all children of a node, from a process of its own that outlives the daemon.
//! `keeper` keeps the process running, `server` is its loop, and the daemon calls it through `PagerClient`.
//! `page_map`, `plan::slot_index`, `address_space::slot_bitmap`, `readahead`, `journal::counters` and `journal::replay`
//! are pure. The daemon manages children as processes, and creates and removes their directories.

// From a page fault to the installed page:
//
//  child touches a missing page ─▶ kernel ─▶ userfaultfd ─▶ server ─▶ journal (events)
//                                                             │ faults
//                                            address_space: which page belongs here now?
//                                       zeroes │                │ page of the seed
//                                              │                ├─▶ owners, demand lane: this page, at once
//                                              │                └─▶ owners, bulk lane: its neighbours (readahead)
//                                              ▼                          │ reply
//                                           install ◀─────────────────────┘
//
// Invariants:
// - A userfaultfd is closed only if its process is gone, or is a template, which never runs. The keeper's descriptor
//   table keeps the userfaultfd open while pagers end and start.
// - Messages are read into the journal. Events are applied before any fault of the same batch is classified.
// - A page is installed at its current address, not at the address where it was requested.
// - A page that should hold data is never answered with zeroes. If it cannot be fetched it is poisoned, and the reason
//   is written to `LOST_FILE`.
// - Every waiting thread gets its page, or is woken to fault again.

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
pub use plan::strategy::{PagingMode, PagingStrategy, PagingStrategyError, UnreachableTimeoutError};
pub use plan::{MemoryPlan, PLAN_FILE, PlanError};
pub use working_set::{AccessReport, LearnerThread, ProcessHistory, SharedWorkingSet};
