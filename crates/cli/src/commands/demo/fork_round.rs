//! `ForkRound`: forks a seed, and reads the first line of each child. `prepare` makes the seed. Both are clients of a node.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use farfork_api::client::{Client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::{PREPARE_TIMEOUT, QUERY_TIMEOUT};
use farfork_api::v1::fork_outcome::Result as Outcome;
use farfork_api::v1::inspect_response::Object;
use farfork_api::v1::wait_event::Event;
use farfork_api::v1::{Child, ForkOutcome, ForkRequest, InspectRequest, PrepareRequest, Seed, WaitRequest};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Time limit for the first lines of all children of a round.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// A child and the first line that it printed. Times are since the round's start, in microseconds.
pub(super) struct ChildLine {
    /// Index of the child's payload in `ForkRound::payloads`.
    pub(super) index: usize,
    pub(super) child: Child,
    line: Vec<u8>,
    pub(super) running_us: u64,
    pub(super) line_us: u64,
}

impl ChildLine {
    /// Parses the line as a JSON document.
    pub(super) fn parse<Document: DeserializeOwned>(&self) -> anyhow::Result<Document> {
        let printed = || format!("child {} printed `{}`", self.child.id, String::from_utf8_lossy(&self.line));
        serde_json::from_slice(&self.line).with_context(printed)
    }
}

/// Makes a seed of a process on the client's node.
pub(super) async fn prepare(client: &mut Client, pid: u32) -> Result<Seed, Failure> {
    let request = PrepareRequest { pid, ..PrepareRequest::default() };
    let answer = client.prepare(request_with_timeout(PREPARE_TIMEOUT, request)).await;
    Ok(answer.map_err(|status| Failure::from_status(format!("process {pid}"), &status))?.into_inner())
}

/// A fork with one child for each payload, on these nodes in turn.
pub(super) struct ForkRound<'a> {
    pub(super) seed: &'a str,
    pub(super) nodes: Vec<String>,
    pub(super) payloads: Vec<Vec<u8>>,
    /// The start of the round. Times of the children count from it.
    pub(super) began: Instant,
}

impl ForkRound<'_> {
    /// Forks, and reads the first line of every child as soon as the child runs. Returns the lines in the order of the
    /// payloads.
    ///
    /// # Errors
    /// A child cannot be started or ends without a line, or not all lines arrive within [`ROUND_TIMEOUT`].
    pub(super) async fn run(self, client: &Client) -> anyhow::Result<Vec<ChildLine>> {
        let lines = timeout(ROUND_TIMEOUT, self.fork_and_read(client)).await;
        lines.with_context(|| format!("the children did not all print a line within {} s", ROUND_TIMEOUT.as_secs()))?
    }

    async fn fork_and_read(self, client: &Client) -> anyhow::Result<Vec<ChildLine>> {
        let failed = |status| Failure::from_status(format!("seed {}", self.seed), &status);
        let count = self.payloads.len();
        let request = ForkRequest {
            seed: self.seed.to_owned(),
            nodes: self.nodes,
            count: u32::try_from(count)?,
            payloads: self.payloads,
            options: Some(Default::default()),
            ..ForkRequest::default()
        };
        let mut outcomes = client.clone().fork(request).await.map_err(failed)?.into_inner();
        let mut reading = JoinSet::new();
        while let Some(ForkOutcome { index, result, .. }) = outcomes.message().await.map_err(failed)? {
            match result.context("the node sent an empty outcome")? {
                Outcome::Error(error) => return Err(Failure::from(error).into()),
                Outcome::Child(child) => {
                    reading.spawn(read_first_line(client.clone(), index as usize, child, self.began));
                }
            }
        }
        anyhow::ensure!(reading.len() == count, "{} of {count} children were forked", reading.len());
        let mut lines = reading.join_all().await.into_iter().collect::<anyhow::Result<Vec<ChildLine>>>()?;
        lines.sort_by_key(|line| line.index);
        Ok(lines)
    }
}

/// Reads the output of a child until the end of its first line.
async fn read_first_line(mut client: Client, index: usize, child: Child, began: Instant) -> anyhow::Result<ChildLine> {
    let running_us = elapsed_us(began);
    let failed = |status| Failure::from_status(format!("child {}", child.id), &status);
    let request = WaitRequest { children: vec![child.id.clone()], results: true };
    let mut events = client.wait(request).await.map_err(failed)?.into_inner();
    let mut line = Vec::new();
    while let Some(message) = events.message().await.map_err(failed)? {
        match message.event {
            Some(Event::Stdout(piece) | Event::Result(piece)) => line.extend(piece),
            Some(Event::Error(error)) => return Err(Failure::from(error).into()),
            Some(Event::Ended(_)) | None => {}
        }
        if line.ends_with(b"\n") {
            return Ok(ChildLine { index, child, line, running_us, line_us: elapsed_us(began) });
        }
    }
    anyhow::bail!("child {} ended early; it printed `{}`", child.id, String::from_utf8_lossy(&line))
}

/// Returns the number of bytes that the child's pager has fetched.
pub(super) async fn bytes_fetched(client: &mut Client, child: &str) -> anyhow::Result<u64> {
    let request = request_with_timeout(QUERY_TIMEOUT, InspectRequest { id: child.to_owned() });
    let answer = client.inspect(request).await;
    let answer = answer.map_err(|status| Failure::from_status(format!("child {child}"), &status))?.into_inner();
    match answer.object {
        Some(Object::Child(detail)) => Ok(detail.pager.unwrap_or_default().bytes_fetched),
        _ => anyhow::bail!("child {child}: the node's reply is not about a child"),
    }
}

pub(super) fn elapsed_us(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}
