//! Forks many children of one seed with one request, waits for them in batches, and checks each answer, as a user's
//! client does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use farfork_api::v1::wait_event::Event;
use farfork_api::v1::{self, exit::How};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::node_client::{NodeClient, request_failure, started_child};
use super::nodes::ClusterNode;
use crate::baseline::local_fanout::{ChildLatency, ChildNetwork};
use crate::error::{BenchError, ChildEnd};
use crate::workload::child_task::ChildTask;

/// Time limit of a whole fan-out. Ten thousand children on a busy machine take a minute.
const FANOUT_LIMIT: Duration = Duration::from_secs(300);

/// Number of children that one request waits for. Their ends are reported in order, so a late child delays the reports
/// of the following ones.
const BATCH_SIZE: usize = 16;

/// How long a batch waits for more children before its request is sent.
const BATCH_DELAY: Duration = Duration::from_millis(1);

/// The time at which a request was sent, by both clocks. Children report the time of their result by the system clock.
#[derive(Debug, Clone, Copy)]
struct RequestTime {
    instant: Instant,
    clock: SystemTime,
}

/// A child that keeps running after its answer.
#[derive(Debug)]
pub(crate) struct HeldChild {
    /// Its process id on the machine of its node.
    pub(crate) pid: i32,
    /// The name of its node; `None` for the first one.
    pub(crate) node: Option<String>,
    /// The child's id, if farfork has forked it. A local fork ends when the next one is created.
    pub(crate) child: Option<String>,
}

impl HeldChild {
    /// A local fork on the machine of the first node.
    pub(crate) fn of_first_node(pid: i32) -> Self {
        Self { pid, node: None, child: None }
    }
}

/// Forks children of one seed.
#[derive(Debug, Clone)]
pub(crate) struct FanoutClient {
    seed: String,
    task: ChildTask,
    /// A client for each node, by name. The end of a child is requested from the child's node.
    nodes: BTreeMap<String, NodeClient>,
    /// The node that receives the fork requests.
    entry_client: NodeClient,
    /// Whether children are removed after their answer.
    forgets_children: bool,
    network: v1::Network,
    /// Paging strategy of the children; empty for the default.
    strategy: String,
}

impl FanoutClient {
    /// A client for children of a seed with this task, on all of these nodes. The first node receives the fork
    /// requests.
    pub(crate) async fn new(all: &[ClusterNode], seed: &str, task: ChildTask) -> Result<Self, BenchError> {
        let mut nodes = BTreeMap::new();
        for node in all {
            nodes.insert(node.name.clone(), node.connect().await?.with_limit(FANOUT_LIMIT));
        }
        let entry_client = all[0].connect().await?;
        Ok(Self { nodes, forgets_children: false, ..Self::on_node(&all[0].name, entry_client, seed, task) })
    }

    /// Makes the nodes remove children after their answer.
    pub(crate) fn forgetting_children(self) -> Self {
        Self { forgets_children: true, ..self }
    }

    /// Sets the network of the children.
    pub(crate) fn with_network(self, network: ChildNetwork) -> Self {
        let network = match network {
            ChildNetwork::Private => v1::Network::Private,
            ChildNetwork::Shared => v1::Network::Shared,
            ChildNetwork::Host => v1::Network::Host,
        };
        Self { network, ..self }
    }

    /// Sets the paging strategy of the children; empty for the default.
    pub(crate) fn with_strategy(self, strategy: &str) -> Self {
        Self { strategy: strategy.to_owned(), ..self }
    }

    /// A client for children of a seed on one node, which removes them after their answer.
    pub(crate) fn on_node(node: &str, entry_client: NodeClient, seed: &str, task: ChildTask) -> Self {
        let entry_client = entry_client.with_limit(FANOUT_LIMIT);
        Self {
            seed: seed.to_owned(),
            task,
            nodes: BTreeMap::from([(node.to_owned(), entry_client.clone())]),
            entry_client,
            forgets_children: true,
            network: v1::Network::Private,
            strategy: String::new(),
        }
    }

    /// Forks children with these numbers over all nodes. Returns the latency of each.
    pub(crate) async fn fan_out(&self, first: u64, count: u64) -> Result<Vec<ChildLatency>, BenchError> {
        let sent = RequestTime { instant: Instant::now(), clock: SystemTime::now() };
        let payloads = (first..first + count).map(|number| self.task.payload(number)).collect();
        let mut outcomes = self.fork(payloads).await?;
        let (mut waits, mut batches, mut all) = (FuturesUnordered::new(), WaitBatches::default(), Vec::new());
        let mut is_complete = false;
        loop {
            tokio::select! {
                biased;
                outcome = outcomes.message(), if !is_complete => match outcome.map_err(request_failure(&self.seed))? {
                    Some(outcome) => batches.add(parse_started_child(outcome, first)?),
                    None => is_complete = true,
                },
                Some(answered) = waits.next(), if !waits.is_empty() => all.extend(answered?),
                () = tokio::time::sleep(BATCH_DELAY), if !batches.is_empty() => batches.is_due = true,
                else => break,
            }
            for (node, batch) in batches.take_due(is_complete) {
                waits.push(self.wait_batch(self.nodes[&node].clone(), batch, sent));
            }
        }
        Ok(all)
    }

    /// Starts a child that does its task and then keeps running.
    pub(crate) async fn start_held(&mut self, number: u64) -> Result<HeldChild, BenchError> {
        let mut outcomes = self.fork(vec![format!("{} hold", self.task.payload(number))]).await?;
        let outcome = outcomes.message().await.map_err(request_failure(&self.seed))?;
        let child = started_child(outcome.and_then(|outcome| outcome.result), &self.seed)?;
        let node = self.nodes.get_mut(&child.node).expect("the node is part of the cluster");
        let mut chunks = node.logs(&child.id, true).await?;
        let mut output = String::new();
        while !output.ends_with('\n') {
            let Some(chunk) = chunks.message().await.map_err(request_failure(&child.id))? else { break };
            output.push_str(&String::from_utf8_lossy(&chunk.data));
        }
        self.task.parse_result_time(&output, number)?;
        Ok(HeldChild { pid: child.pid.cast_signed(), node: Some(child.node), child: Some(child.id) })
    }

    async fn fork(&self, payloads: Vec<String>) -> Result<tonic::Streaming<v1::ForkOutcome>, BenchError> {
        let payloads: Vec<Vec<u8>> = payloads.into_iter().map(String::into_bytes).collect();
        let request = v1::ForkRequest {
            seed: self.seed.clone(),
            nodes: self.nodes.keys().cloned().collect(),
            count: u32::try_from(payloads.len()).unwrap_or(u32::MAX),
            payloads,
            options: Some(v1::ChildOptions {
                network: self.network.into(),
                strategy: self.strategy.clone(),
                ..Default::default()
            }),
            ..Default::default()
        };
        Ok(self.entry_client.clone().fork(request).await?)
    }

    /// Waits for some children of one node, and checks their answers. Then removes the children if `forgets_children` is
    /// set.
    async fn wait_batch(
        &self,
        mut client: NodeClient,
        batch: Vec<FanoutChild>,
        sent: RequestTime,
    ) -> Result<Vec<ChildLatency>, BenchError> {
        let children = batch.iter().map(|running| running.id.clone()).collect();
        let (mut events, object) = (client.wait(children).await?, &batch[0].id);
        let (mut all, mut output) = (Vec::new(), String::new());
        while let Some(v1::WaitEvent { index, event }) = events.message().await.map_err(request_failure(object))? {
            let FanoutChild { number, id, .. } = &batch[index as usize];
            match event {
                Some(Event::Stdout(piece)) => output.push_str(&String::from_utf8_lossy(&piece)),
                Some(Event::Ended(v1::Child { exit: Some(v1::Exit { how: Some(How::Code(0)), .. }), .. })) => {
                    let result = self.task.parse_result_time(&std::mem::take(&mut output), *number)?;
                    let result = result.duration_since(sent.clock).unwrap_or_default();
                    all.push(ChildLatency { result, answer: sent.instant.elapsed() });
                }
                other => {
                    let failed = BenchError::ChildFailed { child: id.clone(), how: ChildEnd::from_event(other) };
                    return Err(self.task.describe_failure(failed));
                }
            }
        }
        for FanoutChild { id, .. } in batch.iter().filter(|_| self.forgets_children) {
            client.remove(id).await?;
        }
        match all.len() == batch.len() {
            true => Ok(all),
            false => Err(BenchError::WrongMemory {
                count: (batch.len() - all.len()) as u64,
                what: "missing answers of children",
            }),
        }
    }
}

/// A running child.
#[derive(Debug)]
struct FanoutChild {
    number: u64,
    id: String,
    node: String,
}

fn parse_started_child(outcome: v1::ForkOutcome, first: u64) -> Result<FanoutChild, BenchError> {
    let number = first + u64::from(outcome.index);
    let child = started_child(outcome.result, &format!("child {number}"))?;
    Ok(FanoutChild { number, id: child.id, node: child.node })
}

/// Children that no request waits for yet, by node.
#[derive(Debug, Default)]
struct WaitBatches {
    by_node: BTreeMap<String, Vec<FanoutChild>>,
    is_due: bool,
}

impl WaitBatches {
    fn add(&mut self, running: FanoutChild) {
        self.by_node.entry(running.node.clone()).or_default().push(running);
    }

    fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    /// Takes the batches that are due.
    fn take_due(&mut self, all: bool) -> Vec<(String, Vec<FanoutChild>)> {
        let is_due = std::mem::take(&mut self.is_due) || all;
        let (due, rest) = std::mem::take(&mut self.by_node)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, batch)| is_due || batch.len() >= BATCH_SIZE);
        self.by_node = rest;
        due.into_iter().collect()
    }
}
