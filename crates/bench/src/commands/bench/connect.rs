//! `farfork bench connect`: how many connections are made per second, and how long each takes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_bench::{ConnectCase, ConnectParameters};
use farfork_terminal::{output, privilege};

use super::progress_bar;
use crate::commands::load::parse_seconds;
use crate::{GlobalArgs, program_path};

/// Measure connections: how many are made a second, and how long each takes.
///
/// A server and client nodes, each in a network namespace of its own, joined by veth. Each thread of a client makes one
/// connection after the other: TCP, the handshake in which both ends prove who they are, and closed. Each case is measured
/// without that handshake (a byte of greeting in its place), with it and what follows in clear, and with it and
/// encrypted. Without arguments, one client with 1, 2, 4, 8 and 12 threads, and 2, 4 and 8 clients with two threads each.
///
/// Beside each figure stand, measured in turn with it, TCP connect and accept by two programs that do nothing else; and a
/// published reference, from other machines.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork bench connect                               all usual cases, about a minute
  farfork bench connect --threads 1 --seconds 5       how long one connection takes
  farfork bench connect --clients 1,2,4 --threads 2   by client nodes
  farfork bench connect --json --samples samples.jsonl

Exit status: 0 measured, 1 failed, 2 wrong usage.")]
pub(crate) struct BenchConnect {
    /// Client nodes, each a process in a network namespace of its own; several numbers: a case of each
    /// [default: 1, if threads are given].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=10))]
    clients: Vec<u64>,
    /// Threads of each client node; several numbers: a case of each [default: 1, if clients are given].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: Vec<u64>,
    /// Seconds that clients connect in a run, for each protection and for the floor.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = parse_seconds)]
    seconds: f64,
    /// Runs of each case, in turn with its floor.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Write each sample into this file, as a line of JSON.
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
