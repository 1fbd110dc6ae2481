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
//! Pure parts: `counters`, `fork_order`, `overtaken`, `page_map`, `populated`, `page_set`, `prefetch`, `replay`. What becomes of a child as a process,
//! and when its directory is made and removed, is the daemon's business.

#[cfg(test)]
mod blocks;
mod cache;
mod child;
mod client;
mod control;
mod counters;
#[doc(hidden)]
pub mod decoders;
mod doubts;
mod faults;
mod fork_order;
mod install;
mod journal;
mod keeper;
mod lengthened;
mod origin;
mod overtaken;
mod owners;
mod page_map;
mod page_set;
mod placement;
mod plan;
mod populated;
mod prefetch;
mod protocol;
mod registry;
mod replay;
mod retries;
mod server;
mod settle;
#[doc(hidden)]
pub mod simulated;
mod space;
mod station;
mod strategy;
mod takeover;
mod templates;
mod trusting;
mod waiting;
mod watch;
mod wiped;
mod working_set;
mod zero_runs;
mod zygotes;

pub use cache::{CACHE_BYTES_MAX_DEFAULT, CacheStats};
pub use child::LOST_FILE;
pub use client::{
    Adoption, ClientError, PagerClient, PagerHello, PagerStats, SettleProgress, SettleState, WarmProgress, WarmState,
};
pub use counters::PagerCounters;
pub use keeper::{PagerConfig, run};
pub use origin::{Origin, PlannedExtent, PlannedRun, Source};
pub use page_map::Segment;
pub use plan::{MemoryPlan, PLAN_FILE, PlanError};
pub use protocol::RELEASE;
pub use settle::SETTLED_FILE;
pub use station::{PagerError, SOCKET_FILE};
pub use strategy::{Paging, Strategy, StrategyError};
pub use trusting::Trusting;
pub use working_set::{Habits, Learner, Remembered, Report};
