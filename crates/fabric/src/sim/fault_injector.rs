//! Injects faults into a simulated world, one after the other, chosen by the world's random seed.

use std::time::{Duration, Instant};

use super::world::{ClockSkew, NodeId, PathConditions, World};

/// Longest time between two faults, in microseconds.
const FAULT_INTERVAL_US_MAX: u64 = 150_000;

/// Longest duration of a fault, in microseconds. It exceeds a requester's first response timeout, so that some faults
/// make the requester reconnect.
const FAULT_DURATION_US_MAX: u64 = 1_500_000;

/// Longest pause of a slow node after each turn, in microseconds.
const TURN_DELAY_US_MAX: u64 = 3_000;

/// A fault that lasts for some time.
#[derive(Debug, Clone, Copy)]
enum InjectedFault {
    /// No bytes arrive from one node at another.
    LinkDown(NodeId, NodeId),
    /// A node gets no turns.
    NodeStopped(NodeId),
    /// A node pauses after each turn.
    NodeSlow(NodeId),
}

/// Chooses the faults of a world, and their times.
#[derive(Debug)]
pub struct FaultInjector {
    world: World,
    nodes: Vec<NodeId>,
    active_faults: Vec<(Instant, InjectedFault)>,
    next_fault_at: Instant,
}

impl FaultInjector {
    /// Creates an injector for these nodes, and sets random clock skews and path conditions.
    pub fn new(world: &World, nodes: &[NodeId]) -> Self {
        for node in nodes {
            let ahead_us = world.random_below(2_000_000_000) as i32 - 1_000_000_000;
            let faster_ppm = world.random_below(100_000) as i32 - 50_000;
            world.set_clock_skew(*node, ClockSkew { offset_us: ahead_us, drift_ppm: faster_ppm });
        }
        for (from, to) in node_pairs(nodes) {
            world.set_conditions(from, to, &random_conditions(world));
        }
        Self { world: world.clone(), nodes: nodes.to_vec(), active_faults: Vec::new(), next_fault_at: world.now() }
    }

    /// Returns the time at which the caller must call [`FaultInjector::apply_due`], in the world's time.
    pub fn next_due_at(&self) -> Instant {
        self.active_faults
            .iter()
            .map(|(until, _)| *until)
            .chain([self.next_fault_at])
            .min()
            .unwrap_or(self.next_fault_at)
    }

    /// Injects due faults, and ends faults whose duration has passed.
    pub fn apply_due(&mut self) {
        let now = self.world.now();
        let (over, lasting) = self.active_faults.iter().copied().partition::<Vec<_>, _>(|(until, _)| *until <= now);
        self.active_faults = lasting;
        over.into_iter().for_each(|(_, fault)| self.end_fault(fault));
        if self.next_fault_at <= now {
            self.next_fault_at = now + Duration::from_micros(1 + self.world.random_below(FAULT_INTERVAL_US_MAX));
            self.inject_fault(now);
        }
    }

    /// Ends all faults, and sets fault-free path conditions. Bytes that are already lost stay lost.
    pub fn end_all(&mut self) {
        for (_, fault) in std::mem::take(&mut self.active_faults) {
            self.end_fault(fault);
        }
        for (from, to) in node_pairs(&self.nodes) {
            self.world.set_conditions(from, to, &PathConditions::default());
        }
    }

    fn inject_fault(&mut self, now: Instant) {
        let (one, other) = (self.random_node(), self.random_node());
        let until = now + Duration::from_micros(self.world.random_below(FAULT_DURATION_US_MAX));
        let fault = match self.world.random_below(10) {
            0..=2 => return self.world.reset_connections_between(one, other),
            3 => return self.world.set_conditions(one, other, &random_conditions(&self.world)),
            4 | 5 => InjectedFault::LinkDown(one, other),
            6 => {
                self.start_fault(until, InjectedFault::LinkDown(other, one));
                InjectedFault::LinkDown(one, other)
            }
            7 => InjectedFault::NodeStopped(one),
            _ => InjectedFault::NodeSlow(one),
        };
        self.start_fault(until, fault);
    }

    fn start_fault(&mut self, until: Instant, fault: InjectedFault) {
        match fault {
            InjectedFault::LinkDown(from, to) => self.world.set_link_down(from, to, true),
            InjectedFault::NodeStopped(node) => self.world.set_stopped(node, true),
            InjectedFault::NodeSlow(node) => {
                let pace_us = self.world.random_below(TURN_DELAY_US_MAX);
                self.world.set_turn_delay(node, Duration::from_micros(pace_us));
            }
        }
        self.active_faults.push((until, fault));
    }

    fn end_fault(&self, fault: InjectedFault) {
        match fault {
            InjectedFault::LinkDown(from, to) => self.world.set_link_down(from, to, false),
            InjectedFault::NodeStopped(node) => self.world.set_stopped(node, false),
            InjectedFault::NodeSlow(node) => self.world.set_turn_delay(node, Duration::ZERO),
        }
    }

    fn random_node(&self) -> NodeId {
        self.nodes[self.world.random_below(self.nodes.len() as u64) as usize]
    }
}

fn node_pairs(nodes: &[NodeId]) -> impl Iterator<Item = (NodeId, NodeId)> {
    nodes.iter().flat_map(move |from| nodes.iter().map(move |to| (*from, *to)))
}

/// Draws random conditions. Most paths have few faults, some have many.
fn random_conditions(world: &World) -> PathConditions {
    let chance = |most: f64| match world.random_below(3) {
        0 => most * world.random_below(1000) as f64 / 1000.0,
        _ => 0.0,
    };
    let delay_us = 10 + world.random_below([100, 2_000, 30_000][world.random_below(3) as usize]);
    PathConditions {
        delay_min: Duration::from_micros(delay_us / 2),
        delay_max: Duration::from_micros(delay_us),
        bytes_per_s: [1_000_000, 20_000_000, 1_000_000_000][world.random_below(3) as usize],
        reset_chance: chance(0.02),
        blackhole_chance: chance(0.01),
        bit_flip_chance: chance(0.02),
    }
}
