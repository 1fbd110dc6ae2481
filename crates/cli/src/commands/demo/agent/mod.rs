//! `farfork demo agent`: branches an interpreter in the middle of a search, keeps the best branch, and drops the rest.

mod report;

use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use farfork_api::client::{self, Client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::{Child, DropRequest, KillRequest, SettleRequest, WaitRequest};
use farfork_cluster::local::LocalNode;
use serde::Deserialize;
use serde_json::json;
use tokio::task::block_in_place;

use super::cluster::DemoCluster;
use super::fork_round::{self, ChildLine, ForkRound, elapsed_us};
use super::program::{DemoDirectory, DemoProgram, DemoScript};
use super::progress::DemoProgress;
use report::{AgentReport, KeptBranch, RoundFigures};

/// Moves that the interpreter has tried before it is branched.
const WARM_STEPS: u32 = 1_000_000;

/// Branch an interpreter eight ways, let each branch continue, keep the best one, and drop the rest.
///
/// Starts three nodes on this machine, and a Python process on the first node that searches for a short tour through
/// 600 cities. In each round, every branch is a child on another node that continues from the same tour in its own way.
/// The best child is prepared and branched again. At the end it has all its memory, the others are killed, and the
/// seeds are dropped. It needs what `farfork demo` needs, and removes everything that it made.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo farfork demo agent
  sudo farfork demo agent --rounds 5 --branches 16 --json

Exit status: 0 the best branch was kept, 1 failure, 2 wrong usage.")]
pub(super) struct AgentDemo {
    /// Number of rounds, each of which branches the best child of the round before.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Number of branches of each round.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=256))]
    branches: u32,
    /// Number of moves that each branch tries in a round.
    #[arg(long, default_value_t = 200_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
}

/// What the program prints when it is warm.
#[derive(Deserialize)]
struct WarmAgent {
    warm_us: u64,
    length: f64,
}

/// What a branch prints: all decisions since the parent, and the length of its tour.
#[derive(Deserialize)]
struct BranchResult {
    branches: Vec<u32>,
    length: f64,
}

/// A branch of a round, which has answered and still runs.
struct Branch {
    child: Child,
    result: BranchResult,
    running_us: u64,
}

impl AgentDemo {
    /// Runs all rounds. However this ends, what it started is ended by dropping it.
    pub(super) async fn measure(&self) -> anyhow::Result<AgentReport> {
        let directory = DemoDirectory::make()?;
        let script = DemoScript::install(&directory, "agent.py", include_str!("agent.py"))?;
        let cluster = block_in_place(|| DemoCluster::start(directory.path()))?;
        let progress = DemoProgress::start();
        progress.show_step(format!("warming up: {WARM_STEPS} moves on the first node"));
        let mut parent = block_in_place(|| script.start(cluster.parent_node(), &[&WARM_STEPS.to_string()]))?;
        let warm: WarmAgent = block_in_place(|| parent.read_document())?;

        let (rounds, best) = self.run_rounds(&cluster, &parent, &progress).await?;
        progress.show_step(format!("settling {}: it gets all its memory", best.child.id));
        let settle_us = settle(&cluster, &best.child).await?;
        progress.show_step("dropping the seeds");
        // The last one first: a seed of a child needs the seed that the child came from.
        for round in rounds.iter().rev() {
            drop_seed(&cluster, &round.seed).await?;
        }
        let kept = KeptBranch { child: best.child.id.clone(), node: best.child.node.clone(), settle_us };

        progress.show_step("removing everything");
        parent.check_alive()?;
        drop(parent);
        block_in_place(|| cluster.stop())?;
        Ok(AgentReport {
            warm_us: warm.warm_us,
            warm_length: warm.length,
            rounds,
            kept,
            branches: best.result.branches,
        })
    }

    /// The figures of every round, and the best branch of the last one.
    async fn run_rounds(
        &self,
        cluster: &DemoCluster,
        parent: &DemoProgram,
        progress: &DemoProgress,
    ) -> anyhow::Result<(Vec<RoundFigures>, Branch)> {
        let (mut node, mut pid) = (cluster.parent_node().name.clone(), parent.pid());
        let mut decisions = Vec::new();
        let mut rounds = Vec::new();
        let mut earlier: Option<Branch> = None;
        for round in 1..=self.rounds {
            progress.show_step(format!("round {round}: branching the process on {node} {} ways", self.branches));
            let (mut figures, branches) = self.branch(cluster, &node, pid, round).await?;
            check_decisions(&decisions, &branches)?;
            let best = self.keep_best(cluster, branches, &mut figures).await?;
            if let Some(earlier) = earlier.take() {
                kill(cluster, &earlier.child).await?;
            }
            (node, pid) = (best.child.node.clone(), best.child.pid);
            decisions = best.result.branches.clone();
            rounds.push(figures);
            earlier = Some(best);
        }
        Ok((rounds, earlier.context("there is no round")?))
    }

    /// Prepares a process, and forks it onto the nodes where it does not run.
    async fn branch(
        &self,
        cluster: &DemoCluster,
        node: &str,
        pid: u32,
        round: u32,
    ) -> anyhow::Result<(RoundFigures, Vec<Branch>)> {
        let mut client = connect(cluster, node).await?;
        let began = Instant::now();
        let seed = fork_round::prepare(&mut client, pid).await?;
        let prepared_us = elapsed_us(began);
        // The round makes the order of a branch differ from the one that it inherits.
        let order = |branch| json!({"round": round, "branch": branch, "steps": self.steps}).to_string().into_bytes();
        let others = cluster.nodes().iter().filter(|other| other.name != node);
        let fork = ForkRound {
            seed: &seed.id,
            nodes: others.map(|other| other.name.clone()).collect(),
            payloads: (0..self.branches).map(order).collect(),
            began,
        };
        let branches = fork.run(&client).await?.into_iter().map(Branch::parse).collect::<anyhow::Result<Vec<_>>>()?;
        let running_us = branches.iter().map(|branch| branch.running_us).max().unwrap_or(0);
        Ok((RoundFigures::new(seed.id, prepared_us, running_us), branches))
    }

    /// Kills all branches of a round but the one with the shortest tour.
    async fn keep_best(
        &self,
        cluster: &DemoCluster,
        mut branches: Vec<Branch>,
        figures: &mut RoundFigures,
    ) -> anyhow::Result<Branch> {
        branches.sort_by(|one, other| one.result.length.total_cmp(&other.result.length));
        let mut branches = branches.into_iter();
        let best = branches.next().context("a round has no branch")?;
        for branch in branches {
            figures.worst_length = branch.result.length;
            kill(cluster, &branch.child).await?;
        }
        figures.best_branch = *best.result.branches.last().context("a branch has no number")?;
        figures.best_length = best.result.length;
        figures.best_node = best.child.node.clone();
        Ok(best)
    }
}

impl Branch {
    fn parse(ChildLine { child, line, running_us, .. }: ChildLine) -> anyhow::Result<Self> {
        let result = serde_json::from_slice(&line)
            .with_context(|| format!("child {} printed `{}`", child.id, String::from_utf8_lossy(&line)))?;
        Ok(Self { child, result, running_us })
    }
}

/// Every branch has the decisions of the process that it was forked from, and then its own number.
fn check_decisions(inherited: &[u32], branches: &[Branch]) -> anyhow::Result<()> {
    for (number, branch) in (0..).zip(branches) {
        let (own, earlier) = branch.result.branches.split_last().context("a branch has no number")?;
        let child = &branch.child.id;
        anyhow::ensure!(
            earlier == inherited && *own == number,
            "child {child} has the decisions {:?}, but it must have {inherited:?} and {number}",
            branch.result.branches,
        );
    }
    Ok(())
}

async fn connect(cluster: &DemoCluster, name: &str) -> anyhow::Result<Client> {
    let node: Option<&LocalNode> = cluster.nodes().iter().find(|node| node.name == name);
    Ok(client::connect(&node.with_context(|| format!("there is no node {name}"))?.socket).await?)
}

/// Kills a child, and waits for its end: until then it needs its seed.
async fn kill(cluster: &DemoCluster, child: &Child) -> anyhow::Result<()> {
    let failed = |status| Failure::from_status(format!("child {}", child.id), &status);
    let signal = rustix::process::Signal::KILL.as_raw() as u32;
    let request = KillRequest { child: child.id.clone(), signal };
    let mut client = connect(cluster, &child.node).await?;
    client.kill(request_with_timeout(QUERY_TIMEOUT, request)).await.map_err(failed)?;
    let request = WaitRequest { children: vec![child.id.clone()], results: false };
    let mut events = client.wait(request_with_timeout(QUERY_TIMEOUT, request)).await.map_err(failed)?.into_inner();
    while events.message().await.map_err(failed)?.is_some() {}
    Ok(())
}

/// Waits until a child has all its memory; microseconds.
async fn settle(cluster: &DemoCluster, child: &Child) -> anyhow::Result<u64> {
    let failed = |status| Failure::from_status(format!("child {}", child.id), &status);
    let began = Instant::now();
    let mut client = connect(cluster, &child.node).await?;
    let mut progress = client.settle(SettleRequest { child: child.id.clone() }).await.map_err(failed)?.into_inner();
    while let Some(message) = progress.message().await.map_err(failed)? {
        if message.is_settled {
            return Ok(elapsed_us(began));
        }
    }
    anyhow::bail!("child {}: its node stopped before it had settled", child.id)
}

/// Drops a seed that no child needs any more. The node refuses that where one does.
async fn drop_seed(cluster: &DemoCluster, seed: &str) -> anyhow::Result<()> {
    let request = DropRequest { seed: seed.to_owned(), force: false };
    let mut client = connect(cluster, &cluster.parent_node().name).await?;
    let answer = client.drop(request_with_timeout(QUERY_TIMEOUT, request)).await;
    answer.map_err(|status| Failure::from_status(format!("seed {seed}"), &status))?;
    Ok(())
}
