//! A requester in a simulated world that sends random requests and checks the replies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::sim::world::{NodeId, SimAddress};
use farfork_fabric::sim::{self, World};
use farfork_fabric::{
    Completion, Connection, FabricError, MessageRequest, ReadMode, ReadRequest, SeedKey, Span, WriteRequest,
};
use farfork_wire::descriptor::ExtentId;

use crate::pattern::{PATTERN_BYTES, Pattern};
use crate::seed::key;

/// Number of slots of a requester's memory. Each write fills one slot.
pub(crate) const SLOTS: u64 = 8;

/// Length of a slot, in bytes.
pub(crate) const SLOT_BYTES: u64 = 1500;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Pattern { offset: u64, bytes: u32 },
    Slot(u64),
    Write { slot: u64, number: u64 },
    Message(u64),
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Open,
    Done,
    Perhaps,
    NotDone,
}

/// One requester, with the state that its memory and messages must have.
pub(crate) struct Client {
    pub(crate) number: u64,
    pub(crate) node: NodeId,
    pub(crate) connection: Box<dyn Connection>,
    key: Arc<SeedKey>,
    pub(crate) asked: BTreeMap<u64, (Asked, Instant)>,
    pub(crate) next_tag: u64,
    /// The slot and the outcome of each write, by number. Numbers ascend.
    pub(crate) writes: BTreeMap<u64, (u64, Fate)>,
    pub(crate) messages: BTreeMap<u64, Fate>,
    /// Number of the latest write that was read in each slot.
    seen: [u64; SLOTS as usize],
}

impl Client {
    pub(crate) fn new(world: &World, number: u64, node: NodeId, owner: SimAddress) -> Self {
        let connection = sim::connect(world, node, owner, None);
        let (asked, writes, messages) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            number,
            node,
            connection,
            key: key(10 + number),
            asked,
            next_tag: 1,
            writes,
            messages,
            seen: [0; SLOTS as usize],
        }
    }

    /// Sends a random request.
    pub(crate) fn ask(&mut self, world: &World, within: Duration) {
        let (tag, deadline, key) = (self.next_tag, self.connection.now() + within, Arc::clone(&self.key));
        let slot = world.random_below(SLOTS);
        let spans = vec![Span { extent: ExtentId(0), offset: slot * SLOT_BYTES, bytes: SLOT_BYTES as u32 }];
        let (mode, connection) = (ReadMode::Exact, &mut self.connection);
        let (asked, taken) = match world.random_below(10) {
            0..=3 => {
                let offset = world.random_below(PATTERN_BYTES);
                let bytes = 1 + world.random_below((PATTERN_BYTES - offset).min(20_000)) as u32;
                let spans = vec![Span { extent: ExtentId(0), offset, bytes }];
                let taken = connection.submit_read(ReadRequest { tag, key: Pattern::key(), mode, spans, deadline });
                (Asked::Pattern { offset, bytes }, taken)
            }
            4 | 5 => (Asked::Slot(slot), connection.submit_read(ReadRequest { tag, key, mode, spans, deadline })),
            6 | 7 => {
                let data = contents(tag);
                self.writes.insert(tag, (slot, Fate::Open));
                (
                    Asked::Write { slot, number: tag },
                    connection.submit_write(WriteRequest { tag, key, spans, data, deadline }),
                )
            }
            _ => {
                let mut bytes = vec![self.number as u8; 8 + world.random_below(300) as usize];
                bytes[..8].copy_from_slice(&(self.number << 32 | tag).to_le_bytes());
                self.messages.insert(tag, Fate::Open);
                (Asked::Message(tag), connection.submit_message(MessageRequest { tag, bytes, deadline }))
            }
        };
        taken.unwrap();
        self.asked.insert(tag, (asked, deadline));
        self.next_tag += 1;
    }

    pub(crate) fn poll(&mut self) -> usize {
        let (now, mut completions) = (self.connection.now(), Vec::new());
        self.connection.poll(now, &mut completions);
        let count = completions.len();
        for completion in completions {
            self.end(completion, now);
        }
        for (asked, deadline) in self.asked.values() {
            assert!(*deadline > now, "{asked:?} has not ended by its deadline");
        }
        count
    }

    fn end(&mut self, completion: Completion, now: Instant) {
        let (asked, deadline) = self.asked.remove(&completion.tag).expect("each request ends once");
        if let Err(error) = &completion.result {
            assert!(deadline <= now || error.may_have_taken_effect(), "{asked:?} failed early: {error}");
        }
        match (asked, completion.result) {
            (Asked::Pattern { offset, bytes }, Ok(reply)) => {
                assert_eq!(*reply.data, Pattern::expected(offset, bytes.into()), "wrong bytes");
            }
            (Asked::Slot(slot), Ok(reply)) => self.check_slot(slot, &reply.data),
            (Asked::Pattern { .. } | Asked::Slot(_), Err(error)) => {
                assert!(matches!(error, FabricError::Unreachable { .. }), "{error}");
            }
            (Asked::Write { slot, number }, result) => {
                self.writes.insert(number, (slot, fate(&result)));
            }
            (Asked::Message(number), result) => {
                self.messages.insert(number, fate(&result));
            }
        }
    }

    /// Checks that a slot contains one whole write. The write must not be older than one that was completed or read
    /// before, and must not have failed.
    fn check_slot(&mut self, slot: u64, data: &[u8]) {
        let number = u64::from_le_bytes(*data.first_chunk().unwrap());
        assert_eq!(data, if number == 0 { vec![0; SLOT_BYTES as usize] } else { contents(number) }, "a torn write");
        let own = self.writes.iter().filter(|(_, (of, _))| *of == slot);
        let done = own.filter(|(_, (_, fate))| *fate == Fate::Done).map(|(number, _)| *number).max().unwrap_or(0);
        let least = done.max(self.seen[slot as usize]);
        assert!(number >= least, "slot {slot} holds write {number} after {least}");
        if number > 0 {
            let (of, fate) = self.writes[&number];
            assert!(of == slot && fate != Fate::NotDone, "write {number} was not done");
        }
        self.seen[slot as usize] = number;
    }
}

fn contents(number: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..SLOT_BYTES).map(|at| (at * 7 + number * 31) as u8).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn fate<T>(result: &Result<T, FabricError>) -> Fate {
    match result {
        Ok(_) => Fate::Done,
        Err(error) if error.may_have_taken_effect() => Fate::Perhaps,
        Err(_) => Fate::NotDone,
    }
}
