//! All pairs and triples of deaths in a chain of four members and a replica that catches up. Each survivor must make progress
//! within the time of failure detection and a fixed number of further rounds. `simulation` has the nodes.

use std::time::Duration;

use super::{ChainSimulation, DETECTION_TIME, EventCounts};

const SEEDS: u64 = 20;
const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];
const MEMBERS: usize = 4;
const JOINING: usize = 4;
const ROUND: Duration = Duration::from_millis(50);
/// Longest wait of a program of a survivor.
const WAIT_MAX: Duration = Duration::from_secs(5).saturating_add(DETECTION_TIME);
/// Rounds in which the catalog stays dead.
const OUTAGE_ROUNDS: u32 = 60;
/// Binary logarithm of the ratio of the slowest link to the slowest one of all simulations. The wait includes the time for
/// sending the log.
const RATE_LOG2_MIN: u32 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChainRole {
    Head,
    Middle,
    Tail,
    Writer,
    Joining,
    Catalog,
}

const ROLES: [ChainRole; 6] =
    [ChainRole::Head, ChainRole::Middle, ChainRole::Tail, ChainRole::Writer, ChainRole::Joining, ChainRole::Catalog];

impl ChainSimulation {
    /// Every living node takes its steps once, in a random order. Then some time passes.
    fn run_round(&mut self) {
        let mut order: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].is_alive).collect();
        self.random.shuffle(&mut order);
        for node in order {
            self.refresh(node);
            self.rejoin(node);
        }
        self.run_for(ROUND);
        self.check();
        let writers = self.nodes.iter().filter(|node| node.is_alive && node.term == Some(self.record.term)).count();
        assert!(writers <= 1, "seed {}: {writers} clients have the permission of one term", self.seed);
    }

    /// Kills the node of a role. The last living member stays.
    fn kill(&mut self, role: ChainRole, writer: usize) {
        let chain: Vec<usize> = self.record.chain.iter().map(|name| self.index_of(name)).collect();
        let victim = match role {
            ChainRole::Head => chain[0],
            ChainRole::Middle => chain[chain.len() / 2],
            ChainRole::Tail => *chain.last().unwrap(),
            ChainRole::Writer => self.record.writer.map_or(writer, usize::from),
            ChainRole::Joining => self.record.joining.as_ref().map_or(JOINING, |name| self.index_of(name)),
            ChainRole::Catalog => return self.is_catalog_dead = true,
        };
        let others = chain.iter().filter(|member| **member != victim && self.nodes[**member].is_alive).count();
        if others > 0 {
            let never = self.network.now + OUTAGE_ROUNDS * 10 * ROUND;
            self.crash(victim, never);
        }
    }

    /// The client of a node waits for the write permission, and writes until a record is acknowledged. Fails after
    /// `WAIT_MAX`.
    fn write_in_time(&mut self, node: usize, place: &str) {
        let (known, deadline) = (self.acknowledged.len(), self.network.now + WAIT_MAX);
        let mut has_written = false;
        while self.network.now < deadline {
            self.acquire(node);
            if self.nodes[node].term.is_none() {
                has_written = false;
            } else if !std::mem::replace(&mut has_written, true) {
                self.write(node);
            }
            self.run_round();
            if has_written && self.acknowledged.len() > known {
                return;
            }
        }
        panic!("{place}: the client of {} waits for more than {WAIT_MAX:?}: {:?}", NODES[node], self.record);
    }
}

/// Kills nodes at a random time, and requires progress of each survivor.
fn run_deaths(deaths: &[ChainRole], seed: u64) {
    let place = format!("deaths {deaths:?}, seed {seed}");
    let mut simulation = ChainSimulation::new(seed, EventCounts::default(), &NODES, MEMBERS, RATE_LOG2_MIN);
    simulation.is_healing = true;
    let writer = simulation.random.usize(..MEMBERS);
    simulation.acquire(writer);
    for _ in 0..simulation.random.u32(..40) {
        match simulation.random.u32(..10) {
            0 => simulation.run_round(),
            1..5 => simulation.write(writer),
            _ => {
                let wait_ms = simulation.random.u64(..10);
                simulation.run_for(Duration::from_millis(wait_ms));
            }
        }
    }
    let mut deaths = deaths.to_vec();
    simulation.random.shuffle(&mut deaths);
    for death in deaths {
        // Half of the deaths follow the previous one at once. Others happen while the survivors handle it.
        if simulation.random.bool() {
            for _ in 0..simulation.random.u32(..70) {
                let waiting = simulation.random.usize(..NODES.len());
                if simulation.nodes[waiting].is_alive {
                    simulation.acquire(waiting);
                }
                simulation.run_round();
            }
        }
        simulation.kill(death, writer);
    }
    if simulation.is_catalog_dead {
        (0..OUTAGE_ROUNDS).for_each(|_| simulation.run_round());
        simulation.is_catalog_dead = false;
    }
    let mut survivors: Vec<usize> = (0..NODES.len()).filter(|node| simulation.nodes[*node].is_alive).collect();
    simulation.random.shuffle(&mut survivors);
    for survivor in survivors {
        simulation.write_in_time(survivor, &place);
    }
    simulation.heal();
}

#[test]
fn survivors_of_any_pair_or_triple_of_deaths_continue() {
    let mut sets = 0;
    for selected in 1_u32..1 << ROLES.len() {
        let is_selected = |role: &usize| selected >> role & 1 == 1;
        let deaths: Vec<ChainRole> = (0..ROLES.len()).filter(is_selected).map(|role| ROLES[role]).collect();
        if deaths.len() <= 3 {
            (0..SEEDS).for_each(|seed| run_deaths(&deaths, seed));
            sets += 1;
        }
    }
    assert_eq!(sets, 6 + 15 + 20);
}
