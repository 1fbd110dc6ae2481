//! Injects random faults into paging, for hundreds of random seeds: a real program and real page faults, but a
//! simulated owner, network and clock. Checks that no byte is wrong, nothing hangs, and no page is lost while its owner
//! is reachable. If a random seed fails, prints the command that repeats it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use farfork_fabric::sim::world::{NodeId, SimAddress};
use farfork_fabric::sim::{self, FaultInjector, World, run_random_seeds, run_scenario};
use farfork_fabric::{Address, Exporter, Refusal, Region};
use farfork_fork::pager::simulated::{SimulatedPager, run_simulated_pager};
use farfork_fork::pager::{PagingMode, PagingStrategy};
use farfork_sys::fd_passing;
use farfork_wire::{ChildId, NodeName, PAGE_SIZE, SeedId, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bed::{AdoptedProgram, Program};
use crate::seed::{AREA, TestSeed, is_populated};

pub(crate) const ALL: &[(&str, fn())] = &[
    ("a_simulated_pager_serves_correct_pages_and_never_hangs", || do_no_harm(SEEDS)),
    ("simulated_runs_of_one_seed_are_equal", the_same_seed_gives_the_same_run),
];

/// Scenarios of `make test-long`.
pub(crate) const LONG: &[(&str, fn())] =
    &[("a_simulated_pager_survives_a_thousand_seeds_of_faults", || do_no_harm(MANY_SEEDS))];

/// Number of random seeds of a run, unless one is given.
const SEEDS: u64 = 250;

/// Number of random seeds of `make test-long`.
const MANY_SEEDS: u64 = 1000;

/// Number of pages of the program. The hole after them is not tested.
const PAGES: u64 = 256;

/// Number of orders to the program while faults are injected, and again afterwards.
const ORDERS: usize = 24;

/// The short value of `unreachable_timeout`. Some faults last longer.
const SHORT_LIMIT: Duration = Duration::from_secs(1);

/// The clocks of a simulated world run faster than real time by up to this factor.
const CLOCK_RATE: f64 = 1.06;

/// Limit for a page while faults are injected, in simulated time: longer than all faults that can coincide.
const PAGE_LIMIT: Duration = Duration::from_secs(120);

/// As `PAGE_LIMIT`, but without faults: a connection may have to be opened again.
const CALM_LIMIT: Duration = Duration::from_secs(30);

/// Pause between two checks of the program while other events arrive for the pager, in real time.
const LOOK_INTERVAL: Duration = Duration::from_micros(20);

/// Limit for a step of the program that needs no other process, in real time.
const REAL_LIMIT: Duration = Duration::from_secs(30);

/// The owner of a seed, which also accepts reports of children.
struct Owned(Arc<TestSeed>);

impl Exporter for Owned {
    fn open_region(&self, seed: &SeedId, token: &Token) -> Result<Arc<dyn Region>, Refusal> {
        let known = (&self.0.id, &self.0.token) == (seed, token);
        known.then(|| Arc::clone(&self.0) as Arc<dyn Region>).ok_or(Refusal::UnknownSeed)
    }

    fn deliver_message(&self, _: &str, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }
}

/// A world with an owner and a pager's node, and the faults in it.
struct PagingScenario {
    world: World,
    nodes: [NodeId; 2],
    owner_address: SimAddress,
    owned: Arc<dyn Exporter>,
    server: Option<sim::SimServer>,
    chaos: Option<FaultInjector>,
    strategy: PagingStrategy,
    started_at: Instant,
    /// The replies to all orders, with their times. They identify a run.
    answers: Vec<(u8, Duration)>,
}

impl PagingScenario {
    fn new(seed: u64) -> (Self, Arc<TestSeed>) {
        let world = World::new(seed);
        let nodes = ["owner", "pager"].map(|name| world.add_node(name));
        let chaos = Some(FaultInjector::new(&world, &nodes));
        let pages = TestSeed::new(PAGES, false);
        let owned: Arc<dyn Exporter> = Arc::new(Owned(Arc::clone(&pages)));
        let owner_address = SimAddress { node: nodes[0], port: 7001 };
        let server = Some(sim::SimServer::start(&world, owner_address, &owned).unwrap());
        let paging = if world.random_bool(0.3) { PagingMode::Cow } else { PagingMode::Prefetch };
        let mut strategy =
            PagingStrategy { mode: paging, uses_cache: world.random_bool(0.2), ..PagingStrategy::default() };
        if world.random_bool(0.2) {
            strategy.unreachable_timeout = SHORT_LIMIT;
        }
        let started_at = world.now();
        (Self { world, nodes, owner_address, owned, server, chaos, strategy, started_at, answers: Vec::new() }, pages)
    }

    /// Advances the simulated world by one step, at most until `until`.
    fn go_on(&mut self, pager: &mut SimulatedPager<'_>, until: Instant) {
        let now = self.world.now();
        if let Some(chaos) = self.chaos.as_mut().filter(|chaos| chaos.next_due_at() <= now) {
            chaos.apply_due();
            if self.world.random_bool(0.05) {
                self.server = None;
                self.server = Some(sim::SimServer::start(&self.world, self.owner_address, &self.owned).unwrap());
            }
        }
        let mut next = until;
        if self.world.is_running(self.nodes[1]) {
            pager.run_round().unwrap();
            next = next.min(pager.next_round_at());
        }
        next = self.chaos.iter().map(FaultInjector::next_due_at).fold(next, Instant::min);
        self.world.step(next.max(self.world.now() + Duration::from_micros(1)));
    }

    /// Sends the program an order, and waits for its reply.
    fn order(&mut self, pager: &mut SimulatedPager<'_>, program: &mut Program, what: char, page: u64) -> u8 {
        program.order(what, page);
        let limit = if self.chaos.is_some() { PAGE_LIMIT } else { CALM_LIMIT };
        let deadline = self.world.now() + limit;
        while !has_answered(program, pager) {
            loop {
                let was_lost = pager.loss_reason(&program.id).is_some();
                self.go_on(pager, deadline);
                // When memory is lost, a waiting thread is woken and faults again, in real time.
                let is_woken = !was_lost && pager.loss_reason(&program.id).is_some();
                if what == 'd' || is_woken || is_there(program, page) {
                    break;
                }
                assert!(self.world.now() < deadline, "page {page} has not arrived within {limit:?}");
            }
        }
        let answer = program.answer();
        self.answers.push((answer, self.world.now() - self.started_at));
        answer
    }

    /// Makes the program touch and discard pages. Checks that a lost page has a valid reason.
    fn work(&mut self, pager: &mut SimulatedPager<'_>, program: &mut Program) {
        let mut next = self.world.random_below(PAGES);
        for _ in 0..ORDERS {
            let what = if self.world.random_bool(0.1) { 'd' } else { 't' };
            let answer = self.order(pager, program, what, next);
            if answer == b'!' {
                self.check_loss(pager.loss_reason(&program.id), next);
            }
            next = if self.world.random_bool(0.6) { (next + 1) % PAGES } else { self.world.random_below(PAGES) };
            let idle = self.world.now() + Duration::from_micros(self.world.random_below(200_000));
            while self.world.now() < idle {
                self.go_on(pager, idle);
            }
        }
    }

    fn check_loss(&self, reason: Option<&str>, page: u64) {
        let limit = self.strategy.unreachable_timeout;
        let elapsed = (self.world.now() - self.started_at).mul_f64(CLOCK_RATE);
        assert!(elapsed >= limit && limit == SHORT_LIMIT, "page {page} is lost after {elapsed:?}: {reason:?}");
        assert!(reason.is_some(), "page {page} is lost for no reason");
        assert!(is_populated(page), "page {page} has nothing to lose");
    }

    /// Injects faults for a while, and then none. Afterwards, pages that were not lost must be readable.
    fn run(&mut self, pager: &mut SimulatedPager<'_>, program: &mut Program) {
        // Wait until the program's userfaultfd has arrived. Until then, the simulated time does not advance.
        assert!(!has_answered(program, pager), "the program has no order yet");
        while !pager.is_serving(&program.id) {
            self.go_on(pager, self.world.end_of_time());
        }
        self.work(pager, program);
        if let Some(mut chaos) = self.chaos.take() {
            chaos.end_all();
        }
        self.work(pager, program);
        for page in 0..PAGES {
            let lost_before = pager.loss_reason(&program.id).is_some();
            let answer = self.order(pager, program, 't', page);
            assert!(answer == b'=' || lost_before, "page {page} was lost while nothing was wrong");
        }
    }
}

/// Waits until the program has replied, or waits for the pager. Returns whether it has replied. Ignores events of the
/// simulated world: their number until then depends on the program's speed.
fn has_answered(program: &Program, pager: &mut SimulatedPager<'_>) -> bool {
    let give_up = Instant::now() + REAL_LIMIT;
    loop {
        let (answers, waits) = (program.answers(), pager.descriptor());
        let mut watched = [PollFd::new(&answers, PollFlags::IN), PollFd::new(&waits, PollFlags::IN)];
        let limit = Timespec { tv_sec: REAL_LIMIT.as_secs() as i64, tv_nsec: 0 };
        poll(&mut watched, Some(&limit)).unwrap();
        if !watched[0].revents().is_empty() {
            return true;
        }
        if pager.has_waiting_process().unwrap() {
            return false;
        }
        assert!(Instant::now() < give_up, "the program neither answers nor waits for the pager: it was not woken");
        sleep(LOOK_INTERVAL);
    }
}

/// Whether a page of the program is present, or poisoned (`/proc/PID/pagemap`, see proc_pid_pagemap(5)).
fn is_there(program: &Program, page: u64) -> bool {
    const PRESENT_OR_MARKED: u64 = 3 << 62;
    let map = fs::File::open(format!("/proc/{}/pagemap", program.process.id())).unwrap();
    let mut entry = [0; 8];
    map.read_exact_at(&mut entry, (AREA / PAGE_SIZE + page) * 8).unwrap();
    u64::from_le_bytes(entry) & PRESENT_OR_MARKED != 0
}

/// Runs one random seed. Returns the replies and times that identify the run.
fn run(seed: u64) -> Vec<(u8, Duration)> {
    let (mut scene, pages) = PagingScenario::new(seed);
    let (world, node, dir) = (scene.world.clone(), scene.nodes[1], tempfile::tempdir().unwrap());
    run_scenario(&world, seed, "-p farfork-fork --test pager -- simulated", || {
        let played = run_simulated_pager(dir.path(), &world, node, |pager| {
            let id = ChildId::new(NodeName::new("n2").unwrap(), seed + 1);
            let child_dir = dir.path().join("child");
            fs::create_dir(&child_dir).unwrap();
            pages.plan(Address::Sim(scene.owner_address), scene.strategy).write(&child_dir).unwrap();
            let (pagers_end, programs_end) = fd_passing::seqpacket_pair().unwrap();
            pager.adopt(id.clone(), &child_dir, pagers_end).unwrap();
            let adopted = AdoptedProgram { id: id.clone(), dir: child_dir, uffd_socket: programs_end };
            let mut program = Program::begin("obey", PAGES, adopted);
            scene.run(pager, &mut program);
            program.order('e', 0);
            program.expect_success();
            assert!(pager.release(&id), "the program has ended");
        });
        played.unwrap();
    });
    scene.answers
}

fn do_no_harm(seeds: u64) {
    let (count, lost) = run_random_seeds(seeds, |seed| {
        let answers = run(seed);
        assert_eq!(answers.len(), 2 * ORDERS + PAGES as usize);
        answers.iter().filter(|(answer, _)| *answer == b'!').count()
    });
    assert!(count < seeds || lost > 0, "no run lost memory: the faults do not test losses");
}

fn the_same_seed_gives_the_same_run() {
    for seed in [1, 2, 3, 500] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1), run(2));
}
