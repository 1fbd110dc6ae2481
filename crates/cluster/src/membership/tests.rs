//! Membership tests: nodes on a virtual clock, and a network that delivers or drops messages as each test says.

use super::{
    FORGOTTEN_AFTER, HEARTBEAT_INTERVAL, JoinError, Member, MemberState, Membership, MembershipEvent, UNREACHABLE_AFTER,
};
use farfork_wire::NodeName;
use std::time::{Duration, Instant};

fn member(name: &str, port: u16, incarnation: u64) -> Member {
    let address = format!("10.0.0.1:{port}").parse().unwrap();
    let fabric_address = format!("10.0.0.1:{}", port + 1).parse().unwrap();
    Member {
        name: NodeName::new(name).unwrap(),
        address,
        fabric_address,
        incarnation,
        children: 0,
        not_ready: None,
        version: "0.1.0".to_owned(),
        pid: 1,
        processor: None,
    }
}

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

/// A few nodes and the network between them.
struct SimulatedCluster {
    nodes: Vec<Membership>,
    now: Instant,
    /// Nodes that neither send nor receive.
    cut: Vec<usize>,
}

impl SimulatedCluster {
    fn new(names: &[&str]) -> Self {
        let start = |(at, name): (usize, &&str)| Membership::new(member(name, 7000 + 10 * at as u16, at as u64));
        Self { nodes: names.iter().enumerate().map(start).collect(), now: Instant::now(), cut: Vec::new() }
    }

    fn deliver(&mut self, from: usize, to: usize) -> Result<(), JoinError> {
        if self.cut.contains(&from) || self.cut.contains(&to) {
            return Ok(());
        }
        let heartbeat = self.nodes[from].own_member().clone();
        self.nodes[to].handle_heartbeat(heartbeat, self.now)?;
        let answer = self.nodes[to].known_members(self.now);
        self.nodes[from].handle_answer(answer, self.now).map(drop)
    }

    /// Advances the time in steps. In each step, each node sends its due messages. Returns the events of the nodes.
    fn run(&mut self, time: Duration) -> Vec<(usize, MembershipEvent)> {
        let mut events = Vec::new();
        let end = self.now + time;
        while self.now < end {
            self.now += HEARTBEAT_INTERVAL / 2;
            for from in 0..self.nodes.len() {
                for due in self.nodes[from].poll_heartbeats(self.now) {
                    let to = self.nodes.iter().position(|node| node.own_member().name == due.name).unwrap();
                    self.deliver(from, to).unwrap();
                }
                events.extend(self.nodes[from].handle_time(self.now).into_iter().map(|event| (from, event)));
            }
        }
        events
    }

    fn sees(&self, at: usize) -> Vec<(String, MemberState)> {
        let views = self.nodes[at].views(self.now).into_iter();
        views.map(|view| (view.member.name.to_string(), view.state)).collect()
    }
}

#[test]
fn nodes_that_know_one_member_learn_all_members() {
    let mut cluster = SimulatedCluster::new(&["a", "b", "c", "d"]);
    for joining in 1..4 {
        cluster.deliver(joining, joining - 1).unwrap();
    }
    cluster.run(3 * HEARTBEAT_INTERVAL);
    for at in 0..4 {
        assert_eq!(cluster.sees(at), ["a", "b", "c", "d"].map(|n| (n.to_owned(), MemberState::Alive)), "node {at}");
    }
}

#[test]
fn a_silent_member_becomes_unreachable_is_removed_and_may_return() {
    let mut cluster = SimulatedCluster::new(&["a", "b"]);
    cluster.deliver(1, 0).unwrap();
    cluster.run(2 * HEARTBEAT_INTERVAL);

    cluster.cut = vec![1];
    let events = cluster.run(2 * UNREACHABLE_AFTER);
    assert!(events.contains(&(0, MembershipEvent::Unreachable(name("b")))));
    assert_eq!(events.len(), 2, "each silence is reported once on each side: {events:?}");
    assert_eq!(cluster.sees(0)[1].1, MemberState::Unreachable);

    cluster.cut.clear();
    cluster.run(2 * HEARTBEAT_INTERVAL);
    assert_eq!(cluster.sees(0)[1].1, MemberState::Alive, "heartbeats go to the unreachable too");

    cluster.cut = vec![1];
    let events = cluster.run(FORGOTTEN_AFTER + UNREACHABLE_AFTER);
    assert!(events.contains(&(0, MembershipEvent::Forgotten(name("b")))));
    assert_eq!(cluster.sees(0).len(), 1);
}

/// The node was stopped, or was not scheduled on a busy machine.
#[test]
fn a_node_that_was_not_scheduled_marks_no_member_unreachable() {
    let mut cluster = SimulatedCluster::new(&["a", "b"]);
    cluster.deliver(1, 0).unwrap();
    cluster.run(2 * HEARTBEAT_INTERVAL);

    cluster.now += 3 * UNREACHABLE_AFTER;
    assert_eq!(cluster.sees(0)[1].1, MemberState::Alive, "before the next handle_time");
    assert_eq!(cluster.nodes[0].handle_time(cluster.now), []);
    assert_eq!(cluster.sees(0)[1].1, MemberState::Alive, "after handle_time");

    cluster.cut = vec![1];
    let events = cluster.run(UNREACHABLE_AFTER);
    assert!(events.contains(&(0, MembershipEvent::Unreachable(name("b")))), "silence counts from then on: {events:?}");
}

#[test]
fn gossip_keeps_no_dead_member_alive() {
    let mut cluster = SimulatedCluster::new(&["a", "b", "c"]);
    cluster.deliver(1, 0).unwrap();
    cluster.deliver(2, 0).unwrap();
    cluster.run(3 * HEARTBEAT_INTERVAL);
    cluster.cut = vec![2];
    cluster.run(FORGOTTEN_AFTER + 2 * UNREACHABLE_AFTER);
    assert_eq!(cluster.sees(0).len(), 2);
    assert_eq!(cluster.sees(1).len(), 2);
}

#[test]
fn a_name_belongs_to_one_node() {
    let now = Instant::now();
    let mut node = Membership::new(member("a", 7000, 1));
    let taken = |port: u16| JoinError::NameTaken { address: format!("10.0.0.1:{port}").parse().unwrap() };
    assert_eq!(node.handle_heartbeat(member("a", 8000, 2), now), Err(taken(7000)), "the name of this node");
    assert_eq!(node.handle_heartbeat(member("a", 7000, 1), now), Ok(None), "a heartbeat of this node itself");

    node.handle_heartbeat(member("b", 7010, 1), now).unwrap();
    assert_eq!(node.handle_heartbeat(member("b", 7020, 2), now), Err(taken(7010)), "the name of another member");
    let restarted = node.handle_heartbeat(member("b", 7010, 3), now);
    assert_eq!(restarted, Ok(Some(MembershipEvent::Restarted(name("b")))), "a new run at the same address");
    let later = now + UNREACHABLE_AFTER;
    assert!(node.handle_heartbeat(member("b", 7020, 4), later).is_ok(), "the name of an unreachable member is free");
}

#[test]
fn a_leaving_member_is_removed_at_once() {
    let now = Instant::now();
    let mut node = Membership::new(member("a", 7000, 1));
    node.handle_heartbeat(member("b", 7010, 2), now).unwrap();
    node.handle_leave(&member("b", 7010, 1), now);
    assert_eq!(node.views(now).len(), 2, "a message of an earlier run is ignored");
    node.handle_leave(&member("b", 7010, 2), now);
    assert_eq!(node.views(now).len(), 1);
}

#[test]
fn a_member_that_has_left_does_not_come_back() {
    let now = Instant::now();
    let mut node = Membership::new(member("a", 7000, 1));
    let is_alone = |node: &Membership| node.views(now).len() == 1;
    node.handle_heartbeat(member("b", 7010, 2), now).unwrap();
    node.handle_leave(&member("b", 7010, 2), now);
    assert_eq!(node.handle_heartbeat(member("b", 7010, 2), now), Ok(None), "a heartbeat that was sent before");
    assert_eq!(node.handle_answer(vec![member("b", 7010, 2)], now), Ok(None), "a late answer");
    assert!(is_alone(&node));
    node.handle_answer(vec![member("c", 7020, 3), member("b", 7010, 2)], now).unwrap();
    assert!(node.view(&name("b"), now).is_none(), "c does not know yet");
    let again = node.handle_heartbeat(member("b", 7010, 4), now);
    assert_eq!(again, Ok(Some(MembershipEvent::Joined(name("b")))), "a new run of its daemon");
}
