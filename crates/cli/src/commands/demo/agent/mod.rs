//! `farfork demo agent`: branches an interpreter in the middle of a search, keeps the best branch, and kills the others.

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

/// Number of moves that the interpreter tries before it is branched.
const WARM_STEPS: u32 = 1_000_000;

/// Branch an interpreter eight ways, let each branch continue, keep the best one, and kill the others.
///
/// Starts three nodes on this machine, and a Python process on the first node that searches for a short tour through
/// 600 cities. In each round, every branch is a child on another node that continues from the same tour in its own way.
/// The best child gets all its memory, the others are killed, and the best one is prepared and branched again. At the
/// end, the seeds are dropped. It needs what `farfork demo` needs, and removes everything that it made.
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

/// The line that the program prints after its first moves.
#[derive(Deserialize)]
struct WarmAgent {
    warm_us: u64,
    length: f64,
}

/// The line that a branch prints: the numbers of all branches since the parent, and the length of its tour.
#[derive(Deserialize)]
struct BranchResult {
    branches: Vec<u32>,
    length: f64,
}

/// A branch of a round. It has printed its result and still runs.
struct AgentBranch {
    child: Child,
    result: BranchResult,
}

/// The branches of one process, sorted by the lengths of their tours.
struct SortedBranches {
    seed: String,
    prepared_us: u64,
    running_us: u64,
    branches: Vec<AgentBranch>,
}

impl AgentDemo {
    /// Runs all rounds. On success and on failure, dropped values end everything that it started.
    pub(super) async fn measure(&self) -> anyhow::Result<AgentReport> {
        let directory = DemoDirectory::make()?;
        let script = DemoScript::install(&directory, "agent.py", include_str!("agent.py"))?;
        let cluster = block_in_place(|| DemoCluster::start(directory.path()))?;
        let progress = DemoProgress::start();
        progress.show_step(format!("warming up: {WARM_STEPS} moves on the first node"));
        let mut parent = script.start(cluster.parent_node(), &[&WARM_STEPS.to_string()])?;
        let warm: WarmAgent = parent.read_document().await?;

        let (rounds, best, settle_us) = self.run_rounds(&cluster, &parent, &progress).await?;
        progress.show_step("dropping the seeds");
        for round in &rounds {
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

    /// Runs all rounds. Returns the figures of every round, the best branch of the last one, and the time in which that
    /// branch got all its memory, in microseconds.
    async fn run_rounds(
        &self,
        cluster: &DemoCluster,
        parent: &DemoProgram,
        progress: &DemoProgress,
    ) -> anyhow::Result<(Vec<RoundFigures>, AgentBranch, u64)> {
        let mut rounds = Vec::new();
        let mut best: Option<AgentBranch> = None;
        let mut settle_us = 0;
        for round in 1..=self.rounds {
            let (node, pid) = match &best {
                Some(best) => (best.child.node.as_str(), best.child.pid),
                None => (cluster.parent_node().name.as_str(), parent.pid()),
            };
            progress.show_step(format!("round {round}: branching the process on {node} {} ways", self.branches));
            let inherited = best.as_ref().map_or(&[][..], |best| &best.result.branches);
            let branched = self.branch(cluster, node, pid, round, inherited).await?;
            rounds.push(branched.figures()?);
            let mut branches = branched.branches.into_iter();
            let next = branches.next().context("the round has no branch")?;
            progress.show_step(format!("round {round}: settling {}: it gets all its memory", next.child.id));
            settle_us = settle(cluster, &next.child).await?;
            // A seed ends with the child that it was made of. So kill that child only now that the best branch, which
            // replaces it, needs no page of the seed.
            for branch in branches.chain(best.replace(next)) {
                kill(cluster, &branch.child).await?;
            }
        }
        Ok((rounds, best.context("there is no round")?, settle_us))
    }

    /// Prepares a process, forks it onto the nodes where it does not run, and checks the decisions of the branches.
    async fn branch(
        &self,
        cluster: &DemoCluster,
        node: &str,
        pid: u32,
        round: u32,
        inherited: &[u32],
    ) -> anyhow::Result<SortedBranches> {
        let mut client = connect(cluster, node).await?;
        let began = Instant::now();
        let seed = fork_round::prepare(&mut client, pid).await?;
        let prepared_us = elapsed_us(began);
        // With the round's number, the order of a branch differs from the order that it inherits.
        let order = |branch| json!({"round": round, "branch": branch, "steps": self.steps}).to_string().into_bytes();
        let others = cluster.nodes().iter().filter(|other| other.name != node);
        let fork = ForkRound {
            seed: &seed.id,
            nodes: others.map(|other| other.name.clone()).collect(),
            payloads: (0..self.branches).map(order).collect(),
            began,
        };
        let lines = fork.run(&client).await?;
        let running_us = lines.iter().map(|line| line.running_us).max().unwrap_or(0);
        let parsed = lines.into_iter().map(|line| AgentBranch::parse(line, inherited));
        let mut branches = parsed.collect::<anyhow::Result<Vec<_>>>()?;
        branches.sort_by(|one, other| one.result.length.total_cmp(&other.result.length));
        Ok(SortedBranches { seed: seed.id, prepared_us, running_us, branches })
    }
}

impl SortedBranches {
    fn figures(&self) -> anyhow::Result<RoundFigures> {
        let (best, worst) = self.branches.first().zip(self.branches.last()).context("the round has no branch")?;
        Ok(RoundFigures {
            seed: self.seed.clone(),
            prepared_us: self.prepared_us,
            running_us: self.running_us,
            best_branch: *best.result.branches.last().context("a branch has no number")?,
            best_node: best.child.node.clone(),
            best_length: best.result.length,
            worst_length: worst.result.length,
        })
    }
}

impl AgentBranch {
    /// Parses the line of a branch. Its numbers must be those of the process from which the branch was forked, and then
    /// the branch's own number.
    fn parse(line: ChildLine, inherited: &[u32]) -> anyhow::Result<Self> {
        let result: BranchResult = line.parse()?;
        let expected = [inherited, &[u32::try_from(line.index)?]].concat();
        let (child, branches) = (&line.child.id, &result.branches);
        anyhow::ensure!(
            *branches == expected,
            "child {child} has the decisions {branches:?}, but it must have {expected:?}"
        );
        Ok(Self { child: line.child, result })
    }
}

async fn connect(cluster: &DemoCluster, name: &str) -> anyhow::Result<Client> {
    let node: Option<&LocalNode> = cluster.nodes().iter().find(|node| node.name == name);
    Ok(client::connect(&node.with_context(|| format!("there is no node {name}"))?.socket).await?)
}

/// Kills a child and waits for its end. Until then, the child needs its seed.
async fn kill(cluster: &DemoCluster, child: &Child) -> anyhow::Result<()> {
    let failed = |status| Failure::from_status(format!("child {}", child.id), &status);
    let signal = rustix::process::Signal::KILL.as_raw() as u32;
    let request = KillRequest { child: child.id.clone(), signal, by_program: false };
    let mut client = connect(cluster, &child.node).await?;
    client.kill(request_with_timeout(QUERY_TIMEOUT, request)).await.map_err(failed)?;
    let request = WaitRequest { children: vec![child.id.clone()], results: false };
    let mut events = client.wait(request_with_timeout(QUERY_TIMEOUT, request)).await.map_err(failed)?.into_inner();
    while events.message().await.map_err(failed)?.is_some() {}
    Ok(())
}

/// Waits until a child has all its memory. Returns the time in microseconds.
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

/// Drops a seed that no child needs. The node refuses if one does.
async fn drop_seed(cluster: &DemoCluster, seed: &str) -> anyhow::Result<()> {
    let request = DropRequest { seed: seed.to_owned(), force: false };
    let mut client = connect(cluster, &cluster.parent_node().name).await?;
    let answer = client.drop(request_with_timeout(QUERY_TIMEOUT, request)).await;
    answer.map_err(|status| Failure::from_status(format!("seed {seed}"), &status))?;
    Ok(())
}
