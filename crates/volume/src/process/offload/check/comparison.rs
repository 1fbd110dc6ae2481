//! Compares digests of several replicas. Does no I/O.

use std::collections::BTreeMap;

use crate::publish::{DATA_PART_BYTES, DataPart, Digest, InodeDigest};
use crate::record::InodeNumber;

/// Returns the indices of damaged replicas; empty if this cannot be decided. The replica `good` is correct if it is given;
/// otherwise the majority is.
pub(super) fn find_damaged<T: PartialEq>(values: &[T], good: Option<usize>) -> Vec<usize> {
    let has_majority = |value: &&T| 2 * values.iter().filter(|other| other == value).count() > values.len();
    let right = match good {
        Some(good) => values.get(good),
        None => values.iter().find(has_majority),
    };
    let Some(right) = right else { return Vec::new() };
    (0..values.len()).filter(|index| values[*index] != *right).collect()
}

/// Whether all values are equal.
pub(super) fn are_equal<T: PartialEq>(values: &[T]) -> bool {
    values.windows(2).all(|pair| pair[0] == pair[1])
}

/// Returns the inodes that differ between replicas, with the digest of each replica.
pub(super) fn differing_inodes(replicas: &[Vec<InodeDigest>]) -> Vec<(InodeNumber, Vec<Option<Digest>>)> {
    let mut inodes: BTreeMap<InodeNumber, Vec<Option<Digest>>> = BTreeMap::new();
    for (index, digests) in replicas.iter().enumerate() {
        for digest in digests {
            inodes.entry(digest.inode).or_insert_with(|| vec![None; replicas.len()])[index] = Some(digest.digest);
        }
    }
    inodes.into_iter().filter(|(_, digests)| !are_equal(digests)).collect()
}

/// Returns the parts of all files, each with its number of bytes.
pub(super) fn data_parts(inodes: &[InodeDigest]) -> impl Iterator<Item = (DataPart, u64)> {
    inodes.iter().flat_map(|digest| {
        let count = digest.data_bytes.div_ceil(DATA_PART_BYTES);
        let bytes_of = |index: u64| DATA_PART_BYTES.min(digest.data_bytes - index * DATA_PART_BYTES);
        (0..count).map(move |index| (DataPart { inode: digest.inode, index }, bytes_of(index)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(number: u64, data_bytes: u64, digest: u8) -> InodeDigest {
        InodeDigest { inode: InodeNumber(number), data_bytes, digest: [digest; 32] }
    }

    #[test]
    fn the_majority_is_right_unless_a_replica_is_named() {
        assert_eq!(find_damaged(&[1, 1, 2], None), [2]);
        assert_eq!(find_damaged(&[1, 2, 2], None), [0]);
        assert_eq!(find_damaged(&[1, 2], None), [0; 0], "no majority");
        assert_eq!(find_damaged(&[1, 1, 2, 2], None), [0; 0]);
        assert_eq!(find_damaged(&[1, 2, 3], None), [0; 0]);
        assert_eq!(find_damaged(&[1, 2, 2], Some(0)), [1, 2]);
        assert_eq!(find_damaged(&[1], None), [0; 0]);
    }

    #[test]
    fn missing_and_different_inodes_are_found() {
        let first = vec![inode(1, 0, 1), inode(2, 5, 1), inode(3, 0, 1)];
        let second = vec![inode(1, 0, 1), inode(2, 5, 2)];
        let differing = differing_inodes(&[first, second]);
        let expected =
            [(InodeNumber(2), vec![Some([1; 32]), Some([2; 32])]), (InodeNumber(3), vec![Some([1; 32]), None])];
        assert_eq!(differing, expected);
    }

    #[test]
    fn every_byte_of_a_file_is_in_one_part() {
        let inodes = [inode(1, 0, 0), inode(2, 2 * DATA_PART_BYTES + 1, 0), inode(3, 5, 0)];
        let parts: Vec<_> = data_parts(&inodes).map(|(part, bytes)| (part.inode.0, part.index, bytes)).collect();
        assert_eq!(parts, [(2, 0, DATA_PART_BYTES), (2, 1, DATA_PART_BYTES), (2, 2, 1), (3, 0, 5)]);
    }
}
