//! Fan-outs of a soak round: many children of a seed, forked in one request, at times more than the nodes have containers
//! ready. Some children are killed immediately, and some have too low a memory limit. `round` judges their ends together
//! with the ends of the seed's other children.

use farfork_api::failure::Failure;
use farfork_api::v1;

use super::round::{SoakChild, SoakRound};
use super::script::FanoutScript;
use crate::error::BenchError;
use crate::experiment::node_client::{request_failure, started_child};
use crate::experiment::nodes::SIGKILL;
use crate::workload::memory_walk;

impl SoakRound<'_> {
    /// Forks the children, and immediately kills as many of them as the script says.
    ///
    /// # Errors
    /// A node failed.
    pub(super) async fn fan_out(&mut self, fan: &FanoutScript) -> Result<(), BenchError> {
        let Some((seed, owner, has_lease)) = self.seed_of(fan.seed_index) else { return Ok(()) };
        let outcome = self.request_children(fan, owner, &seed).await;
        // The lease may have expired.
        let Some(outcomes) = self.tolerate_expired(has_lease, outcome, "a fan-out")? else { return Ok(()) };
        let mut soak_child = Vec::new();
        for outcome in outcomes {
            let started = outcome.and_then(|child| self.to_soak_child(child, fan));
            // A child without enough memory for its first page does not start.
            let may_fail = has_lease || fan.memory_mib.is_some();
            soak_child.extend(self.tolerate_expired(may_fail, started, "a child of a fan-out")?);
        }
        self.tally.children += soak_child.len() as u64;
        // Kill the last children, which are most likely still running.
        for child in soak_child.iter_mut().rev().take(fan.killed_count) {
            child.is_killed = true;
            self.signal_child(child, SIGKILL).await?;
        }
        self.add_children(fan.seed_index, soak_child);
        Ok(())
    }

    async fn request_children(
        &self,
        fan: &FanoutScript,
        owner: usize,
        seed: &str,
    ) -> Result<Vec<Result<v1::Child, Failure>>, Failure> {
        let payloads = (0..fan.count).map(|index| memory_walk::payload(fan.seed.wrapping_add(index), fan.ms, false));
        let options =
            v1::ChildOptions { memory_bytes_max: fan.memory_mib.unwrap_or(0) << 20, ..v1::ChildOptions::default() };
        let request = v1::ForkRequest {
            seed: seed.to_owned(),
            nodes: self.nodes.nodes().iter().map(|node| node.name.clone()).collect(),
            count: u32::try_from(fan.count).unwrap_or(u32::MAX),
            payloads: payloads.map(String::into_bytes).collect(),
            options: Some(options),
            ..Default::default()
        };
        let mut client = self.client(owner).await?;
        let (mut stream, mut outcomes) = (client.fork(request).await?, Vec::new());
        while let Some(outcome) = stream.message().await.map_err(request_failure(seed))? {
            outcomes.push(started_child(outcome.result, seed));
        }
        Ok(outcomes)
    }

    fn to_soak_child(&self, child: v1::Child, fan: &FanoutScript) -> Result<SoakChild, Failure> {
        let strange = || Failure::new(tonic::Code::Internal, &child.id, "its node is not part of this run");
        let node = self.nodes.nodes().iter().position(|node| node.name == child.node).ok_or_else(strange)?;
        Ok(SoakChild { has_memory_limit: fan.memory_mib.is_some(), ..SoakChild::new(child, node) })
    }
}
