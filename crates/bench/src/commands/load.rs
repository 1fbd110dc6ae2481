//! `LoadArgs`: the arguments that describe a load of calls, shared by `bench rpc` and `stress rpc`.

use clap::Args;
use farfork_bench::{ConnectionSecurity, RpcCase};

/// Bytes of an answer that is checked, unless told otherwise; its checksum comes on top.
const PAYLOAD_BYTES: u32 = 2048;

/// Longest run, in seconds: a week.
const SECONDS_MAX: f64 = 604_800.0;

/// Who asks whom, and how much at once.
#[derive(Args)]
pub(crate) struct LoadArgs {
    /// Threads of the server; connections are spread over them [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    server_threads: Option<u64>,
    /// Client nodes, each a process in a network namespace of its own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10))]
    clients: Option<u64>,
    /// Threads of each client node.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: Option<u64>,
    /// Connections of each thread [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    connections: Option<u64>,
    /// Sessions on each connection [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    sessions: Option<u64>,
    /// Requests in flight on each session; 1: each waits for the one before.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096))]
    window: Option<u64>,
    /// Have each answer made of random bytes with a checksum, and verify it.
    #[arg(long)]
    checksum: bool,
    /// Random bytes of an answer; 8 bytes of checksum come on top. Implies --checksum [default: 2048].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=(16 << 20) - 8))]
    payload: Option<u32>,
    /// Have both ends prove who they are, and encrypt what follows, or not.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"])]
    encryption: Option<String>,
    /// Sleep as soon as there is nothing to do, instead of looking for 50 µs.
    #[arg(long)]
    no_spin: bool,
}

impl LoadArgs {
    /// Whether anything was said.
    pub(crate) fn is_specified(&self) -> bool {
        let numbers = [self.server_threads, self.clients, self.threads, self.connections, self.sessions, self.window];
        numbers.iter().any(Option::is_some)
            || self.payload.is_some()
            || self.checksum
            || self.no_spin
            || self.encryption.is_some()
    }

    /// The case that they describe; what they leave out is `usual`.
    pub(crate) fn to_case(&self, usual: &RpcCase) -> RpcCase {
        let or = |given: Option<u64>, usual: usize| given.map_or(usual, |given| given as usize);
        let payload = self.payload.or(self.checksum.then_some(PAYLOAD_BYTES));
        RpcCase {
            clients: or(self.clients, usual.clients),
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

/// Seconds as a number; more than none.
pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= SECONDS_MAX => Ok(seconds),
        _ => Err(format!("it must be a number of seconds, {SECONDS_MAX} at most")),
    }
}
