//! `farfork bench rpc`: how many calls a connection carries per second, and how long each takes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _};
use farfork_bench::{RpcCase, RpcParameters};
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::commands::load::{LoadArgs, parse_seconds, require_interval};
use crate::{Cli, GlobalArgs, program_path};

/// Measure how many calls nodes make per second, and how long each call takes.
///
/// The server and each client node are in their own network namespaces. Veth pairs connect the namespaces. An option that
/// describes a load selects its cases. Without such options, the benchmark measures the cases of the specification.
/// These are one request in flight, with and without polling for work before sleeping, and 64 and 256 requests on one
/// connection. They are also 64 requests on each of 16 connections, and answers of 2,048 random bytes with a checksum of 8
/// bytes, each verified. The last ones are 1 to 10 client nodes with 12 synchronous threads each.
///
/// The report has floors next to unencrypted empty calls of one thread on each side, measured in turn with them: an echo of
/// the same messages by two programs that do nothing else. For one connection, it also has an echo with tokio, tonic and
/// tarpc. Cases that have a published reference, measured on other machines, show it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench rpc                                      all usual cases, about three minutes
  farfork bench rpc --clients 4 --threads 2 --window 64  one case
  farfork bench rpc --checksum                           answers of 2,048 random bytes, verified
  farfork bench rpc --checksum --threads 12 --clients 1,2,4,8,10
                                                         the same by number of machines
  farfork bench rpc --json                               one JSON document

Exit status: 0 measured, 1 failed or an answer was wrong, 2 wrong usage.")]
pub(crate) struct BenchRpc {
    /// Numbers of client nodes, each number as a case. Each node is a process in its own network namespace [default: 1].
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=10))]
    clients: Vec<u64>,
    #[command(flatten)]
    load: LoadArgs,
    /// Time for which the clients send requests, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    client_seconds: f64,
    /// Maximum time for which the server answers, in seconds [default: --client-seconds plus 10].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    server_seconds: Option<f64>,
    /// Time between two counts of answers, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    report_interval: f64,
    /// Number of runs of each case, in turn with its floors and the other RPC systems.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Measure no floors and no other RPC systems.
    #[arg(long)]
    no_floors: bool,
    /// Write each sample to this file, as a line of JSON.
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
        let case_of = |clients| self.load.to_case(&RpcCase { clients, ..RpcCase::SINGLE_CONNECTION });
        let cases = match (self.clients.as_slice(), self.load.is_specified()) {
            ([], false) => RpcParameters::default_cases(),
            ([], true) => vec![case_of(1)],
            (numbers, _) => numbers.iter().map(|clients| case_of(*clients as usize)).collect(),
        };
        RpcParameters {
            cases,
            runs: self.runs as usize,
            client_seconds: self.client_seconds,
            server_seconds,
            interval_seconds: require_interval(self.report_interval, self.client_seconds),
            floors: !self.no_floors,
            samples_file: self.samples,
        }
    }
}
