//! Random faults during calls, with hundreds of random seeds. Connections break, are delayed, cut, damaged and
//! reordered; nodes stop or slow down, clocks drift, servers restart. For a seed that fails, the command that repeats
//! it is printed.

use std::time::{Duration, Instant};

use farfork_fabric::sim::world::{NodeId, SimAddress};
use farfork_fabric::sim::{FaultInjector, World, run_random_seeds, run_scenario};
use farfork_rpc::sim::SimServer;

use crate::caller::Shared;
use crate::works::Works;

/// Number of random seeds of a run, unless `FARFORK_SIM_SEED` selects one.
const SEEDS: u64 = 250;

/// Number of random seeds of a run by `make test-long`.
const MANY_SEEDS: u64 = 1000;

/// Number of clients in a world, each on its own node.
const CALLERS: u64 = 3;

/// Duration of the faults, in the world's time.
const CHAOS: Duration = Duration::from_secs(4);

/// Longest time that requests may take after the faults have stopped.
const CALM: Duration = Duration::from_secs(60);

/// Longest delay of a deferred reply, in microseconds.
const LATER_US_MAX: u64 = 30_000;

/// A world with a server and its clients.
struct FaultScene {
    world: World,
    server_address: SimAddress,
    threads: usize,
    server: Option<SimServer>,
    works: Works,
    callers: Vec<Shared>,
    finish_at: Instant,
    /// Whether handlers may drop deferred replies.
    gives_up: bool,
}

impl FaultScene {
    fn new(seed: u64, nodes: &mut Vec<NodeId>) -> Self {
        let world = World::new(seed);
        let owner = world.add_node("server");
        let clients: Vec<NodeId> = (0..CALLERS).map(|number| world.add_node(&format!("client{number}"))).collect();
        nodes.push(owner);
        nodes.extend(&clients);
        let server_address = SimAddress { node: owner, port: 7002 };
        let threads = 1 + world.random_below(3) as usize;
        let finish_at = world.now();
        let (works, callers) = (Works::default(), Vec::new());
        let mut scene =
            Self { world, server_address, threads, server: None, works, callers, finish_at, gives_up: false };
        scene.restart();
        let world = &scene.world;
        scene.callers =
            (1..).zip(clients).map(|(number, node)| Shared::start(world, number, node, server_address)).collect();
        scene
    }

    /// Starts the server, or restarts it without its state.
    fn restart(&mut self) {
        self.server = None;
        let works = self.works.clone();
        let server = SimServer::start(&self.world, self.server_address, self.threads, None, move || works.handlers());
        self.server = Some(server.unwrap());
    }

    /// Runs the world until `until`, or until `each` returns `None`. `each` returns the time of its next call.
    fn run(&mut self, until: Instant, mut each: impl FnMut(&mut Self) -> Option<Instant>) {
        while self.world.now() < until {
            let Some(wanted) = each(self) else { return };
            if self.finish_at <= self.world.now() {
                self.works.finish_one(&self.world, self.gives_up);
                self.finish_at = self.world.now() + Duration::from_micros(self.world.random_below(LATER_US_MAX));
            }
            self.world.step(until.min(wanted).min(self.finish_at).max(self.world.now() + Duration::from_micros(1)));
        }
    }

    /// Injects faults while all clients send requests.
    fn suffer(&mut self, injector: &mut FaultInjector) {
        self.gives_up = true;
        self.run(self.world.now() + CHAOS, |scene| {
            if injector.next_due_at() <= scene.world.now() {
                injector.apply_due();
                if scene.world.random_bool(0.02) {
                    scene.restart();
                }
            }
            Some(injector.next_due_at())
        });
        self.gives_up = false;
    }

    /// Checks that all requests end after the faults, and that new requests get replies.
    fn recover(&mut self) {
        self.callers.iter().for_each(Shared::stop_asking);
        self.settle();
        // The next request of a client may fail: its connection may have broken, or the server was restarted, while no
        // requests were sent.
        self.callers.iter().for_each(|caller| _ = caller.ask_calmly(1));
        self.settle();
        let first_calm_number: Vec<u64> = self.callers.iter().map(|caller| caller.ask_calmly(10)).collect();
        self.settle();
        for (caller, first_calm_number) in self.callers.iter().zip(first_calm_number) {
            caller.check(&self.works, first_calm_number);
        }
    }

    /// Waits until all requests have ended.
    fn settle(&mut self) {
        let until = self.world.now() + CALM;
        self.run(until, |scene| scene.callers.iter().any(|caller| caller.unanswered() > 0).then_some(until));
        let unanswered: usize = self.callers.iter().map(Shared::unanswered).sum();
        assert_eq!(unanswered, 0, "requests hang, {} of them with their handlers", self.works.later());
    }

    fn answered(&self) -> usize {
        self.callers.iter().map(Shared::answered).sum()
    }
}

/// Runs one random seed. Returns the digest of the run's events, and the number of answered requests.
fn run(seed: u64) -> (u64, usize) {
    let mut nodes = Vec::new();
    let mut scene = FaultScene::new(seed, &mut nodes);
    let mut injector = FaultInjector::new(&scene.world, &nodes);
    let world = scene.world.clone();
    run_scenario(&world, seed, "-p farfork-rpc --test sim -- faults::", || {
        scene.suffer(&mut injector);
        injector.end_all();
        scene.recover();
    });
    (scene.world.trace_digest(), scene.answered())
}

fn do_no_harm(seeds: u64) {
    let (count, answered) = run_random_seeds(seeds, |seed| run(seed).1);
    assert!(answered > 50 * count, "{answered} answers are too few to prove anything");
}

#[test]
fn each_request_ends_once_and_is_executed_at_most_once() {
    do_no_harm(SEEDS);
}

#[test]
#[ignore = "long: a thousand seeds"]
fn each_request_ends_once_with_a_thousand_seeds() {
    do_no_harm(MANY_SEEDS);
}

#[test]
fn without_faults_every_request_is_answered() {
    for seed in 0..30 {
        let mut scene = FaultScene::new(seed, &mut Vec::new());
        scene.run(scene.world.now() + CHAOS, |scene| Some(scene.world.now() + CALM));
        let answered = scene.answered();
        assert!(answered > 200, "seed {seed}: {answered} answers are too few to prove anything");
        scene.recover();
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1).0, run(2).0);
}
