//! Baselines for the queries, without farfork: os.fork() on the parent's node, pickle over the network, and a cold
//! start. Each baseline has the best case: nothing else runs, and imports of the pickle's receivers are done before.

use std::time::Instant;

use serde::Deserialize;
use serde_json::Value;

use super::super::cluster::DemoCluster;
use super::super::fork_round::elapsed_us;
use super::super::program::{DemoProgram, DemoScript};
use super::QuerySet;
use super::report::{AnswerTimes, PickleFigures};

/// The answer to a query, as the program prints it.
#[derive(Deserialize)]
pub(super) struct IndexedAnswer {
    pub(super) index: usize,
    pub(super) answer: Value,
    /// Since the start of the round.
    pub(super) after_us: u64,
}

/// A child of os.fork() for each query, timed by the parent from before the first os.fork().
pub(super) async fn run_local_fork(parent: &mut DemoProgram, queries: &QuerySet) -> anyhow::Result<AnswerTimes> {
    parent.write_line("fork")?;
    read_answers(parent, queries).await
}

/// The index, pickled once and sent to a process on each node of the children, which forks a child for each query.
/// Timed by the parent from before `pickle.dumps`.
pub(super) async fn run_pickle(
    parent: &mut DemoProgram,
    script: &DemoScript,
    cluster: &DemoCluster,
    queries: &QuerySet,
) -> anyhow::Result<PickleFigures> {
    #[derive(Deserialize)]
    struct ReceiverPort {
        port: u16,
    }
    #[derive(Deserialize)]
    struct SentPickle {
        pickled_bytes: u64,
    }
    let mut command = "pickle".to_owned();
    let mut receivers = Vec::new();
    for node in cluster.child_nodes() {
        let host = node.address.ip().to_string();
        let mut receiver = script.start(node, &["receive", &host])?;
        let ReceiverPort { port } = receiver.read_document().await?;
        command += &format!(" {host}:{port}");
        receivers.push(receiver);
    }
    parent.write_line(&command)?;
    let times = read_answers(parent, queries).await?;
    let SentPickle { pickled_bytes } = parent.read_document().await?;
    Ok(PickleFigures { times, pickled_bytes })
}

async fn read_answers(parent: &mut DemoProgram, queries: &QuerySet) -> anyhow::Result<AnswerTimes> {
    let mut answers = Vec::new();
    for _ in &queries.queries {
        answers.push(parent.read_document().await?);
    }
    queries.check_all(&answers)
}

/// One answer by a fresh process on a node of the children, in microseconds from its start.
pub(super) async fn run_cold_start(
    documents: u32,
    script: &DemoScript,
    cluster: &DemoCluster,
    queries: &QuerySet,
) -> anyhow::Result<u64> {
    let began = Instant::now();
    let arguments = ["cold", &documents.to_string(), &queries.queries[0]];
    let mut program = script.start(&cluster.child_nodes()[0], &arguments)?;
    let answer = program.read_document().await?;
    let answer_us = elapsed_us(began);
    queries.check(0, &answer)?;
    Ok(answer_us)
}
