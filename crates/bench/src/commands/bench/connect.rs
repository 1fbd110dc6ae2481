//! `farfork bench connect`: how many connections are established per second, and how long each takes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::{ConnectCase, ConnectParameters};
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::commands::load::parse_seconds;
use crate::{GlobalArgs, program_path};

/// Measure how many connections nodes make per second, and how long each connection takes.
///
/// The server and each client node are in their own network namespaces. Veth pairs connect the namespaces. Each thread of a
/// client makes one connection after the other. A connection is a TCP connection and a handshake in which both ends
/// authenticate each other. It counts once its first request, one byte, is answered. Then it is closed.
///
/// The benchmark measures each case three times: without the handshake, with the handshake but no encryption, and with the
/// handshake and encryption. Without arguments, the cases are one client with 1, 2, 4, 8 and 12 threads,
/// and 2, 4 and 8 clients with two threads each.
///
/// The report has a floor next to each figure, measured in turn with it: the same over TCP by two programs that do
/// nothing else. It also has a published reference, measured on other machines.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench connect                               all usual cases, about a minute
  farfork bench connect --threads 1 --seconds 5       the time of one connection
  farfork bench connect --clients 1,2,4 --threads 2   several numbers of client nodes
  farfork bench connect --json --samples samples.jsonl

Exit status: 0 measured, 1 failed, 2 wrong usage.")]
pub(crate) struct BenchConnect {
    /// Number of client nodes. Each is a process in its own network namespace. Each of several numbers is a case
    /// [default: 1, if --threads is given].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=10))]
    clients: Vec<u64>,
    /// Number of threads of each client node. Each of several numbers is a case [default: 1, if --clients is given].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: Vec<u64>,
    /// Time for which the clients connect in a run, in seconds, for each kind of connection and for the floor.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = parse_seconds)]
    seconds: f64,
    /// Number of runs of each case, in turn with its floor.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Write each sample to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

impl BenchConnect {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it makes network namespaces")?;
        let farfork = program_path::farfork()?;
        let plan = self.parameters();
        let report = farfork_bench::run_connect(&plan, &farfork, &mut progress_bar::show_progress()?)?;
        output::print_report(global.json, || report.to_json(), || report.to_text());
        Ok(ExitCode::SUCCESS)
    }

    fn parameters(self) -> ConnectParameters {
        let cases = match (self.clients.is_empty(), self.threads.is_empty()) {
            (true, true) => ConnectParameters::default_cases(),
            _ => case_product(&or_one(self.clients), &or_one(self.threads)),
        };
        ConnectParameters { cases, runs: self.runs as usize, seconds: self.seconds, samples_file: self.samples }
    }
}

fn or_one(mut numbers: Vec<u64>) -> Vec<u64> {
    if numbers.is_empty() {
        numbers.push(1);
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn case_product(clients: &[u64], threads: &[u64]) -> Vec<ConnectCase> {
    let case = |clients: u64, threads: u64| ConnectCase { clients: clients as usize, threads: threads as usize };
    clients.iter().flat_map(|clients| threads.iter().map(move |threads| case(*clients, *threads))).collect()
}
