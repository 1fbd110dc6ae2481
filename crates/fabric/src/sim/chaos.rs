//! Misfortunes of a world, one after the other, as its seed decides.

use std::time::{Duration, Instant};

use super::world::{Conditions, NodeId, Skew, World};

/// Between two misfortunes, in microseconds.
const INTERVAL_US_MAX: u64 = 150_000;

/// How long one lasts, in microseconds. Longer than a requester is patient at first, so that it connects anew.
const DURATION_US_MAX: u64 = 1_500_000;

/// Longest rest of a slow node after each turn, in microseconds.
const PACE_US_MAX: u64 = 3_000;

/// Something that lasts.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// No bytes from one node to another.
    Cut(NodeId, NodeId),
    /// A node does nothing.
    Stopped(NodeId),
    /// A node does little.
    Slow(NodeId),
}

/// What goes wrong in a world, and when.
#[derive(Debug)]
pub struct Chaos {
    world: World,
    nodes: Vec<NodeId>,
    lasting: Vec<(Instant, Trouble)>,
    next_at: Instant,
}

impl Chaos {
    /// Among these nodes, whose clocks and paths it makes bad ones at once.
    pub fn new(world: &World, nodes: &[NodeId]) -> Self {
        for node in nodes {
            let ahead_us = world.random_below(2_000_000_000) as i32 - 1_000_000_000;
            let faster_ppm = world.random_below(100_000) as i32 - 50_000;
            world.set_skew(*node, Skew { ahead_us, faster_ppm });
        }
        for (from, to) in pairs(nodes) {
            world.set_conditions(from, to, &draw_conditions(world));
        }
        Self { world: world.clone(), nodes: nodes.to_vec(), lasting: Vec::new(), next_at: world.now() }
    }

    /// When it wants [`Chaos::act`] to be called, by a clock that is right.
    pub fn next_at(&self) -> Instant {
        self.lasting.iter().map(|(until, _)| *until).chain([self.next_at]).min().unwrap_or(self.next_at)
    }

    /// Brings about what is due, and ends what has lasted long enough.
    pub fn act(&mut self) {
        let now = self.world.now();
        let (over, lasting) = self.lasting.iter().copied().partition::<Vec<_>, _>(|(until, _)| *until <= now);
        self.lasting = lasting;
        over.into_iter().for_each(|(_, trouble)| self.relieve(trouble));
        if self.next_at <= now {
            self.next_at = now + Duration::from_micros(1 + self.world.random_below(INTERVAL_US_MAX));
            self.strike(now);
        }
    }

    /// Ends all troubles; the paths are quiet from now on, and what they swallowed before stays swallowed.
    pub fn end(&mut self) {
        for (_, trouble) in std::mem::take(&mut self.lasting) {
            self.relieve(trouble);
        }
        for (from, to) in pairs(&self.nodes) {
            self.world.set_conditions(from, to, &Conditions::default());
        }
    }

    fn strike(&mut self, now: Instant) {
        let (one, other) = (self.draw_node(), self.draw_node());
        let until = now + Duration::from_micros(self.world.random_below(DURATION_US_MAX));
        let trouble = match self.world.random_below(10) {
            0..=2 => return self.world.reset_between(one, other),
            3 => return self.world.set_conditions(one, other, &draw_conditions(&self.world)),
            4 | 5 => Trouble::Cut(one, other),
            6 => {
                self.begin(until, Trouble::Cut(other, one));
                Trouble::Cut(one, other)
            }
            7 => Trouble::Stopped(one),
            _ => Trouble::Slow(one),
        };
        self.begin(until, trouble);
    }

    fn begin(&mut self, until: Instant, trouble: Trouble) {
        match trouble {
            Trouble::Cut(from, to) => self.world.set_cut(from, to, true),
            Trouble::Stopped(node) => self.world.set_stopped(node, true),
            Trouble::Slow(node) => {
                let pace_us = self.world.random_below(PACE_US_MAX);
                self.world.set_pace(node, Duration::from_micros(pace_us));
            }
        }
        self.lasting.push((until, trouble));
    }

    fn relieve(&self, trouble: Trouble) {
        match trouble {
            Trouble::Cut(from, to) => self.world.set_cut(from, to, false),
            Trouble::Stopped(node) => self.world.set_stopped(node, false),
            Trouble::Slow(node) => self.world.set_pace(node, Duration::ZERO),
        }
    }

    fn draw_node(&self) -> NodeId {
        self.nodes[self.world.random_below(self.nodes.len() as u64) as usize]
    }
}

fn pairs(nodes: &[NodeId]) -> impl Iterator<Item = (NodeId, NodeId)> {
    nodes.iter().flat_map(move |from| nodes.iter().map(move |to| (*from, *to)))
}

/// Most paths are a little bad, some very.
fn draw_conditions(world: &World) -> Conditions {
    let chance = |most: f64| match world.random_below(3) {
        0 => most * world.random_below(1000) as f64 / 1000.0,
        _ => 0.0,
    };
    let delay_us = 10 + world.random_below([100, 2_000, 30_000][world.random_below(3) as usize]);
    Conditions {
        delay_min: Duration::from_micros(delay_us / 2),
        delay_max: Duration::from_micros(delay_us),
        bytes_per_s: [1_000_000, 20_000_000, 1_000_000_000][world.random_below(3) as usize],
        reset_chance: chance(0.02),
        swallow_chance: chance(0.01),
        flip_chance: chance(0.02),
    }
}
