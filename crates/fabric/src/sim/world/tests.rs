//! Tests of the simulated network itself: order, delays, faults, and that the random seed determines the whole run.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::time::Duration;

use super::{ClockSkew, NodeId, PathConditions, SimAddress, SimStream, World};
use crate::transport::Stream as _;

const PORT: u16 = 7;

fn two_nodes(seed: u64) -> (World, NodeId, NodeId) {
    let world = World::new(seed);
    let (a, b) = (world.add_node("a"), world.add_node("b"));
    (world, a, b)
}

fn set_conditions_both_ways(world: &World, a: NodeId, b: NodeId, conditions: &PathConditions) {
    world.set_conditions(a, b, conditions);
    world.set_conditions(b, a, conditions);
}

fn receive(stream: &mut SimStream, into: &mut Vec<u8>) -> std::io::Result<Option<usize>> {
    let (mut first, mut second) = ([0; 100], [0; 3000]);
    let count = stream.receive(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)])?;
    let bytes = [&first[..], &second[..]].concat();
    into.extend_from_slice(&bytes[..count.unwrap_or(0)]);
    Ok(count)
}

/// Sends numbered bytes one way until all have arrived. Returns the received bytes, and the elapsed time.
fn transfer(world: &World, from: &mut SimStream, to: &mut SimStream, bytes: usize) -> (Vec<u8>, Duration) {
    let whole: Vec<u8> = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
    let (mut sent, mut received, began) = (0, Vec::new(), world.now());
    while received.len() < bytes {
        while receive(to, &mut received).unwrap().is_some_and(|count| count > 0) {}
        sent += from.send(&[IoSlice::new(&whole[sent..])]).unwrap().unwrap_or(0);
        if !to.is_ready(true, false) && received.len() < bytes {
            world.step(began + Duration::from_secs(100));
        }
    }
    assert_eq!(received, whole);
    (received, world.now() - began)
}

#[test]
fn bytes_arrive_in_order_in_the_time_that_the_path_takes() {
    let (world, a, b) = two_nodes(1);
    let slow =
        PathConditions { bytes_per_s: 1_000_000, delay_max: Duration::from_millis(3), ..PathConditions::default() };
    set_conditions_both_ways(&world, a, b, &slow);
    let (mut from, mut to) = world.connect_pair(a, b);
    let (_, took) = transfer(&world, &mut from, &mut to, 2_000_000);
    assert!(took > Duration::from_secs(2) && took < Duration::from_millis(2100), "{took:?}");
    drop(from);
    assert!(world.run_until(world.now() + Duration::from_secs(1), || to.is_ready(true, false)));
    assert_eq!(receive(&mut to, &mut Vec::new()).unwrap(), Some(0), "the end of the stream follows the bytes");
    to.send(&[IoSlice::new(b"x")]).unwrap();
    let limit = world.now() + Duration::from_secs(1);
    while to.send(&[IoSlice::new(b"x")]).is_ok() {
        assert!(world.step(limit), "a sender to a closed end gets a reset");
    }
}

#[test]
fn a_peer_that_does_not_read_gets_one_window() {
    let (world, a, b) = two_nodes(2);
    let (mut from, mut to) = world.connect_pair(a, b);
    let mut sent = 0;
    while let Some(count) = from.send(&[IoSlice::new(&[5; 10_000])]).unwrap() {
        sent += count;
        world.step(world.now() + Duration::from_millis(1));
    }
    assert_eq!(sent, super::pipe::WINDOW_BYTES);
    assert!(!from.is_ready(false, true) && to.is_ready(true, false));
    receive(&mut to, &mut Vec::new()).unwrap();
    assert!(from.is_ready(false, true));
}

#[test]
fn connecting_needs_a_listener() {
    let (world, a, b) = two_nodes(3);
    let at = SimAddress { node: b, port: PORT };
    let soon = |world: &World| world.now() + Duration::from_secs(1);
    let mut refused = world.dial(a, at);
    assert!(world.run_until(soon(&world), || refused.is_ready()));
    assert_eq!(refused.poll().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let listener = world.listen(at).unwrap();
    assert_eq!(world.listen(at).unwrap_err().kind(), ErrorKind::AddrInUse);
    let mut attempt = world.dial(a, at);
    assert!(attempt.poll().unwrap().is_none());
    assert!(world.run_until(soon(&world), || attempt.is_ready()));
    let mut from = attempt.poll().unwrap().unwrap();
    let (mut to, peer) = listener.accept().unwrap();
    assert_eq!(peer, a);
    transfer(&world, &mut from, &mut to, 10_000);
    transfer(&world, &mut to, &mut from, 10_000);
    let mut waits = world.dial(a, at);
    assert!(world.run_until(soon(&world), || waits.is_ready()));
    let mut lost = waits.poll().unwrap().unwrap();
    drop(listener);
    assert!(world.run_until(soon(&world), || lost.is_ready(true, false)));
    assert_eq!(
        receive(&mut lost, &mut Vec::new()).unwrap(),
        Some(0),
        "dropping a listener closes connections in its backlog"
    );
}

#[test]
fn a_cut_path_holds_bytes_back_until_it_is_healed() {
    let (world, a, b) = two_nodes(4);
    let (mut from, mut to) = world.connect_pair(a, b);
    world.set_link_down(a, b, true);
    from.send(&[IoSlice::new(b"before")]).unwrap();
    assert!(!world.run_until(world.now() + Duration::from_secs(9), || to.is_ready(true, false)));
    world.set_link_down(a, b, false);
    from.send(&[IoSlice::new(b" and after")]).unwrap();
    let mut received = Vec::new();
    let limit = world.now() + Duration::from_secs(1);
    while received.len() < 16 {
        receive(&mut to, &mut received).unwrap();
        assert!(world.now() < limit);
        world.step(limit);
    }
    assert_eq!(received, b"before and after");
}

#[test]
fn each_simulated_fault_takes_effect() {
    let (world, a, b) = two_nodes(5);
    let limit = world.now() + Duration::from_secs(100);
    set_conditions_both_ways(&world, a, b, &PathConditions { bit_flip_chance: 1.0, ..PathConditions::default() });
    let (mut from, mut to) = world.connect_pair(a, b);
    from.send(&[IoSlice::new(&[0; 100])]).unwrap();
    assert!(world.run_until(limit, || to.is_ready(true, false)));
    let mut received = Vec::new();
    while received.len() < 100 {
        receive(&mut to, &mut received).unwrap();
    }
    assert_eq!(received.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    set_conditions_both_ways(&world, a, b, &PathConditions { reset_chance: 1.0, ..PathConditions::default() });
    from.send(&[IoSlice::new(&[0; 100])]).unwrap();
    assert!(world.run_until(limit, || receive(&mut to, &mut Vec::new()).is_err()));
    assert!(world.run_until(limit, || receive(&mut from, &mut Vec::new()).is_err()));
    set_conditions_both_ways(&world, a, b, &PathConditions { blackhole_chance: 1.0, ..PathConditions::default() });
    let (mut from, to) = world.connect_pair(a, b);
    from.send(&[IoSlice::new(&[0; 100])]).unwrap();
    drop(from);
    assert!(!world.run_until(limit, || to.is_ready(true, false)));
}

#[test]
fn simulated_clocks_follow_their_skew() {
    let (world, a, b) = two_nodes(6);
    world.set_clock_skew(b, ClockSkew { offset_us: -5_000_000, drift_ppm: 100_000 });
    let (right, fast) = (world.local_time(a), world.local_time(b));
    assert_eq!(right - fast, Duration::from_secs(5));
    world.step(world.now() + Duration::from_secs(10));
    let passed = |from, to: std::time::Instant| (to - from) as Duration;
    assert!(passed(right, world.local_time(a)).abs_diff(Duration::from_secs(10)) < Duration::from_millis(1));
    assert!(passed(fast, world.local_time(b)).abs_diff(Duration::from_secs(11)) < Duration::from_millis(1));
    let later = world.local_time(b) + Duration::from_secs(11);
    let right = world.to_world_time(b, later);
    assert!((right - world.now()).abs_diff(Duration::from_secs(10)) < Duration::from_millis(1));
}

/// Runs a world with many faults. Returns the digest and the text of its trace.
fn run_faulty_world(seed: u64) -> (u64, String) {
    let (world, a, b) = two_nodes(seed);
    let conditions = PathConditions { reset_chance: 0.01, bit_flip_chance: 0.05, ..PathConditions::default() };
    set_conditions_both_ways(&world, a, b, &conditions);
    let mut ends: Vec<_> = (0..4).map(|_| world.connect_pair(a, b)).collect();
    for round in 0..200u64 {
        for (from, to) in &mut ends {
            let _ = from.send(&[IoSlice::new(&vec![round as u8; world.random_below(5000) as usize])]);
            let _ = receive(to, &mut Vec::new());
        }
        world.step(world.now() + Duration::from_micros(world.random_below(100)));
    }
    (world.trace_digest(), world.format_trace())
}

#[test]
fn equal_seeds_give_equal_worlds_and_others_differ() {
    for seed in 0..20 {
        assert_eq!(run_faulty_world(seed), run_faulty_world(seed));
        assert_ne!(run_faulty_world(seed).0, run_faulty_world(seed + 1).0);
    }
}
