//! One round of a soak run: starts seeds, runs the script's actions, and judges each child's end. An end that the round
//! itself has caused is not a fault: for example, the end of a child that it killed, or whose seed it dropped.

use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_api::v1;

use super::cluster;
use super::script::{ChildRef, ChildScript, RoundScript, SeedScript, SoakAction};
use super::tally::SoakTally;
use super::verdict::{AllowedEnds, EndVerdict, ObservedEnd, judge_end};
use crate::error::BenchError;
use crate::experiment::node_client::{NodeClient, request_failure};
use crate::experiment::nodes::{RunningNodes, SIGKILL, SIGTERM};
use crate::machine::program::RunningProgram;
use crate::workload::memory_walk::{self, MEMORY_WALK, WalkReport};
use crate::workload::start_parent;

/// Time limit from the last action of a round to the end of each child. It exceeds the minute for which a child's pager
/// retries if the owner does not answer.
const END_LIMIT: Duration = Duration::from_secs(150);

/// Interval at which a child's state is polled.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

/// A round in progress.
pub(super) struct SoakRound<'a> {
    pub(super) nodes: &'a mut RunningNodes,
    pub(super) tally: &'a mut SoakTally,
    /// `None` for a seed that was refused, or not attempted.
    seeds: Vec<Option<SoakSeed>>,
    /// Whether an action has been run that may cause refusals.
    is_harmed: bool,
}

/// A family in progress: a seed and its children.
#[derive(Default)]
struct SoakSeed {
    parent: Option<RunningProgram>,
    /// The child of which the seed was made; `None` for the seed of a parent.
    source_child: Option<ChildRef>,
    seed: String,
    owner: usize,
    /// Whether pages of the seed may be lost.
    may_be_lost: bool,
    /// Whether the seed has a lease, and may expire when it is not needed.
    has_lease: bool,
    children: Vec<SoakChild>,
}

/// A running child.
#[derive(Clone)]
pub(super) struct SoakChild {
    pub(super) id: String,
    pub(super) node: usize,
    pub(super) pid: u32,
    pub(super) is_killed: bool,
    pub(super) runs_until_stop: bool,
    /// Whether the child has a memory limit, which it may exceed.
    pub(super) has_memory_limit: bool,
}

impl SoakChild {
    pub(super) fn new(child: v1::Child, node: usize) -> Self {
        Self { id: child.id, node, pid: child.pid, is_killed: false, runs_until_stop: false, has_memory_limit: false }
    }
}

impl<'a> SoakRound<'a> {
    pub(super) fn new(nodes: &'a mut RunningNodes, tally: &'a mut SoakTally) -> Self {
        Self { nodes, tally, seeds: Vec::new(), is_harmed: false }
    }

    /// Runs the whole script.
    ///
    /// # Errors
    /// A node failed. Faults of children are recorded in the tally.
    pub(super) async fn run(mut self, round_script: &RoundScript) -> Result<(), BenchError> {
        for family in &round_script.seeds {
            let outcome = self.start_seed(family).await;
            let mut living = self.tolerate_if_harmed(outcome, "a family of a parent")?;
            if let Some(living) = &mut living {
                let outcome = self.fork_children(living, &family.children).await;
                self.tolerate_expired(living.has_lease, outcome, "a child of a parent")?;
            }
            self.seeds.push(living);
        }
        for (pause_ms, soak_action) in &round_script.actions {
            tokio::time::sleep(Duration::from_millis(*pause_ms)).await;
            self.tally.count_action(soak_action.kind());
            self.run_action(soak_action).await?;
        }
        cluster::wait_all_alive(self.nodes).await?;
        let give_up = Instant::now() + END_LIMIT;
        for family in (0..self.seeds.len()).rev() {
            self.judge_children(family, give_up).await?;
        }
        Ok(())
    }

    /// Makes a new connection to a node. Each request needs one, because daemons are killed and stopped.
    pub(super) async fn client(&self, node: usize) -> Result<NodeClient, Failure> {
        self.nodes.nodes()[node].connect().await
    }

    /// Starts a parent, and makes its seed.
    async fn start_seed(&mut self, family: &SeedScript) -> Result<SoakSeed, Failure> {
        let failed = |error: BenchError| Failure::new(tonic::Code::Internal, "the parent", error);
        let machine = self.nodes.nodes()[family.owner].machine();
        let parent = start_parent(&MEMORY_WALK, machine, family.mib, None).map_err(failed)?;
        let request = v1::PrepareRequest {
            pid: parent.pid(),
            sealed: family.sealed,
            ttl_ms: family.ttl_ms,
            ..Default::default()
        };
        let seed = self.prepare(family.owner, request).await?;
        let (owner, has_lease) = (family.owner, family.ttl_ms > 0);
        Ok(SoakSeed { parent: Some(parent), seed, owner, has_lease, ..SoakSeed::default() })
    }

    async fn prepare(&mut self, node: usize, request: v1::PrepareRequest) -> Result<String, Failure> {
        let seed = self.client(node).await?.prepare(request).await?;
        self.tally.seeds += 1;
        Ok(seed.id)
    }

    /// Forks children of a family, each on the node that its script names. If a fork fails, the earlier children remain.
    async fn fork_children(&mut self, living: &mut SoakSeed, youths: &[ChildScript]) -> Result<(), Failure> {
        for child_script in youths {
            let seed = &living.seed;
            let options = v1::ChildOptions { strategy: child_script.strategy.to_owned(), ..Default::default() };
            let request = v1::ForkRequest {
                seed: seed.clone(),
                nodes: vec![self.nodes.nodes()[child_script.node].name.clone()],
                count: 1,
                payloads: vec![
                    memory_walk::payload(child_script.seed, child_script.ms, child_script.runs_until_stop).into_bytes(),
                ],
                options: Some(options),
                ..Default::default()
            };
            let child = self.client(living.owner).await?.fork_one(request).await?;
            self.tally.children += 1;
            let started = SoakChild::new(child, child_script.node);
            living.children.push(SoakChild { runs_until_stop: child_script.runs_until_stop, ..started });
        }
        Ok(())
    }

    async fn run_action(&mut self, soak_action: &SoakAction) -> Result<(), BenchError> {
        match soak_action {
            SoakAction::KillChild(child_ref) => self.kill_child(*child_ref).await?,
            SoakAction::KillParent { family } => {
                if let Some(mut parent) = self.seed_mut(*family).and_then(|family| family.parent.take()) {
                    self.require_parent_unharmed(&mut parent);
                }
            }
            SoakAction::DropSeed { family } => self.drop_seed_in_use(*family).await?,
            SoakAction::Settle(child_ref) => self.settle_child(*child_ref).await?,
            SoakAction::ForkFromChild { from, children } => self.fork_from_child(*from, children).await?,
            SoakAction::KillPager { node } => {
                self.is_harmed = true;
                cluster::kill_pager(self.nodes, *node)?;
            }
            SoakAction::KillKeeperAndPager { node, daemon_ms } => {
                self.is_harmed = true;
                cluster::kill_keeper_and_pager(self.nodes, *node)?;
                if let Some(ms) = daemon_ms {
                    self.mark_seeds_lost(*node);
                    cluster::kill_daemon(self.nodes, *node, Duration::from_millis(*ms)).await?;
                }
            }
            SoakAction::KillDaemon { node, ms } => {
                self.mark_seeds_lost(*node);
                cluster::kill_daemon(self.nodes, *node, Duration::from_millis(*ms)).await?;
            }
            SoakAction::CutLink { node, ms } => {
                self.is_harmed = true;
                cluster::cut_link(self.nodes, *node, Duration::from_millis(*ms)).await?;
            }
            SoakAction::Stall { node, server, ms } => {
                self.is_harmed = true;
                cluster::stall(self.nodes, *node, *server, Duration::from_millis(*ms)).await?;
            }
            SoakAction::FanOut(fan) => self.fan_out(fan).await?,
        }
        Ok(())
    }

    /// Marks the seeds of a node as possibly lost, because their templates end with the daemon.
    fn mark_seeds_lost(&mut self, node: usize) {
        self.is_harmed = true;
        self.seeds
            .iter_mut()
            .flatten()
            .filter(|family| family.owner == node)
            .for_each(|family| family.may_be_lost = true);
    }

    async fn kill_child(&mut self, child_ref: ChildRef) -> Result<(), BenchError> {
        let Some(child) = self.child_mut(child_ref) else { return Ok(()) };
        child.is_killed = true;
        let child = child.clone();
        // Seeds that were made of a child end with the child.
        self.seeds
            .iter_mut()
            .flatten()
            .filter(|family| family.source_child == Some(child_ref))
            .for_each(|f| f.may_be_lost = true);
        self.is_harmed = true;
        self.signal_child(&child, SIGKILL).await
    }

    /// Sends a signal to a child. If the child has already ended, its node refuses with FAILED_PRECONDITION. This refusal
    /// is not a fault.
    pub(super) async fn signal_child(&mut self, child: &SoakChild, signal: i32) -> Result<(), BenchError> {
        let outcome = match self.client(child.node).await {
            Ok(mut client) => client.kill(&child.id, signal).await,
            Err(failure) => Err(failure),
        };
        match outcome {
            Err(failure) if failure.code() == tonic::Code::FailedPrecondition => Ok(()),
            outcome => self.tolerate_if_harmed(outcome, "a signal").map(|_| ()),
        }
    }

    async fn drop_seed_in_use(&mut self, family: usize) -> Result<(), BenchError> {
        let Some(family) = self.seed_mut(family) else { return Ok(()) };
        family.may_be_lost = true;
        let (seed, owner) = (family.seed.clone(), family.owner);
        self.is_harmed = true;
        let outcome = self.drop_seed(owner, &seed).await;
        self.tolerate_if_harmed(outcome, "a drop").map(|_| ())
    }

    async fn drop_seed(&self, owner: usize, seed: &str) -> Result<(), Failure> {
        self.client(owner).await?.drop_seed(seed).await
    }

    /// Requests that a child be settled, and waits for the first progress report. The node continues after this
    /// connection has ended.
    async fn settle_child(&mut self, child_ref: ChildRef) -> Result<(), BenchError> {
        let Some(child) = self.child_mut(child_ref).cloned() else { return Ok(()) };
        let outcome = async { self.client(child.node).await?.settle(&child.id).await }.await;
        self.tolerate_ended(outcome, "a settle").map(|_| ())
    }

    async fn fork_from_child(&mut self, from: ChildRef, youths: &[ChildScript]) -> Result<(), BenchError> {
        let Some(child) = self.child_mut(from).cloned() else {
            self.seeds.push(None);
            return Ok(());
        };
        let request = v1::PrepareRequest { pid: child.pid, ..Default::default() };
        let prepared = self.prepare(child.node, request).await;
        let seed = self.tolerate_ended(prepared, "a seed of a child")?;
        let source = SoakSeed { source_child: Some(from), owner: child.node, ..SoakSeed::default() };
        let mut living = seed.map(|seed| SoakSeed { seed, ..source });
        if let Some(living) = &mut living {
            let outcome = self.fork_children(living, youths).await;
            // Their memory is a copy of the memory of `child`. It contains whether a child runs until it is stopped.
            living.children.iter_mut().for_each(|soak_child| soak_child.runs_until_stop = child.runs_until_stop);
            self.tolerate_ended(outcome, "a fork of a child")?;
        }
        self.seeds.push(living);
        Ok(())
    }

    /// Judges a family's children, and removes what remains of the family.
    async fn judge_children(&mut self, family: usize, give_up: Instant) -> Result<(), BenchError> {
        let Some(mut living) = self.seeds[family].take() else { return Ok(()) };
        if let Some(parent) = &mut living.parent {
            self.require_parent_unharmed(parent);
        }
        let lost = living.may_be_lost || self.is_source_lost(living.source_child);
        for child in &living.children {
            let end = self.wait_end(child, give_up).await?;
            let allowed = AllowedEnds { killed: child.is_killed, lost, limited: child.has_memory_limit };
            let verdict = judge_end(&end, allowed);
            if let EndVerdict::Unexpected(text) = &verdict {
                self.tally.record_failure(format!("child {} of {}: {text}", child.id, living.seed));
            }
            self.tally.count_end(&verdict);
            let outcome = self.remove_child(child).await;
            self.require_success(outcome, "a removal")?;
        }
        let outcome = self.drop_seed(living.owner, &living.seed).await;
        if lost || living.has_lease {
            return Ok(());
        }
        self.require_success(outcome, "a drop at the end").map(|_| ())
    }

    /// Records a fault if the parent has ended. A parent ends on its own if one of its waits was disturbed.
    fn require_parent_unharmed(&mut self, parent: &mut RunningProgram) {
        if let Some(words) = parent.last_line_if_ended() {
            self.tally.record_failure(format!("parent {} was harmed: {words}", parent.pid()));
        }
    }

    /// Whether a seed that a family inherits from may be lost.
    fn is_source_lost(&self, from: Option<ChildRef>) -> bool {
        from.and_then(|child_ref| self.seeds[child_ref.seed].as_ref().map(|family| (child_ref, family))).is_some_and(
            |(whose, family)| {
                family.may_be_lost || family.children[whose.child].is_killed || self.is_source_lost(family.source_child)
            },
        )
    }

    /// Waits until a child has ended. If it runs until it is stopped, stops it after its report. After `give_up`, kills the
    /// child and returns an end without `exit`.
    async fn wait_end(&mut self, child: &SoakChild, give_up: Instant) -> Result<ObservedEnd, BenchError> {
        let mut is_signaled = false;
        loop {
            let (mut end, output) = self.inspect_child(child).await?;
            end.output = output;
            if end.exit.is_some() {
                return Ok(end);
            }
            if child.runs_until_stop && !is_signaled && memory_walk::parse_output(&end.output) != WalkReport::Nothing {
                self.signal_child(child, SIGTERM).await?;
                is_signaled = true;
            }
            if Instant::now() >= give_up {
                // The child must not outlive the round.
                self.signal_child(child, SIGKILL).await?;
                return Ok(end);
            }
            tokio::time::sleep(ASK_INTERVAL).await;
        }
    }

    /// Returns the state of a child, and its output. Before the end of a child that exits on its own, the output is empty.
    async fn inspect_child(&mut self, child: &SoakChild) -> Result<(ObservedEnd, String), BenchError> {
        let detail = self.client(child.node).await?.inspect_child(&child.id).await?;
        let detail = detail.child.unwrap_or_default();
        let exit = detail.exit.unwrap_or_default();
        let (how, limit) = (exit.how, exit.limit);
        let output =
            if child.runs_until_stop || how.is_some() { self.read_output(child).await? } else { String::new() };
        Ok((ObservedEnd { exit: how, output: String::new(), memory_lost: detail.memory_lost, limit }, output))
    }

    async fn read_output(&self, child: &SoakChild) -> Result<String, BenchError> {
        let mut chunks = self.client(child.node).await?.logs(&child.id, false).await?;
        let mut said = Vec::new();
        while let Some(chunk) = chunks.message().await.map_err(request_failure(&child.id))? {
            said.extend(chunk.data);
        }
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    async fn remove_child(&self, child: &SoakChild) -> Result<(), Failure> {
        self.client(child.node).await?.remove(&child.id).await
    }

    /// Tolerates the failure of a request if earlier actions may have caused it; otherwise records a fault.
    pub(super) fn tolerate_if_harmed<T>(
        &mut self,
        outcome: Result<T, Failure>,
        what: &'static str,
    ) -> Result<Option<T>, BenchError> {
        match outcome {
            Err(failure) if self.is_harmed => {
                self.tally.record_refusal(format!("{what}: {failure}"));
                Ok(None)
            }
            outcome => self.require_success(outcome, what),
        }
    }

    /// As [`Self::tolerate_if_harmed`], but always tolerates the failure: the child or seed may have ended before or
    /// during the request.
    pub(super) fn tolerate_ended<T>(
        &mut self,
        outcome: Result<T, Failure>,
        what: &'static str,
    ) -> Result<Option<T>, BenchError> {
        let was_harmed = std::mem::replace(&mut self.is_harmed, true);
        let outcome = self.tolerate_if_harmed(outcome, what);
        self.is_harmed = was_harmed;
        outcome
    }

    /// As [`Self::tolerate_if_harmed`], but also tolerates the failure if the seed has a lease, which may have expired.
    pub(super) fn tolerate_expired<T>(
        &mut self,
        has_lease: bool,
        outcome: Result<T, Failure>,
        what: &'static str,
    ) -> Result<Option<T>, BenchError> {
        if has_lease { self.tolerate_ended(outcome, what) } else { self.tolerate_if_harmed(outcome, what) }
    }

    fn require_success<T>(&mut self, outcome: Result<T, Failure>, what: &'static str) -> Result<Option<T>, BenchError> {
        outcome.map(Some).or_else(|failure| {
            self.tally.record_failure(format!("{what}: {failure}"));
            Ok(None)
        })
    }

    /// A family's seed, its owner, and whether it has a lease.
    pub(super) fn seed_of(&self, family: usize) -> Option<(String, usize, bool)> {
        let living = self.seeds.get(family)?.as_ref()?;
        Some((living.seed.clone(), living.owner, living.has_lease))
    }

    /// Adds children at the end of a family, so that the indices in the script's actions remain valid.
    pub(super) fn add_children(&mut self, family: usize, children: Vec<SoakChild>) {
        if let Some(living) = self.seed_mut(family) {
            living.children.extend(children);
        }
    }

    fn seed_mut(&mut self, family: usize) -> Option<&mut SoakSeed> {
        self.seeds.get_mut(family)?.as_mut()
    }

    fn child_mut(&mut self, child_ref: ChildRef) -> Option<&mut SoakChild> {
        self.seed_mut(child_ref.seed)?.children.get_mut(child_ref.child)
    }
}
