//! `farfork settle`: a child takes the rest of its pages, and needs its seed no more.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use farfork_node::api::v1::{SettleProgress, SettleRequest};
use farfork_node::client::Client;
use farfork_node::failure::Failure;
use serde::Serialize;
use tonic::{Code, Status, Streaming};

use crate::interruption::interrupted;
use crate::output::{self, ByteBar, bytes};
use crate::{Global, seconds};

/// Have a child take the rest of its memory, so that it needs its seed no more.
///
/// The pages that it has not touched yet come in the background, behind those that it waits for. Afterwards the seed may be
/// dropped and the node of its parent may go: the child goes on. So do processes that it has forked.
///
/// Who interrupts this command, or lets the time run out, ends only the waiting: the pages go on coming.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork settle n2.c00f3a96c5d217e84
  farfork settle $CHILD --json | jq .memory_bytes
  farfork settle $CHILD --timeout 10m && farfork drop $SEED

Exit status: 0 the child has settled, 1 it cannot, or has not in time or before an interruption, 2 wrong usage.")]
pub(crate) struct Settle {
    /// Id of the child.
    #[arg(value_name = "CHILD")]
    child: String,
    /// Wait no longer than this, for example 30s or 10m; the pages go on coming [default: for ever].
    #[arg(long, value_name = "TIME", value_parser = seconds::parse_ms)]
    timeout: Option<u64>,
}

/// A child that has settled.
#[derive(Debug, Serialize)]
struct SettleView {
    child: String,
    settled: bool,
    /// Memory of the seed that holds data.
    memory_bytes: u64,
    /// Of this, what was not there when the command began.
    fetched_bytes: u64,
    elapsed_us: u64,
}

impl Settle {
    pub(crate) async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        let began = Instant::now();
        // Not before it has begun does anything go on without this command.
        let mut progress = Progress::begin(&mut client, &self.child).await?;
        let limit = self.timeout.map_or(Duration::MAX, Duration::from_millis);
        let settled = tokio::select! {
            settled = progress.follow() => settled?,
            () = tokio::time::sleep(limit) => return Err(self.unfinished("it has not settled in time").into()),
            () = interrupted() => return Err(self.unfinished("interrupted before it has settled").into()),
        };
        let Settled { memory_bytes, fetched_bytes } = settled;
        let elapsed_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        if global.json {
            output::json(&SettleView { child: self.child, settled: true, memory_bytes, fetched_bytes, elapsed_us });
        } else {
            output::line(&format!(
                "{}  settled: {} fetched in {}",
                self.child,
                bytes(fetched_bytes),
                output::microseconds(elapsed_us)
            ));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn unfinished(&self, cause: &str) -> Failure {
        let step =
            format!("its pages go on coming: see `farfork inspect {}`, or wait with `farfork settle`", self.child);
        Failure::new(Code::DeadlineExceeded, format!("child {}", self.child), cause).with_next_step(step)
    }
}

struct Settled {
    memory_bytes: u64,
    fetched_bytes: u64,
}

/// What is told of a child that settles.
struct Progress<'a> {
    child: &'a str,
    told: Streaming<SettleProgress>,
    first: SettleProgress,
}

impl<'a> Progress<'a> {
    /// Has the child begin.
    async fn begin(client: &mut Client, child: &'a str) -> anyhow::Result<Self> {
        let request = SettleRequest { child: child.to_owned() };
        let mut told = client.settle(request).await.map_err(failed(child))?.into_inner();
        let first = told.message().await.map_err(failed(child))?.ok_or_else(|| stopped(child))?;
        Ok(Self { child, told, first })
    }

    /// Shows how far the child is until it has settled.
    async fn follow(&mut self) -> anyhow::Result<Settled> {
        let bar = ByteBar::new("settling");
        let mut now = self.first;
        let mut memory_bytes = 0;
        loop {
            memory_bytes = now.total_bytes.max(memory_bytes);
            bar.show(now.total_bytes.saturating_sub(now.missing_bytes), now.total_bytes);
            if now.is_settled {
                let fetched_bytes = self.first.missing_bytes.saturating_sub(now.missing_bytes);
                return Ok(Settled { memory_bytes, fetched_bytes });
            }
            now = self.told.message().await.map_err(failed(self.child))?.ok_or_else(|| stopped(self.child))?;
        }
    }
}

fn failed(child: &str) -> impl FnOnce(Status) -> Failure {
    move |status| Failure::from_status(format!("child {child}"), &status)
}

fn stopped(child: &str) -> Failure {
    Failure::new(Code::Unavailable, format!("child {child}"), "its node stopped before it had settled")
}
