//! A set of slots, one bit each.

use std::ops::Range;

const WORD_BITS: u64 = u64::BITS as u64;

/// A set of slots below a fixed number.
#[derive(Debug, Clone, Default)]
pub(in crate::pager) struct SlotBitmap {
    words: Vec<u64>,
}

impl SlotBitmap {
    /// The empty set, with room for slots below `slots`.
    pub(in crate::pager) fn new(slots: u64) -> Self {
        // The kernel provides zeroed memory only when it is touched.
        Self { words: vec![0; slots.div_ceil(WORD_BITS) as usize] }
    }

    /// Whether `slot` is in the set.
    pub(in crate::pager) fn contains(&self, slot: u64) -> bool {
        self.words.get((slot / WORD_BITS) as usize).is_some_and(|word| word >> (slot % WORD_BITS) & 1 == 1)
    }

    pub(in crate::pager) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Adds slots.
    ///
    /// # Panics
    /// If a slot is beyond the size of the set.
    pub(in crate::pager) fn insert(&mut self, slots: Range<u64>) {
        for_each_word(slots, |word, mask| self.words[word] |= mask);
    }

    /// Removes slots.
    ///
    /// # Panics
    /// If a slot is beyond the size of the set.
    pub(in crate::pager) fn remove(&mut self, slots: Range<u64>) {
        for_each_word(slots, |word, mask| self.words[word] &= !mask);
    }

    /// The runs of slots within `range` that are neither in this set nor in `other`, ascending.
    pub(in crate::pager) fn runs_in_neither<'a>(
        &'a self,
        other: &'a SlotBitmap,
        range: Range<u64>,
    ) -> impl Iterator<Item = Range<u64>> + 'a {
        bit_runs(range, move |word| !(self.word(word) | other.word(word)))
    }

    /// The runs of slots within `range` that are in this set but not in `other`, ascending.
    pub(in crate::pager) fn runs_not_in<'a>(
        &'a self,
        other: &'a SlotBitmap,
        range: Range<u64>,
    ) -> impl Iterator<Item = Range<u64>> + 'a {
        bit_runs(range, move |word| self.word(word) & !other.word(word))
    }

    fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }
}

/// The runs of set bits within `range`. `word(index)` returns one word of bits.
fn bit_runs(range: Range<u64>, word: impl Fn(usize) -> u64) -> impl Iterator<Item = Range<u64>> {
    let mut next = range.start;
    std::iter::from_fn(move || {
        let start = first_set_bit(next..range.end, &word)?;
        let end = first_set_bit(start..range.end, |index| !word(index)).unwrap_or(range.end);
        next = end;
        Some(start..end)
    })
}

/// The first set bit within `range`. `word(index)` returns one word of bits.
fn first_set_bit(range: Range<u64>, word: impl Fn(usize) -> u64) -> Option<u64> {
    let mut at = range.start;
    while at < range.end {
        let rest = word((at / WORD_BITS) as usize) >> (at % WORD_BITS);
        if rest != 0 {
            return Some(at + u64::from(rest.trailing_zeros())).filter(|slot| *slot < range.end);
        }
        at = (at / WORD_BITS + 1) * WORD_BITS;
    }
    None
}

/// Calls `apply` with each word that has bits of `slots`, and the mask of these bits.
fn for_each_word(slots: Range<u64>, mut apply: impl FnMut(usize, u64)) {
    let mut next = slots.start;
    while next < slots.end {
        let word = next / WORD_BITS;
        let end = slots.end.min((word + 1) * WORD_BITS);
        let ones = u64::MAX >> (WORD_BITS - (end - next));
        apply(word as usize, ones << (next % WORD_BITS));
        next = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SLOTS: u64 = 200;

    proptest! {
        #[test]
        fn a_slot_bitmap_agrees_with_a_tree(
            changes in prop::collection::vec((any::<bool>(), 0..SLOTS, 0..SLOTS), 0..20),
            others in prop::collection::vec((0..SLOTS, 0..SLOTS), 0..4),
            queried in (0..SLOTS, 0..SLOTS),
        ) {
            let (mut set, mut tree) = (SlotBitmap::new(SLOTS), BTreeSet::new());
            for (add, from, to) in changes {
                if add {
                    set.insert(from..to);
                    tree.extend(from..to);
                } else {
                    set.remove(from..to);
                    tree.retain(|slot| !(from..to).contains(slot));
                }
            }
            let mut other = SlotBitmap::new(SLOTS);
            others.iter().for_each(|(from, to)| other.insert(*from..*to));
            (0..SLOTS + 70).for_each(|slot| assert_eq!(set.contains(slot), tree.contains(&slot)));
            let runs: Vec<_> = set.runs_in_neither(&other, queried.0..queried.1).collect();
            let flat: Vec<u64> = runs.iter().cloned().flatten().collect();
            let expected: Vec<u64> =
                (queried.0..queried.1).filter(|slot| !tree.contains(slot) && !other.contains(*slot)).collect();
            prop_assert_eq!(flat, expected);
            prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            let only: Vec<u64> = set.runs_not_in(&other, queried.0..queried.1).flatten().collect();
            let expected: Vec<u64> =
                (queried.0..queried.1).filter(|slot| tree.contains(slot) && !other.contains(*slot)).collect();
            prop_assert_eq!(only, expected);
        }
    }
}
