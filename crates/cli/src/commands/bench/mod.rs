//! `farfork bench`: one benchmark a command. What they measure and how is `crates/bench`'s part; here are their arguments
//! and what is shown while they run.

mod bar;
mod churn;
mod connect;
mod end;
mod fanout;
mod fault;
mod fork;
mod forker;
mod pool;
mod rpc;
mod tree;
mod warm_start;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::Global;

/// Measure what farfork costs on this machine, beside what nothing could do for less.
///
/// Each benchmark starts nodes of its own, as `farfork up` does, and removes every trace of them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench fork --mib 1,64 --runs 5
  farfork bench fork --json > figures.json
  farfork bench rpc --runs 1
  farfork bench connect
  farfork bench fault
  farfork bench churn
  farfork bench fanout
  farfork bench tree
  farfork bench pool
  farfork bench warm-start

Exit status: 0 measured, 1 failed, 2 wrong usage.")]
pub(crate) struct Bench {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    Fork(fork::Fork),
    Rpc(rpc::Rpc),
    Connect(connect::Connect),
    Fault(fault::Fault),
    Churn(churn::Churn),
    Fanout(fanout::Fanout),
    Tree(tree::Tree),
    Pool(pool::Pool),
    WarmStart(warm_start::WarmStart),
    #[command(hide = true)]
    End(end::End),
    #[command(hide = true)]
    Forker(forker::Forker),
}

impl Bench {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        match self.benchmark {
            Benchmark::Fork(benchmark) => benchmark.run(global),
            Benchmark::Rpc(benchmark) => benchmark.run(global),
            Benchmark::Connect(benchmark) => benchmark.run(global),
            Benchmark::Fault(benchmark) => benchmark.run(global),
            Benchmark::Churn(benchmark) => benchmark.run(global),
            Benchmark::Fanout(benchmark) => benchmark.run(global),
            Benchmark::Tree(benchmark) => benchmark.run(global),
            Benchmark::Pool(benchmark) => benchmark.run(global),
            Benchmark::WarmStart(benchmark) => benchmark.run(global),
            Benchmark::End(end) => end.run(),
            Benchmark::Forker(forker) => forker.run(),
        }
    }
}
