//! `farfork bench rpc`: how many calls a connection carries per second, and how long each takes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _};
use farfork_bench::{RpcCase, RpcParameters};
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::commands::load::{LoadArgs, parse_seconds};
use crate::{Cli, GlobalArgs, program_path};

/// Measure calls: how many a second, and how long each takes.
///
/// A server and client nodes, each in a network namespace of its own, joined by veth. Without arguments, the cases that
/// promises are made for: one request in flight, with and without looking for work before sleeping; 64 and 256 on one
/// connection; 64 on each of 16; answers of 2,048 random bytes with a checksum of 8, each verified; and 1 to 10 client
/// nodes with 12 synchronous threads each. With any of the arguments that describe a load, that one case.
///
/// Beside empty calls of one thread on each side, in clear, stand, measured in turn with them: a bare echo of the same
/// messages by two programs that do nothing else; on one connection also an echo on tokio, tonic and tarpc. Beside those
/// that it has, a published reference, from other machines.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench rpc                                      all usual cases, about three minutes
  farfork bench rpc --clients 4 --threads 2 --window 64  one case
  farfork bench rpc --checksum                           answers of 2,048 random bytes, verified
  farfork bench rpc --json                               one JSON document

Exit status: 0 measured, 1 failed or an answer was wrong, 2 wrong usage.")]
pub(crate) struct BenchRpc {
    #[command(flatten)]
    load: LoadArgs,
    /// Seconds that clients ask.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    client_seconds: f64,
    /// Seconds that a server answers at most [default: the clients' and 10 more].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    server_seconds: Option<f64>,
    /// Seconds between two counts of answers.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    report_interval: f64,
    /// Runs of each case, in turn with its floors and peers.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Leave out floors and peers.
    #[arg(long)]
    no_floors: bool,
    /// Write each sample into this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

impl BenchRpc {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let plan = self.parameters();
        privilege::require_root("it makes network namespaces")?;
        let farfork = program_path::farfork()?;
        let report = farfork_bench::run_rpc(&plan, &farfork, &mut progress_bar::show_progress()?)?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(if report.failures() == (0, 0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn parameters(self) -> RpcParameters {
        let server_seconds = self.server_seconds.unwrap_or(self.client_seconds + 10.0);
        if server_seconds <= self.client_seconds {
            let most = self.client_seconds;
            let wrong = format!("the server would end before its clients: --server-seconds must be more than {most}");
            Cli::command().error(ErrorKind::ValueValidation, wrong).exit();
        }
        let cases = match self.load.is_specified() {
            true => vec![self.load.to_case(&RpcCase::SINGLE_CONNECTION)],
            false => RpcParameters::default_cases(),
        };
        RpcParameters {
            cases,
            runs: self.runs as usize,
            client_seconds: self.client_seconds,
            server_seconds,
            interval_seconds: self.report_interval.min(self.client_seconds),
            floors: !self.no_floors,
            samples_file: self.samples,
        }
    }
}
