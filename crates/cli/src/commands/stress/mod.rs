//! `farfork stress`: one long run a command, and a verdict on it. What runs is `crates/bench`'s part.

mod rpc;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::Global;

/// Put load on one part of farfork for as long as you like, and judge how it bears it.
#[derive(Args)]
pub(crate) struct Stress {
    #[command(subcommand)]
    test: Test,
}

#[derive(Subcommand)]
enum Test {
    Rpc(rpc::Rpc),
}

impl Stress {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        match self.test {
            Test::Rpc(test) => test.run(global),
        }
    }
}
