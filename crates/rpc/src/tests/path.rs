//! A connection of the test's own: bytes on their way, in both directions.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};

use crate::server::Peer;

/// Random numbers from a seed (SplitMix64).
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// Bytes on their way in one direction, and the end of the stream behind them.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) bytes: VecDeque<u8>,
    pub(super) ended: bool,
}

impl Pipe {
    /// Moves some bytes into the spaces; `None` when the stream has ended.
    pub(super) fn take(&mut self, limit: usize, spaces: &mut [IoSliceMut<'_>]) -> Option<usize> {
        let mut count = 0;
        for space in spaces {
            let part = space.len().min(limit - count).min(self.bytes.len());
            io::Read::read_exact(&mut self.bytes, &mut space[..part]).expect("so many are there");
            count += part;
        }
        (count > 0 || !self.ended).then_some(count)
    }

    /// Takes in as much as the limit allows; gives how much that was.
    pub(super) fn put(&mut self, slices: &[IoSlice<'_>], limit: usize) -> usize {
        let before = self.bytes.len();
        for slice in slices {
            let part = slice.len().min(limit - (self.bytes.len() - before));
            self.bytes.extend(&slice[..part]);
        }
        self.bytes.len() - before
    }

    pub(super) fn flip(&mut self, chance: &mut Chance) {
        if !self.bytes.is_empty() {
            let at = chance.below(self.bytes.len() as u64) as usize;
            self.bytes[at] ^= 1 << chance.below(8);
        }
    }
}

/// A connection; its client may have given it up while the server still reads what was on its way.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) number: u64,
    pub(super) to_server: Pipe,
    pub(super) to_client: Pipe,
    pub(super) peer: Peer,
}
