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
pub use coordinator::census::ResourceCount;
pub use coordinator::churn::run_churn;
pub use coordinator::connect::run_connect;
pub use coordinator::fanout::run_fanout;
pub use coordinator::fault::run_fault;
pub use coordinator::fork::run_fork;
pub use coordinator::forkers::{StressForkOutcome, StressForkParameters, run_fork_client, stress_fork};
pub use coordinator::pool::run_pool;
pub use coordinator::rpc::run_rpc;
pub use coordinator::soak::{ActionKind, ForkRate, SoakOutcome, SoakParameters, SoakTally, soak_paging};
pub use coordinator::stress::{StressRpcOutcome, stress_rpc};
pub use coordinator::tree::run_tree;
pub use coordinator::warm_start::run_warm_start;
pub use end::run_endpoint;
pub use error::BenchError;
pub use plan::churn::ChurnParameters;
pub use plan::connect::{ConnectCase, ConnectParameters};
pub use plan::fanout::FanoutParameters;
pub use plan::fault::FaultParameters;
pub use plan::fork::{ForkParameters, PeerSystem, ResumeCase};
pub use plan::pool::PoolParameters;
pub use plan::protection::ConnectionSecurity;
pub use plan::rpc::{RpcCase, RpcParameters, RpcRunOutcome};
pub use plan::tree::TreeParameters;
pub use plan::warm_start::WarmStartParameters;
pub use progress::{Progress, ProgressCallback};
pub use report::churn::ChurnSummary;
pub use report::connect::ConnectSummary;
pub use report::fanout::FanoutSummary;
pub use report::fault::FaultSummary;
pub use report::fork::ForkSummary;
pub use report::pool::PoolSummary;
pub use report::rpc::RpcSummary;
pub use report::tree::TreeSummary;
pub use report::warm_start::WarmStartSummary;
pub use workload::micro::{PageSize, TouchAccess, TouchOrder};
