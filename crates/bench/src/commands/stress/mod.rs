//! `farfork stress`: one long run per subcommand, with a verdict. This folder has the arguments; the crate
//! `farfork_bench` runs the load.

mod fork;
mod functions;
mod paging;
mod rpc;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::GlobalArgs;

/// Put load on one part of farfork for as long as you like, and judge the outcome.
///
/// Each test starts its own nodes, as `farfork up` does. At its end it removes everything that it created, even if
/// it is killed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork stress fork
  farfork stress functions json image
  farfork stress paging
  farfork stress rpc
  farfork stress rpc --checksum --seconds 600

Exit status: 0 passed, 1 failed, 2 wrong usage.")]
pub(crate) struct Stress {
    #[command(subcommand)]
    test: StressTest,
}

#[derive(Subcommand)]
enum StressTest {
    Fork(fork::StressFork),
    Functions(functions::StressFunctions),
    Paging(paging::StressPaging),
    Rpc(rpc::StressRpc),
}

impl Stress {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        match self.test {
            StressTest::Fork(test) => test.run(global),
            StressTest::Functions(test) => test.run(global),
            StressTest::Paging(test) => test.run(global),
            StressTest::Rpc(test) => test.run(global),
        }
    }
}
