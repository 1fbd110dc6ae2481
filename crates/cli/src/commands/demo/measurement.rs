//! The demo's work, done three times: by children on other nodes, by a local fork, and by a cold start. Each run is
//! timed from the call to each result.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use farfork_api::client::{self, Client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::{PREPARE_TIMEOUT, QUERY_TIMEOUT};
use farfork_api::v1::fork_outcome::Result as Outcome;
use farfork_api::v1::wait_event::Event;
use farfork_api::v1::{Child, ForkRequest, InspectRequest, PrepareRequest, Seed, WaitRequest};
use farfork_api::v1::{ForkOutcome, inspect_response::Object};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::cluster::DemoCluster;
use super::program::{DemoDirectory, DemoProgram};

/// For all results of a round.
const ROUND_LIMIT: Duration = Duration::from_secs(60);

/// A part of the array: elements `first` to `end` − 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct ArrayPart {
    first: u64,
    end: u64,
}

impl ArrayPart {
    /// Cuts an array of so many MiB of 8-byte numbers into equal parts.
    pub(super) fn split_array(mebibytes: u64, count: usize) -> Vec<Self> {
        let (elements, count) = ((mebibytes << 20) / 8, count as u64);
        let cut = |index: u64| elements * index / count;
        (0..count).map(|index| Self { first: cut(index), end: cut(index + 1) }).collect()
    }

    /// What the part adds up to: element i of the array is i.
    fn expected_sum(self) -> u64 {
        let below = |end: u64| u128::from(end) * u128::from(end.saturating_sub(1)) / 2;
        u64::try_from(below(self.end) - below(self.first)).expect("64 bits hold the sums of arrays that fit in memory")
    }

    fn payload(self) -> String {
        serde_json::to_string(&self).expect("two numbers serialise")
    }

    fn check_sum(self, sum: u64) -> anyhow::Result<()> {
        let right = self.expected_sum();
        anyhow::ensure!(sum == right, "part {self:?} adds up to {right}, but a child says {sum}");
        Ok(())
    }
}

/// What the program answers.
#[derive(Deserialize)]
struct ProgramAnswer {
    sum: u64,
}

/// A child's figures.
#[derive(Debug, Serialize)]
pub(super) struct ChildFigures {
    pub(super) node: String,
    pub(super) resume_us: u64,
    /// From the call of fork until its result was in the caller's hand.
    pub(super) result_us: u64,
    /// What its pager fetched.
    pub(super) bytes_fetched: u64,
}

/// The round across nodes.
#[derive(Debug, Serialize)]
pub(super) struct AcrossNodes {
    pub(super) pause_us: u64,
    pub(super) prepare_us: u64,
    pub(super) threads: u32,
    pub(super) memory_bytes: u64,
    pub(super) children: Vec<ChildFigures>,
    /// What the parent's node sent from the call of fork to the last result.
    pub(super) network_bytes: u64,
}

/// Prepares the parent, forks it onto the other nodes, and checks what comes back.
pub(super) async fn fork_across_nodes(
    cluster: &DemoCluster,
    parent: u32,
    parts: &[ArrayPart],
) -> anyhow::Result<AcrossNodes> {
    let mut client = client::connect(&cluster.parent_node().socket).await?;
    let seed = prepare(&mut client, parent).await?;
    let sent_before = cluster.bytes_sent()?;

    let called = Instant::now();
    let request = ForkRequest {
        seed: seed.id,
        nodes: cluster.child_nodes().iter().map(|node| node.name.clone()).collect(),
        count: u32::try_from(parts.len())?,
        payloads: parts.iter().map(|part| part.payload().into_bytes()).collect(),
        options: Some(Default::default()),
        ..ForkRequest::default()
    };
    let results = timeout(ROUND_LIMIT, fork_and_wait(&client, request, called)).await;
    let results = results.with_context(|| format!("not all results came within {} s", ROUND_LIMIT.as_secs()))??;
    let network_bytes = cluster.bytes_sent()? - sent_before;

    let mut children = Vec::new();
    for (index, child, result, result_us) in results {
        let answer: ProgramAnswer = serde_json::from_slice(&result)
            .with_context(|| format!("child {} answered `{}`", child.id, String::from_utf8_lossy(&result)))?;
        parts[index as usize].check_sum(answer.sum)?;
        let bytes_fetched = bytes_fetched(&mut client, &child.id).await?;
        children.push(ChildFigures { node: child.node, resume_us: child.resume_us, result_us, bytes_fetched });
    }
    let Seed { pause_us, prepare_us, threads, memory_bytes, .. } = seed;
    Ok(AcrossNodes { pause_us, prepare_us, threads, memory_bytes, children, network_bytes })
}

async fn prepare(client: &mut Client, parent: u32) -> Result<Seed, Failure> {
    let request = PrepareRequest { pid: parent, ..PrepareRequest::default() };
    let answer = client.prepare(request_with_timeout(PREPARE_TIMEOUT, request)).await;
    Ok(answer.map_err(|status| Failure::from_status(format!("process {parent}"), &status))?.into_inner())
}

/// Forks, and waits for each child as soon as it is known: index, child, what it wrote, and when that was in hand.
async fn fork_and_wait(
    client: &Client,
    request: ForkRequest,
    called: Instant,
) -> anyhow::Result<Vec<(u32, Child, Vec<u8>, u64)>> {
    let failed = |status| Failure::from_status("the demo's seed", &status);
    let mut outcomes = client.clone().fork(request).await.map_err(failed)?.into_inner();
    let mut waiting = JoinSet::new();
    while let Some(ForkOutcome { index, result, .. }) = outcomes.message().await.map_err(failed)? {
        match result.context("an outcome is empty")? {
            Outcome::Error(error) => return Err(Failure::from(error).into()),
            Outcome::Child(child) => {
                let client = client.clone();
                waiting.spawn(async move {
                    let written = read_child_output(client, &child.id).await?;
                    let after_us = u64::try_from(called.elapsed().as_micros())?;
                    anyhow::Ok((index, child, written, after_us))
                });
            }
        }
    }
    let mut results = Vec::new();
    while let Some(result) = waiting.join_next().await {
        results.push(result??);
    }
    results.sort_by_key(|(index, ..)| *index);
    Ok(results)
}

/// What a child wrote until its end.
async fn read_child_output(mut client: Client, child: &str) -> anyhow::Result<Vec<u8>> {
    let failed = |status| Failure::from_status(format!("child {child}"), &status);
    let request = WaitRequest { children: vec![child.to_owned()], results: true };
    let mut events = client.wait(request).await.map_err(failed)?.into_inner();
    let mut written = Vec::new();
    while let Some(message) = events.message().await.map_err(failed)? {
        match message.event {
            Some(Event::Stdout(piece) | Event::Result(piece)) => written.extend(piece),
            Some(Event::Error(error)) => return Err(Failure::from(error).into()),
            Some(Event::Ended(_)) | None => {}
        }
    }
    Ok(written)
}

async fn bytes_fetched(client: &mut Client, child: &str) -> anyhow::Result<u64> {
    let request = request_with_timeout(QUERY_TIMEOUT, InspectRequest { id: child.to_owned() });
    let answer = client.inspect(request).await;
    let answer = answer.map_err(|status| Failure::from_status(format!("child {child}"), &status))?.into_inner();
    match answer.object {
        Some(Object::Child(detail)) => Ok(detail.pager.unwrap_or_default().bytes_fetched),
        _ => anyhow::bail!("child {child}: the node's answer is about something else"),
    }
}

/// A result of a local fork.
#[derive(Deserialize)]
struct LocalForkResult {
    index: usize,
    sum: u64,
    after_us: u64,
}

/// The same by os.fork(): when each result came, in microseconds, in the order of the parts.
pub(super) fn run_local_fork(
    python: &Path,
    scratch: &DemoDirectory,
    mebibytes: u64,
    parts: &[ArrayPart],
) -> anyhow::Result<Vec<u64>> {
    let mut program = DemoProgram::start(python, scratch, "fork", mebibytes)?;
    program.write_input(&parts.iter().map(|part| part.payload()).collect::<Vec<_>>())?;
    let mut after_us = vec![0; parts.len()];
    for _ in parts {
        let answer: LocalForkResult = serde_json::from_str(&program.read_line()?)?;
        parts.get(answer.index).context("there is no such part")?.check_sum(answer.sum)?;
        after_us[answer.index] = answer.after_us;
    }
    Ok(after_us)
}

/// One part by a fresh process, alone on the machine: when its result came, in microseconds.
pub(super) fn run_cold_start(
    python: &Path,
    scratch: &DemoDirectory,
    mebibytes: u64,
    part: &ArrayPart,
) -> anyhow::Result<u64> {
    let called = Instant::now();
    let mut program = DemoProgram::start(python, scratch, "cold", mebibytes)?;
    program.write_input(&[part.payload()])?;
    let answer: ProgramAnswer = serde_json::from_str(&program.read_line()?)?;
    let after_us = u64::try_from(called.elapsed().as_micros())?;
    part.check_sum(answer.sum)?;
    Ok(after_us)
}

#[cfg(test)]
mod tests {
    use super::ArrayPart;

    #[test]
    fn parts_cover_the_array_and_add_up() {
        let parts = ArrayPart::split_array(1, 7);
        assert_eq!((parts[0].first, parts[6].end), (0, 131_072));
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].first));
        let whole: u64 = parts.iter().map(|part| part.expected_sum()).sum();
        assert_eq!(whole, (0..131_072).sum::<u64>());
    }
}
