//! Benchmarks of farfork: what it costs, compared with floors and peers that are measured in the same run.
//!
//! A benchmark takes `parameters`, runs an `experiment`, collects `samples`, and returns a `summary`. `workload` has
//! the measured programs. `baseline` and `peer` have the systems that farfork is compared with. Nodes are used through
//! the API, as any client uses them. The commands `farfork bench` and `farfork stress` parse the command line and show
//! progress.
#![forbid(unsafe_code)]

// parameters/ ─▶ experiment/ ──▶ samples ──▶ summary/
//                  │  fork, function, fault, churn, tree, fanout, peak, pool, warm_start, volume, rpc, connect:
//                  │    run `farfork bench fork` and so on
//                  │  stress_fork, stress_rpc, soak: run `farfork stress fork`, `rpc` and `paging`
//                  │  local_cluster: nodes on this machine, and requests to them
//                  │  fork_load: client processes that fork one child after another
//                  │  error_log, leak_check: errors and leaks of a long run
//                  │  fanout_client: many children at the same time; warm_children: children that are paused between requests
//                  │  create_methods, pause_methods: the same operation by farfork and by its floors
//                  │  testbed: two sides of a connection, joined by `veth_network` without nodes
//                  ├─▶ workload/   measured programs           ─┐ C++ programs, embedded in the library
//                  └─▶ baseline/   floors, CRIU and GlusterFS  ─┘ (`embedded_program` runs them)
//
// `parameters` and `figure` also have the keys of samples, by which `summary` finds them. If both sides of a connection
// are measured, each side is an `endpoint`: another process of this program. `peer` has other RPC systems.
//
// `scratch` has the files of a run, and removes them with the nodes if the benchmark is killed.
//
// `suite` runs all benchmarks, each as a process. `report` makes pages of the sections of their summaries.

mod baseline;
mod embedded_program;
mod end_with_parent;
mod endpoint;
mod error;
mod experiment;
mod figure;
mod machine;
mod parameters;
mod peer;
mod progress;
mod reference;
mod report;
mod samples;
mod scratch;
mod suite;
mod summary;
mod veth_network;
mod workload;

pub use baseline::criu::error::CriuError;
pub use baseline::local_fanout::ChildNetwork;
pub use embedded_program::read_specification;
pub use end_with_parent::end_with_parent;
pub use endpoint::run_endpoint;
pub use error::BenchError;
pub use experiment::churn::run_churn;
pub use experiment::connect::run_connect;
pub use experiment::fanout::run_fanout;
pub use experiment::fault::run_fault;
pub use experiment::fork::run_fork;
pub use experiment::fork_load::run_fork_client;
pub use experiment::function::run_function;
pub use experiment::leak_check::ResourceCount;
pub use experiment::peak::run_peak;
pub use experiment::pool::run_pool;
pub use experiment::rpc::run_rpc;
pub use experiment::soak::{ActionKind, ForkRate, SoakOutcome, SoakParameters, SoakTally, soak_paging};
pub use experiment::stress_fork::{StressForkOutcome, StressForkParameters, stress_fork};
pub use experiment::stress_rpc::{StressRpcOutcome, stress_rpc};
pub use experiment::tree::run_tree;
pub use experiment::volume::run_volume;
pub use experiment::warm_start::run_warm_start;
pub use parameters::churn::ChurnParameters;
pub use parameters::connect::{ConnectCase, ConnectParameters};
pub use parameters::fanout::FanoutParameters;
pub use parameters::fault::FaultParameters;
pub use parameters::fork::{ForkOperation, ForkParameters, PeerSystem, ResumeCase};
pub use parameters::function::FunctionParameters;
pub use parameters::peak::PeakParameters;
pub use parameters::pool::PoolParameters;
pub use parameters::protection::ConnectionSecurity;
pub use parameters::rpc::{RpcCase, RpcParameters, RpcRunOutcome};
pub use parameters::tree::TreeParameters;
pub use parameters::volume::{COPY_METHODS, OffloadVariant, ReplicaLoad, VolumeExperiment, VolumeParameters};
pub use parameters::warm_start::WarmStartParameters;
pub use progress::{Progress, ProgressCallback};
pub use report::error::ReportError;
pub use report::page::{ReportFiles, write_report};
pub use report::results::check_other_results;
pub use scratch::run_remover;
pub use suite::entry::{SuiteScale, suite_names};
pub use suite::outcome::{SuiteOutcome, SuiteRunOutcome};
pub use suite::run::{SuiteEvent, SuiteParameters, run_suite};
pub use summary::churn::ChurnSummary;
pub use summary::connect::ConnectSummary;
pub use summary::failures::FunctionFailures;
pub use summary::fanout::FanoutSummary;
pub use summary::fault::FaultSummary;
pub use summary::fork::ForkSummary;
pub use summary::function::FunctionSummary;
pub use summary::peak::PeakSummary;
pub use summary::pool::PoolSummary;
pub use summary::rpc::RpcSummary;
pub use summary::tree::TreeSummary;
pub use summary::volume::VolumeSummary;
pub use summary::warm_start::WarmStartSummary;
pub use workload::clustering::run_clustering;
pub use workload::file_writer::run_file_writer;
pub use workload::filebench::run_filebench;
pub use workload::fork_workload::ForkWorkload;
pub use workload::functions::{FunctionOptions, FunctionSource};
pub use workload::micro::{PageSize, TouchAccess, TouchOrder};
pub use workload::warm_function::WarmWorkload;
