//! Answers the queries without farfork: with os.fork() on the parent's node, with pickle over the network, and with a
//! cold start. Each baseline has the best case: nothing else runs, and the pickle's receivers have finished their
//! imports.

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
    /// Time from the start of the round until this answer, in microseconds.
    pub(super) after_us: u64,
}

/// Answers each query in a child of os.fork(). The parent measures the times since the first call of os.fork().
pub(super) async fn run_local_fork(parent: &mut DemoProgram, queries: &QuerySet) -> anyhow::Result<AnswerTimes> {
    parent.write_line("fork")?;
    read_answers(parent, queries).await
}

/// Pickles the index once and sends it to a process on each of the children's nodes. Each process forks a child for
/// each query. The parent measures the times since the call of `pickle.dumps`.
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

/// Answers one query in a new process on one of the children's nodes. Returns the time from the start of the process to
/// the answer, in microseconds.
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
