//! `farfork bench`: one subcommand per benchmark. This folder has the arguments and the progress bar; the crate
//! `farfork_bench` measures.

mod all;
mod churn;
mod connect;
mod endpoint;
mod fanout;
mod fault;
mod fork;
mod fork_client;
mod function;
mod peak;
mod pool;
mod progress_bar;
mod remover;
mod report;
mod rpc;
mod tree;
mod volume;
mod volume_process;
mod warm_start;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::GlobalArgs;

/// Measure what farfork costs on this machine, next to a floor for each figure.
///
/// A floor is the least that the same work costs without farfork. Each benchmark starts its own nodes, as `farfork up`
/// does. At its end it removes everything that it created, even if it is killed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench fork --mib 1,64 --runs 5
  farfork bench fork --json > figures.json
  farfork bench function json image
  farfork bench rpc --runs 1
  farfork bench connect
  farfork bench fault
  farfork bench churn
  farfork bench fanout
  farfork bench tree
  farfork bench peak helloworld --nodes 2
  farfork bench pool
  farfork bench warm-start
  farfork bench volume latency
  farfork bench all --quick
  farfork bench report farfork-bench

Exit status: 0 measured, 1 failed, 2 wrong usage.")]
pub(crate) struct BenchCommand {
    #[command(subcommand)]
    benchmark: BenchmarkCommand,
}

#[derive(Subcommand)]
enum BenchmarkCommand {
    Fork(fork::BenchFork),
    Function(function::BenchFunction),
    Rpc(rpc::BenchRpc),
    Connect(connect::BenchConnect),
    Fault(fault::BenchFault),
    Churn(churn::BenchChurn),
    Fanout(fanout::BenchFanout),
    Tree(tree::BenchTree),
    Peak(peak::BenchPeak),
    Pool(pool::BenchPool),
    WarmStart(warm_start::BenchWarmStart),
    Volume(volume::BenchVolume),
    All(all::BenchAll),
    Report(report::BenchReport),
    #[command(hide = true)]
    End(endpoint::BenchEndpoint),
    #[command(hide = true)]
    Forker(fork_client::BenchForkClient),
    #[command(hide = true)]
    Remover(remover::BenchRemover),
    #[command(hide = true)]
    VolumeProcess(volume_process::BenchVolumeProcess),
}

impl BenchCommand {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        match self.benchmark {
            BenchmarkCommand::Fork(benchmark) => benchmark.run(global),
            BenchmarkCommand::Function(benchmark) => benchmark.run(global),
            BenchmarkCommand::Rpc(benchmark) => benchmark.run(global),
            BenchmarkCommand::Connect(benchmark) => benchmark.run(global),
            BenchmarkCommand::Fault(benchmark) => benchmark.run(global),
            BenchmarkCommand::Churn(benchmark) => benchmark.run(global),
            BenchmarkCommand::Fanout(benchmark) => benchmark.run(global),
            BenchmarkCommand::Tree(benchmark) => benchmark.run(global),
            BenchmarkCommand::Peak(benchmark) => benchmark.run(global),
            BenchmarkCommand::Pool(benchmark) => benchmark.run(global),
            BenchmarkCommand::WarmStart(benchmark) => benchmark.run(global),
            BenchmarkCommand::Volume(benchmark) => benchmark.run(global),
            BenchmarkCommand::All(suite) => suite.run(global),
            BenchmarkCommand::Report(report) => report.run(global),
            BenchmarkCommand::End(end) => end.run(),
            BenchmarkCommand::Forker(forker) => forker.run(),
            BenchmarkCommand::Remover(remover) => remover.run(),
            BenchmarkCommand::VolumeProcess(process) => process.run(),
        }
    }
}
