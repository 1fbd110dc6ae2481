//! `LoadArgs`: the arguments that describe a load of calls, shared by `bench rpc` and `stress rpc`.

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _};
use farfork_bench::{ConnectionSecurity, RpcCase};

use crate::Cli;

/// Default number of random bytes in an answer with a checksum, without the bytes of the checksum.
const PAYLOAD_BYTES: u32 = 2048;

/// Maximum length of a run, in seconds: a week.
const SECONDS_MAX: f64 = 604_800.0;

/// Maximum number of counts of a run. A week has 604,800 seconds.
const INTERVALS_MAX: f64 = 1e6;

/// How many clients call the server, and how much each requests at once.
#[derive(Args)]
pub(crate) struct LoadArgs {
    /// Number of threads of the server. The connections are spread over the threads [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    server_threads: Option<u64>,
    /// Number of threads of each client node.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: Option<u64>,
    /// Number of connections of each thread [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    connections: Option<u64>,
    /// Number of sessions on each connection [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    sessions: Option<u64>,
    /// Number of requests in flight on each session. With 1, each request waits for the previous answer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096))]
    window: Option<u64>,
    /// Have the server answer with random bytes and a checksum, and verify each answer.
    #[arg(long)]
    checksum: bool,
    /// Number of random bytes in an answer, without the 8 bytes of the checksum. Implies --checksum [default: 2048].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=(16 << 20) - 8))]
    payload: Option<u32>,
    /// Encrypt the calls. With `on` and with `off`, both ends authenticate each other first.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"])]
    encryption: Option<String>,
    /// Sleep as soon as there is no work, instead of polling for work for 50 µs first.
    #[arg(long)]
    no_spin: bool,
}

impl LoadArgs {
    /// Whether any option was given.
    pub(crate) fn is_specified(&self) -> bool {
        let numbers = [self.server_threads, self.threads, self.connections, self.sessions, self.window];
        numbers.iter().any(Option::is_some)
            || self.payload.is_some()
            || self.checksum
            || self.no_spin
            || self.encryption.is_some()
    }

    /// The case that the options describe. The number of clients and missing options are taken from `usual`.
    pub(crate) fn to_case(&self, usual: &RpcCase) -> RpcCase {
        let or = |option: Option<u64>, usual: usize| option.map_or(usual, |number| number as usize);
        let payload = self.payload.or(self.checksum.then_some(PAYLOAD_BYTES));
        RpcCase {
            clients: usual.clients,
            threads: or(self.threads, usual.threads),
            connections_per_thread: or(self.connections, usual.connections_per_thread),
            sessions: or(self.sessions, usual.sessions),
            window: or(self.window, usual.window),
            payload_bytes: payload.map_or(usual.payload_bytes, |bytes| bytes as usize),
            server_threads: or(self.server_threads, usual.server_threads),
            spins: usual.spins && !self.no_spin,
            protection: match self.encryption.as_deref() {
                Some("on") => ConnectionSecurity::Encrypted,
                Some(_) => ConnectionSecurity::Authenticated,
                None => usual.protection,
            },
        }
    }
}

/// The time between two counts of a run of `seconds`: at most the whole run. Exits with a message if the run would have too
/// many counts.
pub(crate) fn require_interval(report_interval: f64, seconds: f64) -> f64 {
    if seconds / report_interval > INTERVALS_MAX {
        let least = seconds / INTERVALS_MAX;
        let wrong = format!("{seconds} s would have too many counts: --report-interval must be at least {least}");
        Cli::command().error(ErrorKind::ValueValidation, wrong).exit();
    }
    report_interval.min(seconds)
}

/// Parses a number of seconds above 0.
pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= SECONDS_MAX => Ok(seconds),
        _ => Err(format!("write a number of seconds without a unit, above 0 and up to {SECONDS_MAX}")),
    }
}
