//! The requester's short names for seeds, for the life of one connection.

use std::sync::Arc;

use farfork_wire::frame::request::HANDLES_MAX;

use crate::SeedKey;

/// Which handle stands for which seed. When all are taken, the one that was not used for longest gets a new meaning:
/// the owner reads requests in order, so that those before the change still mean the old seed.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    slots: Vec<Slot>,
    uses: u64,
}

#[derive(Debug)]
struct Slot {
    key: Arc<SeedKey>,
    last_use: u64,
}

impl Handles {
    /// The handle of a seed, and whether the owner must be told of it first.
    pub(crate) fn of(&mut self, key: &Arc<SeedKey>) -> (u32, bool) {
        self.uses += 1;
        let last_use = self.uses;
        let known = self.slots.iter().position(|slot| Arc::ptr_eq(&slot.key, key) || slot.key == *key);
        if let Some(at) = known {
            self.slots[at].last_use = last_use;
            return (at as u32, false);
        }
        let slot = Slot { key: Arc::clone(key), last_use };
        if self.slots.len() < HANDLES_MAX as usize {
            self.slots.push(slot);
            return (self.slots.len() as u32 - 1, true);
        }
        let (oldest, _) = self.slots.iter().enumerate().min_by_key(|(_, slot)| slot.last_use).expect("slots are full");
        self.slots[oldest] = slot;
        (oldest as u32, true)
    }

    /// Forgets all: the next connection begins with none.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use farfork_wire::{NodeName, SeedId, Token};

    use super::*;

    fn key(number: u64) -> Arc<SeedKey> {
        let seed = SeedId::new(NodeName::new("n1").unwrap(), number);
        Arc::new(SeedKey { seed, token: Token::from_bytes([1; 16]) })
    }

    #[test]
    fn the_seed_that_was_not_used_for_longest_loses_its_handle() {
        let mut handles = Handles::default();
        for number in 0..u64::from(HANDLES_MAX) {
            assert_eq!(handles.of(&key(number)), (number as u32, true));
        }
        assert_eq!(handles.of(&key(0)), (0, false));
        assert_eq!(handles.of(&key(1000)), (1, true));
        assert_eq!(handles.of(&key(1)), (2, true));
        handles.clear();
        assert_eq!(handles.of(&key(1)), (0, true));
    }
}
