//! `farfork demo`: sixteen queries to a search index, answered by children on two other nodes, and in three other ways.

mod baselines;
mod report;

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use farfork_api::client::{self, Client};
use farfork_api::failure::Failure;
use serde::Deserialize;
use serde_json::Value;
use tokio::task::block_in_place;
use tonic::Code;

use super::cluster::DemoCluster;
use super::fork_round::{self, ChildLine, ForkRound, elapsed_us};
use super::program::{DemoDirectory, DemoProgram, DemoScript};
use super::progress::DemoProgress;
use baselines::IndexedAnswer;
use report::{AnswerTimes, ChildFigures, FarforkFigures, IndexReport, ParentFigures};

/// Default number of documents in the index. Building it takes about ten seconds.
const DOCUMENTS: u32 = 100_000;

/// Number of queries, and of children in each round.
const QUERIES: usize = 16;

/// Options of the demo of an index.
#[derive(Args)]
pub(super) struct IndexDemo {
    /// Number of documents in the index. Each document needs about 116 Python objects [default: 100000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    documents: Option<u32>,
}

/// The queries, and the answers of the parent's own index.
struct QuerySet {
    queries: Vec<String>,
    expected: Vec<Value>,
}

impl QuerySet {
    fn check(&self, index: usize, answer: &Value) -> anyhow::Result<()> {
        let expected = self.expected.get(index).with_context(|| format!("there is no query {index}"))?;
        let query = &self.queries[index];
        anyhow::ensure!(answer == expected, "query `{query}`: the answer is {answer}, but it must be {expected}");
        Ok(())
    }

    /// Checks that each query has its answer, and returns the times of the first and the last one.
    fn check_all(&self, answers: &[IndexedAnswer]) -> anyhow::Result<AnswerTimes> {
        let answered: BTreeSet<usize> = answers.iter().map(|answer| answer.index).collect();
        anyhow::ensure!(answered.len() == self.queries.len(), "{} of {QUERIES} queries are answered", answered.len());
        answers.iter().try_for_each(|answer| self.check(answer.index, &answer.answer))?;
        Ok(AnswerTimes::of(answers.iter().map(|answer| answer.after_us)))
    }
}

/// The line that the parent prints when its index is built.
#[derive(Deserialize)]
struct BuiltIndex {
    build_us: u64,
    objects: u64,
    resident_bytes: u64,
    queries: Vec<String>,
}

impl IndexDemo {
    /// Refuses the options of this demo for the agent demo. clap's `args_conflicts_with_subcommands` would also refuse
    /// global options, as in `farfork demo --json agent`.
    ///
    /// # Errors
    /// An option of this demo is given with the agent demo.
    pub(super) fn require_defaults(&self) -> Result<(), Failure> {
        let cause = "it is an option of the demo of an index, not of an agent";
        let failure = || Failure::new(Code::InvalidArgument, "--documents", cause).with_next_step("drop --documents");
        self.documents.map_or(Ok(()), |_| Err(failure()))
    }

    fn documents(&self) -> u32 {
        self.documents.unwrap_or(DOCUMENTS)
    }

    /// Runs all rounds. On success and on failure, dropped values end everything that it started.
    pub(super) async fn measure(&self) -> anyhow::Result<IndexReport> {
        let directory = DemoDirectory::make()?;
        let script = DemoScript::install(&directory, "index.py", include_str!("index.py"))?;
        let cluster = block_in_place(|| DemoCluster::start(directory.path()))?;
        let progress = DemoProgress::start();

        progress.show_step(format!("building an index of {} documents on the first node", self.documents()));
        let (mut parent, built, queries) = self.start_parent(&script, &cluster).await?;

        progress.show_step(format!("answering {QUERIES} queries with os.fork() on the first node"));
        let local_fork = baselines::run_local_fork(&mut parent, &queries).await?;
        progress.show_step("pickling the index to a process on each of the two other nodes");
        let pickle = baselines::run_pickle(&mut parent, &script, &cluster, &queries).await?;
        progress.show_step(format!("farfork: preparing, and forking {QUERIES} children onto the two other nodes"));
        let farfork = run_farfork(&cluster, parent.pid(), &queries).await?;
        progress.show_step("starting a process on another node, which builds the index again");
        let cold_us = baselines::run_cold_start(self.documents(), &script, &cluster, &queries).await?;

        progress.show_step("removing everything");
        parent.check_alive()?;
        drop(parent);
        block_in_place(|| cluster.stop())?;
        let parent = ParentFigures {
            documents: self.documents(),
            objects: built.objects,
            build_us: built.build_us,
            memory_bytes: built.resident_bytes,
        };
        Ok(IndexReport { parent, farfork, cold_us, pickle, local_fork })
    }

    async fn start_parent(
        &self,
        script: &DemoScript,
        cluster: &DemoCluster,
    ) -> anyhow::Result<(DemoProgram, BuiltIndex, QuerySet)> {
        let arguments = ["parent", &self.documents().to_string(), &QUERIES.to_string()];
        let mut parent = script.start(cluster.parent_node(), &arguments)?;
        let mut built: BuiltIndex = parent.read_document().await?;
        parent.write_line("expect")?;
        let queries = QuerySet { queries: std::mem::take(&mut built.queries), expected: parent.read_document().await? };
        Ok((parent, built, queries))
    }
}

/// Prepares the parent, and forks the seed twice.
async fn run_farfork(cluster: &DemoCluster, parent: u32, queries: &QuerySet) -> anyhow::Result<FarforkFigures> {
    let mut client = client::connect(&cluster.parent_node().socket).await?;
    let sent_before = cluster.bytes_sent()?;
    let began = Instant::now();
    let seed = fork_round::prepare(&mut client, parent).await?;
    let prepared_us = elapsed_us(began);
    let first = answer_queries(cluster, &client, &seed.id, began, queries).await?;
    let network_bytes = cluster.bytes_sent()? - sent_before;
    let mut children = Vec::new();
    for ChildLine { child, line_us, .. } in &first {
        let bytes_fetched = fork_round::bytes_fetched(&mut client, &child.id).await?;
        let (node, resume_us, answer_us) = (child.node.clone(), child.resume_us, *line_us);
        children.push(ChildFigures { node, resume_us, answer_us, bytes_fetched });
    }
    let second = answer_queries(cluster, &client, &seed.id, Instant::now(), queries).await?;
    Ok(FarforkFigures {
        prepared_us,
        pause_us: seed.pause_us,
        first_fork: AnswerTimes::of(first.iter().map(|line| line.line_us)),
        second_fork: AnswerTimes::of(second.iter().map(|line| line.line_us)),
        children,
        network_bytes,
    })
}

/// Forks a child for each query onto the other nodes, and checks the answers. Returns times since `began`.
async fn answer_queries(
    cluster: &DemoCluster,
    client: &Client,
    seed: &str,
    began: Instant,
    queries: &QuerySet,
) -> anyhow::Result<Vec<ChildLine>> {
    let round = ForkRound {
        seed,
        nodes: cluster.child_nodes().iter().map(|node| node.name.clone()).collect(),
        payloads: queries.queries.iter().map(|query| query.clone().into_bytes()).collect(),
        began,
    };
    let lines = round.run(client).await?;
    lines.iter().try_for_each(|line| queries.check(line.index, &line.parse()?))?;
    Ok(lines)
}
