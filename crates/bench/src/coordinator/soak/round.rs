//! One round: families are made, deeds are done, and each child's end is judged. What is no fault is what the round itself
//! has caused: who was killed may have been killed, who lost its seed may be told so.

use std::path::Path;
use std::time::{Duration, Instant};

use farfork_node::api::v1::{self, fork_outcome::Result as Outcome};
use farfork_node::client;
use farfork_node::failure::Failure;

use super::ground::{Ground, REQUEST_LIMIT, SIGKILL, SIGTERM};
use super::script::{Deed, Family, Script, Whose, Youth};
use super::tally::Tally;
use super::verdict::{Allowed, End, Verdict, judge};
use crate::coordinator::cluster::told;
use crate::error::BenchError;
use crate::workload::micro::PAYLOAD_PATH;
use crate::workload::parent::Parent;
use crate::workload::wander::{self, Said, WANDER};

/// From the last deed of a round to the end of any of its children: a child whose owner is gone asks for it for a minute.
const END_LIMIT: Duration = Duration::from_secs(150);

/// Between two questions what has become of a child.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

/// A round under way.
pub(super) struct Round<'a> {
    pub(super) ground: &'a mut Ground,
    pub(super) tally: &'a mut Tally,
    program: &'a Path,
    /// `None` stands for one that was refused, or never tried.
    families: Vec<Option<Living>>,
    /// Whether anything was done that requests may be refused for.
    is_harmed: bool,
}

/// A family under way.
struct Living {
    parent: Option<Parent>,
    /// The child that it is of.
    from: Option<Whose>,
    seed: String,
    owner: usize,
    /// Whether pages of its seed may be gone.
    is_taken: bool,
    /// Whether its seed goes by itself when nobody needs it.
    has_lease: bool,
    children: Vec<Grown>,
}

/// A child under way.
#[derive(Clone)]
pub(super) struct Grown {
    pub(super) id: String,
    pub(super) node: usize,
    pub(super) pid: u32,
    pub(super) is_killed: bool,
    pub(super) stays: bool,
    /// It may meet its limit of memory.
    pub(super) is_limited: bool,
}

impl<'a> Round<'a> {
    pub(super) fn new(ground: &'a mut Ground, tally: &'a mut Tally, program: &'a Path) -> Self {
        Self { ground, tally, program, families: Vec::new(), is_harmed: false }
    }

    /// Runs a script to its end.
    ///
    /// # Errors
    /// The nodes could not be driven; what is wrong with children is in the tally.
    pub(super) async fn run(mut self, script: &Script) -> Result<(), BenchError> {
        for family in &script.families {
            let outcome = self.found(family).await;
            let mut living = self.allowed(outcome, "a family of a parent")?;
            if let Some(living) = &mut living {
                let outcome = self.fork(living, &family.children).await;
                self.of_lease(living.has_lease, outcome, "a child of a parent")?;
            }
            self.families.push(living);
        }
        for (pause_ms, deed) in &script.deeds {
            tokio::time::sleep(Duration::from_millis(*pause_ms)).await;
            self.tally.count(deed.kind());
            self.carry_out(deed).await?;
        }
        self.ground.acquaint().await?;
        let give_up = Instant::now() + END_LIMIT;
        for family in (0..self.families.len()).rev() {
            self.finish(family, give_up).await?;
        }
        Ok(())
    }

    /// A parent and its seed.
    async fn found(&mut self, family: &Family) -> Result<Living, Failure> {
        let failed = |error: BenchError| Failure::new(tonic::Code::Internal, "the parent", error);
        let parent = Parent::start(&WANDER, self.program, family.mib, PAYLOAD_PATH.as_ref()).map_err(failed)?;
        let request = v1::PrepareRequest {
            pid: parent.pid(),
            sealed: family.sealed,
            ttl_ms: family.ttl_ms,
            ..Default::default()
        };
        let seed = self.prepare(family.owner, request).await?;
        let (owner, has_lease) = (family.owner, family.ttl_ms > 0);
        Ok(Living { parent: Some(parent), from: None, seed, owner, is_taken: false, has_lease, children: Vec::new() })
    }

    async fn prepare(&mut self, node: usize, request: v1::PrepareRequest) -> Result<String, Failure> {
        let object = format!("process {}", request.pid);
        let mut client = self.ground.client(node).await?;
        let answer = client.prepare(client::within(REQUEST_LIMIT, request)).await.map_err(told(object))?;
        self.tally.seeds += 1;
        Ok(answer.into_inner().id)
    }

    /// Children of a family, each on its node; those that come before one that fails are there.
    async fn fork(&mut self, living: &mut Living, youths: &[Youth]) -> Result<(), Failure> {
        for youth in youths {
            let seed = &living.seed;
            let options = v1::ChildOptions { strategy: youth.strategy.to_owned(), ..Default::default() };
            let request = v1::ForkRequest {
                seed: seed.clone(),
                nodes: vec![self.ground.nodes()[youth.node].name.clone()],
                count: 1,
                payloads: vec![wander::payload(youth.seed, youth.ms, youth.stays).into_bytes()],
                options: Some(options),
                ..Default::default()
            };
            let mut client = self.ground.client(living.owner).await?;
            let mut outcomes =
                client.fork(client::within(REQUEST_LIMIT, request)).await.map_err(told(seed))?.into_inner();
            let outcome = outcomes.message().await.map_err(told(seed))?;
            let child = match outcome.and_then(|outcome| outcome.result) {
                Some(Outcome::Child(child)) => child,
                Some(Outcome::Error(error)) => return Err(error.into()),
                None => return Err(Failure::new(tonic::Code::Internal, seed, "the node told of no child")),
            };
            self.tally.children += 1;
            let (node, stays, is_killed, is_limited) = (youth.node, youth.stays, false, false);
            living.children.push(Grown { id: child.id, node, pid: child.pid, is_killed, stays, is_limited });
        }
        Ok(())
    }

    async fn carry_out(&mut self, deed: &Deed) -> Result<(), BenchError> {
        match deed {
            Deed::KillChild(whose) => self.kill_child(*whose).await?,
            Deed::KillParent { family } => {
                if let Some(mut parent) = self.living(*family).and_then(|family| family.parent.take()) {
                    self.require_unharmed(&mut parent);
                }
            }
            Deed::DropSeed { family } => self.drop_under_children(*family).await?,
            Deed::Settle(whose) => self.settle(*whose).await?,
            Deed::ForkOn { from, children } => self.fork_on(*from, children).await?,
            Deed::KillPager { node } => {
                self.is_harmed = true;
                self.ground.kill_pager(*node)?;
            }
            Deed::KillTogether { node, daemon_ms } => {
                self.is_harmed = true;
                self.ground.kill_keeper_and_pager(*node)?;
                if let Some(ms) = daemon_ms {
                    self.take_seeds_of(*node);
                    self.ground.kill_daemon(*node, Duration::from_millis(*ms)).await?;
                }
            }
            Deed::KillDaemon { node, ms } => {
                self.take_seeds_of(*node);
                self.ground.kill_daemon(*node, Duration::from_millis(*ms)).await?;
            }
            Deed::CutLink { node, ms } => {
                self.is_harmed = true;
                self.ground.cut_link(*node, Duration::from_millis(*ms)).await?;
            }
            Deed::Stall { node, server, ms } => {
                self.is_harmed = true;
                self.ground.stall(*node, *server, Duration::from_millis(*ms)).await?;
            }
            Deed::FanOut(fan) => self.fan_out(fan).await?,
        }
        Ok(())
    }

    /// A daemon takes its templates along.
    fn take_seeds_of(&mut self, node: usize) {
        self.is_harmed = true;
        self.families
            .iter_mut()
            .flatten()
            .filter(|family| family.owner == node)
            .for_each(|family| family.is_taken = true);
    }

    async fn kill_child(&mut self, whose: Whose) -> Result<(), BenchError> {
        let Some(child) = self.grown(whose) else { return Ok(()) };
        child.is_killed = true;
        let child = child.clone();
        // What comes of a child ends with it.
        self.families.iter_mut().flatten().filter(|family| family.from == Some(whose)).for_each(|f| f.is_taken = true);
        self.is_harmed = true;
        self.send(&child, SIGKILL).await
    }

    /// It may have ended by itself, and been forgotten by no one but us.
    pub(super) async fn send(&mut self, child: &Grown, signal: i32) -> Result<(), BenchError> {
        let request = v1::KillRequest { child: child.id.clone(), signal: signal.cast_unsigned() };
        let outcome = match self.ground.client(child.node).await {
            Ok(mut client) => client.kill(client::within(REQUEST_LIMIT, request)).await.map_err(told(&child.id)),
            Err(failure) => Err(failure),
        };
        match outcome {
            Err(failure) if failure.code() == tonic::Code::FailedPrecondition => Ok(()),
            outcome => self.allowed(outcome, "a signal").map(|_| ()),
        }
    }

    async fn drop_under_children(&mut self, family: usize) -> Result<(), BenchError> {
        let Some(family) = self.living(family) else { return Ok(()) };
        family.is_taken = true;
        let (seed, owner) = (family.seed.clone(), family.owner);
        self.is_harmed = true;
        let outcome = self.drop_seed(owner, &seed).await;
        self.allowed(outcome, "a drop").map(|_| ())
    }

    async fn drop_seed(&self, owner: usize, seed: &str) -> Result<(), Failure> {
        let request = v1::DropRequest { seed: seed.to_owned(), force: true };
        let mut client = self.ground.client(owner).await?;
        client.drop(client::within(REQUEST_LIMIT, request)).await.map_err(told(seed))?;
        Ok(())
    }

    /// The node goes on with it when we have gone.
    async fn settle(&mut self, whose: Whose) -> Result<(), BenchError> {
        let Some(child) = self.grown(whose).cloned() else { return Ok(()) };
        let settled = async {
            let request = v1::SettleRequest { child: child.id.clone() };
            let mut client = self.ground.client(child.node).await?;
            let answer = client.settle(client::within(REQUEST_LIMIT, request)).await.map_err(told(&child.id))?;
            answer.into_inner().message().await.map_err(told(&child.id))?;
            Ok(())
        };
        let outcome = settled.await;
        self.unless_ended(outcome, "a settle").map(|_| ())
    }

    async fn fork_on(&mut self, from: Whose, youths: &[Youth]) -> Result<(), BenchError> {
        let Some(child) = self.grown(from).cloned() else {
            self.families.push(None);
            return Ok(());
        };
        let request = v1::PrepareRequest { pid: child.pid, ..Default::default() };
        let prepared = self.prepare(child.node, request).await;
        let seed = self.unless_ended(prepared, "a seed of a child")?;
        let mut living = seed.map(|seed| Living {
            parent: None,
            from: Some(from),
            seed,
            owner: child.node,
            is_taken: false,
            has_lease: false,
            children: Vec::new(),
        });
        if let Some(living) = &mut living {
            let outcome = self.fork(living, youths).await;
            // Their memory is a copy of its, in which it says whether it stays.
            living.children.iter_mut().for_each(|grown| grown.stays = child.stays);
            self.unless_ended(outcome, "a fork of a child")?;
        }
        self.families.push(living);
        Ok(())
    }

    /// Judges a family's children, and removes what is left of it.
    async fn finish(&mut self, family: usize, give_up: Instant) -> Result<(), BenchError> {
        let Some(mut living) = self.families[family].take() else { return Ok(()) };
        if let Some(parent) = &mut living.parent {
            self.require_unharmed(parent);
        }
        let lost = living.is_taken || self.is_cut_off(living.from);
        for child in &living.children {
            let end = self.wait(child, give_up).await?;
            let allowed = Allowed { killed: child.is_killed, lost, limited: child.is_limited };
            let verdict = judge(&end, allowed);
            if let Verdict::Fault(text) = &verdict {
                self.tally.fault(format!("child {} of {}: {text}", child.id, living.seed));
            }
            self.tally.end(&verdict);
            let outcome = self.remove(child).await;
            self.required(outcome, "a removal")?;
        }
        let outcome = self.drop_seed(living.owner, &living.seed).await;
        if lost || living.has_lease {
            return Ok(());
        }
        self.required(outcome, "a drop at the end").map(|_| ())
    }

    /// A parent ends by itself where a wait of its was disturbed.
    fn require_unharmed(&mut self, parent: &mut Parent) {
        if let Some(words) = parent.last_words() {
            self.tally.fault(format!("parent {} was harmed: {words}", parent.pid()));
        }
    }

    /// Whether a seed that a family inherits from may be gone.
    fn is_cut_off(&self, from: Option<Whose>) -> bool {
        from.and_then(|whose| self.families[whose.family].as_ref().map(|family| (whose, family))).is_some_and(
            |(whose, family)| family.is_taken || family.children[whose.child].is_killed || self.is_cut_off(family.from),
        )
    }

    /// Waits until a child has ended; one that stays is told to when it has said what it found.
    async fn wait(&mut self, child: &Grown, give_up: Instant) -> Result<End, BenchError> {
        let mut is_told = false;
        loop {
            let (mut end, output) = self.look_at(child).await?;
            end.said = output;
            if end.how.is_some() {
                return Ok(end);
            }
            if child.stays && !is_told && wander::understand(&end.said) != Said::Nothing {
                self.send(child, SIGTERM).await?;
                is_told = true;
            }
            if Instant::now() >= give_up {
                // It must not stay when we have gone.
                self.send(child, SIGKILL).await?;
                return Ok(end);
            }
            tokio::time::sleep(ASK_INTERVAL).await;
        }
    }

    /// What a child is doing, and what it has said; its last word when it has ended.
    async fn look_at(&mut self, child: &Grown) -> Result<(End, String), BenchError> {
        let mut client = self.ground.client(child.node).await?;
        let request = v1::InspectRequest { id: child.id.clone() };
        let answer = client.inspect(client::within(REQUEST_LIMIT, request)).await.map_err(told(&child.id))?;
        let detail = match answer.into_inner().object {
            Some(v1::inspect_response::Object::Child(detail)) => detail.child.unwrap_or_default(),
            _ => v1::Child::default(),
        };
        let exit = detail.exit.unwrap_or_default();
        let (how, limit) = (exit.how, exit.limit);
        let output = if child.stays || how.is_some() { self.output(child).await? } else { String::new() };
        Ok((End { how, said: String::new(), memory_lost: detail.memory_lost, limit }, output))
    }

    async fn output(&self, child: &Grown) -> Result<String, BenchError> {
        let mut client = self.ground.client(child.node).await?;
        let only = v1::OutputStream::Stdout.into();
        let request = v1::LogsRequest { child: child.id.clone(), follow: false, only };
        let answer = client.logs(client::within(REQUEST_LIMIT, request)).await.map_err(told(&child.id))?;
        let (mut chunks, mut said) = (answer.into_inner(), Vec::new());
        while let Some(chunk) = chunks.message().await.map_err(told(&child.id))? {
            said.extend(chunk.data);
        }
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    async fn remove(&self, child: &Grown) -> Result<(), Failure> {
        let request = v1::RemoveRequest { child: child.id.clone() };
        let mut client = self.ground.client(child.node).await?;
        client.remove(client::within(REQUEST_LIMIT, request)).await.map_err(told(&child.id))?;
        Ok(())
    }

    /// What a request came to: refused for what was done to its node before, or wrongly.
    pub(super) fn allowed<T>(
        &mut self,
        outcome: Result<T, Failure>,
        what: &'static str,
    ) -> Result<Option<T>, BenchError> {
        match outcome {
            Err(failure) if self.is_harmed => {
                self.tally.refused(format!("{what}: {failure}"));
                Ok(None)
            }
            outcome => self.required(outcome, what),
        }
    }

    /// Likewise, of a child or seed that may have ended before it was asked for, or of a child that may end at once.
    pub(super) fn unless_ended<T>(
        &mut self,
        outcome: Result<T, Failure>,
        what: &'static str,
    ) -> Result<Option<T>, BenchError> {
        let was_harmed = std::mem::replace(&mut self.is_harmed, true);
        let outcome = self.allowed(outcome, what);
        self.is_harmed = was_harmed;
        outcome
    }

    /// What a request of a seed came to that may go by itself, or may not.
    pub(super) fn of_lease<T>(
        &mut self,
        has_lease: bool,
        outcome: Result<T, Failure>,
        what: &'static str,
    ) -> Result<Option<T>, BenchError> {
        if has_lease { self.unless_ended(outcome, what) } else { self.allowed(outcome, what) }
    }

    fn required<T>(&mut self, outcome: Result<T, Failure>, what: &'static str) -> Result<Option<T>, BenchError> {
        outcome.map(Some).or_else(|failure| {
            self.tally.fault(format!("{what}: {failure}"));
            Ok(None)
        })
    }

    /// A family's seed, its owner, and whether it goes by itself.
    pub(super) fn seed_of(&self, family: usize) -> Option<(String, usize, bool)> {
        let living = self.families.get(family)?.as_ref()?;
        Some((living.seed.clone(), living.owner, living.has_lease))
    }

    /// More children of a family, behind those that deeds name.
    pub(super) fn take_in(&mut self, family: usize, children: Vec<Grown>) {
        if let Some(living) = self.living(family) {
            living.children.extend(children);
        }
    }

    fn living(&mut self, family: usize) -> Option<&mut Living> {
        self.families.get_mut(family)?.as_mut()
    }

    fn grown(&mut self, whose: Whose) -> Option<&mut Grown> {
        self.living(whose.family)?.children.get_mut(whose.child)
    }
}
