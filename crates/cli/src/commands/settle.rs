//! `farfork settle`: has a child fetch its remaining pages, so that it no longer needs its seed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use farfork_api::client::Client;
use farfork_api::failure::Failure;
use farfork_api::v1::{SettleProgress, SettleRequest};
use farfork_terminal::interrupt::wait_for_interrupt;
use serde::Serialize;
use tonic::{Code, Status, Streaming};

use crate::output::{self, ByteProgressBar, format_bytes};
use crate::{GlobalArgs, duration};

/// Fetch all remaining memory of a child, so that it no longer needs its seed.
///
/// The child keeps running while its node fetches the missing pages in the background. Pages that the child waits for
/// have priority. Afterwards, the seed can be dropped and the seed's node can stop. Processes that the child forked
/// are settled with it.
///
/// An interrupt or --timeout ends only this command. The node continues to fetch the pages.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork settle n2.c00f3a96c5d217e84
  farfork settle $CHILD --json | jq .memory_bytes
  farfork settle $CHILD --timeout 10m && farfork drop $SEED

Exit status: 0 the child has settled, 1 failure, interrupt or timeout, 2 wrong usage.")]
pub(crate) struct Settle {
    /// Id of the child.
    #[arg(value_name = "CHILD")]
    child: String,
    /// Stop waiting after this time, such as 30s or 10m; the node continues to fetch [default: never].
    #[arg(long, value_name = "TIME", value_parser = duration::parse_ms)]
    timeout: Option<u64>,
}

/// A child that has settled.
#[derive(Debug, Serialize)]
struct SettleView {
    child: String,
    settled: bool,
    /// Size of the seed's memory that has data.
    memory_bytes: u64,
    /// The part of `memory_bytes` that the child did not have when the command began.
    fetched_bytes: u64,
    elapsed_us: u64,
}

impl Settle {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let began = Instant::now();
        // --timeout does not apply yet: the node continues without this command only after it has accepted the request.
        let mut progress = SettleUpdates::start(&mut client, &self.child).await?;
        let limit = self.timeout.map_or(Duration::MAX, Duration::from_millis);
        let settled = tokio::select! {
            settled = progress.wait_settled() => settled?,
            () = tokio::time::sleep(limit) => return Err(self.not_settled("it has not settled in time").into()),
            () = wait_for_interrupt() => return Err(self.not_settled("interrupted before it has settled").into()),
        };
        let SettledMemory { memory_bytes, fetched_bytes } = settled;
        let elapsed_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        if global.json {
            output::print_json(&SettleView {
                child: self.child,
                settled: true,
                memory_bytes,
                fetched_bytes,
                elapsed_us,
            });
        } else {
            output::print_line(&format!(
                "{}  settled: {} fetched in {}",
                self.child,
                format_bytes(fetched_bytes),
                output::format_microseconds(elapsed_us)
            ));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn not_settled(&self, cause: &str) -> Failure {
        let step = format!(
            "its node continues to fetch its pages: see `farfork inspect {}`, or wait with `farfork settle`",
            self.child
        );
        Failure::new(Code::DeadlineExceeded, format!("child {}", self.child), cause).with_next_step(step)
    }
}

struct SettledMemory {
    memory_bytes: u64,
    fetched_bytes: u64,
}

/// The progress reports of a child that settles.
struct SettleUpdates<'a> {
    child: &'a str,
    stream: Streaming<SettleProgress>,
    first: SettleProgress,
}

impl<'a> SettleUpdates<'a> {
    /// Requests that the node settles the child. Receives the first report.
    async fn start(client: &mut Client, child: &'a str) -> anyhow::Result<Self> {
        let request = SettleRequest { child: child.to_owned() };
        let mut stream = client.settle(request).await.map_err(settle_failure(child))?.into_inner();
        let first =
            stream.message().await.map_err(settle_failure(child))?.ok_or_else(|| stream_ended_failure(child))?;
        Ok(Self { child, stream, first })
    }

    /// Shows the progress until the child has settled.
    async fn wait_settled(&mut self) -> anyhow::Result<SettledMemory> {
        let bar = ByteProgressBar::new("settling");
        let mut now = self.first;
        let mut memory_bytes = 0;
        loop {
            memory_bytes = now.total_bytes.max(memory_bytes);
            bar.show(now.total_bytes.saturating_sub(now.missing_bytes), now.total_bytes);
            if now.is_settled {
                let fetched_bytes = self.first.missing_bytes.saturating_sub(now.missing_bytes);
                return Ok(SettledMemory { memory_bytes, fetched_bytes });
            }
            now = self
                .stream
                .message()
                .await
                .map_err(settle_failure(self.child))?
                .ok_or_else(|| stream_ended_failure(self.child))?;
        }
    }
}

fn settle_failure(child: &str) -> impl FnOnce(Status) -> Failure {
    move |status| Failure::from_status(format!("child {child}"), &status)
}

fn stream_ended_failure(child: &str) -> Failure {
    Failure::new(Code::Unavailable, format!("child {child}"), "its node stopped before it had settled")
}
