//! `farfork settle`: a child takes the rest of its pages, and needs its seed no more.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use farfork_node::api::v1::{SettleProgress, SettleRequest};
use farfork_node::client::Client;
use farfork_node::failure::Failure;
use serde::Serialize;
use tonic::Code;

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
        let client = global.connection.open().await?;
        let began = Instant::now();
        let limit = self.timeout.map_or(Duration::MAX, Duration::from_millis);
        let settled = tokio::select! {
            settled = follow(client, &self.child) => settled?,
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

/// Shows how far the child is until it has settled.
async fn follow(mut client: Client, child: &str) -> anyhow::Result<Settled> {
    let failed = |status| Failure::from_status(format!("child {child}"), &status);
    let request = SettleRequest { child: child.to_owned() };
    let mut told = client.settle(request).await.map_err(failed)?.into_inner();
    let bar = ByteBar::new("settling");
    let (mut memory_bytes, mut missing_bytes) = (0, None);
    while let Some(SettleProgress { total_bytes, missing_bytes: missing, is_settled }) =
        told.message().await.map_err(failed)?
    {
        memory_bytes = memory_bytes.max(total_bytes);
        let fetched_bytes = missing_bytes.get_or_insert(missing).saturating_sub(missing);
        bar.show(total_bytes.saturating_sub(missing), total_bytes);
        if is_settled {
            return Ok(Settled { memory_bytes, fetched_bytes });
        }
    }
    anyhow::bail!("child {child}: its node stopped before it had settled")
}
