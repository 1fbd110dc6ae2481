//! Random faults during reads, writes and messages, with hundreds of random seeds: no wrong byte, no hang, no change
//! made twice. For a seed that fails, the command that repeats it is printed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::sim::world::{NodeId, SimAddress};
use farfork_fabric::sim::{self, FaultInjector, World, run_random_seeds, run_scenario};
use farfork_fabric::{Exporter, MessageQueue, RegionRegistry, SharedMemory};

use crate::client::{Client, Fate, SLOT_BYTES, SLOTS};
use crate::pattern::Pattern;
use crate::seed::key;

/// Number of random seeds of a run, unless `FARFORK_SIM_SEED` selects one.
const SEEDS: u64 = 250;

/// Number of random seeds of a run by `make test-long`.
const MANY_SEEDS: u64 = 1000;

/// Number of requesters in a world.
const REQUESTERS: u64 = 3;

/// Duration of the faults, in the world's time.
const CHAOS: Duration = Duration::from_secs(4);

/// Longest time that requests may take after the faults have stopped.
const CALM: Duration = Duration::from_secs(60);

/// A world with an owner and its requesters.
struct Scene {
    world: World,
    owner_address: SimAddress,
    exporter: Arc<dyn Exporter>,
    inbox: Arc<MessageQueue>,
    server: Option<sim::SimServer>,
    clients: Vec<Client>,
    /// Messages that arrived, by requester and number.
    arrived: BTreeSet<(u64, u64)>,
    last_arrived: [u64; REQUESTERS as usize],
    completed: usize,
}

impl Scene {
    fn new(seed: u64) -> (Self, FaultInjector) {
        let world = World::new(seed);
        let owner = world.add_node("owner");
        let nodes: Vec<NodeId> = (0..REQUESTERS).map(|number| world.add_node(&format!("requester{number}"))).collect();
        let injector = FaultInjector::new(&world, &[&[owner][..], &nodes].concat());
        let inbox = Arc::new(MessageQueue::new().unwrap());
        let registry = RegionRegistry::new(Some(Arc::clone(&inbox)));
        std::mem::forget(registry.register(&Pattern::key(), Arc::new(Pattern)).unwrap());
        for number in 0..REQUESTERS {
            let memory = Arc::new(SharedMemory::new(SLOTS * SLOT_BYTES).unwrap());
            std::mem::forget(registry.register(&key(10 + number), memory).unwrap());
        }
        let owner_address = SimAddress { node: owner, port: 7001 };
        let exporter: Arc<dyn Exporter> = registry;
        let server = Some(sim::SimServer::start(&world, owner_address, &exporter).unwrap());
        let clients = (0..).zip(nodes).map(|(number, node)| Client::new(&world, number, node, owner_address)).collect();
        let (arrived, last_arrived) = (BTreeSet::new(), [0; REQUESTERS as usize]);
        (Self { world, owner_address, exporter, inbox, server, clients, arrived, last_arrived, completed: 0 }, injector)
    }

    /// Gives each requester on a running node a turn, and checks the messages that arrived.
    fn turn(&mut self) {
        for client in &mut self.clients {
            if self.world.is_running(client.node) {
                self.completed += client.poll();
            }
        }
        while let Some(message) = self.inbox.receive() {
            let number = u64::from_le_bytes(*message.bytes.first_chunk().unwrap());
            let (from, number) = (number >> 32, number & u64::from(u32::MAX));
            assert_eq!(message.sender, format!("requester{from}"));
            assert!(message.bytes[8..].iter().all(|byte| u64::from(*byte) == from), "wrong bytes");
            assert!(self.arrived.insert((from, number)), "message {number} of {from} arrived twice");
            assert!(number > self.last_arrived[from as usize], "message {number} of {from} arrived out of order");
            self.last_arrived[from as usize] = number;
        }
    }

    /// Returns the time at which the first requester needs a turn, at most `until`.
    fn next_at(&self, until: Instant) -> Instant {
        let is_awake = |client: &&Client| self.world.is_running(client.node);
        let wants =
            |client: &Client| client.connection.next_timeout().map(|at| self.world.to_world_time(client.node, at));
        self.clients.iter().filter(is_awake).filter_map(wants).fold(until, Instant::min)
    }

    /// Runs the world until `until`, or until `each` returns `None`. `each` returns the time of its next call.
    fn run(&mut self, until: Instant, mut each: impl FnMut(&mut Self) -> Option<Instant>) {
        while self.world.now() < until {
            let Some(wanted) = each(self) else { return };
            self.turn();
            let next = self.next_at(until.min(wanted)).max(self.world.now() + Duration::from_micros(1));
            self.world.step(next);
        }
    }

    /// Injects faults while all requesters send requests.
    fn suffer(&mut self, injector: &mut FaultInjector) {
        let mut ask_at = self.world.now();
        let until = self.world.now() + CHAOS;
        self.run(until, |scene| {
            let now = scene.world.now();
            if injector.next_due_at() <= now {
                injector.apply_due();
                if scene.world.random_bool(0.02) {
                    scene.server = None;
                    scene.server =
                        Some(sim::SimServer::start(&scene.world, scene.owner_address, &scene.exporter).unwrap());
                }
            }
            if ask_at <= now {
                ask_at = now + Duration::from_micros(scene.world.random_below(40_000));
                let which = scene.world.random_below(REQUESTERS) as usize;
                for _ in 0..scene.world.random_below(4) {
                    let within = Duration::from_millis(1 + scene.world.random_below(3000));
                    scene.clients[which].ask(&scene.world, within);
                }
            }
            Some(ask_at.min(injector.next_due_at()))
        });
    }

    /// Checks that all requests end after the faults, and that new requests succeed. The first new request of each
    /// requester may fail: it may find that the owner was restarted, and the new owner has no record of the requester.
    fn recover(&mut self) {
        self.settle();
        for client in &mut self.clients {
            client.ask(&self.world, CALM);
        }
        self.settle();
        let first_calm_tag: Vec<u64> = self.clients.iter().map(|client| client.next_tag).collect();
        for client in &mut self.clients {
            for _ in 0..10 {
                client.ask(&self.world, CALM);
            }
        }
        self.settle();
        for (client, first_calm_tag) in self.clients.iter().zip(first_calm_tag) {
            let writes = client.writes.iter().map(|(number, (_, fate))| (*number, *fate));
            for (number, fate) in writes.chain(client.messages.iter().map(|(number, fate)| (*number, *fate))) {
                assert!(number < first_calm_tag || fate == Fate::Done, "request {number} failed without a fault");
            }
            for (number, fate) in &client.messages {
                let has_arrived = self.arrived.contains(&(client.number, *number));
                assert!(
                    *fate != Fate::Done || has_arrived,
                    "message {number} was reported as delivered, but was not received"
                );
                assert!(
                    *fate != Fate::NotDone || !has_arrived,
                    "message {number} was reported as not delivered, but was received"
                );
            }
        }
    }

    /// Waits until all requests have ended.
    fn settle(&mut self) {
        let until = self.world.now() + 2 * CALM;
        self.run(until, |scene| {
            let open = scene.clients.iter().any(|client| !client.asked.is_empty());
            open.then_some(until)
        });
        for client in &self.clients {
            assert!(client.asked.is_empty(), "{:?} hang", client.asked);
        }
    }
}

/// Runs one random seed. Returns the digest of the run's events, and the number of completed requests.
fn run(seed: u64) -> (u64, usize) {
    let (mut scene, mut injector) = Scene::new(seed);
    let world = scene.world.clone();
    run_scenario(&world, seed, "-p farfork-fabric --test fabric -- faults::", || {
        scene.suffer(&mut injector);
        injector.end_all();
        scene.recover();
    });
    (scene.world.trace_digest(), scene.completed)
}

fn do_no_harm(seeds: u64) {
    let (count, completed) = run_random_seeds(seeds, |seed| run(seed).1);
    assert!(completed > 50 * count, "{completed} requests are too few to prove anything");
}

#[test]
fn random_faults_cause_no_wrong_byte_no_repetition_and_no_hang() {
    do_no_harm(SEEDS);
}

#[test]
#[ignore = "long: a thousand seeds"]
fn a_thousand_seeds_of_random_faults_do_no_harm() {
    do_no_harm(MANY_SEEDS);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 2, 3, 500] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1).0, run(2).0);
}
