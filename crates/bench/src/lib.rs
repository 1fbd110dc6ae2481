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
mod embedded_program;
mod endpoint;
mod error;
mod experiment;
mod figure;
mod machine;
mod parameters;
mod peer;
mod progress;
mod reference;
mod samples;
mod summary;
mod veth_network;
mod workload;

pub use baseline::criu::error::CriuError;
pub use baseline::local_fanout::ChildNetwork;
pub use endpoint::run_endpoint;
pub use error::BenchError;
pub use experiment::churn::run_churn;
pub use experiment::connect::run_connect;
pub use experiment::fanout::run_fanout;
pub use experiment::fault::run_fault;
pub use experiment::fork::run_fork;
pub use experiment::leak_check::ResourceCount;
pub use experiment::pool::run_pool;
pub use experiment::rpc::run_rpc;
pub use experiment::soak::{ActionKind, ForkRate, SoakOutcome, SoakParameters, SoakTally, soak_paging};
pub use experiment::stress_fork::{StressForkOutcome, StressForkParameters, run_fork_client, stress_fork};
pub use experiment::stress_rpc::{StressRpcOutcome, stress_rpc};
pub use experiment::tree::run_tree;
pub use experiment::warm_start::run_warm_start;
pub use parameters::churn::ChurnParameters;
pub use parameters::connect::{ConnectCase, ConnectParameters};
pub use parameters::fanout::FanoutParameters;
pub use parameters::fault::FaultParameters;
pub use parameters::fork::{ForkParameters, PeerSystem, ResumeCase};
pub use parameters::pool::PoolParameters;
pub use parameters::protection::ConnectionSecurity;
pub use parameters::rpc::{RpcCase, RpcParameters, RpcRunOutcome};
pub use parameters::tree::TreeParameters;
pub use parameters::warm_start::WarmStartParameters;
pub use progress::{Progress, ProgressCallback};
pub use summary::churn::ChurnSummary;
pub use summary::connect::ConnectSummary;
pub use summary::fanout::FanoutSummary;
pub use summary::fault::FaultSummary;
pub use summary::fork::ForkSummary;
pub use summary::pool::PoolSummary;
pub use summary::rpc::RpcSummary;
pub use summary::tree::TreeSummary;
pub use summary::warm_start::WarmStartSummary;
pub use workload::micro::{PageSize, TouchAccess, TouchOrder};
