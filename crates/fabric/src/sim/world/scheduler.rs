//! The actors of a world, the order of their turns, and the passing of time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{NodeId, ROUND_DURATION, World};

/// A participant in a world. It gets a turn whenever it is ready or its timeout has passed.
pub trait Actor: Send {
    /// Does all work that is possible now. `now` is the time of its node's clock.
    fn run_turn(&mut self, now: Instant);

    /// Whether a turn would find something to do.
    fn is_ready(&self) -> bool;

    /// Returns the time at which it needs a turn even if it is not ready, by its node's clock.
    fn next_timeout(&self) -> Option<Instant>;
}

/// An actor's number in its world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActorId(u64);

#[derive(Default)]
pub(super) struct ActorTable {
    slots: BTreeMap<ActorId, ActorSlot>,
    next_id: u64,
}

struct ActorSlot {
    node: NodeId,
    /// The actor; `None` during its turn.
    actor: Option<Box<dyn Actor>>,
}

impl World {
    /// Adds an actor to a node.
    pub fn add_actor(&self, node: NodeId, actor: Box<dyn Actor>) -> ActorId {
        let mut actors = self.actors();
        let id = ActorId(actors.next_id);
        actors.next_id += 1;
        actors.slots.insert(id, ActorSlot { node, actor: Some(actor) });
        id
    }

    /// Removes an actor.
    pub fn remove_actor(&self, id: ActorId) {
        let actor_slot = self.actors().slots.remove(&id);
        // Drop the actor after the lock is released: it may own streams, whose drop takes locks.
        drop(actor_slot);
    }

    /// Gives each ready actor a turn, in an order that the seed decides. If none is ready, advances the time to the
    /// next event, at most to `until` (of a clock without skew). Returns false if there was no event before `until`.
    pub fn step(&self, until: Instant) -> bool {
        let mut ready = self.ready_actors();
        if ready.is_empty() {
            return self.advance_clock(until);
        }
        self.network().random.shuffle(&mut ready);
        for id in ready {
            self.run_actor(id);
        }
        let mut network = self.network();
        let to = network.now + ROUND_DURATION;
        network.advance(to);
        true
    }

    /// Steps until `done` returns `true`. Returns `false` if that did not happen before `until` (of a clock without
    /// skew).
    pub fn run_until(&self, until: Instant, mut done: impl FnMut() -> bool) -> bool {
        while !done() {
            if self.now() >= until {
                return false;
            }
            self.step(until);
        }
        true
    }

    fn ready_actors(&self) -> Vec<ActorId> {
        let wants = |actor_slot: &ActorSlot| {
            let Some(actor) = &actor_slot.actor else { return false };
            self.is_running(actor_slot.node)
                && (actor.is_ready() || actor.next_timeout().is_some_and(|at| at <= self.local_time(actor_slot.node)))
        };
        self.actors().slots.iter().filter(|(_, actor_slot)| wants(actor_slot)).map(|(id, _)| *id).collect()
    }

    fn run_actor(&self, id: ActorId) {
        let taken =
            self.actors().slots.get_mut(&id).and_then(|actor_slot| Some((actor_slot.node, actor_slot.actor.take()?)));
        let Some((node, mut actor)) = taken else { return };
        actor.run_turn(self.local_time(node));
        let mut network = self.network();
        let rests_until = network.now + network.nodes[node.0 as usize].turn_delay;
        network.nodes[node.0 as usize].paused_until = rests_until;
        drop(network);
        if let Some(actor_slot) = self.actors().slots.get_mut(&id) {
            actor_slot.actor = Some(actor);
        }
    }

    fn advance_clock(&self, until: Instant) -> bool {
        let until = until.saturating_duration_since(self.shared.origin);
        let until = super::ClockSkew::default().to_world(until);
        let next = self.next_turn_at().into_iter().chain(self.network().next_event_at()).min();
        let to = next.map_or(until, |next| next.min(until));
        self.network().advance(to);
        next.is_some_and(|next| next < until)
    }

    /// Returns the time at which the next actor needs a turn. Actors of stopped nodes get no turns.
    fn next_turn_at(&self) -> Option<Duration> {
        let wants_at = |actor_slot: &ActorSlot| {
            let actor = actor_slot.actor.as_ref()?;
            let rests_until = {
                let network = self.network();
                let state = &network.nodes[actor_slot.node.0 as usize];
                if state.stopped {
                    return None;
                }
                state.paused_until
            };
            let timeout = || actor.next_timeout().map(|at| self.elapsed_at_local(actor_slot.node, at));
            let wanted = if actor.is_ready() { Some(Duration::ZERO) } else { timeout() };
            wanted.map(|at| at.max(rests_until))
        };
        self.actors().slots.values().filter_map(wants_at).min()
    }
}
