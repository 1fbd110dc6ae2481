//! Who takes part in a world, and how time passes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{NodeId, ROUND, World};

/// What takes part in a world: it is given turns whenever it could do something.
pub trait Actor: Send {
    /// Does what can be done now. `now` is the time by its node's clock.
    fn turn(&mut self, now: Instant);

    /// Whether a turn would find something to do.
    fn is_ready(&self) -> bool;

    /// When, by its node's clock, it wants a turn even if it is not ready.
    fn next_timeout(&self) -> Option<Instant>;
}

/// An actor's number in its world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActorId(u64);

#[derive(Default)]
pub(super) struct Actors {
    seats: BTreeMap<ActorId, Seat>,
    next: u64,
}

struct Seat {
    node: NodeId,
    /// Absent while it takes its turn.
    actor: Option<Box<dyn Actor>>,
}

impl World {
    /// Gives a node an actor.
    pub fn add_actor(&self, node: NodeId, actor: Box<dyn Actor>) -> ActorId {
        let mut actors = self.actors();
        let id = ActorId(actors.next);
        actors.next += 1;
        actors.seats.insert(id, Seat { node, actor: Some(actor) });
        id
    }

    /// Ends an actor.
    pub fn remove_actor(&self, id: ActorId) {
        let seat = self.actors().seats.remove(&id);
        // Dropped here, when nothing is locked: it may own streams, or worlds.
        drop(seat);
    }

    /// Gives those who are ready a turn, in an order that the seed decides; where nobody is, lets time pass until
    /// something happens, at most until `until` (by a clock that is right). Tells whether anything happened before
    /// that.
    pub fn step(&self, until: Instant) -> bool {
        let mut ready = self.ready();
        if ready.is_empty() {
            return self.pass_time(until);
        }
        self.network().random.shuffle(&mut ready);
        for id in ready {
            self.take_turn(id);
        }
        let mut network = self.network();
        let to = network.now + ROUND;
        network.advance(to);
        true
    }

    /// Steps until `done` says so; tells whether it did before `until` (by a clock that is right).
    pub fn run_until(&self, until: Instant, mut done: impl FnMut() -> bool) -> bool {
        while !done() {
            if self.now() >= until {
                return false;
            }
            self.step(until);
        }
        true
    }

    fn ready(&self) -> Vec<ActorId> {
        let wants = |seat: &Seat| {
            let Some(actor) = &seat.actor else { return false };
            self.is_awake(seat.node)
                && (actor.is_ready() || actor.next_timeout().is_some_and(|at| at <= self.now_at(seat.node)))
        };
        self.actors().seats.iter().filter(|(_, seat)| wants(seat)).map(|(id, _)| *id).collect()
    }

    fn take_turn(&self, id: ActorId) {
        let taken = self.actors().seats.get_mut(&id).and_then(|seat| Some((seat.node, seat.actor.take()?)));
        let Some((node, mut actor)) = taken else { return };
        actor.turn(self.now_at(node));
        let mut network = self.network();
        let rests_until = network.now + network.nodes[node.0 as usize].pace;
        network.nodes[node.0 as usize].rests_until = rests_until;
        drop(network);
        if let Some(seat) = self.actors().seats.get_mut(&id) {
            seat.actor = Some(actor);
        }
    }

    fn pass_time(&self, until: Instant) -> bool {
        let until = until.saturating_duration_since(self.shared.origin);
        let until = super::Skew::default().elapsed(until);
        let next = self.next_turn_at().into_iter().chain(self.network().next_event_at()).min();
        let to = next.map_or(until, |next| next.min(until));
        self.network().advance(to);
        next.is_some_and(|next| next < until)
    }

    /// When the next actor of a node that is not stopped wants a turn.
    fn next_turn_at(&self) -> Option<Duration> {
        let wants_at = |seat: &Seat| {
            let actor = seat.actor.as_ref()?;
            let rests_until = {
                let network = self.network();
                let state = &network.nodes[seat.node.0 as usize];
                if state.stopped {
                    return None;
                }
                state.rests_until
            };
            let timeout = || actor.next_timeout().map(|at| self.elapsed_when(seat.node, at));
            let wanted = if actor.is_ready() { Some(Duration::ZERO) } else { timeout() };
            wanted.map(|at| at.max(rests_until))
        };
        self.actors().seats.values().filter_map(wants_at).min()
    }
}
