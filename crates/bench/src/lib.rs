//! Benchmarks of farfork: what it costs, beside what nothing could do for less.
//!
//! A benchmark is a *workload* (a program that is measured), *baselines* (floors and peers, measured in the same run), a
//! *coordinator* that starts nodes and has things happen in order, *samples*, and a *report*. It talks to nodes as any
//! client does, over their API. Siblings have the same files:
//!
//! ```text
//! plan/ ─▶ coordinator ──▶ samples ──▶ report
//!            │  cluster: two nodes on this machine, requests to them
//!            │  fork, fault, churn, tree: the courses of `farfork bench fork`, `fault`, `churn` and `tree`
//!            │  fanout: that of `farfork bench fanout`; forkers: that of `farfork stress fork`; crowd: many children at once
//!            │  pool, warm_start: those of `farfork bench pool` and `warm-start`; warm: children that are paused between requests
//!            │  soak: that of `farfork stress paging`, on three nodes that are harmed
//!            │  rpc, connect: those of `farfork bench rpc` and `connect`; stage: two ends, joined by `links` without nodes
//!            ├─▶ workload/   programs that are measured    ─┐ programs in C++, carried in the library
//!            └─▶ baseline/   floors and peers              ─┘ (`program` runs them)
//! ```
//!
//! `plan/` also has the keys of figures, by which reports find them. Where both sides of a connection are measured, each is an
//! `end`: this program, started again. `peer/` has what others make of the same calls.
//!
//! Parsing a command line and showing progress are left to the command.
#![forbid(unsafe_code)]

mod baseline;
mod coordinator;
mod end;
mod error;
mod figure;
mod links;
mod machine;
mod peer;
mod plan;
mod program;
mod progress;
mod reference;
mod report;
mod samples;
mod workload;

pub use baseline::criu::error::CriuError;
pub use baseline::crowd::ChildNetwork;
pub use coordinator::census::Count;
pub use coordinator::churn::run_churn;
pub use coordinator::connect::run_connect;
pub use coordinator::fanout::run_fanout;
pub use coordinator::fault::run_fault;
pub use coordinator::fork::run;
pub use coordinator::forkers::{ForkersOutcome, ForkersPlan, be_forker, stress_fork};
pub use coordinator::pool::run_pool;
pub use coordinator::rpc::run_rpc;
pub use coordinator::soak::{Kind, Rate, SoakOutcome, SoakPlan, Tally, soak_paging};
pub use coordinator::stress::{StressOutcome, stress_rpc};
pub use coordinator::tree::run_tree;
pub use coordinator::warm_start::run_warm_start;
pub use end::be_end;
pub use error::BenchError;
pub use plan::churn::ChurnPlan;
pub use plan::connect::{ConnectCase, ConnectPlan};
pub use plan::fanout::FanoutPlan;
pub use plan::fault::FaultPlan;
pub use plan::fork::{ForkPlan, Peer, Resumed};
pub use plan::pool::PoolPlan;
pub use plan::protection::Protection;
pub use plan::rpc::{RpcCase, RpcPlan, RunOutcome};
pub use plan::tree::TreePlan;
pub use plan::warm_start::WarmStartPlan;
pub use progress::{Progress, Show};
pub use report::churn::ChurnReport;
pub use report::connect::ConnectReport;
pub use report::fanout::FanoutReport;
pub use report::fault::FaultReport;
pub use report::fork::ForkReport;
pub use report::pool::PoolReport;
pub use report::rpc::RpcReport;
pub use report::tree::TreeReport;
pub use report::warm_start::WarmStartReport;
pub use workload::micro::{Access, Order, PageSize};
