//! The requester's table of handles: short numbers for seeds, valid for one connection.

use std::sync::Arc;

use farfork_wire::frame::request::HANDLES_MAX;

use crate::SeedKey;

/// The seed of each handle. When all handles are in use, the least recently used handle gets the new seed. The owner
/// processes requests in order, so earlier requests still refer to the old seed.
#[derive(Debug, Default)]
pub(crate) struct HandleTable {
    entries: Vec<HandleEntry>,
    use_counter: u64,
}

#[derive(Debug)]
struct HandleEntry {
    key: Arc<SeedKey>,
    last_use: u64,
}

impl HandleTable {
    /// Returns the handle of a seed, and whether an OPEN frame must be sent for it first.
    pub(crate) fn handle_for(&mut self, key: &Arc<SeedKey>) -> (u32, bool) {
        self.use_counter += 1;
        let last_use = self.use_counter;
        let known = self.entries.iter().position(|slot| Arc::ptr_eq(&slot.key, key) || slot.key == *key);
        if let Some(at) = known {
            self.entries[at].last_use = last_use;
            return (at as u32, false);
        }
        let slot = HandleEntry { key: Arc::clone(key), last_use };
        if self.entries.len() < HANDLES_MAX as usize {
            self.entries.push(slot);
            return (self.entries.len() as u32 - 1, true);
        }
        let (oldest, _) =
            self.entries.iter().enumerate().min_by_key(|(_, slot)| slot.last_use).expect("slots are full");
        self.entries[oldest] = slot;
        (oldest as u32, true)
    }

    /// Removes all handles, because the next connection starts without handles.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
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
    fn the_least_recently_used_seed_loses_its_handle() {
        let mut handles = HandleTable::default();
        for number in 0..u64::from(HANDLES_MAX) {
            assert_eq!(handles.handle_for(&key(number)), (number as u32, true));
        }
        assert_eq!(handles.handle_for(&key(0)), (0, false));
        assert_eq!(handles.handle_for(&key(1000)), (1, true));
        assert_eq!(handles.handle_for(&key(1)), (2, true));
        handles.clear();
        assert_eq!(handles.handle_for(&key(1)), (0, true));
    }
}
