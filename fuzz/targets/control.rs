//! Messages to a daemon's control port, and the answers of other nodes: no bytes panic, and accepted members encode to the
//! same bytes. No other node changes what a node reports about itself, or makes it keep more than `MEMBERS_MAX` members.
#![no_main]

use std::time::{Duration, Instant};

use farfork_cluster::membership::{MEMBERS_MAX, Member, Membership};
use farfork_node::decoders;
use farfork_wire::NodeName;
use libfuzzer_sys::fuzz_target;

/// Simulated time between two messages.
const INTERVAL: Duration = Duration::from_secs(4);

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 4 {
        0 => members(bytes),
        1 => _ = decoders::is_valid_start(bytes),
        2 => outcome(bytes),
        _ => refusal(bytes),
    }
});

/// The input: the length of the first answer (u16), the first answer, and a second one. The first member of each answer
/// also sends a heartbeat.
fn members(input: &[u8]) {
    let Some((length, rest)) = input.split_first_chunk() else { return };
    let (first, second) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
    let me = myself();
    let mut membership = Membership::new(me.clone());
    let mut now = Instant::now();
    for bytes in [first, second] {
        now += INTERVAL;
        let Some(members) = decoders::decode_members(bytes) else { continue };
        assert_eq!(decoders::decode_members(&decoders::encode_members(members.clone())).as_ref(), Some(&members));
        if let Some(sender) = members.first() {
            let _ = membership.handle_heartbeat(sender.clone(), now);
        }
        let _ = membership.handle_answer(members, now);
        let _ = membership.handle_time(now);
        assert_eq!(membership.own_member(), &me);
        assert_eq!(membership.known_members(now).first(), Some(&me));
        assert!(membership.views(now).len() <= MEMBERS_MAX + 1);
    }
}

fn myself() -> Member {
    Member {
        name: NodeName::new("n1").expect("a name"),
        address: "127.0.0.1:7000".parse().expect("an address"),
        fabric_address: "127.0.0.1:7001".parse().expect("an address"),
        incarnation: 1,
        children: 0,
        not_ready: None,
        processor: None,
        version: String::new(),
        pid: 1,
    }
}

/// The input: the time for which the child waited before its start, in milliseconds, and the child's outcome.
fn outcome(input: &[u8]) {
    let Some((wait, bytes)) = input.split_first_chunk() else { return };
    let _ = decoders::decode_outcome(bytes, Duration::from_millis(u64::from_le_bytes(*wait)));
}

fn refusal(details: &[u8]) {
    let (decoded, passed_on) = decoders::decode_failure(details);
    assert_eq!(decoded, passed_on);
    assert!(!decoded.to_string().is_empty());
}
